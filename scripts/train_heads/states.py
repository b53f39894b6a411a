"""The target's states over its texts: what heads start from, and what they are compared with.

One forward pass per text; the states after the last norm, which are what the engine hands to whoever drafts, go to
disk as float16, text after text. A run that was cut short goes on with the first text that is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm
from transformers import LlamaForCausalLM

from scripts.train_heads.texts import Text

_BYTES = 2


@torch.inference_mode()
def write_states(target: LlamaForCausalLM, texts: Sequence[Text], path: Path) -> NDArray[np.float16]:
    """The states of all texts, [tokens, hidden_size], those of the file kept.

    Args:
        target: the model, in float32.
        texts: in the order of the file, which they may be a continuation of.
        path: the file that states are appended to.
    """
    hidden_size = target.config.hidden_size
    lengths = [len(text.token_ids) for text in texts]
    ends = np.cumsum(lengths)
    whole = (path.stat().st_size if path.exists() else 0) // (_BYTES * hidden_size)
    first = int(np.searchsorted(ends, whole, side="right"))
    with path.open("ab") as file:
        # What was cut off in the middle of a text is written anew.
        file.truncate(int(ends[first - 1]) * hidden_size * _BYTES if first else 0)
        for text in tqdm(texts[first:], initial=first, total=len(texts), unit=" texts", desc="states"):
            hidden = target.model(torch.tensor([text.token_ids])).last_hidden_state[0]
            file.write(hidden.half().numpy().tobytes())
    return np.memmap(path, np.float16, "r", shape=(int(ends[-1]), hidden_size))
