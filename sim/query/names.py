"""What a question may name. Those of a step are one number a step; those of a row differ from request to request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from engine.metrics import IterationMetrics
from engine.trace.events import ScheduleRequest


class RequestName(NamedTuple):
    """A request under both its names: it equals either."""

    short: str
    """`r3`, by its serial."""
    request_id: str
    """What its client calls it."""

    def __eq__(self, other: object) -> bool:
        return other in (self.short, self.request_id)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.short)


class Row(NamedTuple):
    """What a request got in a step."""

    request: RequestName
    event: ScheduleRequest


class Name(NamedTuple):
    """A name that a question may use."""

    of: Literal["step", "row"]
    kind: Literal["number", "text"]
    meaning: str
    """In a few words, with the unit."""
    value: Callable[[Any], Any]
    """From `IterationMetrics` or `Row`."""


def _step(meaning: str, value: Callable[[IterationMetrics], float]) -> Name:
    return Name("step", "number", meaning, value)


def _number(meaning: str, value: Callable[[Row], float]) -> Name:
    return Name("row", "number", meaning, value)


def _text(meaning: str, value: Callable[[Row], object]) -> Name:
    return Name("row", "text", meaning, value)


NAMES: dict[str, Name] = {
    "step": _step("number of the step", lambda facts: facts.step),
    "tokens": _step("tokens of the super-sequence", lambda facts: facts.tokens),
    "prefill": _step("of these, tokens of prefills", lambda facts: facts.prefill_tokens),
    "decode": _step("of these, tokens of decodes", lambda facts: facts.decode_tokens),
    "budget": _step("max_num_batched_tokens, in tokens", lambda facts: facts.token_budget),
    "rows": _step("requests that got tokens", lambda facts: facts.num_rows),
    "running": _step("requests in the running queue as the step began", lambda facts: facts.num_running),
    "waiting": _step("requests in the waiting queue as the step began", lambda facts: facts.num_waiting),
    "output": _step("tokens that requests got out of it", lambda facts: facts.output_tokens),
    "finished": _step("requests that ended", lambda facts: facts.finishes),
    "preempted": _step("requests that lost their blocks", lambda facts: facts.preemptions),
    "free_blocks": _step("blocks that could be handed out once it was planned", lambda facts: facts.free_blocks),
    "used_blocks": _step("blocks that requests held then", lambda facts: facts.blocks_in_use),
    "kv_usage": _step("the same as a share of the pool, 0 to 1", lambda facts: facts.kv_cache_usage),
    "evicted": _step("cached blocks that were handed out again", lambda facts: facts.evictions),
    "queried": _step("tokens for which the prefix cache was asked", lambda facts: facts.queried_tokens),
    "hit": _step("of these, tokens that it had", lambda facts: facts.hit_tokens),
    "drafted": _step("draft tokens verified", lambda facts: sum(facts.drafted)),
    "accepted": _step("of these, drafts accepted", lambda facts: sum(facts.accepted)),
    "duration_ms": _step("milliseconds it took", lambda facts: facts.duration_ns / 1e6),
    "start_ms": _step("milliseconds from the begin of the trace to its own", lambda facts: facts.started_ns / 1e6),
    "request": _text("a request that got tokens: r3, or its id", lambda row: row.request),
    "phase": _text("prefill or decode", lambda row: row.event.phase),
    "admission": _text("running, new or resumed", lambda row: row.event.admission),
    "truncated_by": _text(
        "what cut it short: token_budget, long_prefill_token_threshold, max_model_len or nothing",
        lambda row: row.event.truncated_by or "nothing",
    ),
    "scheduled": _number("tokens it got", lambda row: row.event.num_scheduled_tokens),
    "wanted": _number("tokens not yet computed, before any limit", lambda row: row.event.num_wanted_tokens),
    "computed": _number("tokens computed before", lambda row: row.event.num_computed_tokens),
    "cached": _number("tokens taken from the prefix cache", lambda row: row.event.num_cached_tokens),
    "drafts": _number("draft tokens to be verified", lambda row: len(row.event.draft_token_ids)),
}
