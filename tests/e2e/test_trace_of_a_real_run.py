"""The trace of a real run: same inputs, same bytes; every level holds what it promises; off records nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from engine import LLM, SamplingParams
from engine.config import TraceLevel
from engine.trace.events import EVENT_TYPES, EventClass, KVAllocated
from engine.trace.file import Trace, read_trace
from sim.invariants import check_trace
from sim.replay import replay

PROMPTS = [
    "The keeper of the lighthouse",
    "A clock is",
    "The keeper of the lighthouse was asleep when the ship came in.",
]

#: Memory of the machine, which others use as well.
MEASURED_BYTES = ("total_bytes", "available_bytes", "activation_bytes", "budget_bytes")


def record(path: Path, trace_level: TraceLevel | None = None) -> Trace:
    """Three prompts in a pool so small that one is preempted; greedy and random; a cut prompt; two rounds for a hit."""
    llm = LLM(
        model="orrery-tiny",
        block_size=4,
        num_gpu_blocks_override=26,
        max_model_len=96,
        max_num_batched_tokens=8,
        trace=path,
        trace_level=trace_level,
    )
    for temperature in (0.0, 0.9):
        llm.generate(PROMPTS, SamplingParams(temperature=temperature, max_tokens=40, ignore_eos=True), use_tqdm=False)
    llm.llm_engine.close()
    return read_trace(path)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return record(tmp_path_factory.mktemp("run") / "run.jsonl", "forward")


def counts(trace: Trace) -> Counter[str]:
    return Counter(str(type(event).__struct_config__.tag) for event in trace.events)


def test_it_holds_the_situations_it_claims(trace: Trace) -> None:
    seen = counts(trace)
    assert seen["schedule.preempted"] > 0
    assert any(getattr(event, "num_hit_tokens", 0) > 0 for event in trace.events)
    assert any(getattr(event, "truncated_by", None) == "token_budget" for event in trace.events)
    assert any(isinstance(event, KVAllocated) and event.evicted_hashes for event in trace.events)


def test_it_replays_and_keeps_the_invariants(trace: Trace) -> None:
    report = replay(trace)
    assert report.divergence is None
    assert report.num_decisions == len(trace.of_class(EventClass.DECISION)) > 500
    assert check_trace(trace) == []


def test_the_same_inputs_give_the_same_bytes(trace: Trace, tmp_path: Path) -> None:
    def masked(run: Trace) -> list[bytes]:
        lines = [msgspec.json.encode(run.header)]
        for event in run.events:
            fields = {
                name: value
                for name, value in msgspec.to_builtins(event).items()
                if not name.endswith("_ns") and name not in MEASURED_BYTES
            }
            lines.append(msgspec.json.encode(fields | {"ts": 0}))
        return lines

    assert masked(record(tmp_path / "again.jsonl", "forward")) == masked(trace)


@pytest.mark.parametrize("level", ["control", "forward"])
def test_a_level_holds_its_events_and_those_below(tmp_path: Path, level: TraceLevel) -> None:
    seen = counts(record(tmp_path / "run.jsonl", level))
    ranks = {"control": 0, "forward": 1, "full": 2}
    beyond = {tag for tag, struct in EVENT_TYPES.items() if ranks[struct.level] > ranks[level]}
    assert not beyond & set(seen)
    assert (seen["forward.inputs"] > 0) == (level == "forward")
    assert seen["step.executed"] == seen["step.output"] > 0


def test_off_records_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    llm = LLM(model="orrery-tiny", max_model_len=96, num_gpu_blocks_override=20, trace_level="off")
    llm.generate(PROMPTS[:1], SamplingParams(max_tokens=2), use_tqdm=False)
    llm.llm_engine.close()
    assert list(tmp_path.iterdir()) == []
