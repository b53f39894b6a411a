"""Which layers share their block tables: the KV cache groups of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: Groups of almost equal size are not split: a little room in each block is wasted instead.
WORTH_PADDING = 1.25


class LayerGroup(NamedTuple):
    """Layers with the same sliding window, no more of them than a block has room for."""

    sliding_window: int | None
    layers: tuple[int, ...]
    """Counted from 0."""


def group_layers(sliding_windows: Sequence[int | None]) -> tuple[LayerGroup, ...]:
    """Sort layers into groups of one window and, as far as it goes, of one size; full attention first.

    All groups draw on one pool, so a block must have the same bytes for each, that is, hold as many layers. The
    smallest kind of layers sets the size, and larger kinds are split::

        3 layers of full attention, 6 with a window  ─►  one group of 3, two of 3
        6 layers of full attention, 5 with a window  ─►  one of each: a sixth of a block is unused in the second

    Source: vLLM V1, grouping of uniform page sizes.

    Args:
        sliding_windows: per layer; None: full attention.
    """
    kinds: dict[int | None, list[int]] = {}
    for layer, window in enumerate(sliding_windows):
        kinds.setdefault(window, []).append(layer)
    sizes = [len(layers) for layers in kinds.values()]
    size = max(sizes) if max(sizes) < WORTH_PADDING * min(sizes) else min(sizes)
    groups: list[LayerGroup] = []
    for window in sorted(kinds, key=lambda window: -1 if window is None else window):
        layers = kinds[window]
        num_groups = -(-len(layers) // size)
        # Every so many-th layer, so that groups differ in size by one layer at most.
        groups += (LayerGroup(window, tuple(layers[first::num_groups])) for first in range(num_groups))
    return tuple(groups)
