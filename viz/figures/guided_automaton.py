"""The automaton of a grammar drawn: states in layers by their distance from the start, the current one lit."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from engine.automaton import Automaton, Edge
from viz.figures.html import Html, el

#: States drawn; what lies further from the start is counted.
MOST_STATES = 80

_ACROSS, _DOWN, _RADIUS = 84, 66, 17
_LABEL = 9


def automaton_figure(automaton: Automaton, before: int | None, path: Sequence[int]) -> Html:
    """Draw it, with the state in which a step left it lit.

    Args:
        before: where the output stood before the step.
        path: the states that the step's tokens led to; the last is where it stands now.
    """
    places = _places(automaton)
    current = path[-1] if path else before
    taken = set(_edges_between(automaton, before, path))
    width = max(x for x, _ in places.values()) + 46
    height = max(y for _, y in places.values()) + 40
    drawn = [_edge(edge, places, (edge.source, edge.target) in taken) for edge in automaton.edges]
    drawn += [_state(state, place, automaton, state == current) for state, place in places.items()]
    picture = el(
        "svg", "automaton", *drawn, width=width, height=height, viewBox=f"0 0 {width} {height}", role="img",
        aria_label=f"automaton of {automaton.num_states} states, now in state {current}",
    )  # fmt: skip
    hidden = automaton.num_states - len(places)
    more = el("p", "more", f"… {hidden} states further on are not drawn") if hidden else None
    return el("div", "", el("div", "scroll", picture), more, data_states=automaton.num_states)


def _places(automaton: Automaton) -> dict[int, tuple[int, int]]:
    """Columns by distance from the start; within one, in the order in which the states are reached."""
    depth = {0: 0}
    queue = deque([0])
    leaving = defaultdict(list)
    for edge in automaton.edges:
        leaving[edge.source].append(edge.target)
    while queue and len(depth) < MOST_STATES:
        state = queue.popleft()
        for target in leaving[state]:
            if target not in depth and len(depth) < MOST_STATES:
                depth[target] = depth[state] + 1
                queue.append(target)
    columns = defaultdict(list)
    for state, column in depth.items():
        columns[column].append(state)
    tallest = max(map(len, columns.values()))
    return {
        state: (34 + column * _ACROSS, 52 + int((2 * row + tallest - len(states)) * _DOWN / 2))
        for column, states in columns.items()
        for row, state in enumerate(states)
    }


def _edges_between(automaton: Automaton, before: int | None, path: Sequence[int]) -> list[tuple[int, int]]:
    """Edges of the shortest ways between the states that the tokens led to: a token may read several characters."""
    leaving = defaultdict(list)
    for edge in automaton.edges:
        leaving[edge.source].append(edge.target)
    edges: list[tuple[int, int]] = []
    start = before
    for end in path:
        if start is not None:
            edges += _way(leaving, start, end)
        start = end
    return edges


def _way(leaving: dict[int, list[int]], start: int, end: int) -> list[tuple[int, int]]:
    if start == end:
        return [(start, end)] if end in leaving[start] else []
    came_from: dict[int, int] = {start: start}
    queue = deque([start])
    while queue and end not in came_from:
        state = queue.popleft()
        for target in leaving[state]:
            if target not in came_from:
                came_from[target] = state
                queue.append(target)
    way = []
    while end in came_from and end != start:
        way.append((came_from[end], end))
        end = came_from[end]
    return way


def _edge(edge: Edge, places: dict[int, tuple[int, int]], taken: bool) -> Html | None:
    if edge.source not in places or edge.target not in places:
        return None
    (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
    if edge.source == edge.target:
        path = f"M{x1 - 8} {y1 - 15} C{x1 - 22} {y1 - 40} {x1 + 22} {y1 - 40} {x1 + 8} {y1 - 15}"
        label_at = (x1, y1 - 36)
    elif x2 > x1 and x2 - x1 <= _ACROSS:
        path = f"M{x1 + _RADIUS} {y1} C{x1 + 42} {y1} {x2 - 42} {y2} {x2 - _RADIUS} {y2}"
        label_at = ((x1 + x2) // 2, (y1 + y2) // 2 - 5)
    else:
        bow = max(18, abs(x2 - x1) // 7) + abs(y2 - y1) // 2
        top = max(10, min(y1, y2) - bow)
        path = f"M{x1} {y1 - _RADIUS} Q{(x1 + x2) // 2} {top} {x2} {y2 - _RADIUS}"
        label_at = ((x1 + x2) // 2, (min(y1, y2) + top) // 2)
    shown = edge.label if len(edge.label) <= _LABEL else edge.label[: _LABEL - 1] + "…"
    return el(
        "g",
        "edge taken" if taken else "edge",
        el("path", "", d=path),
        el("text", "", shown, x=label_at[0], y=label_at[1]),
        data_edge=f"{edge.source}-{edge.target}",
        data_taken=taken,
        data_tip=f"state {edge.source} reads {edge.label} and goes to state {edge.target}",
    )


def _state(state: int, place: tuple[int, int], automaton: Automaton, current: bool) -> Html:
    x, y = place
    accepting = state in automaton.accepting
    css = "state" + (" current" if current else "") + (" beyond" if state == automaton.beyond else "")
    words = f"state {state}" + (": the output may end here" if accepting else "")
    return el(
        "g",
        css,
        el("circle", "", cx=x, cy=y, r=_RADIUS),
        el("circle", "inner", cx=x, cy=y, r=_RADIUS - 4) if accepting else None,
        el("text", "", "…" if state == automaton.beyond else state, x=x, y=y + 4),
        data_state=state,
        data_lit=current,
        data_tip="everything that was not drawn" if state == automaton.beyond else words,
    )
