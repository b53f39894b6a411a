"""What may come out, and what did: grammars and their masks, drafts and their verdicts, tokens and ends."""

from __future__ import annotations

from engine.core.messages import RequestStatus
from engine.trace import events as ev
from viz.explain.telling import Said, Tellers, Telling
from viz.explain.words import count, names

_DRAFTERS = {"ngram": "the n-gram drafter", "draft_model": "the draft model"}

# --- grammars -------------------------------------------------------------------------------------------------------


def _compiles(told: Telling, event: ev.GrammarRequested) -> Said:
    return Said(
        event.request, f"its grammar ({event.grammar_kind}) is compiled: it waits until that is done", "compile"
    )


def _masked(told: Telling, event: ev.GrammarBitmaskFilled) -> Said:
    allowed = ", ".join(
        f"{' then '.join(f'{number:,}' for number in numbers_of)} to r{serial}"
        for serial, numbers_of in zip(event.requests, event.num_allowed, strict=True)
    )
    return Said(None, f"the grammars allow, of {count(told.vocab_size, 'token')}: {allowed}", "mask")


def _advanced(told: Telling, event: ev.GrammarAdvanced) -> Said | None:
    if event.terminated:
        return Said(event.request, "its grammar has come to its end: nothing may follow", "advance")
    if event.before is None or not event.after:
        return None
    way = " → ".join("?" if state is None else str(state) for state in (event.before, *event.after))
    return Said(event.request, f"its grammar goes on: state {way}", "advance", detail=True)


# --- drafts ---------------------------------------------------------------------------------------------------------


def _paused(told: Telling, event: ev.SpecPaused) -> Said:
    if event.reason == "batch_size":
        many = f"{event.num_running:,} run, more than disable_by_batch_size"
        return Said(None, f"nobody drafts for the next step: {many}", "drafting")
    until = event.until_steps[0]
    if len(event.requests) == 1:
        return Said(event.requests[0], f"drafts no more until step {until:,}: its last were all rejected", "drafting")
    return Said(None, f"{names(event.requests)} pause with drafting: their last were all rejected", "drafting")


def _proposed(told: Telling, event: ev.SpecProposed) -> Said:
    who = _DRAFTERS.get(event.method, f"the {event.method} drafter")
    what = f"{who} proposes {told.text(event.draft_token_ids)}"
    if event.match is not None:
        what += (
            f", which followed the last {count(event.match.num_tokens, 'token')} at position {event.match.position:,}"
        )
    return Said(event.request, f"{what}: to be verified in its next step", "proposal", detail=True)


def _verdict(told: Telling, event: ev.SpecVerdict) -> Said:
    drafts, accepted = event.draft_token_ids, event.num_accepted
    taken = f"{accepted:,} of {count(len(drafts), 'draft')} accepted"
    if event.token_id is None:
        return Said(event.request, f"{taken}; then its logits could not be sampled from", "verdict")
    token = told.text([event.token_id])
    if event.token_kind == "bonus":
        return Said(event.request, f"{taken}, and {token} comes free behind them", "verdict")
    return Said(event.request, f"{taken}; {told.text([drafts[accepted]])} is rejected for {token}", "verdict")


# --- tokens and ends ------------------------------------------------------------------------------------------------


def _updated(told: Telling, event: ev.UpdateRequest) -> Said | None:
    if event.dropped == "finished":
        return Said(event.request, "its output is dropped: it had ended meanwhile", "drop")
    if event.dropped == "resumed":
        return Said(event.request, "its output is dropped: preempted and resumed, it computes it again", "drop")
    rejected = f"; {count(event.num_rejected, 'draft')} rejected" if event.num_rejected else ""
    cut = f"; {event.num_cut:,} cut, behind its end" if event.num_cut else ""
    if not event.appended:
        return Said(event.request, "no token yet: its prompt is not complete", "append", detail=True)
    unsaid = cut or (rejected and event.request not in told.judged)
    return Said(event.request, f"next: {told.text(event.appended)}{rejected}{cut}", "append", detail=not unsaid)


def _failed(told: Telling, event: ev.ExecutorFailed) -> Said:
    return Said(None, f"the forward pass failed, and its requests end: {event.why}", "failure")


def _finished(told: Telling, event: ev.RequestFinished) -> Said:
    request, status = told.after.requests[event.request], RequestStatus(event.status)
    if status is RequestStatus.FINISHED_ABORTED:
        return Said(event.request, f"aborted: {request.abort_cause or 'its client left'}", "abort")
    if status is RequestStatus.FINISHED_ERROR:
        rule = "failure" if request.grammar is None else "compile"
        return Said(event.request, f"ends with an error: {request.failure or 'unknown'}", rule)
    if status is RequestStatus.FINISHED_STOPPED:
        stop = "the end of the sequence" if event.stop_reason is None else f"its stop token {event.stop_reason}"
        return Said(event.request, f"ends: it sampled {stop}", "stop")
    if event.num_output_tokens == request.sampling_params.max_tokens:
        has = f"it has its {count(event.num_output_tokens, 'token')}, max_tokens"
        return Said(event.request, f"ends: {has}", "stop")
    return Said(event.request, f"ends: its {count(request.num_tokens, 'token')} are max_model_len", "stop")


TELLERS: Tellers = {
    ev.GrammarRequested: _compiles,
    ev.GrammarBitmaskFilled: _masked,
    ev.GrammarAdvanced: _advanced,
    ev.SpecPaused: _paused,
    ev.SpecProposed: _proposed,
    ev.SpecVerdict: _verdict,
    ev.UpdateRequest: _updated,
    ev.ExecutorFailed: _failed,
    ev.RequestFinished: _finished,
}
