"""Why: every decision of a step in plain words, each with the place in the code that decided it.

Pure functions from events to sentences. A sentence does not name its request: whoever draws it puts the name before
it, in the colour of the request.

::

    for reason in explain(timeline.step(17)):
        print(reason.name, reason.sentence, reason.place)      # r2 46 of 71 tokens: the budget of 48 had 46 left …
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from engine.core.messages import RequestStatus
from engine.trace import events as ev
from sim.pool import NULL_BLOCK
from sim.timeline import StepView
from viz.source import Place

_SCHEDULER = "engine/core/scheduler/scheduler.py"
_UPDATE = "engine/core/scheduler/update.py"
_POOL = "engine/core/kv_cache/block_pool.py"
_MANAGER = "engine/core/kv_cache/manager.py"
_TRANSFER = "engine/core/kv_transfer.py"

#: Where each decision is made.
PLACES = {
    "running": Place(_SCHEDULER, "Scheduler._schedule_running"),
    "admission": Place(_SCHEDULER, "Scheduler._admit"),
    "tokens": Place("engine/core/scheduler/wanted.py", "tokens_wanted"),
    "limit": Place(_SCHEDULER, "Scheduler._admission_limit"),
    "gate": Place("engine/core/scheduler/admission.py", "AdmissionGates.why_wait"),
    "slots": Place(_MANAGER, "KVCacheManager.allocate_slots"),
    "victim": Place(_SCHEDULER, "Scheduler._choose_victim"),
    "lookup": Place(_MANAGER, "KVCacheManager.get_computed_blocks"),
    "touch": Place(_POOL, "BlockPool.touch"),
    "new blocks": Place(_POOL, "BlockPool.get_new_blocks"),
    "cache": Place(_POOL, "BlockPool.cache_full_blocks"),
    "uncache": Place(_MANAGER, "KVCacheManager.unregister"),
    "free": Place(_POOL, "BlockPool.free_blocks"),
    "reset": Place(_POOL, "BlockPool.reset_prefix_cache"),
    "append": Place(_UPDATE, "_append_until_stop"),
    "drop": Place(_UPDATE, "_why_dropped"),
    "failure": Place(_UPDATE, "apply_failure"),
    "stop": Place("engine/core/scheduler/stop.py", "check_stop"),
    "abort": Place("engine/core/engine_core.py", "EngineCore.abort"),
    "grammar": Place("engine/core/structured_output.py", "StructuredOutputManager.grammar_init"),
    "mask": Place("engine/core/structured_output.py", "StructuredOutputManager.grammar_bitmask"),
    "advance": Place("engine/core/structured_output.py", "StructuredOutputManager.accept_tokens"),
    "match": Place(_TRANSFER, "KVTransferManager.get_num_new_matched_tokens"),
    "arrival": Place(_TRANSFER, "KVTransferManager.take_arrived"),
    "hold": Place(_TRANSFER, "KVTransferManager.free_when_done"),
    "let go": Place(_TRANSFER, "KVTransferManager.kv_done"),
    "reclaim": Place(_SCHEDULER, "Scheduler._reclaim_from_waiting"),
}


class Reason(NamedTuple):
    """One decision in words."""

    seq: int
    event_type: str
    request: int | None
    """Serial of the request it is about."""
    sentence: str
    place: Place
    detail: bool
    """Bookkeeping that follows from another decision; may be left out where room is short."""

    @property
    def name(self) -> str:
        """Short name of the request; empty if it is about all of them."""
        return "" if self.request is None else f"r{self.request}"


class _Said(NamedTuple):
    request: int | None
    sentence: str
    place: str
    detail: bool = False


def explain(view: StepView) -> list[Reason]:
    """Every decision of a step, in the order in which they were made."""
    told = _Telling(view)
    reasons: list[Reason] = []
    for event in view.events:
        tell = _TELL.get(type(event))
        said = tell(told, event) if tell else None
        if said is not None:
            tag = str(event.__struct_config__.tag)
            reasons.append(Reason(event.seq, tag, said.request, said.sentence, PLACES[said.place], said.detail))
    return reasons


def count(number: int, thing: str) -> str:
    """`1 block`, `2 blocks`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def numbers(block_ids: list[int], most: int = 6) -> str:
    """Block numbers, the first few of many."""
    shown = " ".join(map(str, block_ids[:most]))
    return shown if len(block_ids) <= most else f"{shown} … ({len(block_ids)})"


