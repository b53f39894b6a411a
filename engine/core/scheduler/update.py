"""What the executor's output does to the requests of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from engine.core.kv_cache.manager import RegisteredBlock
from engine.core.messages import EngineCoreOutput, ForwardFailure, ModelRunnerOutput, RequestStatus
from engine.core.request import Request
from engine.core.scheduler.drafting import note_verdict
from engine.core.scheduler.plan import PlannedRow, StepPlan
from engine.core.scheduler.stop import Stop, check_stop
from engine.logprobs import TopLogprobs
from engine.trace.events import UpdateRequest
from engine.trace.recorder import EventSink

if TYPE_CHECKING:
    from engine.core.scheduler.scheduler import Scheduler


class RowLogprobs(NamedTuple):
    """Log probabilities that came with a row's tokens."""

    new: list[TopLogprobs] | None = None
    prompt: list[TopLogprobs] | None = None


_NO_LOGPROBS = RowLogprobs()


def apply_output(scheduler: Scheduler, plan: StepPlan, output: ModelRunnerOutput) -> list[EngineCoreOutput]:
    """Append the sampled tokens row by row; whoever reaches a stop leaves the engine."""
    outputs: list[EngineCoreOutput] = []
    has_logprobs = output.logprobs is not None or output.prompt_logprobs is not None
    drafts = output.draft_token_ids or [[]] * len(plan.rows)
    rows = zip(plan.rows.values(), output.sampled_token_ids, drafts, strict=True)
    for index, (row, token_ids, draft_token_ids) in enumerate(rows):
        request, is_outdated = row.request, row.is_outdated
        dropped = _why_dropped(row) if is_outdated else None
        if dropped:
            if scheduler.trace is not None:
                _emit_update(scheduler.trace, row, [], 0, 0, dropped)
            continue
        if output.errors and request.serial in output.errors:
            if scheduler.trace is not None:
                _emit_update(scheduler.trace, row, [], 0, 0, None)
            scheduler.finish(request, RequestStatus.FINISHED_ERROR, "no token could be sampled")
            outputs.append(news_of(request, [], error=output.errors[request.serial]))
            continue
        num_rejected = _take_back_rejected(row, token_ids, plan.step) if row.scheduled.draft_token_ids else 0
        if token_ids and not is_outdated:
            request.num_output_placeholders -= 1
        appended, stop = _append_until_stop(request, token_ids, scheduler.max_model_len)
        if request.status is RequestStatus.RUNNING:
            request.spec_token_ids = draft_token_ids
        if scheduler.trace is not None:
            _emit_update(scheduler.trace, row, appended, len(token_ids) - len(appended), num_rejected, None)
        if request.grammar is not None and scheduler.structured_output_manager.accept_tokens(request, appended):
            # It sampled EOS, perhaps before its min_tokens or under ignore_eos: its grammar left it nothing else.
            stop = stop or Stop(RequestStatus.FINISHED_STOPPED, None)
        if stop:
            scheduler.finish(request, stop.status, _why_stopped(stop), stop.stop_reason)
        if appended:
            logprobs = _logprobs_of(output, index, len(appended)) if has_logprobs else _NO_LOGPROBS
            outputs.append(news_of(request, appended, logprobs=logprobs))
    return outputs


def apply_failure(scheduler: Scheduler, plan: StepPlan, failure: ForwardFailure) -> list[EngineCoreOutput]:
    """Nothing of the step was written: its hashes are withdrawn, and whoever counted on its KV ends with an error."""
    spoiled, promises = _what_failed(scheduler, plan)
    scheduler.kv_cache_manager.unregister(promises, "the forward pass failed")
    outputs: list[EngineCoreOutput] = []
    for request in spoiled:
        scheduler.finish(request, RequestStatus.FINISHED_ERROR, "the forward pass failed")
        outputs.append(news_of(request, [], error=failure.why))
    return outputs


