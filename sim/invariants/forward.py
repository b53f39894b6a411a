"""The tensors of a step against its plan: what the worker built is what the scheduler decided."""

from __future__ import annotations

from collections.abc import Iterator

from engine.trace import events as ev
from sim.invariants.invariant import Invariant, Sentences, before
from sim.plan import PlanState
from sim.state import State


class SuperSequence(Invariant):
    """Needs a trace of level forward."""

    name = "super-sequence"
    statement = "The forward pass runs the planned tokens at their positions, into the slots of their block tables."

    @before(ev.ForwardInputs)
    def rows(self, state: State, event: ev.ForwardInputs) -> Sentences:
        plan = state.in_flight.get(event.step)
        if plan is None or sorted(event.requests) != sorted(plan.rows):
            yield f"the forward pass runs {event.requests}, the plan was for {list(plan.rows) if plan else []}"
            return
        if event.query_start_loc[-1] != len(event.input_ids):
            yield f"query_start_loc ends at {event.query_start_loc[-1]}, there are {len(event.input_ids)} tokens"
        for index, serial in enumerate(event.requests):
            yield from self._row(state, plan, event, index, serial)

    def _row(self, state: State, plan: PlanState, event: ev.ForwardInputs, index: int, serial: int) -> Sentences:
        row, request = plan.rows[serial], state.requests[serial]
        start, end = event.query_start_loc[index : index + 2]
        first, past = row.num_computed_tokens, row.num_computed_tokens + row.num_scheduled_tokens
        if event.positions[start:end] != list(range(first, past)):
            yield f"{request.name} runs positions {event.positions[start:end]}, planned were {first} to {past - 1}"
            return
        if event.seq_lens[index] != past:
            yield f"{request.name} attends to {event.seq_lens[index]} tokens, it has {past}"
        token_ids = request.token_ids[first:past]
        if event.input_ids[start:end] != token_ids:
            yield f"the tokens of {request.name} are {token_ids}, run were {event.input_ids[start:end]}"
        table = request.block_ids[0]
        if event.block_tables[index] != table:
            yield f"the block table of {request.name} is {table}, run was {event.block_tables[index]}"
        if event.slot_mapping[start:end] != list(_slots(table, state.block_size, first, past)):
            yield f"the KV of {request.name} goes to slots {event.slot_mapping[start:end]}, not to its own"


class SampledTokens(Invariant):
    """Needs a trace of level forward."""

    name = "sampled tokens"
    statement = "The tokens that the sampler took are the tokens that came back."

    def __init__(self, header: ev.Header) -> None:
        super().__init__(header)
        self._sampled: dict[int, dict[int, int]] = {}

    @before(ev.ForwardLogits)
    def sampled(self, state: State, event: ev.ForwardLogits) -> Sentences:
        self._sampled[event.step] = dict(zip(event.requests, event.sampled_token_ids, strict=True))
        yield from ()

    @before(ev.StepOutput)
    def came_back(self, state: State, event: ev.StepOutput) -> Sentences:
        returned = dict(zip(event.requests, event.sampled_token_ids, strict=True))
        for serial, token_id in self._sampled.pop(event.step, {}).items():
            if returned.get(serial, [])[-1:] != [token_id]:
                yield f"token {token_id} was sampled for r{serial}, {returned.get(serial)} came back"


def _slots(table: list[int], block_size: int, first: int, past: int) -> Iterator[int]:
    for position in range(first, past):
        yield table[position // block_size] * block_size + position % block_size


FORWARD_INVARIANTS: tuple[type[Invariant], ...] = (SuperSequence, SampledTokens)
