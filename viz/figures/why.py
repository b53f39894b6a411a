"""Why?: every decision of a step in order, in plain words, with the code that made it."""

from __future__ import annotations

from sim.timeline import StepView
from viz.explain import Reason, explain
from viz.figures.code import code
from viz.figures.html import Html, el
from viz.figures.parts import Selection, chip, empty, panel
from viz.source import Place

#: Reasons drawn beside the other panels, and when there is room.
_REASONS, _REASONS_ALONE = 24, 200


def why(view: StepView, selection: Selection) -> Html:
    """Draw the reasons; beside all the other panels, without the bookkeeping that follows from them."""
    alone = selection.view != "all"
    reasons = [reason for reason in explain(view) if alone or not reason.detail]
    limit = _REASONS_ALONE if alone else _REASONS
    rows = [_row(reason, selection) for reason in reasons[:limit]]
    if len(reasons) > limit:
        rows.append(el("p", "more", f"… {len(reasons) - limit} more"))
    return panel(
        "why",
        "Why?",
        "the decisions of this step in order; click one to see its code",
        el("div", "why-list", *(rows or [empty("Nothing was decided: nobody was there.")])),
        *(code(place) for place in dict.fromkeys(reason.place for reason in reasons[:limit])),
    )


def _where(place: Place) -> str:
    return f"{place.symbol.rsplit('.', 1)[-1]} · {place.path.rsplit('/', 1)[-1]}:{place.line}"


def _row(reason: Reason, selection: Selection) -> Html:
    named = reason.request is not None
    selected = named and reason.request == selection.request
    return el(
        "div",
        "reason mine" if selected else "reason",
        chip(reason.request, selected=selected) if reason.request is not None else el("span", ""),
        el(
            "button",
            "because",
            reason.sentence,
            el("span", "place", _where(reason.place)),
            data_code=str(reason.place),
        ),
        data_reason=reason.seq,
        data_detail_of=reason.event_type if reason.detail else None,
    )
