"""The tensors of a step against its plan: what the worker built is what the scheduler decided."""

from __future__ import annotations

from typing import NamedTuple

from engine.trace import events as ev
from sim.invariants.invariant import Invariant, Sentences, after, before
from sim.state import State


class SuperSequence(Invariant):
    """Needs a trace of level forward."""

    name = "super-sequence"
    statement = "The forward pass runs the planned tokens at their positions, into the slots of their block tables."

    def __init__(self, header: ev.Header) -> None:
        super().__init__(header)
        self._watches = header.level in ("forward", "full")
        self._plans: dict[int, dict[int, _Row]] = {}

    @after(ev.StepScheduled)
    def planned(self, state: State, event: ev.StepScheduled) -> Sentences:
        # Kept from the moment of the plan: by the time the tensors are told of, an abort may have freed the blocks.
        if self._watches and state.plan is not None:
            self._plans[event.step] = {
                serial: _Row(
                    first=row.num_computed_tokens,
                    past=row.num_computed_tokens + row.num_scheduled_tokens,
                    token_ids=[*state.requests[serial].token_ids, *row.draft_token_ids],
                    num_awaited=row.num_awaited_tokens,
                    tables=[table.copy() for table in state.requests[serial].block_ids],
                )
                for serial, row in state.plan.rows.items()
            }
        yield from ()

    @before(ev.ForwardInputs)
    def built(self, state: State, event: ev.ForwardInputs) -> Sentences:
        rows = self._plans.pop(event.step, {})
        if sorted(event.requests) != sorted(rows):
            yield f"the forward pass runs {event.requests}, the plan was for {list(rows)}"
            return
        if event.query_start_loc[-1] != len(event.input_ids):
            yield f"query_start_loc ends at {event.query_start_loc[-1]}, there are {len(event.input_ids)} tokens"
        for index, serial in enumerate(event.requests):
            yield from self._row(f"r{serial}", rows[serial], event, index)

    def _row(self, name: str, row: _Row, event: ev.ForwardInputs, index: int) -> Sentences:
        start, end = event.query_start_loc[index : index + 2]
        size = self.header.kv_cache.block_size
        num_run, num_planned = len(event.positions[start:end]), row.past - row.first
        if num_run != num_planned:  # before anything is counted out: a false number may be of any size
            yield f"{name} runs {num_run} tokens, planned were {num_planned}"
            return
        token_ids, positions = row.token_ids[row.first : row.past], list(range(row.first, row.past))
        if event.positions[start:end] != positions:
            yield f"{name} runs positions {event.positions[start:end]}, planned were {row.first} to {row.past - 1}"
        if event.seq_lens[index] != row.past:
            yield f"{name} attends to {event.seq_lens[index]} tokens, it has {row.past}"
        # Tokens that were still to be sampled when the step was planned can only be counted.
        num_awaited = len(positions) - len(token_ids)
        if num_awaited > row.num_awaited or event.input_ids[start : end - num_awaited] != token_ids:
            yield f"the tokens of {name} are {token_ids}, run were {event.input_ids[start:end]}"
        tables, mappings = (
            [event.block_tables, *event.more_block_tables],
            [event.slot_mapping, *event.more_slot_mappings],
        )
        for table, ran, mapping in zip(row.tables, tables, mappings, strict=True):
            if [block_id and run for block_id, run in zip(table, ran[index], strict=True)] != table:
                yield f"the block table of {name} is {table}, run was {ran[index]}"
            slots = [table[position // size] * size + position % size for position in positions]
            if mapping[start:end] != slots:
                yield f"the KV of {name} belongs into slots {slots}, it went to {mapping[start:end]}"


class _Row(NamedTuple):
    """A planned row, as it was when the plan was complete."""

    first: int
    past: int
    token_ids: list[int]
    num_awaited: int
    tables: list[list[int]]
    """Per KV cache group; 0 where a sliding window has passed, and the worker may still name the block it had."""


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


FORWARD_INVARIANTS: tuple[type[Invariant], ...] = (SuperSequence, SampledTokens)
