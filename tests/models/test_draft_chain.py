"""Drafts in one call are those that one pass at a time gives, for drafters with and without states of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.attention.backend import AttentionInputs
from engine.layers.attention import AttentionMetadata
from engine.models.eagle_head import PackedEagleHead
from engine.models.packed_decoder import PackedDecoder
from engine.worker.kv_cache import CacheShape, bind_kv_cache
from kernels.cpu.draft_chain import NOTHING, Drafter, draft_chain
from kernels.cpu.packing import PackedMatrix
from tests.models.random_models import save_random_model
from tests.models.test_decoder import BLOCK_SIZE, NUM_BLOCKS, backend_of, load_packed
from tests.models.test_draft_heads import DRAFTED, load_eagle, require_loading, saved

#: Tokens of each request before its first draft; their blocks lie in no order.
LENGTHS = torch.tensor([5, 9, 2, 16])
WANTED = torch.tensor([3, 1, 2, 4])
TABLES = torch.randperm(NUM_BLOCKS - 1, generator=torch.Generator().manual_seed(3))[:24].view(4, 6).int() + 1


class Passes:
    """A drafter over a KV cache, one pass at a time."""

    def __init__(self, decoder: PackedDecoder) -> None:
        self.decoder = decoder
        self.backend = backend_of(decoder)
        bind_kv_cache(decoder, CacheShape.of(decoder, BLOCK_SIZE), NUM_BLOCKS, self.backend)

    def metadata(self, request: int, positions: Tensor) -> AttentionMetadata:
        """One request's tokens at some positions in a row."""
        table = TABLES[request : request + 1]
        slots = table[0, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
        ends = torch.tensor([0, len(positions)]), positions[-1:] + 1
        inputs = AttentionInputs(table, *ends, slots)
        return AttentionMetadata((self.backend.plan(inputs, inputs, None),))


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Threads share out the rows of the head, and all must agree on the largest."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def middle(probs: list[list[float]]) -> float:
    """A threshold that some of the drafts behind which more were wanted pass and others do not."""
    return float(torch.tensor([prob for each in probs for prob in each[:-1]]).median()) * 1.0001


def kept(drafts: list[list[int]], probs: list[list[float]], threshold: float) -> list[list[int]]:
    """What is drafted where nothing is drafted behind a less likely one."""
    ends = [next((n for n, prob in enumerate(each) if prob < threshold), len(each)) + 1 for each in probs]
    return [each[:end] for each, end in zip(drafts, ends, strict=True)]


def drafts_of(chain: Tensor) -> list[list[int]]:
    """By request; `NOTHING` stands behind all of them."""
    columns = [[token for token in column if token != NOTHING] for column in chain.T.tolist()]
    assert all(set(each[len(own) :]) <= {NOTHING} for each, own in zip(chain.T.tolist(), columns, strict=True))
    return columns


@pytest.mark.parametrize("target_ids", [DRAFTED, torch.arange(131)], ids=["trimmed", "whole"])
@torch.inference_mode()
def test_an_eagle_head(target_ids: Tensor, tmp_path: Path) -> None:
    require_loading(packed=True)
    _, folder = saved(tmp_path, "eagle", target_ids)
    head = load_eagle(folder, tmp_path / "target", packed=True)
    assert isinstance(head, PackedEagleHead) and isinstance(head.decoder, PackedDecoder)
    drafter = Passes(head.decoder)
    last, expected, probs = [], [], []
    for request, length in enumerate(LENGTHS.tolist()):
        positions, token_ids = torch.arange(length), torch.randint(0, 131, (length,))
        metadata = drafter.metadata(request, positions)
        state = head(token_ids, torch.randn(length, 64), positions, metadata)[-1:]
        last.append(state)
        drafts: list[int] = []
        likely: list[float] = []
        for number in range(int(WANTED[request])):
            prob, place = head.compute_logits(state)[0].softmax(-1).max(-1)
            drafts.append(int(target_ids[place]))
            likely.append(float(prob))
            at = torch.tensor([length + number])
            state = head(torch.tensor(drafts[-1:]), state, at, drafter.metadata(request, at))
        expected.append(drafts)
        probs.append(likely)
    chain = head.likeliest_chain(torch.cat(last), LENGTHS, WANTED, TABLES)
    assert chain.shape == (4, 4)
    assert drafts_of(chain) == expected
    threshold = middle(probs)
    sure = head.likeliest_chain(torch.cat(last), LENGTHS, WANTED, TABLES, threshold)
    assert drafts_of(sure) == kept(expected, probs, threshold) != expected
    assert len({draft for drafts in expected for draft in drafts}) >= 3, "drafts this alike would match by accident"


@torch.inference_mode()
def test_a_draft_model(tmp_path: Path) -> None:
    require_loading(packed=True)
    save_random_model(tmp_path, "llama tied")
    drafter = Passes(load_packed(tmp_path))
    decoder = drafter.decoder
    last, expected, probs = [], [], []
    for request, length in enumerate(LENGTHS.tolist()):
        positions, token_ids = torch.arange(length), torch.randint(0, 131, (length,))
        state = decoder(token_ids, positions, drafter.metadata(request, positions))[-1:]
        last.append(state)
        drafts: list[int] = []
        likely: list[float] = []
        for number in range(int(WANTED[request])):
            prob, token_id = decoder.compute_logits(state)[0].softmax(-1).max(-1)
            drafts.append(int(token_id))
            likely.append(float(prob))
            at = torch.tensor([length + number])
            state = decoder(torch.tensor(drafts[-1:]), at, drafter.metadata(request, at))
        expected.append(drafts)
        probs.append(likely)
    chain = draft_chain(decoder.drafter(), torch.cat(last), LENGTHS, WANTED, TABLES)
    assert drafts_of(chain) == expected
    threshold = middle(probs)
    sure = draft_chain(decoder.drafter(), torch.cat(last), LENGTHS, WANTED, TABLES, threshold)
    assert drafts_of(sure) == kept(expected, probs, threshold) != expected


@pytest.fixture
def decoder(tmp_path: Path) -> PackedDecoder:
    require_loading(packed=True)
    save_random_model(tmp_path, "llama tied")
    return Passes(load_packed(tmp_path)).decoder


def test_what_no_draft_can_be_drawn_from_is_told_and_hurts_nobody_else(decoder: PackedDecoder) -> None:
    states = torch.randn(4, 64)
    whole = draft_chain(decoder.drafter(), states, LENGTHS, WANTED, TABLES)
    for bad in (torch.nan, torch.inf):
        states[1] = bad
        chain = draft_chain(decoder.drafter(), states, LENGTHS, WANTED, TABLES)
        assert chain[0, 1] == NOTHING
        assert torch.equal(chain[:, [0, 2, 3]], whole[:, [0, 2, 3]])


def with_head(decoder: PackedDecoder, head: Tensor) -> Drafter:
    angles = decoder._cos, decoder._sin
    layers = decoder._bound_layers().layers
    return Drafter(decoder._embedding, None, layers, decoder._norm, decoder._eps, PackedMatrix(head), None, angles)


def test_of_equal_logits_the_first_one_wins_and_padding_never(decoder: PackedDecoder) -> None:
    one = torch.ones(4, dtype=torch.int64)
    alike = with_head(decoder, torch.ones(131, 64))
    assert draft_chain(alike, -torch.ones(4, 64), LENGTHS, one, TABLES).tolist() == [[0, 0, 0, 0]]
    rising = with_head(decoder, torch.arange(131.0).clamp(max=97)[:, None].expand(131, 64))
    assert draft_chain(rising, torch.ones(4, 64), LENGTHS, one, TABLES).tolist() == [[97, 97, 97, 97]]


def test_rows_that_do_not_fit_are_refused(decoder: PackedDecoder) -> None:
    for states, tables, said in (
        (torch.zeros(3, 64), TABLES, "beside 3 rows of states there must be as many of torch.int64"),
        (torch.zeros(4, 63), TABLES, r"states must be \[rows, 64\]"),
        (torch.zeros(4, 64), TABLES.long(), "as many of torch.int32, got torch.int64"),
    ):
        with pytest.raises(ValueError, match=said):
            draft_chain(decoder.drafter(), states, LENGTHS, WANTED, tables)
