"""Which steps are captured, and at which size."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.worker.dispatch import CAPTURE_SIZES, ExecutionMode, GraphDispatcher, capture_sizes


def test_the_default_sizes_are_those_of_vllm() -> None:
    assert CAPTURE_SIZES[:6] == (1, 2, 4, 8, 16, 24)
    assert (CAPTURE_SIZES[-1], len(CAPTURE_SIZES)) == (512, 67)


@pytest.mark.parametrize(
    ("asked", "max_num_seqs", "sizes"),
    [
        (None, 1, (1,)),
        (None, 3, (1, 2, 4)),
        (None, 16, (1, 2, 4, 8, 16)),
        (None, 17, (1, 2, 4, 8, 16, 24)),
        (None, 10_000, CAPTURE_SIZES),
        ([6, 2, 6, 40], 5, (2, 6)),
        ([6, 2], 100, (2, 6)),
        ([], 100, ()),
    ],
)
def test_no_more_is_captured_than_there_can_be_requests(
    asked: list[int] | None, max_num_seqs: int, sizes: tuple[int, ...]
) -> None:
    assert capture_sizes(asked, max_num_seqs) == sizes


def test_decodes_are_padded_to_the_next_size() -> None:
    dispatcher = GraphDispatcher((1, 2, 4, 8))
    found = [dispatcher.dispatch(n, n, has_embeds=False) for n in range(1, 10)]
    assert [each.num_padded_tokens for each in found] == [1, 2, 4, 4, 8, 8, 8, 8, 9]
    assert [each.mode for each in found] == ["captured"] * 8 + ["eager"]


@pytest.mark.parametrize(
    ("sizes", "num_tokens", "num_requests", "has_embeds"),
    [
        ((1, 2, 4), 5, 3, False),  # a piece of a prompt among them
        ((1, 2, 4), 2, 2, True),  # embeddings in place of token ids
        ((), 2, 2, False),  # nothing was captured
    ],
)
def test_all_else_is_eager_and_not_padded(
    sizes: tuple[int, ...], num_tokens: int, num_requests: int, has_embeds: bool
) -> None:
    found = GraphDispatcher(sizes).dispatch(num_tokens, num_requests, has_embeds=has_embeds)
    assert found == ExecutionMode("eager", num_tokens)


def test_sizes_below_one_are_refused() -> None:
    assert EngineConfig.from_args("m", cudagraph_capture_sizes=[4, 1]).execution.cudagraph_capture_sizes == (4, 1)
    with pytest.raises(ConfigError, match="cudagraph_capture_sizes must be an integer >= 1, got 0"):
        EngineConfig.from_args("m", cudagraph_capture_sizes=[4, 0])
