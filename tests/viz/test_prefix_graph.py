"""The prefix cache is drawn as the tree that its hashes form, and says what each lookup found and why it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.trace import events as ev
from engine.trace.file import Trace, read_trace
from engine.trace.recorder import Recorder
from sim.timeline import StepView, Timeline
from tests.core.driver import FULL, core_of, header, record_crowd, request, run_step, window_of
from tests.viz.conftest import shipped
from tests.viz.drawn import Drawn
from viz.figures.parts import Selection
from viz.figures.prefix_graph import prefix_graph
from viz.figures.prefix_tree import prefix_tree
from viz.theme import request_class

PREFIX = Selection(view="prefix")


def draw(timeline: Timeline, view: StepView, selection: Selection = PREFIX) -> Drawn:
    """The view of a step, taken apart."""
    return Drawn(prefix_graph(timeline, view, selection))


def num_contents(drawn: Drawn) -> int:
    """Contents that are drawn, the folded ones included, those that are gone not."""
    cards = [card for card in drawn.all(data_prefix=None) if "gone" not in card.classes]
    return len(cards) + sum(drawn.numbers("data_folded"))


# --- the tree ---------------------------------------------------------------------------------------------------


def test_every_cached_content_is_drawn_folded_or_counted(timeline: Timeline, views: list[StepView]) -> None:
    for view in views:
        cached = view.planned.pool.cached_block_hash_to_block
        drawn, tree = draw(timeline, view), prefix_tree(view, PREFIX)
        left_out = sum(drawn.numbers("data_left_out"))
        gone = [card for card in drawn.all(data_prefix=None) if "gone" in card.classes]
        folded_gone = sum(content.gone for content in tree.contents.values()) - len(gone)
        assert num_contents(drawn) - folded_gone + left_out == len(cached)
        for card in drawn.all(data_prefix=None):
            assert ("gone" in card.classes) == (card["data-prefix"] not in cached)


def test_a_card_says_who_holds_its_block(timeline: Timeline, views: list[StepView]) -> None:
    for view in views:
        pool = view.planned.pool
        for card in draw(timeline, view).all(data_prefix=None):
            if "gone" in card.classes:
                continue
            block = pool.block(int(card["data-block"]))
            assert card["data-prefix"] == block.hash
            assert card["data-refs"] == str(block.ref_count)
            assert ("used" in card.classes) == bool(block.ref_count)
            if block.owners:
                assert request_class(block.owners[0]).split()[0] in card.classes


def test_a_free_content_says_how_many_blocks_go_before_it() -> None:
    timeline = shipped("eviction")
    view = next(v for v in map(timeline.step, timeline.steps) if v.planned.pool.counts()["cached"] > 1)
    queue = list(view.planned.pool.free_block_queue)
    drawn, before = draw(timeline, view), []
    for element in drawn.elements:
        if "data-prefix" in element.attributes:
            block_id = int(element["data-block"])
        elif "data-before" in element.attributes:
            before.append(int(element["data-before"]))
            assert queue.index(block_id) == before[-1]
    assert before


def test_children_stand_behind_the_block_whose_hash_theirs_builds_on(tmp_path: Path) -> None:
    timeline = Timeline(record_crowd(tmp_path / "crowd.jsonl"))
    forks = 0
    for view in map(timeline.step, timeline.steps):
        tree, state = prefix_tree(view, PREFIX), view.planned
        for parent, children in tree.children.items():
            forks += len(children) > 1
            for child in children:
                content = tree.contents[child]
                assert content.parent == parent
                if content.gone or parent not in tree.contents or tree.contents[parent].gone:
                    continue
                origin = state.pool.origins[content.block_ids[0]]
                assert origin is not None
                tokens = state.requests[origin.request].token_ids
                end = origin.place * state.block_size
                assert state.block_token_ids(tree.contents[parent].block_ids[0]) == tokens[end - state.block_size : end]
    assert forks


def test_marks_are_what_the_events_say(timeline: Timeline, views: list[StepView]) -> None:
    for view in views:
        drawn, tree = draw(timeline, view), prefix_tree(view, PREFIX)
        cached = view.planned.pool.cached_block_hash_to_block
        new = {name for e in view.events if isinstance(e, ev.KVCached) for name in e.hashes} & set(cached)
        found = sum(e.num_hit_tokens for e in view.events if isinstance(e, ev.KVLookup)) // view.planned.block_size
        lost = {name for e in view.events if isinstance(e, ev.KVAllocated) for name in e.evicted_hashes} - set(cached)
        assert tree.new == new
        assert sum(map(len, tree.hits.values())) == found
        assert {content.hash for content in tree.contents.values() if content.gone} == lost
        legend = next((e for e in drawn.elements if "legend" in e.classes), None)
        if legend is not None:
            assert (legend["data-new"], legend["data-gone"]) == (str(len(new)), str(len(lost)))


def test_what_was_evicted_is_struck_and_keeps_the_text_it_had() -> None:
    timeline = shipped("eviction")
    view = next(
        v for v in map(timeline.step, timeline.steps) if any(c.gone for c in prefix_tree(v, PREFIX).contents.values())
    )
    drawn = draw(timeline, view)
    card = next(card for card in drawn.all(data_marks="gone"))
    before = view.before
    text = "".join(before.piece_text(token_id) for token_id in before.block_token_ids(int(card["data-block"])))
    assert text in drawn.text


def test_equal_blocks_share_a_card(stops: Timeline) -> None:
    view = stops.step(4)  # the last block of its prompt is computed although it is cached
    (twins,) = [ids for ids in view.planned.pool.cached_block_hash_to_block.values() if len(ids) > 1]
    card = draw(stops, view).one(data_block=twins[0])
    assert f"{len(twins)} blocks hold the same" in card["data-tip"]


def test_a_content_behind_an_evicted_one_is_cut_off(tmp_path: Path) -> None:
    timeline = Timeline(record_crowd(tmp_path / "hybrid.jsonl", groups=(FULL, window_of(6)), num_blocks=30))
    cut = 0
    for view in map(timeline.step, timeline.steps):
        tree, drawn = prefix_tree(view, PREFIX), draw(timeline, view)
        roots = [element for element in drawn.elements if "cut" in element.classes]
        assert len(roots) == len(tree.cut_off)
        for parent in tree.cut_off:
            assert parent not in view.planned.pool.cached_block_hash_to_block
        cut += len(roots)
    assert cut


# --- lookups ----------------------------------------------------------------------------------------------------


def test_every_lookup_has_its_line(timeline: Timeline, views: list[StepView]) -> None:
    for view in views:
        drawn, size = draw(timeline, view), view.planned.block_size
        asked = [event for event in view.events if isinstance(event, ev.KVLookup)]
        lines = drawn.all(data_lookup=None)
        assert [int(line["data-lookup"]) for line in lines] == [event.request for event in asked]
        assert [int(line["data-hits"]) for line in lines] == [event.num_hit_tokens // size for event in asked]
        if view.planned.pool.cached_block_hash_to_block:
            assert sorted(drawn.numbers("data_stops")) == sorted(event.request for event in asked)
        assert ("Nobody looks a prefix up in this step" in drawn.text) == (not asked)


@pytest.fixture(scope="module")
def stops(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """Requests one after another, each of which stops for a reason of its own; blocks hold four tokens."""
    path = tmp_path_factory.mktemp("trace") / "stops.jsonl"
    recorder = Recorder.to_file(path, header())
    core = core_of(header(), recorder)
    for name, prompt in (
        ("first", [10, 11, 12, 13, 20, 21, 22, 23, 30]),
        ("absent", [10, 11, 12, 13, 20, 21, 22, 99, 30]),
        ("end", [10, 11, 12, 13, 20, 21, 22, 23, 31, 32]),
        ("last", [10, 11, 12, 13, 20, 21, 22, 23]),
        ("short", [10, 11, 12]),
    ):
        core.add(request(name, prompt, max_tokens=1, ignore_eos=True))
        run_step(core)
    recorder.close()
    return Timeline(read_trace(path))


def test_a_lookup_says_why_it_stopped(stops: Timeline) -> None:
    lines = [draw(stops, stops.step(number)).one(data_lookup=None) for number in stops.steps[:5]]
    assert [line["data-stop"] for line in lines] == ["absent", "absent", "end", "last", "short"]
    assert [int(line["data-hits"]) for line in lines] == [0, 1, 2, 1, 0]
    texts = [draw(stops, stops.step(number)).text for number in stops.steps[:5]]
    assert "finds none of its 2 full blocks, so it computes all its tokens. It stops at its first block" in texts[0]
    next_hash = stops.step(2).planned.requests[1].block_hashes[1]
    assert f"It stops at block 2: no cached block has its hash ({next_hash[:6]}…)." in texts[1]
    assert "finds 2 of its 2 full blocks: 8 of 10 tokens need not be computed. The 2 tokens behind them" in texts[2]
    assert "finds 1 of its 2 full blocks" in texts[3]
    assert "one token at least is computed" in texts[3]
    assert "is too short to share: its 3 tokens fill no block of 4." in texts[4]


def test_the_way_of_a_lookup_is_lit(stops: Timeline) -> None:
    view = stops.step(3)
    drawn, found = draw(stops, view), prefix_tree(view, PREFIX).hits
    lit = {card["data-prefix"] for card in drawn.all(data_prefix=None) if "found" in card.classes}
    assert lit == set(found) == set(view.planned.requests[2].block_hashes[:2])


def test_where_nobody_asks_the_nearest_hits_are_named() -> None:
    timeline = shipped("prefix-hit")
    hits = [facts.step for facts in timeline.series if facts.hit_tokens]
    assert len(hits) > 1
    between = (hits[0] + hits[1]) // 2
    assert draw(timeline, timeline.step(between)).numbers("data_hit_at") == hits[:2]
    nothing = shipped("first-token")
    assert "No request of this run finds anything" in draw(nothing, nothing.step(2)).text


def test_a_run_without_caching_says_so(tmp_path: Path) -> None:
    timeline = Timeline(record_crowd(tmp_path / "off.jsonl", num_requests=3, enable_prefix_caching=False))
    drawn = draw(timeline, timeline.step(1))
    assert "Prefix caching is off in this run" in drawn.text
    assert not drawn.all(data_lookup=None)


def test_an_empty_cache_says_why(stops: Timeline) -> None:
    view = stops.step(1)
    view.planned.pool.forget_prefixes()
    assert "Empty: no block is full yet" in draw(stops, view).text


# --- crowded and large ------------------------------------------------------------------------------------------


def test_any_crowd_can_be_drawn(tmp_path: Path) -> None:
    connected: dict[str, Any] = {"connected": True, "num_blocks": 18}
    hybrid: dict[str, Any] = {"groups": (FULL, window_of(6)), "num_blocks": 40}
    for seed, more in enumerate(({}, connected, hybrid)):
        timeline = Timeline(record_crowd(tmp_path / f"{seed}.jsonl", seed, 20, **more))
        for view in map(timeline.step, timeline.steps):
            drawn = draw(timeline, view, Selection(view="prefix", request=0, block=3))
            assert num_contents(drawn) >= 0


def test_a_long_text_is_folded_and_unfolds_where_a_block_is_selected(tmp_path: Path) -> None:
    timeline = Timeline(_alone(tmp_path, list(range(3, 63)), block_size=2))
    view = timeline.step(1)
    drawn = draw(timeline, view)
    assert len(drawn.all(data_prefix=None)) == 2
    assert drawn.numbers("data_folded") == [28]
    middle = view.planned.requests[0].block_ids[0][14]
    drawn = draw(timeline, view, Selection(view="prefix", block=middle))
    assert [int(card["data-block"]) for card in drawn.all(data_prefix=None) if "selected" in card.classes] == [middle]
    assert sum(drawn.numbers("data_folded")) + len(drawn.all(data_prefix=None)) == 30


def test_many_chains_are_cut_to_the_ones_worth_seeing(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    head = header(num_blocks=200, max_num_batched_tokens=64, max_num_seqs=8)
    recorder = Recorder.to_file(path, head)
    core = core_of(head, recorder)
    for number in range(60):
        core.add(request(f"q{number}", [3, 4, 5, 6, *([number + 10] * 5)], max_tokens=1, ignore_eos=True))
        run_step(core)
    recorder.close()
    timeline = Timeline(read_trace(path))
    view = timeline.step(60)
    cached, drawn = view.planned.pool.cached_block_hash_to_block, draw(timeline, view)
    assert len(cached) == 61
    shown = len(drawn.all(data_prefix=None))
    assert 12 <= shown <= 17
    assert sum(drawn.numbers("data_left_out")) == sum(drawn.numbers("data_more")) == 61 - shown
    old = next(iter(view.planned.pool.cached_block_hash_to_block.values()))[0]
    second = view.planned.requests[7].block_hashes[1]
    (block_id,) = cached[second]
    drawn = draw(timeline, view, Selection(view="prefix", block=block_id))
    assert {old, block_id} <= {int(card["data-block"]) for card in drawn.all(data_prefix=None)}


def test_a_large_cache_is_drawn_with_few_elements(large: Timeline) -> None:
    for number in (2, len(large.steps) // 2, len(large.steps)):
        view = large.step(number)
        cached, tree = view.planned.pool.cached_block_hash_to_block, prefix_tree(view, PREFIX)
        assert len(cached) > 100
        for selection in (PREFIX, Selection(view="prefix", request=0, block=5)):
            drawn = draw(large, view, selection)
            assert len(drawn.elements) < 700
            assert num_contents(drawn) + sum(drawn.numbers("data_left_out")) == len(cached)
        assert set(tree.hits) <= set(tree.contents)
        asked = {event.request for event in view.events if isinstance(event, ev.KVLookup)}
        for event in (e for e in view.events if isinstance(e, ev.KVCached) and e.request in asked):
            assert event.hashes[-1] in tree.contents


def _alone(tmp_path: Path, prompt: list[int], **engine_args: int) -> Trace:
    path = tmp_path / "alone.jsonl"
    head = header(num_blocks=64, max_num_batched_tokens=64, **engine_args)  # type: ignore[arg-type]
    recorder = Recorder.to_file(path, head)
    core = core_of(head, recorder)
    core.add(request("long", prompt, max_tokens=1, ignore_eos=True))
    run_step(core)
    recorder.close()
    return read_trace(path)
