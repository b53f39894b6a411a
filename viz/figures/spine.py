"""The spine: one bar per step, higher the more tokens it computes, with marks where something happened."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple

from engine.metrics import IterationMetrics
from viz.figures.html import Html, el
from viz.figures.parts import count

#: More steps than this share bars.
_BARS = 240
#: A sign over more bars than this tells nobody where to look.
_MOST_SIGNS = 80


class _Mark(NamedTuple):
    css: str
    sign: str
    words: str


_PREEMPTION = _Mark("preemption", "▼", "preempted")
_HIT = _Mark("hit", "◆", "prefix tokens found in the cache")
_EVICTION = _Mark("eviction", "✕", "cached blocks evicted")
_FINISH = _Mark("finish", "●", "finished")


def spine(series: Sequence[IterationMetrics], matches: Sequence[int] = (), jumps: Html | None = None) -> Html:
    """Draw all steps of a trace, with the buttons to move along them.

    The bars stand in one element whose `data-per` says how many steps share a bar: then it is as high as the highest of
    them, and bears the marks of all.
    A mark that nearly all of them would bear is left out, and the key says so.

    Args:
        series: one line of numbers per step.
        matches: steps that are looked for, in order.
        jumps: further buttons.
    """
    per = max(1, -(-len(series) // _BARS))
    highest = max((facts.tokens for facts in series), default=1) or 1
    shared = [series[i : i + per] for i in range(0, len(series), per)]
    often = Counter(mark for steps in shared for mark, _ in _marks(steps))
    telling = {mark for mark, number in often.items() if number <= _MOST_SIGNS}
    bars = [_bar(steps, highest, telling, _between(matches, steps[0].step, steps[-1].step)) for steps in shared]
    track = el("div", "track", el("div", "bars", *bars, data_per=per, data_steps=len(series)))
    return el(
        "nav",
        "spine",
        _buttons(),
        _jump(series),
        track,
        el("div", "below", jumps, _key(often.keys() - telling)),
        aria_label="steps",
    )


def _between(steps: Sequence[int], first: int, last: int) -> int:
    """How many of the steps lie between two."""
    return bisect_right(steps, last) - bisect_left(steps, first)


def _buttons() -> Html:
    return el(
        "div",
        "transport",
        _button("first", "M6 5h2v14H6zM20 5v14L9 12z", "first step (Home)"),
        _button("-1", "M17 5v14L6 12z", "one step back (←)"),
        _button("play", "M7 4v16l13-8z", "play or pause (space)"),
        _button("1", "M7 5v14l11-7z", "one step forward (→)"),
        _button("last", "M16 5h2v14h-2zM4 5v14l11-7z", "last step (End)"),
    )


def _button(go: str, path: str, words: str) -> Html:
    icon = el("svg", "", el("path", "", d=path), viewBox="0 0 24 24", aria_hidden="true")
    return el("button", "go", icon, data_go=go, data_tip=words, aria_label=words)


def _jump(series: Sequence[IterationMetrics]) -> Html:
    last = series[-1].step if series else 0
    field = el("input", "jump", type="text", inputmode="numeric", aria_label="step number", size=len(str(last)))
    return el("label", "where", "step ", field, f" / {last}")


def _bar(steps: Sequence[IterationMetrics], highest: int, telling: Set[_Mark], num_matches: int) -> Html:
    tallest = max(steps, key=lambda facts: facts.tokens)
    marks = _marks(steps)
    first, last = steps[0].step, steps[-1].step
    where = f"step {first}" if first == last else f"steps {first} to {last}"
    words = [where, ("at most " if len(steps) > 1 else "") + _tokens(tallest)]
    words += [f"{n:,} {mark.words}" for mark, n in marks]
    words += [count(num_matches, "match", "matches")] if num_matches else []
    prefill = tallest.prefill_tokens / tallest.tokens if tallest.tokens else 0
    # By the root: one decode stays visible beside a prefill of two thousand tokens.
    height = max(8, 100 * math.sqrt(tallest.tokens / highest))
    fill = el("i", "", style=f"height:{height:.0f}%;--prefill:{100 * prefill:.0f}%")
    signs = [el("s", mark.css, mark.sign) for mark, _ in marks if mark in telling][:2]
    return el(
        "span",
        "bar match" if num_matches else "bar",
        *signs,
        fill,
        data_step=first,
        data_tokens=tallest.tokens,
        data_matches=num_matches or None,
        data_tip=" · ".join(words),
    )


def _tokens(facts: IterationMetrics) -> str:
    if facts.prefill_tokens and facts.decode_tokens:
        return f"{count(facts.tokens, 'token')}: {facts.prefill_tokens} prefill, {facts.decode_tokens} decode"
    kind = "prefill" if facts.prefill_tokens else "decode"
    return f"{count(facts.tokens, f'{kind} token')}" if facts.tokens else "nothing computed"


def _marks(steps: Sequence[IterationMetrics]) -> list[tuple[_Mark, int]]:
    counted = [
        (_PREEMPTION, sum(facts.preemptions for facts in steps)),
        (_HIT, sum(facts.hit_tokens for facts in steps)),
        (_EVICTION, sum(facts.evictions for facts in steps)),
        (_FINISH, sum(facts.finishes for facts in steps)),
    ]
    return [(mark, number) for mark, number in counted if number]


def _key(everywhere: Set[_Mark]) -> Html:
    """What the marks mean; of those that nearly every bar would bear, that they are left out."""
    entries = [(_PREEMPTION, "preempted"), (_HIT, "cache hit"), (_EVICTION, "evicted"), (_FINISH, "finished")]
    signs = [
        el("li", "", el("s", mark.css, mark.sign), words, ": all along, not marked" if mark in everywhere else None)
        for mark, words in entries
    ]
    kinds = [el("li", "", el("i", f"box {kind}"), f"{kind} tokens") for kind in ("prefill", "decode")]
    return el("ul", "key", *kinds, *signs)