def _what_failed(scheduler: Scheduler, plan: StepPlan) -> tuple[list[Request], list[RegisteredBlock]]:
    """The requests whose KV is not there, and the hashes that promised it.

    With several steps in flight these are more than the failed step's own: a later step may go on from its tokens,
    or share a block that it should have filled. That holds even for rows whose request has left them in the meantime:
    what such a row computed nobody owns any more, but its hashes would still be found.
    """
    spoiled: dict[int, Request] = {}
    promises: list[RegisteredBlock] = []
    missing: set[int] = set()
    lives: set[tuple[int, int]] = set()
    for step in (plan, *scheduler.in_flight):
        for row in step.rows.values():
            shared, fresh = _shared_and_fresh(row, scheduler.kv_cache_manager.block_size)
            missing -= fresh
            life = (row.request.serial, row.num_preemptions)
            if step is plan or life in lives or not missing.isdisjoint(shared):
                lives.add(life)
                promises += row.registered
                missing.update(block.block_id for block, _ in row.registered)
                if _why_dropped(row) is None:
                    spoiled[row.request.serial] = row.request
    # A request that waits for remote KV holds its local prefix already.
    for request in scheduler.waiting:
        if any(not missing.isdisjoint(table) for table in scheduler.kv_cache_manager.block_ids(request)):
            spoiled[request.serial] = request
    return list(spoiled.values()), promises


def _shared_and_fresh(row: PlannedRow, block_size: int) -> tuple[set[int], set[int]]:
    """The blocks that a row adds to its request's table: those found in the cache, and those handed out."""
    num_shared = row.scheduled.num_computed_tokens // block_size if row.scheduled.new is not None else 0
    tables = row.scheduled.block_ids
    return {block for table in tables for block in table[:num_shared]}, {
        block for table in tables for block in table[num_shared:]
    }


def _why_dropped(row: PlannedRow) -> Literal["finished", "resumed"] | None:
    """Why a row's output no longer concerns its request.

    A request that was preempted in the meantime and still waits keeps its token: it was sampled from KV that was
    good. Once resumed it computes that token again, and a second one would double it; so it does if it has been
    preempted anew since.
    """
    request = row.request
    if request.status.is_finished:
        return "finished"
    preempted_anew = request.num_preemptions > row.num_preemptions + 1
    if row.is_outdated and (request.status is RequestStatus.RUNNING or preempted_anew):
        return "resumed"
    return None


def _take_back_rejected(row: PlannedRow, token_ids: list[int], step: int) -> int:
    """Uncount the drafts that the model did not accept: their slots hold KV of tokens that are not there."""
    if not token_ids:
        return 0
    num_accepted = len(token_ids) - 1
    num_rejected = len(row.scheduled.draft_token_ids) - num_accepted
    note_verdict(row.request, step, num_accepted)
    if not row.is_outdated:
        row.request.num_computed_tokens -= num_rejected
    return num_rejected


def _append_until_stop(request: Request, token_ids: list[int], max_model_len: int) -> tuple[list[int], Stop | None]:
    for count, token_id in enumerate(token_ids, start=1):
        request.token_ids.append(token_id)
        stop = check_stop(request, max_model_len)
        if stop:
            return token_ids[:count], stop
    return token_ids, None


def _emit_update(
    trace: EventSink,
    row: PlannedRow,
    appended: list[int],
    num_cut: int,
    num_rejected: int,
    dropped: Literal["finished", "resumed"] | None,
) -> None:
    trace.emit(
        UpdateRequest(
            request=row.request.serial,
            appended=appended,
            num_cut=num_cut,
            num_rejected=num_rejected,
            num_computed_tokens=row.request.num_computed_tokens,
            dropped=dropped,
        )
    )


def _why_stopped(stop: Stop) -> str:
    if stop.status is RequestStatus.FINISHED_LENGTH_CAPPED:
        return "max_tokens or max_model_len reached"
    return "end of sequence" if stop.stop_reason is None else f"stop token {stop.stop_reason}"


def _logprobs_of(output: ModelRunnerOutput, row: int, num_appended: int) -> RowLogprobs:
    """Those of a row's appended tokens; what was cut off with its tokens is gone."""
    new = output.logprobs[row][:num_appended] if output.logprobs else None
    return RowLogprobs(new or None, output.prompt_logprobs[row] if output.prompt_logprobs else None)


def news_of(
    request: Request, new_token_ids: list[int], error: str | None = None, logprobs: RowLogprobs = _NO_LOGPROBS
) -> EngineCoreOutput:
    """What the frontend is told of a request."""
    return EngineCoreOutput(
        serial=request.serial,
        request_id=request.request_id,
        new_token_ids=new_token_ids,
        finish_reason=request.status.finish_reason,
        stop_reason=request.stop_reason,
        num_cached_tokens=request.num_cached_tokens or 0,
        error=error,
        new_logprobs=logprobs.new,
        prompt_logprobs=logprobs.prompt,
    )
