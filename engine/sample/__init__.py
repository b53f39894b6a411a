"""Choosing tokens: the sampler, from logits and each row's parameters to one token per row.

Used by `engine.worker`; imports torch, `kernels`, and of the engine what its parameters and log probabilities are.
"""
