"""Choosing tokens: the sampler, from logits and each row's parameters to one token per row.

Used by `engine.worker`; imports torch, `kernels` and nothing else of the engine.
"""
