"""How large each head is, how much it reads and for how long it learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase as Tokenizer

from scripts.train_heads.prompts import beginnings, chat_prompts


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rounds over all texts, in batches of so many."""

    rounds: int
    batch: int
    peak_lr: float


@dataclass(frozen=True, slots=True)
class Recipe:
    """For the heads of one target."""

    prompts: Callable[[Tokenizer], list[list[int]]]
    """What the target is asked."""
    num_self_asked: int
    """Questions of its own that it is asked as well; none of a target that does not chat."""
    num_tokens: int
    """Answer tokens that are learned from."""
    max_tokens: int
    """Of one answer."""
    draft_vocab_size: int
    eagle: Schedule
    eagle_passes: int
    medusa: Schedule
    medusa_heads: int


#: An EAGLE head for SmolLM2 reads 13 MB a draft, a twentieth of the model; with the whole vocabulary it would be 65 MB.
RECIPES = {
    "smollm2-135m": Recipe(
        prompts=chat_prompts,
        num_self_asked=4800,
        num_tokens=400_000,
        max_tokens=192,
        draft_vocab_size=4096,
        eagle=Schedule(rounds=4, batch=4, peak_lr=1.5e-3),
        eagle_passes=2,
        medusa=Schedule(rounds=4, batch=8, peak_lr=1.5e-3),
        medusa_heads=4,
    ),
    "orrery-tiny": Recipe(
        prompts=beginnings,
        num_self_asked=0,
        num_tokens=150_000,
        max_tokens=128,
        draft_vocab_size=1024,
        eagle=Schedule(rounds=6, batch=8, peak_lr=2e-3),
        eagle_passes=3,
        medusa=Schedule(rounds=8, batch=8, peak_lr=2e-3),
        medusa_heads=4,
    ),
}
