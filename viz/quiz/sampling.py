"""Questions about sampling: which drafts are accepted, and what a grammar allows."""

from __future__ import annotations

from collections.abc import Iterator

from engine.speculation import num_accepted
from engine.trace import events as ev
from sim.state import State
from sim.timeline import StepView
from viz.explain import RULES
from viz.explain.words import count
from viz.quiz.question import Choice, Question, Table, amounts, choices


def piece(state: State, token_id: int) -> str:
    """The text of a token in quotes, on one line."""
    text = state.piece_text(token_id).replace("\n", "⏎")
    return f"“{text}”"


# --- drafts -----------------------------------------------------------------------------------------------------


def drafts(view: StepView) -> Question | None:
    """How many drafts are accepted?"""
    probs = {event.request: event for event in view.events if isinstance(event, ev.SpecProbs)}
    verdicts = [event for event in view.events if isinstance(event, ev.SpecVerdict) and _is_told(event, probs)]
    verdict = min(verdicts, key=_tells_less, default=None)
    if verdict is None:
        return None
    judged = probs[verdict.request]
    number = len(verdict.draft_token_ids)
    others = sorted(set(range(number + 1)) - {verdict.num_accepted}, key=lambda n: (abs(n - verdict.num_accepted), n))
    right = f"{_why_more_are(verdict, judged)} {_why_no_more(verdict, judged)}".strip()
    wrong = [
        (n, _why_more_are(verdict, judged, n) if n < verdict.num_accepted else _why_no_more(verdict, judged))
        for n in others
    ]
    drafted = f"{count(number, 'token')} {'was' if number == 1 else 'were'} drafted for r{verdict.request}"
    return Question(
        view.step,
        f"{drafted}. With the numbers below, how many are accepted?",
        amounts(verdict.num_accepted, right, wrong, "draft"),
        RULES["verdict"],
        (),
        "speculation",
        request=verdict.request,
        given=_numbers(view.after, verdict, judged),
    )


def _is_told(verdict: ev.SpecVerdict, probs: dict[int, ev.SpecProbs]) -> bool:
    """Whether the recorded numbers, as they are shown, lead to the verdict."""
    judged = probs.get(verdict.request)
    if judged is None:
        return False
    shown = ([round(p, 3) for p in each] for each in (judged.target_probs, judged.draft_probs, judged.uniforms))
    return num_accepted(*shown) == verdict.num_accepted


def _tells_less(verdict: ev.SpecVerdict) -> tuple[bool, int]:
    return not 0 < verdict.num_accepted < len(verdict.draft_token_ids), -len(verdict.draft_token_ids)


def _numbers(state: State, verdict: ev.SpecVerdict, judged: ev.SpecProbs) -> Table:
    columns = (verdict.draft_token_ids, judged.target_probs, judged.draft_probs, judged.uniforms)
    rows = (
        (f"{place}.", piece(state, token), f"{p:.3f}", f"{q:.3f}", f"{u:.3f}")
        for place, (token, p, q, u) in enumerate(zip(*columns, strict=True), 1)
    )
    return Table(("", "draft", "model's probability", "drafter's probability", "random number u"), tuple(rows))


def _why_more_are(verdict: ev.SpecVerdict, judged: ev.SpecProbs, place: int | None = None) -> str:
    """Why a draft is accepted: that at a place, or the last that is."""
    place = verdict.num_accepted - 1 if place is None else place
    return f"Draft {place + 1} is accepted: {_rule_at(judged, place)}." if place >= 0 else ""


def _why_no_more(verdict: ev.SpecVerdict, judged: ev.SpecProbs) -> str:
    place = verdict.num_accepted
    if place == len(verdict.draft_token_ids):
        return ""
    return f"Draft {place + 1} is rejected: {_rule_at(judged, place)}; what follows it is not looked at."


def _rule_at(judged: ev.SpecProbs, place: int) -> str:
    u, q, p = judged.uniforms[place], judged.draft_probs[place], judged.target_probs[place]
    accepted = num_accepted([p], [q], [u])
    return f"u × {q:.3f} = {u * q:.3f} {'is below' if accepted else 'is not below'} the model's {p:.3f}"


# --- grammars ---------------------------------------------------------------------------------------------------


def allowed_token(view: StepView) -> Question | None:
    """Which token does the grammar allow?"""
    masks = next((event for event in view.events if isinstance(event, ev.GrammarBitmaskFilled)), None)
    if masks is None:
        return None
    for row, serial in enumerate(masks.requests):
        words = masks.words.get(masks.digests[row][0])
        if words is not None and view.before.requests[serial].automaton_state is not None:
            asked = _ask_of(view, serial, words, masks.num_allowed[row][0])
            if asked is not None:
                return asked
    return None


def _ask_of(view: StepView, serial: int, words: bytes, num_allowed: int) -> Question | None:
    sampled = next((e.appended for e in view.events if isinstance(e, ev.UpdateRequest) and e.request == serial), None)
    refused = [token for token in _likely(view, serial) if not _is_allowed(words, token)]
    if not sampled or not refused:
        return None
    state, request = view.after, view.before.requests[serial]
    so_far = "".join(map(state.piece_text, request.output_token_ids)).replace("\n", "⏎")
    said = f"so far it says “{so_far}”" if so_far else "it has said nothing yet"
    vocabulary = count(view.header.model.vocab_size, "token")
    why = f"It is one of {num_allowed:,}, of {vocabulary}, that the grammar can read from here."
    wrong = [
        Choice(piece(state, token), "The model finds it likely, but no text of the grammar goes on with it.")
        for token in refused
    ]
    return Question(
        view.step,
        f"r{serial} has to keep to its grammar; {said}. Which of these tokens may follow?",
        choices(Choice(piece(state, sampled[0]), why, right=True), wrong, lambda choice: choice.words.lower()),
        RULES["mask"],
        ("automaton",),
        "guided",
        request=serial,
    )


def _likely(view: StepView, serial: int) -> Iterator[int]:
    """The tokens that the model would take, the likeliest first, as far as their text is known."""
    logits = view.logits
    if logits is not None and serial in logits.requests:
        row = logits.requests.index(serial)
        yield from (token for token in logits.top_token_ids[row] if token in view.after.pieces)


def _is_allowed(words: bytes, token_id: int) -> bool:
    """Bit i of the little-endian word w stands for token 32 w + i: byte by byte, that is bit i of byte token / 8."""
    return bool(words[token_id // 8] >> token_id % 8 & 1)
