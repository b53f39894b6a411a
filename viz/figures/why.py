"""Why?: every decision of a step in order, in plain words, with the function that made it."""

from __future__ import annotations

from itertools import groupby

from sim.timeline import StepView
from viz.cut import UNPLANNED, is_planned
from viz.explain import Reason, explain
from viz.figures.code import code
from viz.figures.html import Html, el
from viz.figures.parts import Selection, chip, empty, panel
from viz.source import Place

#: Lines drawn beside the other panels, and when there is room.
_LINES, _LINES_ALONE = 16, 200
#: As many decisions of one kind share a line.
_MANY = 4
#: Chips drawn of the requests that share a line.
_CHIPS = 8


def why(view: StepView, selection: Selection) -> Html:
    """Draw the reasons; beside all the other panels, without the bookkeeping that follows from them."""
    alone, planned = selection.view != "all", is_planned(view)
    # Of a plan that was cut short, the bookkeeping may be all there is.
    reasons = [reason for reason in explain(view) if alone or not planned or not reason.detail]
    lines = _lines(reasons)
    limit = _LINES_ALONE if alone else _LINES
    drawn = [_line(line, selection) for line in lines[:limit]]
    if len(lines) > limit:
        drawn.append(el("p", "more", f"… {sum(map(len, lines[limit:]))} more decisions"))
    if not planned:
        drawn.append(empty(UNPLANNED))
    return panel(
        "why",
        "Why?",
        "the decisions in order; click one to see its function",
        el("div", "why-list", *(drawn or [empty("Nothing was decided: nobody was there.")])),
        *(code(place) for place in dict.fromkeys(line[0].place for line in lines[:limit])),
    )


def _lines(reasons: list[Reason]) -> list[list[Reason]]:
    """Decisions of one kind that follow one another share a line if they are many, such as requests that decode."""
    lines: list[list[Reason]] = []
    for _, group in groupby(reasons, key=lambda reason: (reason.sentence, reason.place)):
        alike = list(group)
        lines += [alike] if len(alike) >= _MANY else [[reason] for reason in alike]
    return lines


def _line(reasons: list[Reason], selection: Selection) -> Html:
    reason = reasons[0]
    named = [each.request for each in reasons if each.request is not None]
    chips = [chip(serial, selected=serial == selection.request) for serial in named[:_CHIPS]]
    if len(named) > _CHIPS:
        chips.append(el("span", "elided", f"… {len(named) - _CHIPS} more"))
    sentence = f"each: {reason.sentence}" if len(reasons) > 1 else reason.sentence
    because = el("button", "because", sentence, el("span", "place", _where(reason.place)), data_code=str(reason.place))
    return el(
        "div",
        "reason several" if len(reasons) > 1 else "reason",
        el("span", "chips", *chips),
        because,
        data_reason=reason.seq,
        data_decisions=len(reasons),
    )


def _where(place: Place) -> str:
    return f"{place.symbol.rsplit('.', 1)[-1]} · {place.path.rsplit('/', 1)[-1]}:{place.line}"
