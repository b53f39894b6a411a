"""Two moments: which requests moved, which blocks changed hands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sim.field_differences import FieldDifference
from sim.pool import BlockState
from sim.request_state import RequestState
from sim.state import State


class Changed(NamedTuple):
    """A request or a block, and in what it differs."""

    name: str
    """`r3`, `block 12`."""
    fields: list[FieldDifference]


class StateDiff(NamedTuple):
    """How two states differ."""

    queues: list[FieldDifference]
    """Of the running and the waiting requests, as names in order."""
    requests: list[Changed]
    pool: list[FieldDifference]
    """How many blocks are in use, shared, cached, free."""
    blocks: list[Changed]

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return not any(self)


def diff_states(first: State, second: State) -> StateDiff:
    """Compare two states of one run, or of two runs of the same requests."""
    return StateDiff(
        queues=[
            *_different("running", _names(first.running), _names(second.running)),
            *_different("waiting", _names(first.waiting), _names(second.waiting)),
        ],
        requests=list(_requests(first, second)),
        pool=_differing(_counts(first), _counts(second)),
        blocks=list(_blocks(first, second)),
    )


def _counts(state: State) -> dict[str, Any]:
    return {f"{kind} blocks": number for kind, number in state.pool.counts().items()}


def _requests(first: State, second: State) -> Iterator[Changed]:
    for serial in dict.fromkeys([*first.requests, *second.requests]):
        fields = _differing(_request_facts(first.requests.get(serial)), _request_facts(second.requests.get(serial)))
        if fields:
            yield Changed(f"r{serial}", fields)


def _request_facts(request: RequestState | None) -> dict[str, Any]:
    if request is None:
        return {"status": "not there"}
    return {
        "status": request.status.value,
        "computed tokens": request.num_computed_tokens,
        "output tokens": len(request.output_token_ids),
        "drafts": request.draft_token_ids,
        "blocks": [block_id for table in request.block_ids for block_id in table],
        "preemptions": request.num_preemptions,
    }


def _blocks(first: State, second: State) -> Iterator[Changed]:
    """Blocks that are in other hands, or hold something else; of pools of two sizes, those that both have."""
    for block_id in range(min(first.pool.num_blocks, second.pool.num_blocks)):
        if _raw(first, block_id) != _raw(second, block_id):
            facts = _block_facts(first.pool.block(block_id)), _block_facts(second.pool.block(block_id))
            fields = _differing(*facts)
            if fields:
                yield Changed(f"block {block_id}", fields)


def _raw(state: State, block_id: int) -> tuple[Any, ...]:
    pool = state.pool
    return pool.ref_counts[block_id], pool.hashes[block_id], pool.owners[block_id]


def _block_facts(block: BlockState) -> dict[str, Any]:
    return {
        "state": block.kind,
        "held by": _names(block.owners),
        "hash": block.hash and f"{block.hash[:8]}…",
    }


def _differing(first: dict[str, Any], second: dict[str, Any]) -> list[FieldDifference]:
    names = dict.fromkeys([*first, *second])
    return [part for name in names for part in _different(name, first.get(name), second.get(name))]


def _different(name: str, first: Any, second: Any) -> list[FieldDifference]:
    return [] if first == second else [FieldDifference(name, first, second)]


def _names(serials: Any) -> list[str]:
    return [f"r{serial}" for serial in serials]
