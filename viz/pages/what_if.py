"""What if: a run beside the same run with something changed, or beside other runs, scrubbed together."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import streamlit as st

from engine.errors import OrreryError, TraceError
from sim.fork import Change
from sim.fork.change import KNOBS, MOST
from sim.timeline import Timeline
from viz import address, gallery
from viz import what_if_address as question
from viz.components.board import board
from viz.figures.html import Html, el
from viz.figures.masthead import action, masthead, notice
from viz.figures.spine import spine
from viz.figures.what_if import columns, outcome, parting, questions
from viz.open_trace import FileVersion, forked, open_timeline
from viz.pages import gallery as gallery_page
from viz.what_if import MOST_RUNS, Run, compared, suggestions

#: Knobs in the form that are limits of the scheduler, and all that are numbers.
_LIMITS = ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold")
_NUMBERS = (*_LIMITS, "num_gpu_blocks", "block_size")


def page() -> None:
    """The page."""
    name = address.trace_name(sys.argv[1] if len(sys.argv) > 1 else gallery.DEFAULT)
    try:
        timeline, version = open_timeline(name)
    except TraceError as error:
        gallery_page.show(notice(str(error), error=True))
        return
    runs, change, notices = _runs(name, timeline, version)
    _draw(name, runs, change, notices)
    with st.expander("Or ask exactly", expanded=False):
        _form(timeline, change)


def _runs(name: str, timeline: Timeline, version: FileVersion) -> tuple[list[Run], Change | None, list[Html]]:
    """The recorded run, its fork, and other traces; what was asked; and what has to be said."""
    recorded = Run.of("recorded", name.rsplit("/", 1)[-1], timeline)
    runs, notices, change = [recorded], [], None
    try:
        change = question.change()
        if change is not None:
            fork = Run.of("what if", str(change), forked(version, change))
            # A fork that changes nothing: the recorded decisions, at times that are modelled as those beside it.
            clocked = forked(version, Change(step=timeline.steps[0]))
            runs = [Run.of(recorded.name, recorded.words, timeline, clocked), fork]
    except OrreryError as error:
        notices.append(notice(str(error), error=True))
    others = question.other_traces()
    for other in others[: MOST_RUNS - len(runs)]:
        try:
            runs.append(Run.of(other.rsplit("/", 1)[-1], other, open_timeline(other)[0]))
        except TraceError as error:
            notices.append(notice(str(error), error=True))
    if len(others) > MOST_RUNS - 1:
        notices.append(notice(f"No more than {MOST_RUNS} runs stand beside each other: the last ones are left out."))
    return runs, change, notices


def _draw(name: str, runs: list[Run], change: Change | None, notices: list[Html]) -> None:
    base = runs[0].timeline
    longest = max(runs, key=lambda run: len(run.timeline.steps))
    steps = longest.timeline.steps or [0]
    step = _step(steps)
    actions = [action("Back to the trace", "back", "this run alone, step by step")]
    if len(runs) > 1:
        by_time = question.is_by_time()
        words = ("Align by step", "show steps of the same number") if by_time else ("Align by time", "show one moment")
        actions.insert(0, action(words[0], "by:step" if by_time else "by:time", f"{words[1]} of all runs"))
    header = masthead(name.rsplit("/", 1)[-1], base.header, None, *actions, view=None, notices=tuple(notices))
    suggested = suggestions(base)
    comparisons = [compared(base, run.timeline) for run in runs[1:]]
    body = [questions(suggested, change)]
    if comparisons:
        body.append(parting(runs, comparisons[0].diff, longest))
    body.append(columns(runs, _aligned(runs, step), address.selection()))
    if comparisons:
        body.append(outcome(runs, [each.diff for each in comparisons]))
    differing = comparisons[0].differing if comparisons else []

    def act_on(act: dict[str, Any]) -> None:
        if "suggestion" in act:
            question.ask(suggested[int(act["suggestion"])].change)
        elif "by" in act:
            question.align(act["by"])
        elif "back" in act:
            address.go_to("step", trace=name, step=str(min(step, base.steps[-1] if base.steps else 0)))
        else:
            address.follow(act)

    parts = {
        "header": header,
        "spine": spine(longest.timeline.series, differing),
        "stage": el("div", "what-if", *body),
    }
    board(parts, first=steps[0], last=steps[-1], step=step, on_act=act_on)


def _step(steps: list[int]) -> int:
    wanted = address.step_number()
    return max(steps[0], min(steps[-1], wanted)) if isinstance(wanted, int) else steps[0]


def _aligned(runs: list[Run], step: int) -> list[int | None]:
    """The step of each run: the same number, or the one that ran at the same time."""
    if not question.is_by_time():
        return [step] * len(runs)
    leading = next((run for run in runs if run.facts(step) is not None), runs[0])
    facts = leading.facts(step)
    return [None if facts is None else run.step_at(facts.started_ns) for run in runs]


# --- the form ---------------------------------------------------------------------------------------------------


def _form(timeline: Timeline, asked: Change | None) -> None:
    steps = timeline.steps or [1]
    recorded = {
        **{name: min(getattr(timeline.header.config.scheduler, name), MOST) for name in _LIMITS},
        "num_gpu_blocks": timeline.header.kv_cache.num_gpu_blocks,
        "block_size": timeline.header.kv_cache.block_size,
    }
    turned = {} if asked is None else asked.knobs
    with st.form("what if", border=False):
        row = st.columns(6)
        wanted = address.step_number()
        at = asked.step if asked else wanted if isinstance(wanted, int) and wanted in steps else steps[0]
        step = row[0].number_input(
            "from step", steps[0], steps[-1], max(steps[0], min(steps[-1], at)), help="up to it, the run is as recorded"
        )
        values: dict[str, Any] = {}
        for column, knob in zip(row[1:], _NUMBERS, strict=True):
            shown = max(0, min(int(turned.get(knob, recorded[knob])), MOST))
            values[knob] = column.number_input(knob, 0, MOST, shown, help=KNOBS[knob].meaning)
        last_row = st.columns(3)
        caching = last_row[0].toggle(
            "prefix caching",
            bool(turned.get("enable_prefix_caching", timeline.header.config.cache.enable_prefix_caching)),
            help=KNOBS["enable_prefix_caching"].meaning,
        )
        without = last_row[1].multiselect(
            "without requests",
            list(timeline.life_lines),
            [serial for serial in (asked.without if asked else ()) if serial in timeline.life_lines],
            format_func=lambda serial: f"r{serial}",
        )
        others = last_row[2].text_input(
            "beside other traces",
            shlex.join(question.other_traces()),
            help="names or paths, apart by spaces; in quotes, if they hold some",
        )
        submitted = st.form_submit_button("Run it again", type="primary")
    if submitted:
        not_in_the_form = {name: turned[name] for name in turned if name not in (*_NUMBERS, "enable_prefix_caching")}
        knobs = {**not_in_the_form, **{name: value for name, value in values.items() if value != recorded[name]}}
        if caching != timeline.header.config.cache.enable_prefix_caching:
            knobs["enable_prefix_caching"] = caching
        question.compare_with(_words(others))
        if knobs or without:
            question.ask(Change(step=int(step), knobs=knobs, without=tuple(without)))
        else:
            question.ask(None)
        st.rerun()


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quotation mark that belongs to a name
        return line.split()
