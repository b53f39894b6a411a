"""One block of the pool in words and in colour, wherever a figure shows it."""

from __future__ import annotations

from collections.abc import Sequence

from sim.pool import BlockState
from sim.request_state import RequestState
from sim.state import State
from viz.explain import work_on_blocks
from viz.figures.html import Html, el, join
from viz.figures.parts import Selection, count
from viz.theme import request_class, request_colour

CSS = {"null": "null", "free": "free", "cached": "cached", "in use": "used", "shared": "used shared"}
_MOST_STRIPES, _MOST_NAMES = 4, 8


def name(block: BlockState) -> str | int:
    """What is written on it."""
    return "∅" if block.kind == "null" else block.block_id


def stripes(owners: Sequence[int]) -> str | None:
    """CSS of a block that several requests hold: one stripe per request, a few at most."""
    shown = owners[:_MOST_STRIPES]
    if len(shown) < 2:
        return None
    width = 100 / len(shown)
    stops = (f"{request_colour(o)} {i * width:.0f}% {(i + 1) * width:.0f}%" for i, o in enumerate(shown))
    return f"background:linear-gradient(105deg,{','.join(stops)})"


def colour_class(block: BlockState) -> str | None:
    """CSS classes with the colour of the request that holds it or, if it is free, that filled it."""
    if block.owners:
        return request_class(block.owners[0])
    return request_class(block.origin.request) if block.origin else None


def what(block: BlockState, state: State) -> str:
    """What a block is at this moment: "in use by r0"."""
    names = [_holder(state.requests[owner]) for owner in block.owners[:_MOST_NAMES]]
    if len(block.owners) > _MOST_NAMES:
        names.append(f"{len(block.owners) - _MOST_NAMES:,} more")
    match block.kind:
        case "null":
            return "the null block, which stands for no block and is never handed out"
        case "free":
            return "empty"
        case "cached":
            source = f", computed for r{block.origin.request}" if block.origin else ""
            return f"free, still cached{source}"
        case "in use":
            return f"in use by {names[0] if names else 'a request'}"
        case "shared":
            return f"shared by {', '.join(names)} (reference count {block.ref_count})"


def _holder(request: RequestState) -> str:
    if not (request.sending or request.receiving):
        return request.name
    work = f"being {work_on_blocks(sending=request.sending, receiving=request.receiving)}"
    return (
        f"{request.name} (it has ended, but the block is still {work})" if request.ended else f"{request.name} ({work})"
    )


def tip(block: BlockState, state: State, *more: str) -> str:
    """What a block says when it is pointed at."""
    words = [f"block {block.block_id}: {what(block, state)}"]
    if block.hash:
        words.append(f"hash {block.hash[:10]}…")
    return " · ".join([*words, *more])


def node(
    block_id: int, state: State, selection: Selection, *more: str, css: str = "", queue: int | None = None
) -> Html:
    """A block as an element of a list; `more` is added to its tip, `queue` is its place in `free_block_queue`."""
    block = state.pool.block(block_id)
    classes = ["node", CSS[block.kind], css, colour_class(block), "selected" if selection.block == block_id else None]
    return el(
        "button",
        " ".join(filter(None, classes)),
        block_id,
        data_act=f"block:{block_id}",
        data_block=block_id,
        data_queue=queue,
        data_tip=tip(block, state, *more),
    )


def tokens_text(block_id: int, state: State) -> str:
    """The text of the tokens whose KV a block holds; empty if it holds none. Without text, their numbers."""
    return ("" if state.pieces else " ").join(
        state.piece_text(token_id) for token_id in state.block_token_ids(block_id)
    )


def detail(state: State, selection: Selection) -> Html | None:
    """What is known of the selected block, in words."""
    if selection.block is None or not 0 <= selection.block < state.pool.num_blocks:
        return None
    block = state.pool.block(selection.block)
    lines: list[str | Html] = [el("b", "", f"Block {block.block_id}"), f" is {what(block, state)}."]
    if block.hash:
        lines += [" Its hash is ", el("code", "", f"{block.hash[:16]}…"), ", a digest of all tokens up to its end."]
    tokens = state.block_token_ids(block.block_id)
    if tokens:
        held = "holds" if block.ref_count else "still holds"
        lines += [f" It {held} {count(len(tokens), 'token')}: ", el("q", "", tokens_text(block.block_id, state))]
    close = el("button", "close", "×", data_act="block:none", aria_label="close")
    return el("div", "detail", close, el("p", "", join(lines)), data_detail=block.block_id)
