"""What a request had to wait for, in words and numbers: its time to first token, and the gaps between its tokens."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from sim.summary import LifeLine
from viz.figures.chart import duration
from viz.figures.html import Child, Html, el
from viz.figures.parts import chip, count


class Gap(NamedTuple):
    """The time between two steps that brought tokens."""

    first: int
    """The step of the token before."""
    last: int
    """The step of the token after."""
    duration_ns: int


def longest_gap(life: LifeLine) -> Gap | None:
    """The longest time that a client waited for another token; None of a request with fewer than two."""
    gaps = list(map(Gap, life.tokens, life.tokens[1:], life.request.itls_ns))
    return max(gaps, key=lambda gap: gap.duration_ns, default=None)


def latency_words(life: LifeLine) -> list[Html]:
    """Two paragraphs: until the first token, and from token to token."""
    return [_until_first_token(life), _between_tokens(life)]


def _until_first_token(life: LifeLine) -> Html:
    request = life.request
    said: list[Child] = [chip(request.serial, selected=True), f" arrives before step {life.added + 1}"]
    if request.queue_ns is None:
        return el("p", "", *said, " and has not been given a token of any step yet.")
    said.append(f" and waits {duration(request.queue_ns)} in the queue. ")
    if request.ttft_ns is None:
        return el("p", "", *said, "Its first token has not come yet.")
    cached = f", {request.num_cached_tokens:,} of them found in the cache," if request.num_cached_tokens else ""
    pieces = sum(step <= (life.first_token or 0) for step, _ in life.prefills)
    said.append(f"Its prompt of {count(request.num_prompt_tokens, 'token')}{cached} takes {count(pieces, 'step')}. ")
    said += [
        "From its arrival to its first token it is ",
        el("b", "", duration(request.ttft_ns)),
        ": its time to first token, ",
        el("b", "", "TTFT"),
        ".",
    ]
    return el("p", "", *said, data_ttft=request.ttft_ns)


def _between_tokens(life: LifeLine) -> Html:
    itls, gap = life.request.itls_ns, longest_gap(life)
    if gap is None:
        return el("p", "", "From one token to the next is the inter-token latency, ITL: it has no second token yet.")
    middle = median(itls)
    said: list[Child] = [
        "From one token to the next it is ",
        el("b", "", duration(middle)),
        " in the middle: its inter-token latency, ",
        el("b", "", "ITL"),
        f". The longest gap, {duration(gap.duration_ns)}, ends with ",
        el("button", "go-to", f"step {gap.last}", data_act=f"step:{gap.last}", data_gap=gap.last),
        _why_so_long(life, gap),
    ]
    return el("p", "", *said, data_itl_median=middle, data_itl_longest=gap.duration_ns)


def _why_so_long(life: LifeLine, gap: Gap) -> str:
    """What lies between the two tokens."""
    lost = [step for step in life.preempted if gap.first < step <= gap.last]
    if lost:
        return f": it was preempted in step {lost[0]}, and had to come back."
    left_out = gap.last - gap.first - 1
    if left_out > 0:
        return f": {count(left_out, 'step')} before it brought it nothing."
    return "."
