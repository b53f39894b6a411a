"""KV memory: every physical block of the pool, the queue of the free ones, and the block tables of the requests."""

from __future__ import annotations

from sim.state import State
from sim.timeline import StepView
from viz.figures.block import detail
from viz.figures.block_changes import block_changes
from viz.figures.block_pool import block_pool
from viz.figures.block_table import block_table, block_tables
from viz.figures.free_block_queue import free_block_queue, linked_free_block_queue
from viz.figures.html import Html, el
from viz.figures.parts import Selection, count, panel


def kv_memory(view: StepView, selection: Selection) -> Html:
    """Draw the pool as it stands when the step's plan is complete and its forward pass runs."""
    alone = selection.view == "kv"
    state, changes = view.planned, block_changes(view)
    if alone:
        lists = (linked_free_block_queue(state, selection, changes), block_tables(state, selection))
    else:
        lists = (free_block_queue(state, selection), block_table(state, selection))
    return panel(
        "kv",
        "KV memory",
        f"a block is a piece of memory for the keys and values of {count(state.block_size, 'token')}",
        _legend(state),
        block_pool(state, selection, changes, alone=alone),
        detail(state, selection) if alone else None,
        *lists,
        el("button", "leads-to", "what is cached, and who finds it →", data_act="view:prefix") if alone else None,
        None if alone else detail(state, selection),
    )


def _legend(state: State) -> Html:
    counts, held = state.pool.counts(), len(state.held_blocks)
    in_use = counts["in use"] + counts["shared"]
    entries = [
        ("used", f"{in_use:,} in use", "held by a request, in the request's colour"),
        ("shared", f"{counts['shared']:,} of them shared", "the badge counts the requests that read it"),
        (
            "cached",
            f"{counts['cached']:,} cached",
            "free, still cached: its content can be found until it is handed out",
        ),
        ("free", f"{counts['free']:,} empty", "free, and without content that could be found"),
        ("new", "new in this step", "handed out by this step's plan"),
    ]
    if held:
        entries.insert(
            2, ("used", f"{held:,} of them held", "their request has ended, a connector still works on them")
        )
    return el(
        "ul",
        "legend",
        *(el("li", "", el("i", f"swatch {css}"), text, data_tip=tip) for css, text, tip in entries),
        **{f"data_{kind.replace(' ', '_')}": number for kind, number in counts.items()},
    )
