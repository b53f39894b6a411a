"""Drafts: each verdict follows from the recorded probabilities, and what came back follows from the verdict."""

from __future__ import annotations

from engine.speculation import num_accepted
from engine.trace import events as ev
from sim.invariants.invariant import Invariant, Sentences, before
from sim.state import State


class VerdictsOnDrafts(Invariant):
    """From the probabilities of the drafts to the tokens that their request gets."""

    name = "verdicts on drafts"
    statement = "A request gets the drafts that its recorded probabilities accept, and one token of the model's own."

    def __init__(self, header: ev.Header) -> None:
        super().__init__(header)
        self._returned: dict[int, list[int]] = {}
        self._drafts: dict[int, list[int]] = {}
        self._probs: dict[int, ev.SpecProbs] = {}

    @before(ev.StepOutput)
    def came_back(self, state: State, event: ev.StepOutput) -> Sentences:
        self._returned = dict(zip(event.requests, event.sampled_token_ids, strict=True))
        plan = state.in_flight.get(event.step)
        self._drafts = {serial: list(row.draft_token_ids) for serial, row in plan.rows.items()} if plan else {}
        self._probs = {}
        yield from ()

    @before(ev.SpecProbs)
    def verified(self, state: State, event: ev.SpecProbs) -> Sentences:
        num_drafts = len(self._drafts.get(event.request, []))
        for name in ("target_probs", "draft_probs", "uniforms"):
            if len(getattr(event, name)) != num_drafts:
                yield f"r{event.request} had {num_drafts} drafts, {name} tells of {len(getattr(event, name))}"
                return
        self._probs[event.request] = event

    @before(ev.SpecVerdict)
    def follows(self, state: State, event: ev.SpecVerdict) -> Sentences:
        name, probs = f"r{event.request}", self._probs.pop(event.request, None)
        drafts, returned = self._drafts.get(event.request, []), self._returned.get(event.request, [])
        if probs is None:
            yield f"nothing was said of how the drafts of {name} were verified"
            return
        if event.draft_token_ids != drafts:
            yield f"the drafts of {name} were {drafts}, the verdict is on {event.draft_token_ids}"
        accepted = num_accepted(probs.target_probs, probs.draft_probs, probs.uniforms)
        if event.num_accepted != accepted:
            yield f"{event.num_accepted} drafts of {name} are said to be accepted, by probability it is {accepted}"
        if (event.token_kind == "bonus") != (accepted == len(drafts)):
            yield f"the token behind {accepted} of {len(drafts)} accepted drafts of {name} is no {event.token_kind} one"
        expected = drafts[:accepted] + ([] if event.token_id is None else [event.token_id])
        if returned != expected:
            yield f"the verdict on the drafts of {name} gives it {expected}, {returned} came back"


class ProposedDrafts(Invariant):
    """What a drafter proposes is what comes back with the step."""

    name = "proposed drafts"
    statement = (
        "Drafts follow the tokens of a step; there are no more of them than num_speculative_tokens, and none for who "
        "pauses."
    )

    def __init__(self, header: ev.Header) -> None:
        super().__init__(header)
        self._proposed: dict[int, list[int]] = {}
        self._sampled: dict[int, list[int]] = {}
        self._paused: dict[int, set[int]] = {}
        speculative = header.config.speculative
        self._most = speculative.num_speculative_tokens if speculative is not None else 0

    @before(ev.SpecPaused)
    def pauses(self, state: State, event: ev.SpecPaused) -> Sentences:
        self._paused[event.step] = set(event.requests)
        yield from ()

    @before(ev.StepOutput)
    def came_back(self, state: State, event: ev.StepOutput) -> Sentences:
        paused = self._paused.pop(event.step, set())
        drafts = event.draft_token_ids or [[] for _ in event.requests]
        self._proposed = dict(zip(event.requests, drafts, strict=True))
        self._sampled = dict(zip(event.requests, event.sampled_token_ids, strict=True))
        for serial, token_ids, proposed in zip(event.requests, event.sampled_token_ids, drafts, strict=True):
            if len(proposed) > self._most:
                yield f"{len(proposed)} drafts were proposed for r{serial}, no more than {self._most} are allowed"
            if proposed and serial in paused:
                yield f"drafts were proposed for r{serial}, for which none were asked"
            if proposed and not token_ids:
                yield f"drafts were proposed for r{serial}, which got no token that they could follow"

    @before(ev.SpecProposed)
    def told(self, state: State, event: ev.SpecProposed) -> Sentences:
        proposed = self._proposed.get(event.request)
        if event.draft_token_ids != proposed:
            yield f"{event.draft_token_ids} are said to be proposed for r{event.request}, {proposed} came back"
        if event.match is not None:
            request, behind = state.requests[event.request], event.match.position + event.match.num_tokens
            known = [*request.token_ids, *self._sampled[event.request]]
            if event.draft_token_ids != known[behind : behind + len(event.draft_token_ids)]:
                yield f"the drafts of r{event.request} are not what stands behind position {behind - 1}"
            if known[event.match.position : behind] != known[len(known) - event.match.num_tokens :]:
                yield f"r{event.request} does not end in the n-gram at position {event.match.position}"


SPECULATION_INVARIANTS: tuple[type[Invariant], ...] = (VerdictsOnDrafts, ProposedDrafts)
