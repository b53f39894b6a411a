"""What the heads that draft have in common: their folder, the vocabulary they draft in, and their products.

A head's folder holds `config.json`, which names the kind of head as its architecture and the target that it was made
for, and `model.safetensors`. A head that drafts in a part of the vocabulary only reads that many rows of an output
head, which is most of what a draft costs a small model; `target_ids` of the file says which tokens they are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.errors import ModelError
from engine.models.architecture import Architecture
from engine.models.config_file import ConfigFile
from kernels.cpu import operations
from kernels.cpu.packing import PackedMatrix

Product = Callable[[Tensor], Tensor]
"""[rows, in_features] → [rows, out_features]."""

TARGET_IDS = "target_ids"


def read_head_config(folder: Path, kind: str, target: Architecture) -> ConfigFile:
    """The `config.json` of a head of this kind for this target.

    Raises:
        ModelError: another kind of model, or a head for another target.
    """
    config = ConfigFile.read(folder / "config.json")
    kinds = config.texts("architectures")
    if kinds != [kind]:
        raise ModelError(f"{folder} must hold a draft head of architecture {kind}, got {', '.join(kinds) or 'none'}.")
    for name, expected in (("hidden_size", target.hidden_size), ("vocab_size", target.vocab_size)):
        if config.integer(name) != expected:
            made_for = config.text("target") or "another model"
            raise ModelError(
                f"The draft head in {folder} is made for {made_for}: its {name} is {config.integer(name)}, "
                f"the model's {expected}."
            )
    return config


def draft_vocab_size(config: ConfigFile) -> int:
    """Tokens that a head can propose.

    Raises:
        ModelError: more than there are.
    """
    return config.integer("draft_vocab_size", high=config.integer("vocab_size"))


def empty_target_ids(config: ConfigFile, device: torch.device) -> Tensor | None:
    """[draft_vocab_size] int64 to be filled; None where the head drafts in the whole vocabulary."""
    num_drafted = draft_vocab_size(config)
    if num_drafted == config.integer("vocab_size"):
        return None
    return torch.empty(num_drafted, dtype=torch.int64, device=device)


def require_target_ids(target_ids: Tensor | None, vocab_size: int, folder: Path) -> None:
    """Refuse a table that is not ascending, which would name a token twice, or leaves the vocabulary.

    Raises:
        ModelError: it is such a table.
    """
    if target_ids is None:
        return
    ascending = bool((target_ids.diff() > 0).all())
    if not ascending or int(target_ids[0]) < 0 or int(target_ids[-1]) >= vocab_size:
        raise ModelError(f"{TARGET_IDS} in {folder} must be ascending token ids in [0, {vocab_size - 1}].")


def product(weight: Tensor, bias: Tensor | None, *, packed: bool) -> Product:
    """x Wᵀ + b, by the CPU's own kernel over panels, in float32, or by torch.

    Args:
        weight: [out_features, in_features].
        bias: [out_features] or None.
        packed: whether the kernel is used.
    """
    if not packed:
        return lambda x: F.linear(x.to(weight.dtype), weight, bias)
    matrix = PackedMatrix(weight, bias)
    return lambda x: operations.linear(x.float(), matrix)
