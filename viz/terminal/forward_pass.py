"""Forward pass: the super-sequence of a step, token by token with its position and its slot, and what was sampled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from engine.trace import events as ev
from sim.timeline import StepView
from viz.cut import UNPLANNED, is_planned
from viz.terminal.words import chip, counted, duration, filled_style, listed, panel, visible

_CELL = 8
_MOST_LINES = 4
_ALTERNATIVES = 4


class _Token(NamedTuple):
    request: int
    token_id: int
    position: int
    slot: int


def forward_pass(view: StepView) -> RenderableType:
    """Draw what the model computes in a step."""
    if not is_planned(view):
        return panel("Forward pass", UNPLANNED)
    tokens = list(_super_sequence(view))
    if not tokens:
        return Group()
    subtitle = (
        f"{counted(len(tokens), 'token')} in one super-sequence: the K and V of each go to one slot of paged memory"
    )
    return panel("Forward pass", subtitle, _Tokens(view, tokens), _timings(view), _sampled(view))


def _super_sequence(view: StepView) -> Iterator[_Token]:
    """The worker's own tensors where the trace has them, else what follows from the plan."""
    inputs, size = view.forward, view.header.kv_cache.block_size
    if inputs is not None:
        for serial, start, end in zip(
            inputs.requests, inputs.query_start_loc, inputs.query_start_loc[1:], strict=False
        ):
            for i in range(start, end):
                yield _Token(serial, inputs.input_ids[i], inputs.positions[i], inputs.slot_mapping[i])
        return
    for row in view.plan.rows.values():
        request = view.planned.requests[row.request]
        token_ids, table = [*request.token_ids, *row.draft_token_ids], request.block_ids[0]
        for position in range(row.num_computed_tokens, row.num_computed_tokens + row.num_scheduled_tokens):
            yield _Token(row.request, token_ids[position], position, table[position // size] * size + position % size)


class _Tokens:
    """Three lines per line of tokens: token, position, slot as block:offset."""

    def __init__(self, view: StepView, tokens: list[_Token]) -> None:
        self._view = view
        self._tokens = tokens

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        per_line = max(1, (options.max_width - 10) // _CELL)
        size = self._view.header.kv_cache.block_size
        shown = self._tokens[: per_line * _MOST_LINES]
        for start in range(0, len(shown), per_line):
            line = shown[start : start + per_line]
            yield Text.assemble(("request   ", "dim"), *(_cell(f"r{token.request}") for token in line))
            yield Text.assemble(("token     ", "dim"), *(self._token(token) for token in line))
            yield Text.assemble(("position  ", "dim"), *(_cell(str(token.position)) for token in line))
            yield Text.assemble(("slot      ", "dim"), *(_cell(f"{t.slot // size}:{t.slot % size}") for t in line))
            yield ""
        if len(shown) < len(self._tokens):
            yield Text(f"… {len(self._tokens) - len(shown):,} more\n", "dim")

    def _token(self, token: _Token) -> Text:
        text = visible(self._view.after.piece_text(token.token_id))
        if cell_len(text) > _CELL - 1:
            text = set_cell_size(text, _CELL - 2).rstrip() + "…"
        return Text.assemble((set_cell_size(text, _CELL - 1), filled_style(token.request)), " ")


def _cell(text: str) -> str:
    return text.ljust(_CELL)


def _timings(view: StepView) -> RenderableType:
    executed = next((event for event in view.events if isinstance(event, ev.StepExecuted)), None)
    if executed is None:
        return Group()
    phases = {"prepare": executed.prepare_ns, "forward": executed.forward_ns, "sample": executed.sample_ns}
    parts = [f"{executed.mode}", *(f"{phase} {duration(nanoseconds)}" for phase, nanoseconds in phases.items())]
    return Text(f"{listed(parts)}\n", "dim")


def _sampled(view: StepView) -> RenderableType:
    """Per sampled row the token taken, and the likeliest ones with their probabilities."""
    logits = view.logits
    if logits is None:
        return Group()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    for _ in range(2 + _ALTERNATIVES):
        table.add_column(no_wrap=True)
    piece = view.after.piece_text
    rows = zip(logits.requests, logits.sampled_token_ids, logits.top_token_ids, logits.top_probs, strict=True)
    for place, (serial, taken, likely, probs) in enumerate(rows):
        others = [f"“{visible(piece(i))}” {p:.0%}" for i, p in zip(likely, probs, strict=True)][:_ALTERNATIVES]
        table.add_row(
            "sampled" if place == 0 else "", chip(serial), Text(f"“{visible(piece(taken))}”", "bold"), *others
        )
    return table
