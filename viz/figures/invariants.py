"""Invariants: the rules that every trace must keep, and whether this one does, up to the step that is shown."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from sim.invariants import INVARIANTS, CheckReport, Invariant, Violation
from sim.timeline import StepView, Timeline
from viz.figures.html import Html, el
from viz.figures.parts import Selection, count, empty, label, panel
from viz.proofs import checked, takes_long

#: What the rules are about, by the module that holds them.
_ABOUT = {
    "checker": "the trace itself",
    "lifecycle": "requests, from arrival to end",
    "scheduling": "the plan of a step",
    "blocks": "the block pool",
    "content": "what blocks hold",
    "transfer": "KV from elsewhere",
    "forward": "the forward pass",
    "speculation": "drafts",
}


def invariants(timeline: Timeline, view: StepView, selection: Selection) -> Html:
    """Draw every rule with its verdict; of a large trace only when the check was asked for."""
    title, subtitle = "Invariants", "rules that hold in every run, checked at each event of this one"
    if takes_long(timeline) and not selection.asked:
        return panel("invariants", title, subtitle, *ask_first(timeline))
    report = checked(timeline)
    families = groupby(INVARIANTS, key=lambda invariant: invariant.__module__.rpartition(".")[2])
    drawn = [_family(_ABOUT[module], rules, report, view.step) for module, rules in families]
    return panel(
        "invariants", title, subtitle, _verdict(report), *_broken(report, view.step), el("div", "rules", *drawn)
    )


def ask_first(timeline: Timeline) -> tuple[Html, Html]:
    """What stands where a proof would, until somebody asks for it."""
    words = f"This trace holds {len(timeline.events):,} events. Going over all of them takes a while."
    return empty(words), el("button", "action", "Check and replay", data_act="asked:yes")


def _verdict(report: CheckReport) -> Html:
    looked = sum(1 for invariant in INVARIANTS if report.num_looks[invariant.name])
    broken = len({violation.invariant for violation in report.violations})
    if broken:
        words, css = f"✗ {broken} of {looked} rules are broken, {count(len(report.violations), 'time')} in all", "bad"
    else:
        words, css = f"✓ {looked} rules hold at each of {report.num_events:,} events", "good"
    others = len(INVARIANTS) - looked
    silent = "in this trace" if report.stopped_at is None else "before the check stopped"
    more = f"nothing {silent} concerns the {'other one' if others == 1 else f'{others} others'}"
    return el(
        "p",
        "proof",
        el("b", css, words),
        el("span", "sub", more) if others else None,
        data_violations=len(report.violations),
        data_looks=report.num_looks.total(),
    )


# --- what is broken -------------------------------------------------------------------------------------------------


def _broken(report: CheckReport, step: int) -> list[Html]:
    """The first violation of each broken rule, in the order in which they show."""
    drawn = [_violation(first, step) for first in _firsts(report).values()]
    if report.stopped_at is not None:
        drawn.append(el("p", "stopped", f"Nothing behind event {report.stopped_at:,} could be checked."))
    return drawn


def _firsts(report: CheckReport) -> dict[str, Violation]:
    firsts: dict[str, Violation] = {}
    for violation in report.violations:
        firsts.setdefault(violation.invariant, violation)
    return firsts


def _violation(violation: Violation, step: int) -> Html:
    where = "in this step" if violation.step == step else f"in step {violation.step:,}"
    link = el("button", "link", where, data_act=f"step:{violation.step}", data_tip=f"go to step {violation.step:,}")
    return el(
        "div",
        "violation",
        el("p", "", el("b", "", violation.invariant), " is broken first ", link, f", at event {violation.seq:,}"),
        el("p", "", f"{violation.sentence}."),
        data_violation=violation.invariant,
        data_step_of=violation.step,
    )


# --- every rule -----------------------------------------------------------------------------------------------------


def _family(title: str, rules: Iterable[type[Invariant]], report: CheckReport, step: int) -> Html:
    return el("div", "family", label(title), *(_rule(rule, report, step) for rule in rules))


def _rule(rule: type[Invariant], report: CheckReport, step: int) -> Html:
    looks, first = report.num_looks[rule.name], _firsts(report).get(rule.name)
    state = "unseen" if not looks else "holds" if first is None else "broken" if first.step <= step else "later"
    signs = {"unseen": "·", "holds": "✓", "broken": "✗", "later": "✓"}
    words = f"looked at {count(looks, 'event')}" if looks else "nothing to look at"
    if first is not None:
        words = "broken by now" if state == "broken" else f"holds up to here, broken in step {first.step:,}"
    named = el("span", "named", el("b", "", rule.name), el("em", "", words))
    return el(
        "div",
        f"rule-row {state}",
        el("b", "sign", signs[state]),
        el("p", "", named, el("span", "statement", rule.statement)),
        data_invariant=rule.name,
        data_state_of_rule=state,
        data_looks_of_rule=looks,
    )
