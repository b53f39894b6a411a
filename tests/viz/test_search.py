"""The search field and the jumps: they lead where a plain look through the trace says it is so."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from engine.cli import main
from engine.errors import QueryError
from engine.trace import events as ev
from sim.query.changes import request_changes
from sim.timeline import Timeline
from tests.viz.conftest import shipped
from tests.viz.drawn import Drawn
from viz import search as search_module
from viz.figures.finder import finder, jumps
from viz.figures.parts import Selection
from viz.figures.spine import spine
from viz.jumps import Jump, Landing, land
from viz.search import Found, search, step_of

_NOTHING = Selection()


@pytest.fixture(scope="module")
def crowd() -> Timeline:
    return shipped("preemption")


def to(written: str, timeline: Timeline, step: int, selection: Selection = _NOTHING, text: str = "") -> Landing:
    jump = Jump.read(written)
    assert jump is not None
    return land(jump, timeline, step, selection, search(timeline, text) if text else None)


def preempting(timeline: Timeline) -> list[int]:
    return sorted({event.step for event in timeline.events if isinstance(event, ev.SchedulePreempted)})


# --- what is looked for -----------------------------------------------------------------------------------------


def test_a_question_finds_the_steps_in_which_it_holds(crowd: Timeline) -> None:
    found = search(crowd, " preempted ")
    assert found.steps == tuple(preempting(crowd))
    assert len(found.steps) > 1
    first, second, *_ = found.steps
    assert found.nearest(first, forward=True) == Found(second)
    assert found.nearest(second, forward=False) == Found(first)
    assert found.nearest(first, forward=False) == Found(None)


def test_a_request_is_found_under_either_name_where_it_got_tokens(crowd: Timeline) -> None:
    ran = sorted({e.step for e in crowd.events if isinstance(e, ev.StepScheduled) and 3 in e.requests})
    by_number = search(crowd, "r3")
    assert (by_number.request, by_number.steps) == (3, tuple(ran))
    assert search(crowd, crowd.life_lines[3].request.request_id).request == 3


def test_a_block_is_found_where_something_happened_to_it(crowd: Timeline) -> None:
    found = search(crowd, "block 3")
    named = {
        e.step for e in crowd.events if isinstance(e, (ev.KVAllocated, ev.KVCached, ev.KVFreed)) if 3 in e.block_ids
    }
    assert found.block == 3
    assert found.steps is not None
    assert set(found.steps) == named
    assert found.nearest(found.steps[0], forward=True) == Found(found.steps[1])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("r99", "There is no request r99: this trace has r0 to r3."),
        ("block 99", "There is no block 99: the pool has blocks 0 to 10."),
        ("foo < 3", "A question cannot name 'foo'"),
        ("preempted and", "is no question"),
        ("phase", "is text: compare it"),
    ],
)
def test_what_means_nothing_is_said_in_the_words_of_the_question(crowd: Timeline, text: str, sentence: str) -> None:
    with pytest.raises(QueryError, match=re.escape(sentence)):
        search(crowd, text)


def test_a_long_look_is_given_up_and_goes_on_from_there(crowd: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = search(crowd, "admission == 'resumed'").steps
    assert whole
    monkeypatch.setattr(search_module, "MOST_EVENTS", 100)
    search.cache_clear()
    looked = search(crowd, "admission == 'resumed'")
    assert looked.steps is None, "too many to count"
    step, found = 1, Found(None, 1)
    stops = 0
    while found.given_up_at is not None:
        step, stops = found.given_up_at, stops + 1
        found = looked.nearest(step, forward=True)
        assert found.given_up_at is None or found.given_up_at > step
    assert stops > 1
    assert found.step == whole[0]
    assert "n looks on from here" in to("next match", crowd, 1, text="admission == 'resumed'").words
    search.cache_clear()


def test_every_change_is_shown_by_a_step_that_holds_it(crowd: Timeline) -> None:
    for block in range(1, crowd.header.kv_cache.num_gpu_blocks):
        step, seen = 1, []
        while (landing := to("next change", crowd, step, Selection(block=block))).step != step:
            step = landing.step
            seen.append(step)
        found = search(crowd, f"block {block}")
        assert found.steps is not None
        assert seen == [each for each in found.steps if each > 1]


def test_what_happens_between_two_steps_belongs_to_the_later(crowd: Timeline) -> None:
    added = next(change for change in request_changes(crowd, 3, 0, "after") if change.kind == "added")
    assert added.event in [*crowd.step(step_of(crowd, added)).preceding, *crowd.step(step_of(crowd, added)).events]


# --- jumps ------------------------------------------------------------------------------------------------------


def test_jumps_to_preemptions_and_says_when_there_is_no_further(crowd: Timeline) -> None:
    first, *_, last = preempting(crowd)
    assert to("next preemption", crowd, 1) == Landing(first)
    assert to("previous preemption", crowd, last + 1) == Landing(last)
    assert to("next preemption", crowd, last) == Landing(last, f"Nobody is preempted after step {last}.")
    assert to("previous preemption", crowd, first).words == f"Nobody is preempted before step {first}."


def test_jumps_over_the_steps_in_which_the_selected_request_waits(crowd: Timeline) -> None:
    ran = crowd.life_lines[3].scheduled
    here = next(step for step, after in pairwise(ran) if after > step + 1)
    after = ran[ran.index(here) + 1]
    assert to("next scheduled", crowd, here, Selection(request=3)) == Landing(after)
    assert to("previous scheduled", crowd, after, Selection(request=3)) == Landing(here)
    assert (
        to("next scheduled", crowd, ran[-1], Selection(request=3)).words == f"r3 gets no tokens after step {ran[-1]}."
    )
    assert "No request is selected" in to("next scheduled", crowd, 1).words


def test_jumps_to_the_last_change_of_a_block_else_of_a_request_and_tells_it(crowd: Timeline) -> None:
    victim = next(event for event in crowd.events if isinstance(event, ev.SchedulePreempted))
    freed = next(
        e for e in crowd.events if isinstance(e, ev.KVFreed) and e.seq > victim.seq and e.request == victim.victim
    )
    block = freed.block_ids[0]
    landing = to("previous change", crowd, victim.step + 1, Selection(request=0, block=block))
    assert landing.step == victim.step
    assert landing.words.startswith(f"block {block} freed: r{victim.victim} gave it up")
    assert "evicted: handed out to r" in landing.words, "in the same step"
    of_request = to("previous change", crowd, victim.step + 1, Selection(request=victim.victim))
    assert of_request.step == victim.step
    assert of_request.words.startswith(f"r{victim.victim} ")
    assert to("previous change", crowd, 1, Selection(block=10)) == Landing(
        1, "Nothing happens to block 10 before step 1."
    )
    assert "No block and no request is selected" in to("next change", crowd, 1, Selection(block=9999)).words


def test_what_is_no_jump_is_none() -> None:
    assert [Jump.read(text) for text in ("", "next", "sideways match", "next thing")] == [None] * 4
    assert Jump.read("previous match") == Jump("match", forward=False)


# --- how it is drawn --------------------------------------------------------------------------------------------


def test_the_field_says_how_many_steps_it_finds_and_which_of_them_this_is(crowd: Timeline) -> None:
    found = search(crowd, "preempted")
    assert found.steps is not None
    drawn = Drawn(finder("preempted", found, found.steps[1], ""))
    assert drawn.one(data_found=len(found.steps))
    assert f"match 2 of {len(found.steps)}" in drawn.text
    between = Drawn(finder("preempted", found, found.steps[0] + 1, "said"))
    assert f"{len(found.steps)} matches: 1 before, {len(found.steps) - 1} after" in between.text
    assert between.text.endswith("said")
    assert Drawn(finder("", None, 1, "")).all(data_act="find:preempted"), "there is an example to click"
    assert "In no step" in Drawn(finder("waiting > 99", search(crowd, "waiting > 99"), 1, "")).text


def test_the_field_tells_what_is_wrong_and_keeps_what_was_typed() -> None:
    drawn = Drawn(finder('a"<b>', "It is wrong.", 1, ""))
    assert drawn.one(role="alert")
    assert drawn.one(aria_invalid="true")["value"] == 'a"<b>'


def test_buttons_are_there_for_what_there_is_to_jump_to(crowd: Timeline) -> None:
    def acts(timeline: Timeline, selection: Selection) -> set[str]:
        return {element["data-act"] for element in Drawn(jumps(timeline, selection)).all(data_act=None)}

    assert "jump:next preemption" in acts(crowd, _NOTHING)
    assert "jump:next preemption" not in acts(shipped("first-token"), _NOTHING)
    assert "jump:next change" not in acts(crowd, _NOTHING)
    assert {"jump:next change", "jump:previous scheduled"} <= acts(crowd, Selection(request=1))
    assert "block 3 changes" in Drawn(jumps(crowd, Selection(request=1, block=3))).text


def test_the_spine_marks_what_is_looked_for(crowd: Timeline) -> None:
    steps = search(crowd, "preempted").steps
    assert steps
    drawn = Drawn(spine(crowd.series, steps))
    assert tuple(int(bar["data-step"]) for bar in drawn.all(data_matches=1)) == steps


# --- a large trace ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """Enough steps to share bars, of a trace that stays in its file."""
    path = tmp_path_factory.mktemp("large") / "large.jsonl.zst"
    options = ["--device", "a100", "--model", "llama-3.1-8b", "--max-model-len", "512", "--max-num-seqs", "32"]
    workload = "synthetic:rate=30,input=64,output=96,num=240"
    run = ["simulate", "--workload", workload, *options, "--num-gpu-blocks-override", "120", "--trace", str(path)]
    assert main(run) == 0
    return Timeline.open(path)


def test_bars_of_a_long_run_are_the_highest_of_their_steps_and_bear_all_their_marks(large: Timeline) -> None:
    assert len(large.events) >= 50_000
    assert large.summary().num_preemptions > 0
    found = search(large, "preempted")
    assert found.steps is not None
    drawn = Drawn(spine(large.series, found.steps))
    per = int(drawn.one(data_per=None)["data-per"])
    bars = drawn.all(data_tokens=None)
    assert per > 1
    assert len(bars) <= 240
    for i, bar in enumerate(bars):
        assert int(bar["data-tokens"]) == max(facts.tokens for facts in large.series[i * per : (i + 1) * per])
    assert sum(drawn.numbers("data_matches")) == len(found.steps) == len(preempting(large))
    finishing = sum(any(f.finishes for f in large.series[i : i + per]) for i in range(0, len(large.series), per))
    signs = [element for element in drawn.elements if element.tag == "s" and "finish" in element.classes]
    assert finishing > 80, "nearly everywhere"
    assert len(signs) == 1, "only in the key"
    assert "finished: all along, not marked" in drawn.text


def test_blocks_of_a_large_trace_are_found_step_by_step(large: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = search(large, "block 7").steps
    assert everything
    monkeypatch.setattr(search_module, "MOST_EVENTS", 100)
    search.cache_clear()
    lazily = search(large, "block 7")
    assert lazily.steps is None
    middle = everything[len(everything) // 2]
    assert lazily.nearest(middle, forward=True) == Found(everything[len(everything) // 2 + 1])
    assert lazily.nearest(middle, forward=False) == Found(everything[len(everything) // 2 - 1])
    search.cache_clear()
