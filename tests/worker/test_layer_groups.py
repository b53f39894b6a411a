"""Layers sorted into KV cache groups of one window and one size."""

from __future__ import annotations

import pytest

from engine.worker.layer_groups import group_layers


@pytest.mark.parametrize(
    ("sliding_windows", "groups"),
    [
        ([None] * 3, {(None, (0, 1, 2))}),
        ([8] * 3, {(8, (0, 1, 2))}),
        ([8, None] * 2, {(None, (1, 3)), (8, (0, 2))}),
        ([None, 8, 8], {(None, (0,)), (8, (1,)), (8, (2,))}),
        ([None, 8, 8] * 2, {(None, (0, 3)), (8, (1, 4)), (8, (2, 5))}),
        ([8, 8, 8, None, 8, 8, None], {(None, (3, 6)), (8, (0, 4)), (8, (1, 5)), (8, (2,))}),
        ([8, 16, None], {(None, (2,)), (8, (0,)), (16, (1,))}),
        # Six of one kind and five of another are as good as equal; five and four are not.
        ([None, 8] * 5 + [None], {(None, (0, 2, 4, 6, 8, 10)), (8, (1, 3, 5, 7, 9))}),
        ([None, 8] * 4 + [None], {(None, (0, 4, 8)), (None, (2, 6)), (8, (1, 3, 5, 7))}),
    ],
)
def test_layers_of_a_window_are_split_to_the_size_of_the_smallest_kind(
    sliding_windows: list[int | None], groups: set[tuple[int | None, tuple[int, ...]]]
) -> None:
    found = group_layers(sliding_windows)
    assert {(group.sliding_window, group.layers) for group in found} == groups
    assert sorted(layer for group in found for layer in group.layers) == list(range(len(sliding_windows)))


def test_full_attention_comes_first() -> None:
    assert [group.sliding_window for group in group_layers([16, 8, None])] == [None, 8, 16]
