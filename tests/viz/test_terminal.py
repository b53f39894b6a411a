"""`orrery trace` in the terminal: every fact is on the screen, with and without colour, at any width."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

from engine.cli import main
from engine.trace import events as ev
from engine.trace.file import Trace, read_trace, write_trace
from sim.timeline import Timeline
from tests.core.driver import record_crowd
from viz.cut import UNPLANNED
from viz.explain import explain
from viz.open_trace import SHIPPED
from viz.terminal.step import step_view
from viz.terminal.summary import trace_view
from viz.terminal.words import duration, share, visible


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "crowd.jsonl"
    record_crowd(path, seed=1, num_requests=20, long_prefill_token_threshold=0)
    return path


@pytest.fixture(scope="module")
def timeline(path: Path) -> Timeline:
    return Timeline(read_trace(path))


def drawn(drawing: RenderableType, width: int = 100, *, colour: bool = False) -> str:
    console = Console(
        width=width,
        file=io.StringIO(),
        highlight=False,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
    )
    console.print(drawing)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def a_step(timeline: Timeline, event_type: type[ev.Event]) -> int:
    """The first step with an event of a type."""
    return next(event.step for event in timeline.events if isinstance(event, event_type))


def test_the_summary_tells_the_whole_run(timeline: Timeline) -> None:
    text, summary = drawn(trace_view("crowd.jsonl", timeline)), timeline.summary()
    assert f"{summary.num_steps} in " in text
    assert f"{summary.num_decisions:,} decisions" in text
    assert f"{summary.num_hit_tokens:,} of {summary.num_queried_tokens:,} tokens hit" in text
    assert f"{summary.num_preemptions} preemption" in text
    measured = summary.metrics.summarise()
    assert f"{measured.output_throughput:,.4g} output tokens" in text
    for label, values in (("TTFT", measured.latencies_ms["ttft"]), ("ITL", measured.latencies_ms["itl"])):
        line = next(line for line in text.splitlines() if line.strip().startswith(label))
        assert line.split()[1:4] == [f"{v:,.2f}" for v in (values.mean, values.median, values.percentiles[99])]
    for life in timeline.life_lines.values():
        line = next(line for line in text.splitlines() if line.strip().startswith(f"r{life.request.serial} "))
        assert f"{life.request.finish_reason} in step {life.finished}" in line
        assert ("▼" in line) == bool(life.preempted)
        assert "●" in line


def test_text_of_others_neither_breaks_a_line_nor_steers_the_terminal() -> None:
    trace = read_trace("viz/traces/first-token.jsonl")
    for event in trace.events:
        if isinstance(event, ev.TokenPieces):
            event.pieces = [b"\n\x1b[31m"] * len(event.pieces)
    timeline = Timeline(trace)
    step = a_step(timeline, ev.OutputText)
    text = drawn(step_view("two\nlines", timeline.step(step), timeline.steps[-1]))
    assert "Orrery  two⏎lines · " in text
    assert "r0  next: “⏎\\x1b[31m”" in text
    assert "\x1b" not in text
    assert "orrery trace two⏎lines --step N" in drawn(trace_view("two\nlines", timeline))


def test_the_summary_points_at_steps_that_show_something(timeline: Timeline) -> None:
    text = drawn(trace_view("crowd.jsonl", timeline))
    worth = {
        int(words[0]): " ".join(words[1:])
        for words in (line.split() for line in text.partition("Worth a look")[2].splitlines()[1:])
        if words and words[0].isdigit()
    }
    assert "preemption" in worth[a_step(timeline, ev.SchedulePreempted)]
    assert "finished" in worth[min(f.step for f in timeline.series if f.finishes)]
    hit = min(facts.step for facts in timeline.series if facts.hit_tokens)
    assert "a prefix hit spares" in worth[hit]


@pytest.mark.parametrize("colour", [False, True], ids=["plain", "colour"])
def test_a_step_tells_every_row_block_and_reason(timeline: Timeline, colour: bool) -> None:
    for number in timeline.steps:
        view = timeline.step(number)
        text = Text.from_ansi(drawn(step_view("crowd.jsonl", view, timeline.steps[-1]), 120, colour=colour)).plain
        assert f"Step {number} / {timeline.steps[-1]}" in text
        assert f"{view.plan.num_scheduled_tokens:,} / {view.plan.token_budget:,} tokens" in text
        flat = " ".join(text.split())
        for reason in explain(view):
            assert all(word in flat for word in reason.sentence.split())
            assert str(reason.place).removeprefix("engine/core/") in text
        assert "the function that made it" in text
        for serial in (*view.plan.rows, *view.planned.waiting[:8]):
            assert f"r{serial} " in text


def test_blocks_can_be_told_apart_without_colour(timeline: Timeline) -> None:
    view = timeline.step(a_step(timeline, ev.KVTouched))
    text, pool = drawn(step_view("crowd.jsonl", view, 99)), view.planned.pool
    grid = text.partition("KV memory")[2].partition("free_block_queue")[0]
    assert any(block.kind == "shared" for block in pool.blocks())
    for block in pool.blocks():
        cell = f"{block.block_id:>2}"
        if block.kind == "shared":
            assert f"[{cell}]²" in grid or f"[{cell}]³" in grid
        elif block.kind == "in use":
            assert f"[{cell}]" in grid
        elif block.kind == "cached":
            assert f"({cell})" in grid
    queue = text.partition("free_block_queue, left goes next")[2].splitlines()[0].split()
    assert queue[0].strip("()") == str(next(iter(pool.free_block_queue)))


def test_blocks_that_a_connector_works_on_are_told(tmp_path: Path) -> None:
    timeline = Timeline(record_crowd(tmp_path / "crowd.jsonl", seed=2, connected=True, num_blocks=18))
    held = receiving = 0
    for number in timeline.steps:
        view = timeline.step(number)
        text = " ".join(drawn(step_view("crowd.jsonl", view, 99), 120).split())
        tables = text.partition("block tables")[2].partition("Forward pass")[0]
        for request in view.planned.holders:
            assert f"{request.name} " in tables
            held += request.ended
            receiving += request.receiving
        assert tables.count("being sent") == sum(request.sending for request in view.planned.holders)
        if blocks := len(view.planned.held_blocks):
            assert f"{blocks} held for requests that have ended" in text
    assert held and receiving


def test_colour_is_that_of_the_request(timeline: Timeline) -> None:
    text = drawn(step_view("crowd.jsonl", timeline.step(a_step(timeline, ev.StepOutput)), 99), colour=True)
    assert "38;2;0;114;178" in text  # r0 is Okabe and Ito's blue, #0072B2


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_line_is_wider_than_the_terminal(timeline: Timeline, width: int) -> None:
    drawings = [trace_view("crowd.jsonl", timeline)]
    drawings += [step_view("crowd.jsonl", timeline.step(number), 99) for number in timeline.steps[:20]]
    for drawing in drawings:
        for line in drawn(drawing, width).splitlines():
            assert cell_len(line) <= width


def test_tensors_of_the_worker_are_shown_where_the_trace_has_them(timeline: Timeline) -> None:
    number = a_step(timeline, ev.StepOutput)
    row = next(iter(timeline.step(number).plan.rows.values()))
    inputs = ev.ForwardInputs(
        seq=10**6, step=number, requests=[row.request], input_ids=[7], positions=[3], slot_mapping=[21],
        query_start_loc=[0, 1], seq_lens=[4], block_tables=[[5]], logits_indices=[0],
    )  # fmt: skip
    logits = ev.ForwardLogits(
        seq=10**6 + 1, step=number, requests=[row.request], top_token_ids=[[8, 9]], top_logits=[[2.0, 1.0]],
        top_probs=[[0.75, 0.2]], sampled_token_ids=[8],
    )  # fmt: skip
    pieces = ev.TokenPieces(seq=10**6 + 2, step=number, token_ids=[7, 8], pieces=[b" sea", b"\x1b[31m"])
    answer = next(i for i, e in enumerate(timeline.events) if isinstance(e, ev.StepOutput) and e.step == number)
    events = [*timeline.events[:answer], inputs, logits, pieces, *timeline.events[answer:]]
    view = Timeline(Trace(timeline.header, events)).step(number)
    text = drawn(step_view("crowd.jsonl", view, 99))
    assert "1 token in one super-sequence" in text
    assert "·sea" in text
    assert "5:1" in text  # slot 21 in blocks of 4
    assert "75%" in text
    assert "\\x1b[31m" in text and "\x1b" not in text, "what a token says must not command the terminal"


def test_the_summary_tells_how_long_the_start_took(timeline: Timeline) -> None:
    assert "start-up" not in drawn(trace_view("crowd.jsonl", timeline))
    loaded = ev.ModelLoaded(num_parameters=1, weight_bytes=2, attention_backend="torch", duration_ns=1_250_000_000)
    cache = ev.KVCacheAllocated(num_gpu_blocks=3, num_bytes=4, budget_bytes=5, duration_ns=70_000)
    real = Timeline(Trace(timeline.header, [loaded, cache, *timeline.events]))
    assert "model 1.25 s · KV cache 70 µs" in drawn(trace_view("crowd.jsonl", real))


def test_a_big_pool_is_drawn_where_something_is(timeline: Timeline) -> None:
    kv_cache = msgspec.structs.replace(timeline.header.kv_cache, num_gpu_blocks=10_000)
    big = Timeline(Trace(msgspec.structs.replace(timeline.header, kv_cache=kv_cache), list(timeline.events[:60])))
    text = drawn(step_view("crowd.jsonl", big.step(big.steps[0]), 99))
    assert "blocks not drawn" in text
    assert len(text.splitlines()) < 120


def test_the_command_draws(path: Path, timeline: Timeline, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(path)]) == 0
    assert "Worth a look" in capsys.readouterr().out
    number = a_step(timeline, ev.SchedulePreempted)
    assert main(["trace", str(path), "--step", str(number)]) == 0
    assert f"Step {number} / " in capsys.readouterr().out


def test_the_command_refuses(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(path), "--step", "9999"]) == 1
    assert "There is no step 9999: the trace holds steps 1 to" in capsys.readouterr().err
    assert main(["trace", str(tmp_path / "none.jsonl")]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_a_trace_without_steps_and_one_cut_short(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = read_trace(path)
    write_trace(tmp_path / "empty.jsonl", trace.header, [])
    assert main(["trace", str(tmp_path / "empty.jsonl")]) == 0
    assert "holds no step" in capsys.readouterr().out
    (tmp_path / "cut.jsonl").write_bytes(path.read_bytes()[:40_000].rstrip(b"}\n"))
    assert main(["trace", str(tmp_path / "cut.jsonl")]) == 0
    assert "was cut short" in " ".join(capsys.readouterr().out.split())


def test_a_trace_cut_before_its_first_plan_is_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (SHIPPED / "preemption.jsonl").read_bytes().splitlines(keepends=True)
    called = next(place for place, line in enumerate(lines) if b'"schedule.called"' in line)
    (tmp_path / "cut.jsonl").write_bytes(b"".join(lines[: called + 1]))
    assert main(["trace", str(tmp_path / "cut.jsonl")]) == 0
    assert "no step has computed anything" in capsys.readouterr().out


def test_a_step_cut_within_its_plan_claims_nothing_that_it_does_not_know(timeline: Timeline) -> None:
    events = timeline.events
    preempting = a_step(timeline, ev.SchedulePreempted)
    start, end = (
        next(i for i, e in enumerate(events) if isinstance(e, kind) and e.step == preempting)
        for kind in (ev.ScheduleCalled, ev.StepScheduled)
    )
    for cut in range(start + 1, end + 1):
        view = Timeline(Trace(timeline.header, list(events[:cut]))).step(preempting)
        text = " ".join(drawn(step_view("crowd.jsonl", view, preempting), 120).split())
        assert text.count(UNPLANNED) == 3  # scheduler, forward pass, why
        assert "nothing is to be computed" not in text
        assert "nothing was decided" not in text
        scheduler = text.partition("Scheduler")[2].partition("KV memory")[0]
        assert "nobody runs" not in scheduler
        for serial in (*view.planned.running, *view.planned.waiting[:8]):
            assert f"r{serial} " in scheduler
        assert all(f"r{reason.request} " in text for reason in explain(view) if reason.request is not None)


def test_a_trace_of_one_step_has_no_empty_tables_and_no_doubled_numbers(timeline: Timeline) -> None:
    first = next(i for i, e in enumerate(timeline.events) if isinstance(e, ev.ScheduleCalled) and e.step == 2)
    text = drawn(trace_view("crowd.jsonl", Timeline(Trace(timeline.header, list(timeline.events[:first])))))
    axis = next(line for line in text.splitlines() if line.split()[:1] == ["step"])
    assert axis.split() == ["step", "1"]
    assert "none: no request has completed" in text
    assert "median" not in text


def test_words() -> None:
    assert [share(part) for part in (0, 0.001, 0.0099, 0.01, 0.5, 1)] == ["0%", "<1%", "<1%", "1%", "50%", "100%"]
    assert visible(" a\n\t\x07é") == "·a⏎⇥\\x07é"
    assert [duration(ns) for ns in (1_500, 2_500_000, 3_210_000_000)] == ["2 µs", "2.5 ms", "3.21 s"]
