"""`orrery query`: in which steps does something hold, and when did a block or a request change?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from engine.errors import QueryError
from sim.open_with_bar import open_with_bar
from sim.query.changes import BLOCK_CHANGES, REQUEST_CHANGES, Change, block_changes, request_changes, serial_of
from sim.query.find import steps_where
from sim.query.names import NAMES
from sim.query.predicate import Predicate
from sim.timeline import Timeline

_SHOWN = 20
_NAMES = "; ".join(f"{name}: {known.meaning}" for name, known in NAMES.items())


def query(
    trace_file: Annotated[Path, Argument(metavar="TRACE", help="A trace file, .jsonl or .jsonl.zst.")],
    question: Annotated[
        str | None, Argument(metavar="[QUESTION]", help=f"Such as 'preempted and free_blocks < 4'. {_NAMES}.")
    ] = None,
    block: Annotated[int | None, Option(help="Ask what happened to this block instead.")] = None,
    request: Annotated[str | None, Option(help="Ask what happened to this request instead: r3, or its id.")] = None,
    before: Annotated[int | None, Option(help="The last time before this step.")] = None,
    after: Annotated[int | None, Option(help="The next time after this step.")] = None,
    kind: Annotated[
        list[str] | None,
        Option(
            help=f"Only such changes, of a block: {', '.join(BLOCK_CHANGES)}; of a request: "
            f"{', '.join(REQUEST_CHANGES)}."
        ),
    ] = None,
    limit: Annotated[
        int | None, Option(min=1, help=f"How many to show. [default: 1 with --before or --after, else {_SHOWN}]")
    ] = None,
) -> None:
    """Find the steps of a trace for which something holds, or what happened to a block or a request."""
    if sum(each is not None for each in (question, block, request)) != 1:
        raise QueryError("Ask one thing: a question in quotes, --block or --request.")
    if before is not None and after is not None:
        raise QueryError("Ask --before or --after, not both.")
    predicate = None if question is None else Predicate(question)
    timeline = open_with_bar(trace_file)
    most = limit or (_SHOWN if before is None and after is None else 1)
    console = Console(highlight=False)
    if timeline.trace.truncated:
        console.print(Text(timeline.trace.truncated, "yellow"))
    if predicate is not None:
        _show_steps(console, timeline, predicate, before, after, most)
        return
    changes = _of_kinds(_changes(timeline, block, request, before, after), kind, block is not None)
    _show_changes(console, changes, most)


def _show_steps(
    console: Console, timeline: Timeline, predicate: Predicate, before: int | None, after: int | None, most: int
) -> None:
    steps = timeline.steps
    if before is not None:
        steps = [step for step in reversed(steps) if step < before]
    elif after is not None:
        steps = [step for step in steps if step > after]
    found = list(islice(steps_where(timeline, predicate, steps), most + 1))
    facts = {each.step: each for each in timeline.series}
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("step", "tokens", "rows", "waiting", "free blocks", "preempted", "hit", "finished"):
        table.add_column(column, justify="right")
    for step in found[:most]:
        each = facts[step]
        values = (step, each.tokens, each.num_rows, each.num_waiting, each.free_blocks, each.preemptions)
        table.add_row(*(f"{value:,}" for value in (*values, each.hit_tokens, each.finishes)))
    console.print(table if found else Text(f"In none of these {len(steps):,} steps: {predicate.text}."))
    _say_more(console, len(found) > most, most)


def _changes(
    timeline: Timeline, block: int | None, request: str | None, before: int | None, after: int | None
) -> Iterator[Change]:
    direction: Literal["before", "after"] = "before" if before is not None else "after"
    position = 0
    if before is not None:
        position = timeline.span(before).start
    elif after is not None:
        position = timeline.span(after).end
    if block is not None:
        return block_changes(timeline, block, position, direction)
    assert request is not None
    return request_changes(timeline, serial_of(timeline, request), position, direction)


def _of_kinds(changes: Iterable[Change], kinds: list[str] | None, of_block: bool) -> Iterator[Change]:
    allowed = BLOCK_CHANGES if of_block else REQUEST_CHANGES
    for kind in kinds or ():
        if kind not in allowed:
            raise QueryError(f"--kind is one of {', '.join(allowed)}, got {kind!r}.")
    return (change for change in changes if not kinds or change.kind in kinds)


def _show_changes(console: Console, changes: Iterator[Change], most: int) -> None:
    found = list(islice(changes, most + 1))
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("step", justify="right")
    table.add_column("event", justify="right")
    table.add_column("what")
    table.add_column("how")
    for change in found[:most]:
        table.add_row(f"{change.event.step:,}", f"{change.event.seq:,}", change.kind, Text(change.words))
    console.print(table if found else Text("Nothing of the kind happened there."))
    _say_more(console, len(found) > most, most)


def _say_more(console: Console, there_is_more: bool, most: int) -> None:
    if there_is_more and most > 1:
        console.print(Text(f"… and more: only {most} are shown, see --limit.", "dim"))
