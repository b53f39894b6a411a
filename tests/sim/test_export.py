"""Exports: each obeys the rules of its format, and its counts are those of the trace."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.cli import main
from engine.trace import events as ev
from engine.trace.file import Trace, read_trace
from sim.export.formats import FORMATS, export
from sim.export.walk import Report
from sim.fuzz.draw import draw_episode
from sim.fuzz.situations import Situations
from sim.fuzz.stage import play

SHIPPED = Path("viz/traces")
NUM_EPISODES = 25
#: So that what follows from a step lies after it.
NS_PER_EVENT = 1500


def shipped(name: str) -> Trace:
    return read_trace(SHIPPED / f"{name}.jsonl")


def _episodes() -> list[Trace]:
    """Random runs with preemptions, aborts, steps in flight, failed steps, resets of the cache."""
    traces = []
    for seed in range(NUM_EPISODES):
        trace = play(draw_episode(seed), Situations(), record=True).trace
        assert trace is not None
        for event in trace.events:
            event.ts = NS_PER_EVENT * event.seq
        traces.append(trace)
    return traces


@pytest.fixture(scope="module")
def episodes() -> list[Trace]:
    traces = _episodes()
    seen = Counter(type(event) for trace in traces for event in trace.events)
    for kind in (ev.SchedulePreempted, ev.RequestAborted, ev.ExecutorFailed, ev.KVUncached):
        assert seen[kind], kind
    assert any(event.done for trace in traces for event in trace.events if isinstance(event, ev.CacheReset))
    return traces


def count(trace: Trace, *kinds: type[ev.Event]) -> int:
    return sum(isinstance(event, kinds) for event in trace.events)


def exported(trace: Trace, name: str, place: Path) -> Report:
    return export(FORMATS[name], trace.header, trace.events, place)


# --- Perfetto ---------------------------------------------------------------------------------------------------


class ChromeTraceChecker:
    """The rules of Chrome's trace format, as strictly as Perfetto takes them."""

    def __init__(self, path: Path) -> None:
        whole = json.loads(path.read_text())
        assert set(whole) == {"traceEvents", "displayTimeUnit", "otherData"}
        assert whole["displayTimeUnit"] in ("ms", "ns")
        self.events: list[dict[str, Any]] = whole["traceEvents"]
        self.slices: defaultdict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
        for event in self.events:
            self._common(event)
        self._tracks()
        self._asynchronous()
        self._flows()

    def of(self, phase: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["ph"] == phase]

    def _common(self, event: dict[str, Any]) -> None:
        assert event["ph"] in "XbneCMstf"
        assert isinstance(event["name"], str) and event["name"]
        assert isinstance(event["ts"], int | float) and event["ts"] >= 0
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            self.slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        if event["ph"] == "C":
            assert event["args"] and all(isinstance(value, int | float) for value in event["args"].values())
            assert all(value >= 0 for value in event["args"].values())
        if event["ph"] == "M":
            allowed = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}
            assert list(event["args"]) == [allowed[event["name"]]]

    def _tracks(self) -> None:
        """Slices of a track do not overlap, and every track has a name."""
        named = {(event["pid"], event["tid"]) for event in self.events if event["name"] == "thread_name"}
        assert set(self.slices) <= named
        for slices in self.slices.values():
            for (_, end), (start, _) in pairwise(sorted(slices)):
                assert end <= start + 1e-6

    def _asynchronous(self) -> None:
        """What is begun is ended, the innermost first."""
        stacks: defaultdict[tuple[str, int], list[tuple[str, float]]] = defaultdict(list)
        for event in sorted((e for e in self.events if e["ph"] in "bne"), key=lambda e: e["ts"]):
            stack = stacks[event["cat"], event["id"]]
            if event["ph"] == "b":
                stack.append((event["name"], event["ts"]))
            elif event["ph"] == "e":
                name, begun = stack.pop()
                assert (name, begun <= event["ts"]) == (event["name"], True)
            else:
                assert stack
        assert not any(stacks.values())

    def _flows(self) -> None:
        """An arrow starts once, ends once, and lies in a slice wherever it touches a track."""
        chains: defaultdict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
        for event in (e for e in self.events if e["ph"] in "stf"):
            chains[event["cat"], event["name"], event["id"]].append(event)
            assert ("bp" in event) == (event["ph"] == "f") and event.get("bp", "e") == "e"
            slices = self.slices[event["pid"], event["tid"]]
            assert any(start <= event["ts"] <= end for start, end in slices)
        for chain in chains.values():
            phases = "".join(event["ph"] for event in chain)
            assert phases == "s" + "t" * (len(phases) - 2) + "f"
            assert [event["ts"] for event in chain] == sorted(event["ts"] for event in chain)


