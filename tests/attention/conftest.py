"""Triton's kernels run wherever the tests do."""

from __future__ import annotations

import tests.interpreted  # noqa: F401