def shortage(needed: int, available: int) -> str:
    """Why blocks are missing; free ones count whether or not they are still cached."""
    return f"needs {count(needed, 'block')}, free_block_queue holds {available:,}"


def work_on_blocks(*, sending: bool, receiving: bool) -> str:
    """What happens to blocks on which a connector works: they are being `sent`, `received`, or both."""
    return "sent and received" if sending and receiving else "sent" if sending else "received"


#: What a waiting request cannot go on without.
WAITS_FOR = {
    RequestStatus.WAITING_FOR_FSM: "its grammar is not ready",
    RequestStatus.WAITING_FOR_REMOTE_KVS: "its KV is on its way",
}

#: A request may hold blocks in these, although it does not run: its KV came, or comes, from elsewhere.
_WITH_BLOCKS = (RequestStatus.WAITING, RequestStatus.WAITING_FOR_REMOTE_KVS)


class _Telling:
    """Goes through one step; remembers the rows so far, for sentences that refer to them."""

    def __init__(self, view: StepView) -> None:
        self.config = view.header.config.scheduler
        self.block_size = view.header.kv_cache.block_size
        self.max_model_len = view.header.model.max_model_len
        self.vocab_size = view.header.model.vocab_size
        self.before, self.after = view.before, view.after
        self.rows: dict[int, ev.ScheduleRequest] = {}
        self.running = set(view.before.running)
        self.statuses: dict[int, RequestStatus] = {}
        """As far as this step has changed them."""
        self.held = {request.serial for request in view.before.holders if request.ended}
        """Requests that have ended and whose blocks a connector still works on."""

    # --- who gets how much ------------------------------------------------------------------------------------

    def row(self, event: ev.ScheduleRequest) -> _Said:
        sentence = f"{self._amount(event)}: {self._why_amount(event)}"
        place = "tokens" if event.truncated_by else "running" if event.admission == "running" else "admission"
        self.rows[event.request] = event
        return _Said(event.request, sentence, place)

    @staticmethod
    def _amount(event: ev.ScheduleRequest) -> str:
        if event.truncated_by is None:
            return count(event.num_scheduled_tokens, "token")
        return f"{event.num_scheduled_tokens:,} of {count(event.num_wanted_tokens, 'token')}"

    def _why_amount(self, event: ev.ScheduleRequest) -> str:
        if event.truncated_by is not None:
            return self._why_cut(event)
        if event.phase == "decode":
            drafts = len(event.draft_token_ids)
            return f"it is decoding, and verifies {count(drafts, 'draft')}" if drafts else "it is decoding"
        cached = f", {event.num_cached_tokens:,} were cached" if event.num_cached_tokens else ""
        if event.num_remote_tokens:
            cached += f", {event.num_remote_tokens:,} came from another engine"
        if event.admission == "resumed":
            return f"it was preempted and computes them again{cached}"
        if self.after.requests[event.request].num_preemptions and self.before.requests[event.request].output_token_ids:
            return "the rest of what it computes again"
        if event.num_computed_tokens == 0:
            return "its whole prompt"
        return f"the rest of its prompt{cached}"

    def _why_cut(self, event: ev.ScheduleRequest) -> str:
        if event.truncated_by == "long_prefill_token_threshold":
            return f"long_prefill_token_threshold is {self.config.long_prefill_token_threshold:,}"
        if event.truncated_by == "max_model_len":
            return f"max_model_len is {self.max_model_len:,}"
        budget, left = self.config.max_num_batched_tokens, event.budget_left + event.num_scheduled_tokens
        if not self.rows:
            return f"the budget is {budget:,}"
        others = "the decodes" if all(row.phase == "decode" for row in self.rows.values()) else "the rows before it"
        return f"the budget of {budget:,} had {left:,} left after {others}"

    def skipped(self, event: ev.ScheduleSkipped) -> _Said:
        behind = f", with {event.behind:,} more behind it" if event.behind else ""
        if event.reason == "waiting_for_grammar":
            others = f" (nor are those of {count(event.behind, 'other')})" if event.behind else ""
            return _Said(event.request, f"skipped: its grammar is not ready{others}", "gate")
        if event.reason == "waiting_for_remote_kvs":
            others = f" (so is that of {count(event.behind, 'other')})" if event.behind else ""
            return _Said(event.request, f"skipped: its KV is still on its way{others}", "gate")
        if event.request in self.running:
            return _Said(event.request, f"gets nothing: no budget is left in this step{behind}", "running")
        if event.reason == "no_free_blocks":
            needs = shortage(event.needed, event.available)
            return _Said(event.request, f"stays in waiting: {needs}{behind}", "slots")
        return _Said(event.request, f"stays in waiting: {self._limit(event)}{behind}", "limit")

    def _limit(self, event: ev.ScheduleSkipped) -> str:
        if event.reason == "token_budget":
            return "no budget is left in this step"
        if event.reason == "max_num_seqs":
            return f"{self.config.max_num_seqs:,} run already, and max_num_seqs allows no more"
        return "a step that preempts admits nobody"

    def preempted(self, event: ev.SchedulePreempted) -> _Said:
        self.running.discard(event.victim)
        returned = self.rows.pop(event.victim, None)
        back = f"; its {count(returned.num_scheduled_tokens, 'token')} go back to the budget" if returned else ""
        who = "the last of the running queue" if self.config.policy == "fcfs" else "the least urgent of those running"
        needs = shortage(event.needed, event.available)
        if event.victim == event.for_request:
            itself = f"preempted: it {needs}, and it is itself {who} ({self.config.policy})"
            return _Said(event.victim, itself, "victim")
        for_whom = f"preempted: r{event.for_request} {needs}"
        return _Said(event.victim, f"{for_whom}, so {who} gives way ({self.config.policy}){back}", "victim")

    # --- memory -----------------------------------------------------------------------------------------------

    def looked_up(self, event: ev.KVLookup) -> _Said | None:
        if event.num_hit_tokens:
            last = event.num_hit_tokens == event.num_queried_tokens - self.block_size
            why = "; one token at least is always computed" if last else ""
            found = f"finds {event.num_hit_tokens:,} of its {count(event.num_queried_tokens, 'token')} in the cache"
            return _Said(event.request, found + why, "lookup", detail=True)
        if event.num_queried_tokens <= self.block_size:
            return _Said(event.request, "too short to share: it fills no block", "lookup", detail=True)
        return _Said(
            event.request, "shares nothing: its first block is not in cached_block_hash_to_block", "lookup", True
        )

    def touched(self, event: ev.KVTouched) -> _Said:
        revived = sum(ref_count == 1 for ref_count in event.ref_counts)
        num_blocks = len(event.block_ids) - event.block_ids.count(NULL_BLOCK)
        unseen = f"; of the {len(event.block_ids)} found, its sliding window sees only these"
        were = "its hash was" if num_blocks == 1 else "their hashes were"
        back = f", {revived} of them revived from free_block_queue" if revived else ""
        shared = f"{count(num_blocks, 'block')} shared{back}: {were} in cached_block_hash_to_block"
        shared += unseen if num_blocks < len(event.block_ids) else ""
        return _Said(event.request, shared, "touch")

    def allocated(self, event: ev.KVAllocated) -> _Said:
        evicted, lost = event.evicted_block_ids, ""
        if evicted:
            which = f"{'block' if len(evicted) == 1 else 'blocks'} {numbers(evicted)}"
            whose = ", whose cached content" if evicted == event.block_ids else f"; what {which} had cached"
            lost = f"{whose} is evicted"
        blocks = f"gets {count(len(event.block_ids), 'block')} from the head of free_block_queue"
        return _Said(event.request, f"{blocks}: {numbers(event.block_ids)}{lost}", "new blocks", not evicted)

    def cached(self, event: ev.KVCached) -> _Said:
        one = len(event.block_ids) == 1
        full = f"block {event.block_ids[0]} is full" if one else f"blocks {numbers(event.block_ids)} are full"
        return _Said(
            event.request, f"{full}, and can be found by {'its hash' if one else 'their hashes'}", "cache", True
        )

    def uncached(self, event: ev.KVUncached) -> _Said:
        whose = "block" if len(event.block_ids) == 1 else "blocks"
        return _Said(None, f"{whose} {numbers(event.block_ids)} can be found no more: {event.why}", "uncache")

    def freed(self, event: ev.KVFreed) -> _Said:
        if event.request in self.held:
            self.held.discard(event.request)
            given = f"gives up {count(len(event.block_ids), 'block')}"
            return _Said(event.request, f"{given}: the connector is done with them", "let go")
        if event.by_window:
            one = len(event.block_ids) == 1
            passed = f"{'block' if one else 'blocks'} {numbers(event.block_ids)}"
            given = (
                f"its sliding window has passed {passed}: given up, the null block takes {'its' if one else 'their'}"
            )
            return _Said(event.request, f"{given} place", "free", detail=True)
        if self._waits(event.request):
            given = f"gives up {count(len(event.block_ids), 'block')} while it waits"
            return _Said(event.request, f"{given}: {event.why}", "reclaim")
        kept = sum(ref_count > 0 for ref_count in event.ref_counts)
        others = f"; {kept} of them {'is' if kept == 1 else 'are'} still held by others" if kept else ""
        given = f"gives up {count(len(event.block_ids), 'block')}, tail first: {numbers(event.block_ids)}{others}"
        return _Said(event.request, given, "free", detail=True)

    def reset(self, event: ev.CacheReset) -> _Said:
        if event.done:
            return _Said(None, "every cached prefix is forgotten", "reset")
        return _Said(None, f"the cache is not reset: {count(event.blocks_in_use, 'block')} in use", "reset")

    def _waits(self, serial: int) -> bool:
        """Whether a request that gives up blocks neither ran nor has ended."""
        return self.statuses.get(serial, self.before.requests[serial].status) in _WITH_BLOCKS

    # --- KV from elsewhere ------------------------------------------------------------------------------------

    def matched(self, event: ev.KVTransferMatched) -> _Said:
        if event.num_tokens == 0:
            return _Said(event.request, "no other engine has KV of it", "match", detail=True)
        how = "loaded in the background" if event.load_async else "loaded within this step"
        has = f"another engine has KV of {count(event.num_tokens, 'token')} more"
        return _Said(event.request, f"{has}: {how}", "match", detail=True)

    def held_back(self, event: ev.KVHeld) -> _Said:
        self.held.add(event.request)
        work = work_on_blocks(sending=event.sending, receiving=event.receiving)
        return _Said(event.request, f"its blocks stay out of the pool: they are still being {work}", "hold")

    def turned(self, event: ev.RequestStatusChanged) -> _Said | None:
        """The turns in the life of a waiting request; all others are told by the decision that led to them."""
        old, self.statuses[event.request] = event.old, RequestStatus(event.new)
        if self.statuses[event.request] is RequestStatus.WAITING_FOR_REMOTE_KVS:
            return _Said(event.request, "waits for KV that another engine has computed", "admission")
        if old == RequestStatus.WAITING_FOR_REMOTE_KVS.value and event.new == RequestStatus.WAITING.value:
            return _Said(event.request, "the KV it waited for is here, and counts as computed", "arrival")
        if old == RequestStatus.WAITING_FOR_FSM.value and event.new == RequestStatus.WAITING.value:
            return _Said(event.request, "its grammar is ready", "gate")
        return None

    # --- grammars ---------------------------------------------------------------------------------------------

    def masked(self, event: ev.GrammarBitmaskFilled) -> _Said:
        allowed = ", ".join(
            f"{' then '.join(f'{number:,}' for number in numbers_of)} to r{serial}"
            for serial, numbers_of in zip(event.requests, event.num_allowed, strict=True)
        )
        return _Said(None, f"the grammars allow, of {count(self.vocab_size, 'token')}: {allowed}", "mask")

    def advanced(self, event: ev.GrammarAdvanced) -> _Said | None:
        if event.terminated:
            return _Said(event.request, "its grammar has come to its end: nothing may follow", "advance")
        if event.before is None or not event.after:
            return None
        way = " → ".join("?" if state is None else str(state) for state in (event.before, *event.after))
        return _Said(event.request, f"its grammar goes on: state {way}", "advance", detail=True)

    # --- what came back ---------------------------------------------------------------------------------------

    def updated(self, event: ev.UpdateRequest) -> _Said | None:
        if event.dropped == "finished":
            return _Said(event.request, "its output is dropped: it had ended meanwhile", "drop")
        if event.dropped == "resumed":
            return _Said(event.request, "its output is dropped: preempted and resumed, it computes it again", "drop")
        rejected = f"; {count(event.num_rejected, 'draft')} rejected" if event.num_rejected else ""
        cut = f"; {event.num_cut:,} cut, behind its end" if event.num_cut else ""
        if not event.appended:
            return _Said(event.request, "no token yet: its prompt is not complete", "append", detail=True)
        text = "".join(self.after.piece_text(token_id) for token_id in event.appended)
        return _Said(event.request, f"next: “{text}”{rejected}{cut}", "append", detail=not (rejected or cut))

    def failed(self, event: ev.ExecutorFailed) -> _Said:
        return _Said(None, f"the forward pass failed, and its requests end: {event.why}", "failure")

    def finished(self, event: ev.RequestFinished) -> _Said:
        request = self.after.requests[event.request]
        status = RequestStatus(event.status)
        if status is RequestStatus.FINISHED_ABORTED:
            return _Said(event.request, f"aborted: {request.abort_cause or 'its client left'}", "abort")
        if status is RequestStatus.FINISHED_ERROR:
            place = "failure" if request.grammar is None else "grammar"
            return _Said(event.request, f"ends with an error: {request.failure or 'unknown'}", place)
        if status is RequestStatus.FINISHED_STOPPED:
            stop = "the end of the sequence" if event.stop_reason is None else f"its stop token {event.stop_reason}"
            return _Said(event.request, f"ends: it sampled {stop}", "stop")
        if event.num_output_tokens == request.sampling_params.max_tokens:
            return _Said(
                event.request, f"ends: it has its {count(event.num_output_tokens, 'token')}, max_tokens", "stop"
            )
        return _Said(event.request, f"ends: its {count(request.num_tokens, 'token')} are max_model_len", "stop")


_TELL: dict[type[ev.Event], Callable[[_Telling, Any], _Said | None]] = {
    ev.ScheduleRequest: _Telling.row,
    ev.ScheduleSkipped: _Telling.skipped,
    ev.SchedulePreempted: _Telling.preempted,
    ev.KVLookup: _Telling.looked_up,
    ev.KVTouched: _Telling.touched,
    ev.KVAllocated: _Telling.allocated,
    ev.KVCached: _Telling.cached,
    ev.KVUncached: _Telling.uncached,
    ev.KVFreed: _Telling.freed,
    ev.CacheReset: _Telling.reset,
    ev.KVTransferMatched: _Telling.matched,
    ev.KVHeld: _Telling.held_back,
    ev.RequestStatusChanged: _Telling.turned,
    ev.GrammarBitmaskFilled: _Telling.masked,
    ev.GrammarAdvanced: _Telling.advanced,
    ev.UpdateRequest: _Telling.updated,
    ev.ExecutorFailed: _Telling.failed,
    ev.RequestFinished: _Telling.finished,
}
