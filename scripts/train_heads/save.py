"""A trained head as the folder that the engine loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.models.draft_head import TARGET_IDS
from engine.models.eagle_head import EAGLE_HEAD
from engine.models.medusa_head import MEDUSA_HEAD
from scripts.train_heads.head import DraftVocabulary, HeadInTraining

Kind = Literal["eagle", "medusa"]
_ARCHITECTURES: dict[Kind, str] = {"eagle": EAGLE_HEAD, "medusa": MEDUSA_HEAD}


def save_head(head: HeadInTraining, vocabulary: DraftVocabulary, kind: Kind, target: str, folder: Path) -> None:
    """Write `config.json` and `model.safetensors`, in bfloat16.

    Args:
        head: as it is now.
        vocabulary: what it drafts in.
        kind: of head.
        target: name of the model that it was made for.
        folder: is made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": f"{kind}_head",
        "target": target,
        "vocab_size": vocabulary.vocab_size,
        "draft_vocab_size": vocabulary.size,
        "dtype": "bfloat16",
        **head.config(),
    }
    tensors: dict[str, Tensor] = {
        name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in head.tensors().items()
    }
    if not vocabulary.is_whole:
        tensors[TARGET_IDS] = vocabulary.target_ids
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
