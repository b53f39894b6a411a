"""Speculative decoding on the worker's side: who proposes drafts, and which logits verify them.

`proposer.py` what a drafter is · `ngram_proposer.py` an earlier match · `draft_model.py` a smaller model ·
`metadata.py` where the drafts of a step lie among its logits. Used by `engine.worker`; whether a draft is accepted is
decided by `engine.sample.rejection_sampler`.
"""
