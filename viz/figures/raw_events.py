"""Raw events: what the trace says of a step, line by line, with the meaning of each type and field."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from engine.errors import TraceError
from engine.trace.described import doc_of, meanings
from engine.trace.events import EVENT_TYPES, Event, RequestAborted, SchedulePreempted, tag_of
from sim.timeline import StepView
from viz.explain import NO_DECISION, Reason, explain
from viz.figures.code import code
from viz.figures.event_fields import brief, fields, prose, value
from viz.figures.html import Html, el, join
from viz.figures.parts import Selection, chip, count, empty, label, panel
from viz.theme import request_class
from viz.undrawn import in_a_sentence

#: Lines drawn; a filter shows others.
_ROWS = 160
#: Characters of the exact JSON of one event.
_MOST_JSON = 200_000

_REQUEST = re.compile(r"r(\d+)")
_CLASSES = {
    "input": "what came into the core: a replay feeds it in again",
    "decision": "what the core decided: a replay must bring it forth again",
    "derived": "what follows from the inputs alone",
    "observation": "what was seen: text, times, tensors; never compared",
}


def raw_events(view: StepView, selection: Selection) -> Html:
    """Draw the events of a step, and those since the step before, as they stand in the trace."""
    before, own = view.preceding, view.events
    kept = _filter(selection.only)
    parts = {"since the step before": _those(kept, before), "this step": _those(kept, own)}
    reasons, untold = _reasons(view)
    drawn = [*untold, *_parts(parts, selection, reasons)]
    left_out = sum(map(len, parts.values())) - _ROWS
    if left_out > 0:
        drawn.append(el("p", "more", f"… {count(left_out, 'event')} more: choose a type or a request above"))
    if not drawn:
        drawn.append(empty("No event of this step is of that kind; choose “all” to see the others."))
    return panel(
        "events",
        "Raw events",
        "what the trace says, line by line; click a line for its fields and their meaning",
        _filters([*before, *own], selection),
        _legend(),
        el("div", "event-list", *drawn),
    )


def _reasons(view: StepView) -> tuple[dict[int, Reason], list[Html]]:
    """The reason of each decision; or none, and why: an impossible event is read here, where nothing else is drawn."""
    try:
        with in_a_sentence():
            return {reason.seq: reason for reason in explain(view)}, []
    except TraceError as error:
        return {}, [empty(f"Why this was decided cannot be told: {error}")]


# --- what is shown --------------------------------------------------------------------------------------------------


class _Kept(NamedTuple):
    """Which events are wanted: all, those of a type, or those of a request."""

    tag: str | None
    serial: int | None

    def __call__(self, event: Event) -> bool:
        if self.serial is not None:
            return self.serial in concerned(event)
        return self.tag is None or tag_of(event) == self.tag


def _those(kept: _Kept, events: Sequence[Event]) -> list[Event]:
    return [event for event in events if kept(event)]


def _filter(only: str | None) -> _Kept:
    request = _REQUEST.fullmatch(only or "")
    return _Kept(only if only in EVENT_TYPES else None, int(request[1]) if request else None)


def concerned(event: Event) -> list[int]:
    """Serials of the requests that an event is about, in order."""
    match event:
        case SchedulePreempted():
            return [event.victim, event.for_request]
        case RequestAborted():
            return event.requests
    one, several = getattr(event, "request", None), getattr(event, "requests", None)
    return [one] if one is not None else several or []


def _filters(events: Sequence[Event], selection: Selection) -> Html:
    tags = Counter(map(tag_of, events))
    kept = _filter(selection.only)
    everything = kept.tag is None and kept.serial is None
    chosen = selection.request if kept.serial is None else kept.serial
    drawn = [_choice("all", "none", len(events), pressed=everything)]
    if chosen is not None:
        number = sum(chosen in concerned(event) for event in events)
        drawn.append(_choice(f"r{chosen}", f"r{chosen}", number, pressed=kept.serial is not None, serial=chosen))
    drawn += [_choice(tag, tag, number, pressed=kept.tag == tag) for tag, number in tags.items()]
    return el("div", "filters", *drawn)


def _choice(words: str, only: str, number: int, *, pressed: bool, serial: int | None = None) -> Html:
    css = "only" if serial is None else f"only of-request {request_class(serial)}"
    tip = doc_of(EVENT_TYPES[only]) if only in EVENT_TYPES else None
    return el(
        "button",
        css,
        words,
        el("em", "", f"{number:,}"),
        data_act=f"only:{only}",
        data_only=only,
        data_number=number,
        data_tip=tip,
        aria_pressed="true" if pressed else "false",
    )


def _legend() -> Html:
    items = [el("li", "", el("i", f"kind {name}"), name, data_tip=words) for name, words in _CLASSES.items()]
    return el("ul", "legend", *items)


# --- one event ------------------------------------------------------------------------------------------------------


def _parts(parts: dict[str, list[Event]], selection: Selection, reasons: dict[int, Reason]) -> Iterator[Html]:
    room = _ROWS
    for title, events in parts.items():
        if events[:room]:
            yield label(title)
        for event in events[:room]:
            opened = event.seq == selection.event
            yield _row(event, opened=opened)
            if opened:
                yield _opened(event, reasons.get(event.seq))
        room = max(0, room - len(events))


def _row(event: Event, *, opened: bool) -> Html:
    named = concerned(event)
    rest = {name: each for name, each in fields(event).items() if name != "request" and each not in (None, [], ())}
    facts = [el("span", "fact", el("em", "", name), brief(each)) for name, each in rest.items()]
    act = f"event:{event.seq}"
    return el(
        "div",
        "event" + (" opened" if opened else ""),
        el("button", "seq", f"{event.seq:,}", data_act=act, aria_expanded="true" if opened else "false"),
        el("code", "type", el("i", f"kind {event.kind.value}"), tag_of(event)),
        el("span", "") if not named or hasattr(event, "requests") else chip(named[0]),
        el("span", "facts-of", join(facts, " ")),
        data_act=act,
        data_event=event.seq,
        data_type=tag_of(event),
        data_tip=doc_of(type(event)),
    )


def _opened(event: Event, reason: Reason | None) -> Html:
    what = f"{event.kind.value}: {_CLASSES[event.kind.value]}."
    return el(
        "div",
        "opened-event",
        el("p", "", prose(doc_of(type(event)))),
        el("p", "sub", what),
        *_told(event, reason),
        el("div", "scroll", _table(event)),
        el("details", "long", el("summary", "", "the exact line of the trace"), el("pre", "", _line(event))),
        data_opened=event.seq,
    )


def _told(event: Event, reason: Reason | None) -> list[Html]:
    if reason is not None:
        rule = reason.rule
        words = f"In words: {reason.sentence}"
        return [el("button", "because", words, data_code=str(rule.place), data_tip=rule.statement), code(rule)]
    why = NO_DECISION.get(type(event))
    return [el("p", "sub", prose(f"No decision: {why}."))] if why else []


def _table(event: Event) -> Html:
    means = meanings(type(event))
    head = el("tr", "", *(el("th", "", words) for words in ("field", "value", "what it is")))
    values: dict[str, Any] = msgspec.to_builtins(event)
    cells = {
        name: (el("code", "", name), value(each), prose(means[name])) for name, each in values.items() if name != "type"
    }
    rows = [el("tr", "", *(el("td", "", cell) for cell in row), data_field=name) for name, row in cells.items()]
    return el("table", "fields", head, *rows)


def _line(event: Event) -> str:
    line = msgspec.json.encode(event).decode()
    return line if len(line) <= _MOST_JSON else f"{line[:_MOST_JSON]} … {len(line) - _MOST_JSON:,} characters more"
