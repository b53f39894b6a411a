"""What the trace is told of speculation: how the drafts of a step were verified, and what is proposed next."""

from __future__ import annotations

from engine.core.messages import ModelRunnerOutput
from engine.core.scheduler.plan import StepPlan
from engine.speculation import DraftProbs, num_accepted
from engine.trace.events import SpecProbs, SpecProposed, SpecVerdict
from engine.trace.recorder import EventSink


def tell_speculation(trace: EventSink, method: str, plan: StepPlan, output: ModelRunnerOutput) -> None:
    """Write down what an output says of drafts, request by request; nothing, if it says nothing."""
    told = output.speculation
    if told is None:
        return
    proposed = output.draft_token_ids or [[]] * len(output.serials)
    for serial, token_ids, next_drafts in zip(output.serials, output.sampled_token_ids, proposed, strict=True):
        probs = told.probs.get(serial)
        if probs is not None:
            _tell_verdict(trace, serial, plan.rows[serial].scheduled.draft_token_ids, token_ids, probs)
        if next_drafts:
            match = told.matches.get(serial)
            trace.emit(SpecProposed(request=serial, method=method, draft_token_ids=next_drafts, match=match))


def _tell_verdict(
    trace: EventSink, serial: int, draft_token_ids: tuple[int, ...], token_ids: list[int], probs: DraftProbs
) -> None:
    trace.emit(
        SpecProbs(
            request=serial,
            target_probs=probs.target,
            draft_probs=probs.draft,
            uniforms=probs.uniform,
            likely=probs.likely,
        )
    )
    accepted = num_accepted(probs.target, probs.draft, probs.uniform)
    trace.emit(
        SpecVerdict(
            request=serial,
            draft_token_ids=list(draft_token_ids),
            num_accepted=accepted,
            token_id=token_ids[accepted] if accepted < len(token_ids) else None,
            token_kind="bonus" if accepted == len(draft_token_ids) else "recovered",
        )
    )
