"""Without a GPU, Triton's kernels run in its interpreter. To be imported before anything that imports Triton."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
