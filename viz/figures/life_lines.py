"""Life lines: one line per request over the steps, from its arrival to its end, with every token a tick on it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from engine.core.messages import RequestStatus
from engine.metrics import IterationMetrics
from sim.summary import LifeLine
from sim.timeline import StepView, Timeline
from viz.figures.chart import duration
from viz.figures.html import Html, el
from viz.figures.life_words import latency_words, longest_gap
from viz.figures.parts import Selection, chip, count, empty, panel
from viz.theme import request_class

#: Steps drawn around the current one, and lines drawn of the requests that live in them.
STEPS = 100
LINES = 24
#: Room for the words of a bracket on a narrow screen, in percent of a line.
_WORDS_WIDTH = 45

Kind = Literal["waiting", "grammar", "remote", "prefill", "decode", "again", "idle", "preempted"]

#: What a stretch of a line is: a word for the legend, and the whole of it.
KINDS: dict[Kind, tuple[str, str]] = {
    "waiting": ("waits", "waits in the queue"),
    "grammar": ("waits for its grammar", "waits until its grammar is compiled"),
    "remote": ("waits for KV", "waits for KV that another engine has computed"),
    "prefill": ("prefill", "its prompt is computed, one piece per step"),
    "decode": ("decode", "it gets its next token; each tick is a token"),
    "again": ("computed again", "tokens that a preemption has cost it are computed once more"),
    "idle": ("gets nothing", "it runs, but this step has no tokens for it"),
    "preempted": ("preempted", "it has lost its blocks, and waits to come back"),
}
#: What the reasons of an end mean.
_END = {
    "stop": "has said all it had to say",
    "length": "has as many tokens as it may have",
    "abort": "was aborted",
    "error": "failed",
}
#: The same in a word or two.
_ENDED = {"stop": "ended", "length": "token limit", "abort": "aborted", "error": "failed"}
_WAITING: dict[RequestStatus, Kind] = {
    RequestStatus.WAITING: "waiting",
    RequestStatus.WAITING_FOR_FSM: "grammar",
    RequestStatus.WAITING_FOR_REMOTE_KVS: "remote",
    RequestStatus.PREEMPTED: "preempted",
}


class _Window(NamedTuple):
    """The steps that are drawn, as columns of equal width."""

    first: int
    last: int

    def left(self, step: int) -> float:
        """Where the column of a step begins, in percent; for a step beyond the window, its nearer edge."""
        place = min(max(step, self.first), self.last + 1) - self.first
        return 100 * place / (self.last + 1 - self.first)

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and self.first <= step <= self.last


def life_lines(timeline: Timeline, view: StepView, selection: Selection) -> Html:
    """Draw the requests that live around the current step; in words, what the selected one had to wait for."""
    title, words = "Life lines", "each line is a request, from left to right through the steps; each tick is a token"
    window = _around(timeline.steps, view.step)
    living = [life for life in timeline.life_lines.values() if _lives_in(life, window)]
    lives = _chosen(living, view.step, selection.request)
    if not lives:
        return panel("life-lines", title, words, empty(f"No request lives in {_steps_words(window)}."))
    stretches = {life.request.serial: stretches_of(life, window.first, window.last) for life in lives}
    rows = [_row(place, life, stretches[life.request.serial], window, selection) for place, life in enumerate(lives, 1)]
    hidden = len(living) - len(lives)
    return panel(
        "life-lines",
        title,
        words,
        _legend({kind for of_request in stretches.values() for kind, _, _ in of_request}),
        el("div", "lives", *_columns(timeline.series, window, view.step, len(lives)), *rows),
        el("p", "more", f"… {count(hidden, 'more request')} in {_steps_words(window)}", data_hidden=hidden)
        if hidden
        else None,
        _caption(timeline, selection, window),
    )


def _around(steps: Sequence[int], step: int) -> _Window:
    first = max(0, min(steps.index(step) - STEPS // 2, len(steps) - STEPS))
    return _Window(steps[first], steps[min(first + STEPS, len(steps)) - 1])


def _lives_in(life: LifeLine, window: _Window) -> bool:
    return life.added < window.last and (life.finished is None or life.finished >= window.first)


def _chosen(living: list[LifeLine], step: int, selected: int | None) -> list[LifeLine]:
    """Of too many, the selected one, those that run in the step, those that wait in it; in order of arrival."""

    def rank(life: LifeLine) -> tuple[bool, bool, bool, int]:
        status = life.status_in(step)
        serial, waits = life.request.serial, status in _WAITING
        return serial != selected, status is not RequestStatus.RUNNING, not waits, serial

    return sorted(sorted(living, key=rank)[:LINES], key=lambda life: life.request.serial)


def stretches_of(life: LifeLine, first: int, last: int) -> list[tuple[Kind, int, int]]:
    """What a request does in steps `first` to `last`: kinds, each with its first and its last step."""
    scheduled = set(life.scheduled[bisect_left(life.scheduled, first) : bisect_right(life.scheduled, last)])
    prefills = {step for step, _ in life.prefills[bisect_left(life.prefills, (first, 0)) :]}

    def kind_in(step: int) -> Kind | None:
        status = life.status_in(step)
        if status is not RequestStatus.RUNNING:
            return _WAITING.get(status) if status else None
        if step not in scheduled:
            return "idle"
        if step not in prefills:
            return "decode"
        return "again" if life.preempted and life.preempted[0] < step else "prefill"

    stretches: list[tuple[Kind, int, int]] = []
    for kind, steps in groupby(range(first, last + 1), key=kind_in):
        together = list(steps)
        if kind is not None:
            stretches.append((kind, together[0], together[-1]))
    return stretches


# --- lines --------------------------------------------------------------------------------------------------------


def _row(
    place: int, life: LifeLine, stretches: list[tuple[Kind, int, int]], window: _Window, selection: Selection
) -> Html:
    serial = life.request.serial
    selected, row = serial == selection.request, f"grid-row:{place}"
    marks = [_stretch(serial, window, *stretch) for stretch in stretches]
    lane = el(
        "div",
        f"lane {request_class(serial)}" + (" selected" if selected else ""),
        *marks,
        _ticks(life, window),
        _arrival(life, window),
        _first_token(life, window),
        _end(life, window),
        *(_measures(life, window) if selected else ()),
        style=row,
        data_lane=serial,
    )
    return Html(el("span", "who", chip(serial, selected=selected), style=row) + lane + _outcome(life, row))


def _stretch(serial: int, window: _Window, kind: Kind, first: int, last: int) -> Html:
    left = window.left(first)
    when = f"step {first}" if first == last else f"steps {first} to {last}"
    return el(
        "button",
        f"stretch {kind}",
        style=f"left:{left:.3f}%;width:{window.left(last + 1) - left:.3f}%",
        tabindex=-1,
        data_act=f"request:{serial}",
        data_life=serial,
        data_kind=kind,
        data_from=first,
        data_to=last,
        data_tip=f"r{serial}, {when}: {KINDS[kind][1]}",
        aria_label=f"r{serial} {KINDS[kind][0]}",
    )


def _ticks(life: LifeLine, window: _Window) -> Html:
    """A tick where a step has brought a token, a cut between two pieces of a prompt: one path each."""
    tokens = life.tokens[bisect_left(life.tokens, window.first) : bisect_right(life.tokens, window.last)]
    prefills = {step for step, _ in life.prefills if step in window}
    cuts = [step for step in prefills if step - 1 in prefills]
    return el(
        "svg",
        "ticks",
        el("path", "tick", d=" ".join(f"M{window.left(step + 1):.3f} 0V100" for step in tokens)),
        el("path", "cut", d=" ".join(f"M{window.left(step):.3f} 0V100" for step in sorted(cuts))),
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        data_tokens_of=life.request.serial,
        data_steps=" ".join(map(str, tokens)),
    )


def _arrival(life: LifeLine, window: _Window) -> Html | None:
    if life.added + 1 not in window:
        return None
    tip = f"r{life.request.serial} arrives before step {life.added + 1}"
    return el("i", "arrival", style=f"left:{window.left(life.added + 1):.3f}%", data_arrival=life.added, data_tip=tip)


def _first_token(life: LifeLine, window: _Window) -> Html | None:
    step, ttft = life.first_token, life.request.ttft_ns
    if step not in window or step is None or ttft is None:
        return None
    tip = f"r{life.request.serial}: its first token, {duration(ttft)} after its arrival (TTFT)"
    return el("i", "first-token", style=f"left:{window.left(step + 1):.3f}%", data_first_token=step, data_tip=tip)


def _end(life: LifeLine, window: _Window) -> Html | None:
    step, reason = life.finished, life.request.finish_reason
    if step not in window or step is None:
        return None
    css = "end" if life.request.is_completed else "end early"
    tip = f"r{life.request.serial} ends in step {step}: {reason}"
    return el("i", css, style=f"left:{window.left(step + 1):.3f}%", data_end=step, data_reason=reason, data_tip=tip)


def _outcome(life: LifeLine, row: str) -> Html:
    """Its end, wherever that is."""
    reason = life.request.finish_reason
    if life.finished is None or reason is None:
        return el("span", "outcome", "goes on", style=row)
    css = "outcome" if life.request.is_completed else "outcome bad"
    when = el("em", "", f" in step {life.finished}")
    return el(
        "span",
        css,
        _ENDED.get(reason, reason),
        when,
        style=row,
        data_tip=f"r{life.request.serial} {_END.get(reason, reason)}",
    )


# --- what is measured ---------------------------------------------------------------------------------------------


def _measures(life: LifeLine, window: _Window) -> list[Html]:
    """Brackets below the selected line: from its arrival to its first token, and the longest it waited for another."""
    ttft = _Bracket("TTFT", life.request.ttft_ns or 0, life.added, life.first_token or life.added)
    gap = longest_gap(life)
    longest = None if gap is None else _Bracket("longest ITL", gap.duration_ns, gap.first, gap.last)
    seen = [bracket for bracket in (ttft, longest) if bracket is not None and bracket.width(window) > 0]
    starts = [bracket.words_at(window) for bracket in seen]
    crowded = len(starts) == 2 and abs(starts[1] - starts[0]) < _WORDS_WIDTH
    return [bracket.draw(window, crowded and bracket is longest) for bracket in seen]


class _Bracket(NamedTuple):
    """From the end of one step to the end of another."""

    name: str
    duration_ns: int
    first: int
    last: int

    def width(self, window: _Window) -> float:
        return window.left(self.last + 1) - window.left(self.first + 1)

    def words_at(self, window: _Window) -> float:
        """Where its words begin; they stand on the side with more room."""
        left = window.left(self.first + 1)
        return left if left < 60 else left + self.width(window) - _WORDS_WIDTH

    def draw(self, window: _Window, lower: bool) -> Html:
        left = window.left(self.first + 1)
        css = "measure" + ("" if left < 60 else " leftwards") + (" lower" if lower else "")
        words = el("em", "", f"{self.name} {duration(self.duration_ns)}")
        place = f"left:{left:.3f}%;width:{self.width(window):.3f}%"
        return el("span", css, words, style=place, data_measure=self.name, data_ns=self.duration_ns)


def _caption(timeline: Timeline, selection: Selection, window: _Window) -> Html:
    life = timeline.life_lines.get(selection.request) if selection.request is not None else None
    if life is None:
        return el("p", "more", "Click a line to read how long its request waited, and for what.")
    go = None
    if not _lives_in(life, window) and timeline.steps:
        there = min(max(life.added + 1, timeline.steps[0]), timeline.steps[-1])
        go = el("button", "go-to", f"It lives elsewhere: go to step {there}", data_act=f"step:{there}")
    return el("div", "detail life-words", *latency_words(life), go, data_caption=life.request.serial)


# --- the steps beneath --------------------------------------------------------------------------------------------


def _columns(series: Sequence[IterationMetrics], window: _Window, current: int, lines: int) -> list[Html]:
    """The steps, behind the lines: a click goes to one; at the bottom, how long each took."""
    start = bisect_left(series, window.first, key=lambda facts: facts.step)
    facts_of = {facts.step: facts for facts in series[start : start + STEPS] if facts.step in window}
    longest = max((facts.duration_ns for facts in facts_of.values()), default=0)
    columns = [
        _column(step, facts_of.get(step), facts_of.get(step - 1), longest, step == current)
        for step in range(window.first, window.last + 1)
    ]
    row, behind = f"grid-row:{lines + 1}", f"grid-row:1 / span {lines + 1}"
    ends = el("span", "", f"step {window.first}"), el("span", "", f"step {window.last}")
    return [
        el("div", "columns", *columns, style=behind, data_longest=longest),
        el("span", "who foot", "time", style=row, data_tip="how long each step took"),
        el("span", "outcome foot", el("em", "", "at most "), duration(longest), style=row),
        el("span", "ends", *ends, style=f"grid-row:{lines + 2}"),
    ]


def _column(
    step: int, facts: IterationMetrics | None, before: IterationMetrics | None, longest: int, current: bool
) -> Html:
    tip, bar = f"step {step}", None
    if facts is not None:
        took, rest = facts.duration_ns, facts.started_ns - before.ended_ns if before else 0
        tip += f" took {duration(took)}: {count(facts.tokens, 'token')} computed, {facts.output_tokens} new"
        tip += f"; before it, no step ran for {duration(rest)}" if rest > took else ""
        bar = el("i", "", style=f"height:{28 * took / max(1, longest):.1f}px", data_took=took)
    return el(
        "button",
        "column now" if current else "column",
        bar,
        tabindex=-1,
        data_act=f"step:{step}",
        data_column=step,
        data_now=step if current else None,
        data_tip=tip,
        aria_label=f"step {step}",
    )


def _steps_words(window: _Window) -> str:
    return f"steps {window.first:,} to {window.last:,}"


def _legend(present: set[Kind]) -> Html:
    entries = [
        el("li", "", el("i", f"stretch-of {kind}"), word, data_tip=meaning, data_legend=kind)
        for kind, (word, meaning) in KINDS.items()
        if kind in present
    ]
    first = el("li", "", el("i", "first-token"), "first token", data_tip="from its arrival to here: TTFT")
    end = el("li", "", el("i", "end"), "its end", data_tip="finished; the reason stands at the right")
    return el("ul", "legend life-legend", *entries, first, end)