def test_perfetto_has_a_slice_per_step_and_a_life_per_request(tmp_path: Path) -> None:
    trace = shipped("preemption")
    place = tmp_path / "out.json"
    report = exported(trace, "perfetto", place)
    checked = ChromeTraceChecker(place)
    steps = [event for event in checked.of("X") if event["name"].startswith("step ")]
    assert len(steps) == report.written["steps"] == count(trace, ev.StepStarted)
    begun = Counter(event["name"] for event in checked.of("b"))
    assert begun["queued"] == report.written["requests"] == count(trace, ev.RequestAdded)
    assert begun["preempted"] == count(trace, ev.SchedulePreempted) > 0
    assert sum(event["args"]["output tokens"] for event in steps) == sum(
        len(event.appended) for event in trace.events if isinstance(event, ev.UpdateRequest)
    )
    blocks = [event["args"] for event in checked.of("C") if event["name"] == "KV blocks"]
    assert {sum(values.values()) for values in blocks} == {trace.header.kv_cache.num_gpu_blocks - 1}
    assert {event["name"] for event in checked.of("C")} == {"requests", "KV blocks", "KV blocks cached", "tokens"}
    assert len(checked.of("s")) == len(checked.of("f")) == report.written["arrows"] > 0
    assert report.left_out["output.text"] == count(trace, ev.OutputText)


def test_perfetto_of_anything_that_can_happen(tmp_path: Path, episodes: list[Trace]) -> None:
    overlapping = 0
    for trace in episodes:
        report = exported(trace, "perfetto", tmp_path / "out.json")
        checked = ChromeTraceChecker(tmp_path / "out.json")
        assert report.written["steps"] == count(trace, ev.StepStarted)
        assert len([e for e in checked.of("b") if e["name"] == "queued"]) == count(trace, ev.RequestAdded)
        overlapping += len(checked.slices) > 1
    assert overlapping, "no steps were in flight together"


