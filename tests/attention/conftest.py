"""Without a GPU, Triton's kernels run in its interpreter."""

from __future__ import annotations

import os

import torch

# Read when Triton is imported, which nothing does before the first launch.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
