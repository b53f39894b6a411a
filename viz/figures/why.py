"""Why?: every decision of a step in plain words, request by request, with its rule and the function that made it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sim.timeline import StepView
from viz.cut import UNPLANNED, is_planned
from viz.explain import Phase, Reason, Rule, Wait, explain, why_waits
from viz.figures.code import code
from viz.figures.html import Html, el
from viz.figures.parts import Selection, chip, count, empty, label, panel
from viz.source import Place

#: Groups of decisions drawn beside the other panels, and when there is room.
_GROUPS, _GROUPS_ALONE = 16, 160
#: Lines of bookkeeping in one fold.
_FOLDED, _FOLDED_ALONE = 24, 120
#: Chips drawn of the requests that share a line, and of those that wait.
_CHIPS = 8

_PHASES: dict[Phase, str] = {"before": "since the step before", "planned": "the plan", "output": "what came back"}


def why(view: StepView, selection: Selection) -> Html:
    """Draw the reasons; beside all the other panels the bookkeeping that follows from them is folded away."""
    reasons, alone = explain(view), selection.view != "all"
    wait = None if selection.request is None else why_waits(view, selection.request)
    groups, waiting = _grouped(reasons), frozenset(view.planned.waiting)
    shown = groups[: _GROUPS_ALONE if alone else _GROUPS]
    drawn = [part for phase in _PHASES for part in _phase(phase, shown, selection, waiting)]
    if len(groups) > len(shown):
        left_out = sum(len(group.reasons) for group in groups[len(shown) :])
        drawn.append(el("p", "more", f"… {left_out} more decisions"))
    if not is_planned(view):
        drawn.append(empty(UNPLANNED))
    rules = [reason.rule for group in shown for reason in group.reasons] + ([wait.rule] if wait else [])
    return panel(
        "why",
        "Why?",
        "what was decided; click a line for its rule and code",
        _answer(wait) if wait else _who_waits(view),
        el("div", "why-list", *(drawn or [empty("Nothing was decided: nobody was there.")])),
        *(code(rule) for rule in dict.fromkeys(rules)),
    )


# --- the question of one who waits ----------------------------------------------------------------------------------


def _answer(wait: Wait) -> Html:
    """Why the selected request waits, before everything else."""
    tip = f"go to step {wait.since_step}"
    since = el("button", "link", f"Waits {wait.since}", data_act=f"step:{wait.since_step}", data_tip=tip)
    return el(
        "div",
        "why-waits",
        el("p", "asked", chip(wait.request, hollow=True, selected=True), "Why does it wait?"),
        _because(f"Because {wait.sentence}.", wait.rule),
        el("p", "since", since),
        _held_up_by(wait),
        data_answer=wait.request,
        data_behind=wait.behind,
        data_since=wait.since_step,
    )


def _held_up_by(wait: Wait) -> Html | None:
    if wait.behind is None:
        return None
    return el("p", "since", "Held up by ", chip(wait.behind, hollow=True, tip=f"look at r{wait.behind}"))


def _who_waits(view: StepView) -> Html | None:
    waiting = view.planned.waiting
    if not waiting or not is_planned(view):
        return None
    chips = [chip(serial, hollow=True, tip=f"why does r{serial} wait?") for serial in waiting[:_CHIPS]]
    if len(waiting) > _CHIPS:
        chips.append(el("span", "elided", f"… {len(waiting) - _CHIPS} more"))
    words = "waits: click it to see why" if len(waiting) == 1 else "wait: click one to see why"
    return el("div", "who-waits", el("span", "chips", *chips), el("span", "sub", words))


# --- groups ---------------------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """What one phase of a step decided about a request, or about several of which the same is said."""

    phase: Phase
    requests: list[int]
    reasons: list[Reason]

    @property
    def told(self) -> list[Reason]:
        """What is said of each of them; nothing of those with no more than bookkeeping."""
        first = self.reasons[0].request
        return [reason for reason in self.reasons if not reason.detail and reason.request == first]

    @property
    def details(self) -> list[Reason]:
        """The bookkeeping of all of them."""
        return [reason for reason in self.reasons if reason.detail]


def _grouped(reasons: list[Reason]) -> list[_Group]:
    """Request by request, in the order in which the first decision about each was made; mere bookkeeping is last."""
    own: dict[tuple[Phase, int | None], list[Reason]] = {}
    for reason in reasons:
        own.setdefault((reason.phase, reason.request), []).append(reason)
    groups: dict[tuple[Phase, tuple[str, ...]], _Group] = {}
    for (phase, request), decided in own.items():
        told = tuple(reason.sentence for reason in decided if not reason.detail)
        group = groups.setdefault((phase, told), _Group(phase, [], []))
        group.requests.extend([] if request is None else [request])
        group.reasons.extend(decided)
    return sorted(groups.values(), key=lambda group: not group.told)


def _phase(phase: Phase, groups: Iterable[_Group], selection: Selection, waiting: frozenset[int]) -> list[Html]:
    """The groups of a phase, beneath its name."""
    drawn = [_group(group, selection, waiting) for group in groups if group.phase == phase]
    return [label(_PHASES[phase]), *drawn] if drawn else []


def _group(group: _Group, selection: Selection, waiting: frozenset[int]) -> Html:
    told, each = group.told, "each: " if len(group.requests) > 1 else ""
    lines = [_because(each + reason.sentence, reason.rule) for reason in told]
    return el(
        "div",
        "reason" + (" several" if len(group.requests) != 1 or not told else ""),
        _chips(group.requests, selection, waiting) if told else None,
        el("div", "", *lines, _bookkeeping(group, selection)),
        data_reason=group.reasons[0].seq,
        data_decisions=len(group.reasons),
    )


def _chips(requests: list[int], selection: Selection, waiting: frozenset[int]) -> Html | None:
    if not requests:
        return None
    chips = [
        chip(serial, hollow=serial in waiting, selected=serial == selection.request) for serial in requests[:_CHIPS]
    ]
    if len(requests) > _CHIPS:
        chips.append(el("span", "elided", f"… {len(requests) - _CHIPS} more"))
    return el("span", "chips", *chips)


def _because(sentence: str, rule: Rule) -> Html:
    where = el("span", "place", _where(rule.place))
    return el("button", "because", sentence, where, data_code=str(rule.place), data_tip=rule.statement)


def _where(place: Place) -> str:
    return f"{place.symbol.rsplit('.', 1)[-1]} · {place.path.rsplit('/', 1)[-1]}:{place.line}"


def _bookkeeping(group: _Group, selection: Selection) -> Html | None:
    """What follows from the decisions of a group, in a fold that is open where there is room."""
    details, alone = group.details, selection.view != "all"
    if not details:
        return None
    most = _FOLDED_ALONE if alone else _FOLDED
    lines = [_detail(reason, named=len(group.requests) != 1 or not group.told) for reason in details[:most]]
    if len(details) > most:
        lines.append(el("p", "more", f"… {len(details) - most} more"))
    words = "what follows" if group.told else "bookkeeping"
    summary = el("summary", "", f"{words}: {count(len(details), 'line')}")
    return el("details", "bookkeeping", summary, *lines, open=alone)


def _detail(reason: Reason, *, named: bool) -> Html:
    name = chip(reason.request) if named and reason.request is not None else None
    return el("div", "detail-line", name, _because(reason.sentence, reason.rule))