def test_a_trace_that_was_cut_short_is_exported_as_it_is(tmp_path: Path) -> None:
    lines = (SHIPPED / "preemption.jsonl").read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(lines[: len(lines) // 2])
    trace = read_trace(cut)
    assert trace.truncated
    exported(trace, "perfetto", tmp_path / "out.json")
    ChromeTraceChecker(tmp_path / "out.json")
    for name in ("csv", "otlp-json", "vllm-kv-events"):
        assert exported(trace, name, tmp_path / name).written


# --- tables -----------------------------------------------------------------------------------------------------


def test_tables(tmp_path: Path) -> None:
    trace = shipped("preemption")
    report = exported(trace, "csv", tmp_path / "tables")
    tables = {
        name: list(csv.DictReader((tmp_path / "tables" / f"{name}.csv").open(newline="")))
        for name in ("events", "steps", "requests")
    }
    assert {name: len(rows) for name, rows in tables.items()} == dict(report.written)
    first = tables["events"][0]
    assert msgspec.json.decode(first["data"])["request_id"] == "request-0"
    assert [first[name] for name in ("seq", "type", "request")] == ["1", "request.added", "0"]
    finished = {str(event.request): event for event in trace.events if isinstance(event, ev.RequestFinished)}
    for row in tables["requests"]:
        event = finished[row["serial"]]
        assert (row["finish_reason"], row["num_preemptions"]) == (event.finish_reason, str(event.num_preemptions))
        assert int(row["ttft_ns"]) + int(row["decode_ns"]) == int(row["e2el_ns"])
    assert sum(int(row["preemptions"]) for row in tables["steps"]) == count(trace, ev.SchedulePreempted)


def test_parquet_holds_the_same_as_csv(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    trace = shipped("prefix-hit")
    exported(trace, "csv", tmp_path / "csv")
    exported(trace, "parquet", tmp_path / "parquet")
    for name in ("events", "steps", "requests"):
        rows = parquet.read_table(tmp_path / "parquet" / f"{name}.parquet").to_pylist()
        in_csv = list(csv.DictReader((tmp_path / "csv" / f"{name}.csv").open(newline="")))
        assert [{key: "" if value is None else str(value) for key, value in row.items()} for row in rows] == in_csv


def test_parquet_without_its_library_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    place = tmp_path / "tables"
    assert main(["export", str(SHIPPED / "preemption.jsonl"), "--to", "parquet", "-o", str(place)]) == 1
    assert "pip install 'llm-orrery[export]'" in capsys.readouterr().err
    assert not place.exists()


# --- OpenTelemetry ----------------------------------------------------------------------------------------------


def spans_of(path: Path) -> list[dict[str, Any]]:
    spans = []
    for line in path.read_text().splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            spans += [span for scope in resource["scopeSpans"] for span in scope["spans"]]
    return spans


def check_span(span: dict[str, Any]) -> None:
    assert len(span["traceId"]) == 32 and int(span["traceId"], 16)
    assert len(span["spanId"]) == 16 and int(span["spanId"], 16)
    assert isinstance(span["startTimeUnixNano"], str)
    assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
    for attribute in span.get("attributes", ()):
        ((kind, value),) = attribute["value"].items()
        expected = {"intValue": str, "stringValue": str, "doubleValue": float, "arrayValue": dict}
        assert isinstance(value, expected[kind])


def test_a_span_per_request_under_the_names_of_opentelemetry(tmp_path: Path) -> None:
    trace = shipped("preemption")
    report = exported(trace, "otlp-json", tmp_path / "out.jsonl")
    spans = spans_of(tmp_path / "out.jsonl")
    for span in spans:
        check_span(span)
    requests = [span for span in spans if span["kind"] == 2]
    assert (len(requests), len(spans)) == (report.written["requests"], report.written["spans"])
    assert len({span["spanId"] for span in spans}) == len(spans)
    added = next(event for event in trace.events if isinstance(event, ev.RequestAdded))
    attributes = {each["key"]: next(iter(each["value"].values())) for each in requests[0]["attributes"]}
    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert attributes["gen_ai.request.seed"] == str(added.sampling_params.seed)
    assert attributes["gen_ai.usage.input_tokens"] == str(len(added.prompt_token_ids))
    assert attributes["gen_ai.response.finish_reasons"] == {"values": [{"stringValue": "length"}]}
    assert attributes["gen_ai.latency.time_to_first_token"] < attributes["gen_ai.latency.e2e"]
    ids = {span["spanId"] for span in requests}
    phases = Counter(span["name"] for span in spans if span["kind"] == 1)
    assert all(span["parentSpanId"] in ids for span in spans if span["kind"] == 1)
    assert phases["queued"] == len(requests) and phases["preempted"] == count(trace, ev.SchedulePreempted)


def test_spans_of_anything_that_can_happen(tmp_path: Path, episodes: list[Trace]) -> None:
    for trace in episodes:
        exported(trace, "otlp-json", tmp_path / "out.jsonl")
        spans = spans_of(tmp_path / "out.jsonl")
        for span in spans:
            check_span(span)
        assert sum(span["kind"] == 2 for span in spans) == count(trace, ev.RequestAdded)


# --- KV cache events --------------------------------------------------------------------------------------------


class _Stored(msgspec.Struct, tag="BlockStored", forbid_unknown_fields=True):
    """The map that vLLM 0.33 publishes."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    group_idx: int | None = None
    extra_keys: list[list[str | tuple[str, int]] | None] | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved", forbid_unknown_fields=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared", forbid_unknown_fields=True):
    pass


_Batch = tuple[float, list[_Stored | _Removed | _Cleared], int | None]


def test_kv_events_tell_a_listener_what_the_cache_holds(tmp_path: Path, episodes: list[Trace]) -> None:
    decoder, keyed = msgspec.json.Decoder(_Batch), 0
    for trace in [shipped("eviction"), *episodes]:
        exported(trace, "vllm-kv-events", tmp_path / "out.jsonl")
        batches = [decoder.decode(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
        assert [batch[0] for batch in batches] == sorted(batch[0] for batch in batches)
        held: Counter[int] = Counter()
        for event in (event for batch in batches for event in batch[1]):
            if isinstance(event, _Stored):
                keyed += event.extra_keys is not None
                assert len(event.token_ids) == len(event.block_hashes) * event.block_size
                assert event.parent_block_hash is None or held[event.parent_block_hash] > 0
                held.update(event.block_hashes)
            elif isinstance(event, _Removed):
                held.subtract(event.block_hashes)
            else:
                held.clear()
            assert min(held.values(), default=0) >= 0
        assert +held == hashes_at_the_end(trace)
    assert keyed, "no salt, no adapter, no image"


def hashes_at_the_end(trace: Trace) -> Counter[int]:
    """What the pool holds by the events of the trace: one count per block."""
    by_block: dict[int, int] = {}
    for event in trace.events:
        if isinstance(event, ev.KVCached):
            by_block.update(zip(event.block_ids, (int(each, 16) % 2**64 for each in event.hashes), strict=True))
        elif isinstance(event, ev.KVAllocated):
            for block in event.evicted_block_ids:
                del by_block[block]
        elif isinstance(event, ev.KVUncached):
            for block in event.block_ids:
                del by_block[block]
        elif isinstance(event, ev.CacheReset) and event.done:
            by_block.clear()
    return Counter(by_block.values())


def test_kv_events_as_messages(tmp_path: Path) -> None:
    trace = shipped("eviction")
    exported(trace, "vllm-kv-events", tmp_path / "out.jsonl")
    report = exported(trace, "vllm-kv-events", tmp_path / "out.msgpack")
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
    assert report.written["BlockRemoved"] > 0
    messages = b"".join(msgspec.msgpack.encode(msgspec.json.decode(line)) for line in lines)
    assert (tmp_path / "out.msgpack").read_bytes() == messages


# --- the command ------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_wrote_and_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = str((SHIPPED / "preemption.jsonl").resolve())
    monkeypatch.chdir(tmp_path)
    assert main(["export", trace, "--to", "perfetto"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("preemption.perfetto.json: 55 steps, 4 requests, 4 arrows")
    assert "Left out, for which perfetto has no place: 158 output.text" in said
    assert [each.name for each in tmp_path.iterdir()] == ["preemption.perfetto.json"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--to", "excel"], 2, "A trace is exported to one of perfetto, csv, parquet, otlp-json, vllm-kv-events"),
        (["--to", "csv", "-o", "{file}"], 2, "The tables go into a folder, but {file} is a file."),
        (["--to", "perfetto", "-o", "{folder}"], 2, "The export is a file, but {folder} is a folder."),
        (["--to", "perfetto", "-o", "{folder}/none/out.json"], 2, "must go into a folder that is there, got {folder}"),
    ],
)
def test_where_nothing_can_be_exported(
    arguments: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"file": str(tmp_path / "file"), "folder": str(tmp_path)}
    (tmp_path / "file").touch()
    given = [argument.format(**names) for argument in arguments]
    assert main(["export", str(SHIPPED / "preemption.jsonl"), *given]) == code
    assert said.format(**names) in capsys.readouterr().err
