"""Inputs at fixed places: what the kernels of a padded step read."""

from __future__ import annotations

import numpy as np
import torch

from engine.worker.input_buffers import InputBuffers, stay_on_host
from engine.worker.step_inputs import StepInputs

CPU = torch.device("cpu")


def step_of(query_lens: list[int], seq_lens: list[int], num_columns: int = 3, seed: int = 0) -> StepInputs:
    """A step of made-up numbers, in two KV cache groups."""
    generator = torch.Generator().manual_seed(seed)
    num_tokens, num_requests = sum(query_lens), len(query_lens)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randint(1, 1000, shape, generator=generator)

    return StepInputs(
        serials=list(range(num_requests)),
        rows=np.arange(num_requests),
        input_ids=drawn(num_tokens),
        positions=drawn(num_tokens),
        slot_mappings=(drawn(num_tokens), drawn(num_tokens)),
        query_start_loc=torch.tensor([0, *query_lens]).cumsum(0),
        seq_lens=torch.tensor(seq_lens),
        block_tables=(drawn(num_requests, num_columns).int(), drawn(num_requests, num_columns).int()),
        sampled=np.arange(num_requests),
        num_drafts=np.zeros(num_requests, dtype=np.int64),
    )


def buffers() -> InputBuffers:
    return InputBuffers(max_num_tokens=40, max_num_requests=8, max_blocks=5, num_groups=2, device=CPU)


def test_a_step_arrives_as_it_is() -> None:
    inputs = step_of([7, 1, 3], [9, 4, 3])
    placed, plain = buffers().place(inputs, 11), stay_on_host(inputs, 11)
    assert torch.equal(placed.input_ids, plain.input_ids)
    assert torch.equal(placed.positions, plain.positions)
    for group, expected in zip(placed.groups, plain.groups, strict=True):
        assert torch.equal(group.block_tables[:, :3], expected.block_tables)
        assert torch.equal(group.query_start_loc, expected.query_start_loc)
        assert torch.equal(group.seq_lens, expected.seq_lens)
        assert torch.equal(group.slot_mapping, expected.slot_mapping)


def test_padding_reads_and_writes_nothing() -> None:
    into = buffers()
    into.place(step_of([5] * 8, [9] * 8, num_columns=5), 40)  # what an earlier step left must not shine through
    inputs = step_of([1, 1, 1], [9, 4, 3])
    placed = into.place(inputs, 8)
    assert placed.input_ids.tolist() == inputs.input_ids.tolist() + [0] * 5
    assert placed.positions.tolist() == inputs.positions.tolist() + [0] * 5
    for number, group in enumerate(placed.groups):
        assert group.query_start_loc.tolist() == list(range(9))
        assert group.seq_lens.tolist() == [9, 4, 3] + [0] * 5
        assert group.slot_mapping.tolist() == inputs.slot_mappings[number].tolist() + [-1] * 5
        assert torch.equal(group.block_tables[:3, :3], inputs.block_tables[number])
        assert group.block_tables[3:, :3].eq(0).all()


def test_steps_of_one_size_lie_at_the_same_places() -> None:
    into = buffers()
    graph = into.place_padding(4)
    places = [tensor.data_ptr() for tensor in (graph.input_ids, graph.positions, *graph.groups[0], *graph.groups[1])]
    into.place(step_of([6, 1], [9, 4]), 7)
    for seed, num_columns in ((1, 2), (2, 5)):
        inputs = step_of([1, 1, 1], [4, 5, 6], num_columns, seed)
        placed = into.place(inputs, 4)
        again = (placed.input_ids, placed.positions, *placed.groups[0], *placed.groups[1])
        assert [tensor.data_ptr() for tensor in again] == places
        assert graph.input_ids[:3].tolist() == inputs.input_ids.tolist()
        assert torch.equal(graph.groups[1].block_tables[:3, :num_columns], inputs.block_tables[1])


def test_places_are_aligned() -> None:
    for size in (1, 3, 4):
        placed = buffers().place_padding(size)
        for tensor in (placed.input_ids, placed.positions, placed.groups[0].seq_lens, placed.groups[1].slot_mapping):
            assert (tensor.data_ptr() - placed.input_ids.data_ptr()) % 256 == 0


def test_a_step_of_padding_alone_attends_to_nothing() -> None:
    into = buffers()
    into.place(step_of([5] * 8, [9] * 8, num_columns=5), 40)
    placed = into.place_padding(4)
    assert placed.input_ids.tolist() == placed.positions.tolist() == [0] * 4
    for group in placed.groups:
        assert group.seq_lens.tolist() == [0] * 4
        assert group.slot_mapping.tolist() == [-1] * 4
        assert group.query_start_loc.tolist() == [0, 1, 2, 3, 4]
        assert group.block_tables.eq(0).all()
