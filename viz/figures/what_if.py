"""Runs beside each other: where they part, the same step of each, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.metrics import IterationMetrics
from engine.metrics.table import comparison
from engine.trace import events as ev
from sim.diff import FirstDifference, RunDiff, diff_states
from sim.fork import Change
from sim.timeline import StepView
from viz.explain import explain
from viz.figures.chart import chart, duration, line, round_up
from viz.figures.html import Child, Html, el
from viz.figures.kv_memory import kv_memory
from viz.figures.parts import Selection, chip, count, empty, label, panel
from viz.figures.scheduler import scheduler
from viz.what_if import Run, Suggestion

_POINTS = 200
_MOST_MARKED = 300
_MOST_REQUESTS = 24

#: How the fate of a request is said: by field of `sim.diff.runs.RequestChange`.
_FATES = {
    "added": "arrived before step",
    "first_scheduled": "first tokens in step",
    "first_token": "first word in step",
    "finished": "ended in step",
    "finish_reason": "ended by",
    "output_tokens": "tokens of answer",
    "preemptions": "preemptions",
    "steps": "steps it ran in",
}


def questions(suggested: Sequence[Suggestion], asked: Change | None) -> Html:
    """What may be asked with one click; what is asked is pressed."""
    buttons = [
        el(
            "button",
            "action",
            suggestion.words,
            data_act=f"suggestion:{place}",
            data_suggestion=place,
            aria_pressed="true" if suggestion.change == asked else "false",
        )
        for place, suggestion in enumerate(suggested)
    ]
    return panel(
        "questions",
        "What if?",
        "run the same requests again with one thing changed, and see where it parts from what happened",
        el("div", "chips", *buttons) if buttons else empty("This trace holds no step that could be run again."),
    )


def parting(runs: Sequence[Run], result: RunDiff, longest: Run) -> Html:
    """Draw what became of the second run, and where it parts from the first; `longest`: whose steps can be chosen."""
    here, there = runs[0], runs[1]
    if result.decision is None:
        body: list[Child] = [el("p", "parting-words", "Every decision is the same: here it makes no difference.")]
    else:
        step = result.decision.step
        button = el("button", "action", f"go to step {step}", data_act=f"step:{step}", data_parting=step)
        before = (
            f"After {count(result.decision.num_equal, 'equal decision')}, in" if result.decision.num_equal else "In"
        )
        words = f"{before} step {step}, the runs part:"
        body = [
            el("p", "parting-words", words, button),
            _side(here, "first", result.decision),
            _side(there, "second", result.decision),
        ]
    settings = [
        el(
            "li",
            "",
            el("code", "", each.field.removeprefix("scheduler.").removeprefix("cache.")),
            f" {each.first} → {each.second}",
        )
        for each in result.config
    ]
    return panel(
        "parting",
        "Where they part",
        there.words,
        el("p", "verdict-of-runs", _verdict(here, there), data_verdict_of_runs=True),
        *body,
        el("ul", "settings", *settings) if settings else None,
        el("p", "sub", f"The steps above are those of “{longest.name}”; where the runs differ they are underlined."),
    )


def _verdict(here: Run, there: Run) -> str:
    """What the change came to, in one sentence."""
    before, after = here.summary(), there.summary()
    said = [f"{count(len(there.timeline.steps), 'step')} instead of {len(here.timeline.steps):,}"]
    if before.num_preemptions or after.num_preemptions:
        said.append(f"{count(after.num_preemptions, 'preemption')} instead of {before.num_preemptions:,}")
    if before.duration and after.duration:
        change = after.duration / before.duration - 1
        more = "more" if change > 0 else "less"
        said.append("it takes as long" if abs(change) < 0.005 else f"it takes {abs(change):.0%} {more} time")
    return f"All in all: {', '.join(said)}."


def _side(run: Run, which: str, difference: FirstDifference) -> Html:
    """What one of the runs did instead of the other, with the reason."""
    event = difference.first if which == "first" else difference.second
    request, said = _said(run, event)
    return el(
        "p",
        f"side {which}",
        el("b", "", run.name),
        None if request is None else chip(request),
        el("span", "", said),
        data_side=which,
    )


def _said(run: Run, event: ev.Event | None) -> tuple[int | None, str]:
    if event is None:
        return None, "nothing more: it had ended"
    if event.step in run.timeline.steps:
        for reason in explain(run.timeline.step(event.step)):
            if reason.seq == event.seq:
                return reason.request, reason.sentence
    request = getattr(event, "request", None)
    return request, ev.tag_of(event)


def columns(runs: Sequence[Run], steps: Sequence[int | None], selection: Selection) -> Html:
    """Draw a step of each run; what is not as in the first run is outlined."""
    views = [
        run.timeline.step(step) if step is not None and step in run.timeline.steps else None
        for run, step in zip(runs, steps, strict=True)
    ]
    drawn = [_column(place, run, view, selection) for place, (run, view) in enumerate(zip(runs, views, strict=True))]
    return el("div", "runs", el("style", "", Html("".join(_marks(views)))), *drawn)


def _column(place: int, run: Run, view: StepView | None, selection: Selection) -> Html:
    last = run.timeline.steps[-1] if run.timeline.steps else 0
    ended = empty(f"This run had ended: its last step is {last}.")
    facts = None if view is None else run.facts(view.step)
    where = (
        "over"
        if view is None
        else f"step {view.step} of {last}" + (f" · {duration(facts.started_ns)}" if facts is not None else "")
    )
    head = el(
        "header", "", el("h2", "", el("i", "line-of"), run.name), el("p", "sub", run.words), el("b", "mono", where)
    )
    body = [ended] if view is None else [scheduler(view, selection), kv_memory(view, selection)]
    return el("section", f"course course-{place}", head, *body, data_run=place, data_step=view.step if view else None)


def _marks(views: Sequence[StepView | None]) -> Iterator[str]:
    """Style rules that outline requests and blocks that differ from those of the first run."""
    first = views[0]
    for place, view in enumerate(views[1:], 1):
        if first is None or view is None:
            continue
        result = diff_states(first.planned, view.planned)
        requests = [
            f'[data-{kind}="{changed.name[1:]}"]'
            for changed in result.requests
            for kind in ("row", "waiting", "preempted")
        ]
        blocks = [f'[data-block="{changed.name.split()[1]}"]' for changed in result.blocks]
        for selector in [*requests, *blocks][:_MOST_MARKED]:
            columns_of = (0, place) if place == 1 else (place,)
            yield "".join(f".course-{column} {selector}{{--differs:var(--accent)}}" for column in columns_of)


def outcome(runs: Sequence[Run], results: Sequence[RunDiff]) -> Html:
    """Draw the figures of all runs, and the requests that fared otherwise."""
    summaries = [run.summary() for run in runs]
    rows = [
        el(
            "tr",
            "same" if len(set(values)) == 1 else "",
            el("th", "", name),
            *(el("td", "", value) for value in values),
            data_figure=name,
        )
        for name, values in comparison(summaries)
    ]
    head = el("tr", "", el("th", ""), *(el("th", "", run.name) for run in runs))
    return panel(
        "outcome",
        "What became of it",
        "all times are modelled, so that decisions alone make them differ; what is the same is pale",
        _over_time(runs),
        el(
            "div",
            "split",
            el("div", "scroll", el("table", "figures", el("thead", "", head), el("tbody", "", *rows))),
            el("div", "", *(_fared(run, result) for run, result in zip(runs[1:], results, strict=True))),
        ),
    )


def _fared(run: Run, result: RunDiff) -> Html:
    if not result.requests:
        return el("p", "empty", f"Every request fared the same in {run.name}.")
    rows = [
        el(
            "div",
            "fate",
            chip(changed.serial),
            el(
                "span",
                "",
                " · ".join(
                    f"{_FATES[each.field]} {_value(each.first)} → {_value(each.second)}" for each in changed.fields
                ),
            ),
            data_fate=changed.serial,
        )
        for changed in result.requests[:_MOST_REQUESTS]
    ]
    more = len(result.requests) - _MOST_REQUESTS
    rest = el("p", "more", f"… and {more} more") if more > 0 else None
    return el("div", "", label(f"requests that fared otherwise in {run.name}"), *rows, rest)


def _value(value: object) -> str:
    return "never" if value is None else str(value)


def _over_time(runs: Sequence[Run]) -> Html:
    """Two lines per run: memory in use, and tokens of answers so far."""
    everything = [facts for run in runs for facts in run.clocked.series]
    end = max((facts.ended_ns for facts in everything), default=0) or 1
    most_blocks = max((facts.usable_blocks for facts in everything), default=0) or 1
    top = round_up(max((sum(f.output_tokens for f in run.clocked.series) for run in runs), default=0))
    use, said = [], []
    for place, run in enumerate(runs):
        series = run.clocked.series
        points = [(100 * f.ended_ns / end, 100 * f.blocks_in_use / most_blocks) for f in _thinned(series)]
        use.append(line(points, f"of-run-{place}"))
        said.append(line(_said_so_far(series, end, top), f"of-run-{place}", data_run_line=place))
    ends = ("start", duration(end))
    blocks = [(0.0, "0"), (50.0, f"{most_blocks / 2:,.0f}"), (100.0, f"{most_blocks:,}")]
    return el(
        "div",
        "histograms",
        el("div", "", label("KV blocks in use"), chart("time", "", blocks, ends, *use)),
        el(
            "div", "", label("tokens of answers so far"),
            chart("time", "", [(0.0, "0"), (50.0, f"{top / 2:,.0f}"), (100.0, f"{top:,.0f}")], ends, *said),
        ),
    )  # fmt: skip


def _said_so_far(series: Sequence[IterationMetrics], end: int, top: float) -> list[tuple[float, float]]:
    points, total = [(0.0, 0.0)], 0
    for facts in series:
        total += facts.output_tokens
        points.append((100 * facts.ended_ns / end, 100 * total / top))
    per = max(1, len(points) // _POINTS)
    return points[::per] + points[-1:]


def _thinned(series: Sequence[IterationMetrics]) -> list[IterationMetrics]:
    """Of many steps, the fullest of each bunch."""
    per = max(1, -(-len(series) // _POINTS))
    return [max(series[i : i + per], key=lambda f: f.kv_cache_usage) for i in range(0, len(series), per)]
