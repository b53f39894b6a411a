"""The KV memory says what the pool says: small, crowded, and of 200,000 blocks."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine.trace import events as ev
from engine.trace.file import Trace
from sim.pool import NULL_BLOCK
from sim.timeline import StepView, Timeline
from tests.core.driver import FULL, record_crowd, window_of
from tests.viz.conftest import shipped
from tests.viz.drawn import Drawn, Element
from viz.cut import UNPLANNED
from viz.figures.block_changes import block_changes
from viz.figures.kv_memory import kv_memory
from viz.figures.parts import Selection
from viz.figures.prefix_graph import prefix_graph
from viz.theme import request_class

ALONE = Selection(view="kv")


def test_held_blocks_are_in_use_by_a_request_that_has_ended(connected: list[StepView]) -> None:
    held = 0
    for view in connected:
        html = kv_memory(view, ALONE)
        drawn, blocks = Drawn(html), view.planned.held_blocks
        assert (f"{len(blocks)} of them held" in drawn.text) == bool(blocks)
        told = [
            cell for cell in drawn.all(data_refs=None) if "it has ended, but the block is still" in cell["data-tip"]
        ]
        assert {int(cell["data-block"]) for cell in told} == blocks
        assert all(cell["data-state"] in ("in use", "shared") for cell in told)
        held += len(blocks)
    assert held


def test_every_block_is_drawn_as_what_it_is(views: list[StepView]) -> None:
    for view in views:
        drawn, pool = Drawn(kv_memory(view, ALONE)), view.planned.pool
        cells = drawn.all(data_state=None)
        assert [int(cell["data-block"]) for cell in cells] == list(range(pool.num_blocks))
        for cell, block in zip(cells, pool.blocks(), strict=True):
            assert cell["data-state"] == block.kind
            assert cell["data-refs"] == str(block.ref_count)
            if block.owners:
                assert request_class(block.owners[0]).split()[0] in cell.classes


def test_coloured_blocks_are_the_blocks_in_use(views: list[StepView]) -> None:
    for view in views:
        drawn, pool = Drawn(kv_memory(view, ALONE)), view.planned.pool
        coloured = [cell for cell in drawn.all(data_state=None) if "used" in cell.classes]
        assert len(coloured) == pool.num_in_use
        badges = [element for element in drawn.elements if "badge" in element.classes]
        assert len(badges) == pool.counts()["shared"]


def test_queue_is_drawn_in_order(views: list[StepView]) -> None:
    for view in views:
        drawn, queue = Drawn(kv_memory(view, ALONE)), list(view.planned.pool.free_block_queue)
        nodes = {int(node["data-queue"]): int(node["data-block"]) for node in drawn.all(data_queue=None)}
        assert list(nodes) == sorted(nodes)
        assert all(queue[place] == block for place, block in nodes.items())
        if queue:
            assert nodes[0] == queue[0]
            assert nodes[len(queue) - 1] == queue[-1]
            assert drawn.one(data_length=None)["data-length"] == str(len(queue))


def test_block_table_of_the_selected_request(views: list[StepView]) -> None:
    for view in views:
        for serial, request in view.planned.requests.items():
            drawn = Drawn(kv_memory(view, Selection(view="kv", request=serial)))
            entries = [int(entry["data-block"]) for entry in drawn.all(data_of=serial)]
            assert entries == request.block_ids[0]


def test_every_kv_cache_group_has_its_block_table(tmp_path: Path) -> None:
    timeline = Timeline(
        record_crowd(tmp_path / "hybrid.jsonl", groups=(FULL, window_of(6)), num_requests=6, num_blocks=40)
    )
    passed = False
    for view in map(timeline.step, timeline.steps):
        for serial, request in view.planned.requests.items():
            drawn = Drawn(kv_memory(view, Selection(view="kv", request=serial)))
            entries = [int(entry["data-block"]) for entry in drawn.all(data_of=serial)]
            assert entries == [block_id for table in request.block_ids for block_id in table]
            passed = passed or 0 in entries
    assert passed


def test_a_long_table_begins_where_the_window_stands(tmp_path: Path) -> None:
    timeline = Timeline(record_crowd(tmp_path / "long.jsonl", num_requests=5, groups=(window_of(2),), block_size=1))
    most = max(
        (len(request.block_ids[0]), number, serial)
        for number in timeline.steps
        for serial, request in timeline.step(number).planned.requests.items()
    )
    _, number, serial = most
    view = timeline.step(number)
    drawn = Drawn(kv_memory(view, Selection(request=serial)))
    table = view.planned.requests[serial].block_ids[0]
    held = [block_id for block_id in table if block_id]
    assert [int(entry["data-block"]) for entry in drawn.all(data_of=serial)] == held
    assert f"{len(table) - len(held)} passed by the window" in drawn.text


def test_selected_block_is_explained() -> None:
    view = shipped("prefix-hit").step(10)
    shared = next(block for block in view.planned.pool.blocks() if block.kind == "shared")
    drawn = Drawn(kv_memory(view, Selection(view="kv", block=shared.block_id)))
    assert drawn.one(data_detail=shared.block_id)
    assert f"reference count {shared.ref_count}" in drawn.text
    assert shared.hash is not None
    assert shared.hash[:16] in drawn.text


def _with_blocks(timeline: Timeline, num_blocks: int) -> Timeline:
    """The same trace, as if its pool had been that large: the blocks behind the ones it used stay free."""
    kv_cache = msgspec.structs.replace(timeline.header.kv_cache, num_gpu_blocks=num_blocks)
    return Timeline(Trace(msgspec.structs.replace(timeline.header, kv_cache=kv_cache), list(timeline.events)))


def _tiles(drawn: Drawn, first: int, end: int, per_tile: int) -> list[Element]:
    """The tiles of a part of the pool."""
    inside = [tile for tile in drawn.all(data_tile=None) if int(tile["data-tile"]) in range(first, end, per_tile)]
    return [tile for tile in inside if f"to {min(int(tile['data-tile']) + per_tile, end) - 1:,}:" in tile["data-tip"]]


def test_tiles_of_a_large_pool_add_up_to_what_the_pool_holds(large: Timeline) -> None:
    for number in (2, len(large.steps) // 2, len(large.steps)):
        view = large.step(number)
        drawn, counts = Drawn(kv_memory(view, ALONE)), view.planned.pool.counts()
        per_tile = int(drawn.all(data_level=None)[0]["data-level"])
        tiles = _tiles(drawn, 0, 200_000, per_tile)
        assert len(tiles) == -(-200_000 // per_tile) <= 256
        assert sum(int(tile["data-used"]) for tile in tiles) == counts["in use"] + counts["shared"]
        assert sum(int(tile["data-cached"]) for tile in tiles) == counts["cached"]
        assert int(drawn.one(data_cached=counts["cached"], data_free=None)["data-free"]) == counts["free"]


def test_a_large_pool_is_drawn_with_few_elements(large: Timeline) -> None:
    fullest = max(large.series, key=lambda facts: facts.kv_cache_usage)
    view = large.step(fullest.step)
    assert view.planned.pool.num_in_use > 1000
    for selection in (ALONE, Selection(view="kv", request=view.planned.running[0], block=123_456), Selection()):
        assert len(Drawn(kv_memory(view, selection)).elements) < 1000


def test_each_level_shows_what_lies_in_the_tile_above_it(large: Timeline) -> None:
    drawn = Drawn(kv_memory(large.step(3), Selection(view="kv", block=123_456)))
    outer, inner = (int(level["data-level"]) for level in drawn.all(data_level=None))
    start = 123_456 // outer * outer
    assert {int(tile["data-tile"]) for tile in _tiles(drawn, start, start + outer, inner)} == set(
        range(start, start + outer, inner)
    )
    assert [tile for tile in drawn.all(data_tile=start) if "selected" in tile.classes and "shown" in tile.classes]
    window = {int(cell["data-block"]) for cell in drawn.all(data_state=None)}
    assert 123_456 in window
    assert len(window) == 96
    assert window <= set(range(start, start + outer))


def test_any_block_of_any_pool_can_be_looked_at() -> None:
    for num_blocks in (1001, 4097, 200_000):
        view = _with_blocks(shipped("first-token"), num_blocks).step(1)
        for block_id in (0, 1, 500, num_blocks // 2, num_blocks - 17, num_blocks - 1):
            for name in ("kv", "all"):
                drawn = Drawn(kv_memory(view, Selection(view=name, block=block_id)))
                cells = [int(cell["data-block"]) for cell in drawn.all(data_state=None)]
                assert block_id in cells
                assert cells == list(range(cells[0], cells[0] + len(cells)))


def test_tiles_mark_what_the_step_changed_and_what_the_selected_request_holds(large: Timeline) -> None:
    view = next(v for v in map(large.step, large.steps) if len(v.plan.rows) > 1)
    serial = view.planned.running[0]
    drawn = Drawn(kv_memory(view, Selection(view="kv", request=serial)))
    changed = block_changes(view).words()
    per_tile = int(drawn.all(data_level=None)[0]["data-level"])
    tiles = _tiles(drawn, 0, 200_000, per_tile)
    assert sum(int(tile["data-changed"]) for tile in tiles) == len(changed) > 0
    assert sum(int(tile["data-mine"]) for tile in tiles) == len(view.planned.requests[serial].block_ids[0]) > 0
    assert all(("new" in tile.classes) == (tile["data-changed"] != "0") for tile in tiles)
    assert min(changed) in {int(cell["data-block"]) for cell in drawn.all(data_state=None)}


def test_beside_other_panels_a_pool_is_drawn_small_enough_for_them() -> None:
    for num_blocks, cells in ((64, 64), (300, 300), (5000, 64)):
        view = _with_blocks(shipped("prefix-hit"), num_blocks).step(10)
        drawn = Drawn(kv_memory(view, Selection()))
        assert len(drawn.all(data_state=None)) == cells
        shared = view.planned.pool.counts()["shared"]
        assert len(drawn.all(data_state="shared")) == shared > 0


def test_a_free_block_is_empty_or_still_cached_and_the_queue_holds_both() -> None:
    view = next(v for v in map(shipped("eviction").step, range(1, 17)) if v.planned.pool.counts()["cached"])
    drawn, pool = Drawn(kv_memory(view, ALONE)), view.planned.pool
    counts = pool.counts()
    assert counts["cached"] and counts["free"]
    assert f"{counts['cached']} cached" in drawn.text
    assert f"{counts['free']} empty" in drawn.text
    assert int(drawn.one(data_length=None)["data-length"]) == counts["cached"] + counts["free"]
    words = {"free": "empty", "cached": "free, still cached"}
    for block in drawn.all(data_state=None):
        assert words.get(block["data-state"], "") in block["data-tip"]


# --- free_block_queue -------------------------------------------------------------------------------------------


def _moved(drawn: Drawn, kind: str) -> int:
    """Blocks that a kind of moves is about, those that were only counted included."""
    start = drawn.elements.index(drawn.one(data_moves=kind)) if drawn.all(data_moves=kind) else len(drawn.elements)
    total = 0
    for element in drawn.elements[start + 1 :]:
        if "data-moves" in element.attributes or "data-length" in element.attributes:
            break
        total += int(element.attributes.get("data-moved", 0))
    return total


def test_what_a_step_moves_in_the_queue_is_drawn(views: list[StepView]) -> None:
    for view in views:
        drawn, before, planned = Drawn(kv_memory(view, ALONE)), view.before.pool, view.planned.pool
        taken = [e.block_ids for e in view.events if isinstance(e, ev.KVAllocated)]
        joined = [event for event in view.events if isinstance(event, ev.KVFreed)]
        free = [event.ref_counts.count(0) for event in joined]
        assert _moved(drawn, "taken") == sum(map(len, taken))
        assert _moved(drawn, "joined") + _moved(drawn, "joining") == sum(free)
        grown = _moved(drawn, "joined") - _moved(drawn, "taken") - _moved(drawn, "revived")
        assert planned.num_free - before.num_free == grown
        quiet = not (taken or sum(free) or _moved(drawn, "revived"))
        assert ("Nothing is taken and nothing joins" in drawn.text) == quiet


def test_of_a_plan_that_is_cut_short_nothing_is_claimed() -> None:
    events = shipped("prefix-hit").events
    started = next(i for i, event in enumerate(events) if isinstance(event, ev.StepStarted))
    timeline = Timeline(Trace(shipped("prefix-hit").header, list(events[: started + 1])))
    view = timeline.step(1)
    for draw in (kv_memory(view, ALONE), prefix_graph(timeline, view, Selection(view="prefix"))):
        assert UNPLANNED in draw
        assert "in this step:" not in Drawn(draw).text


def test_ends_of_the_queue_are_its_sentinels(views: list[StepView]) -> None:
    for view in views:
        drawn = Drawn(kv_memory(view, ALONE))
        ends = [element["data-tip"].partition(":")[0] for element in drawn.elements if "sentinel" in element.classes]
        assert ends == ["the fake head", "the fake tail"]


def test_a_long_queue_shows_its_ends_and_counts_the_middle(large: Timeline) -> None:
    view = large.step(len(large.steps))
    drawn, queue = Drawn(kv_memory(view, ALONE)), list(view.planned.pool.free_block_queue)
    nodes = {int(node["data-queue"]): int(node["data-block"]) for node in drawn.all(data_queue=None)}
    assert all(queue[place] == block_id for place, block_id in nodes.items())
    assert nodes[0] == queue[0]
    assert nodes[len(queue) - 1] == queue[-1]
    assert f"… {len(queue) - len(nodes):,} …" in drawn.text


def test_blocks_that_joined_are_marked_where_they_are() -> None:
    view = next(v for v in map(shipped("preemption").step, range(1, 80)) if block_changes(v).joined)
    changes, queue = block_changes(view), view.planned.pool.free_block_queue
    drawn = Drawn(kv_memory(view, ALONE))
    marked = {int(node["data-block"]) for node in drawn.all(data_queue=None) if "joined" in node.classes}
    assert marked == {block_id for move in changes.joined for block_id in move.block_ids if block_id in queue}
    assert "it is preempted: the last block of its table first" in drawn.text


def test_a_used_up_queue_says_what_comes_of_it(tmp_path: Path) -> None:
    timeline = Timeline(record_crowd(tmp_path / "crowd.jsonl", num_requests=12, num_blocks=18))
    view = next(v for v in map(timeline.step, timeline.steps) if not v.planned.pool.free_block_queue)
    for selection in (ALONE, Selection()):
        assert "the next request for one must preempt" in Drawn(kv_memory(view, selection)).text


def test_the_null_block_never_moves(tmp_path: Path) -> None:
    timeline = Timeline(record_crowd(tmp_path / "hybrid.jsonl", groups=(FULL, window_of(6)), num_blocks=40))
    passed = 0
    for view in map(timeline.step, timeline.steps):
        changes = block_changes(view)
        for move in (*changes.taken, *changes.revived, *changes.joined, *changes.joining):
            assert NULL_BLOCK not in move.block_ids
            passed += move.passed
        Drawn(kv_memory(view, ALONE))
    assert passed
