"""`make bench`: rounds over real contenders, the roofline, and what is made of the samples."""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import pytest

from engine.bench import chart
from engine.bench.comparison import measure_ceilings, run_rounds
from engine.bench.contenders import Contender, all_contenders
from engine.bench.documents import BEGIN, END, write_documents
from engine.bench.peers.protocol import Request
from engine.bench.results import Comparison, ContenderResult, Machine, Samples
from engine.bench.roofline import Ceilings, least_seconds
from engine.bench.tables import all_tables, failures, ratios, speeds
from engine.errors import WorkloadError
from engine.models.model_shape import ModelShape

SMOLLM2 = ModelShape(30, 576, 1536, 9, 3, 64, 49152)
WORKLOADS = {"dec1": [Request([5, 6, 7], 4)], "pre8": [Request([5] * 40, 2)] * 3, "warm": [Request([8, 9], 2)]}
MACHINE = Machine(
    cpu="a <processor>", capability="AVX2", cores=2, threads=1, load_before=0.1, python="3.11", torch="2.13"
)


def measured(engine: str, variant: str, size: float | None, dec1: list[float], dec32: list[float]) -> ContenderResult:
    return ContenderResult(
        engine=engine,
        variant=variant,
        bytes_per_weight=size,
        seconds_to_ready=[9.0, 2.0, 4.0],
        seconds_to_first_token=[0.1, 0.2, 0.3],
        peak_memory_bytes=[10**9] * 3,
        workloads={
            "dec1": Samples(tokens_per_second=dec1, ttft=[0.5], itl=[0.02]),
            "dec32": Samples(tokens_per_second=dec32, failure=None if dec32 else "It did not answer within 3 s."),
        },
    )


@pytest.fixture
def comparison() -> Comparison:
    return Comparison(
        model="smollm2-135m",
        rounds=3,
        workloads=["dec1", "dec32"],
        machine=MACHINE,
        read_bytes_per_second=[30e9, 33e9, 35e9],
        flops_per_second=[300e9] * 3,
        contenders=[
            measured("Orrery", "bf16", 2.0, [80.0, 90.0, 85.0], [600.0]),
            measured("Orrery", "int4", None, [100.0], [400.0]),
            measured("vLLM", "bf16 eager", 2.0, [40.0], []),
            measured("llama.cpp", "bf16", 2.0, [50.0], [240.0]),
            measured("llama.cpp", "q4_1", None, [80.0], [160.0]),
            ContenderResult(engine="vLLM", variant="fp32", bytes_per_weight=4.0, failure="It is not installed."),
        ],
    )


REQUESTS = {"dec1": [Request([1] * 32, 128)], "dec32": [Request([1] * 32, 128)] * 32}


def test_the_sizes_of_a_model(tiny_model_path: Path, smollm2_path: Path) -> None:
    assert ModelShape.of_folder(smollm2_path) == SMOLLM2
    assert SMOLLM2.layer_weights + SMOLLM2.head_weights == 134_479_872
    assert SMOLLM2.kv_values_per_token * 2 == 23_040
    assert ModelShape.of_folder(tiny_model_path).vocab_size == 2048


def test_a_small_batch_is_bound_by_memory_and_a_large_one_by_arithmetic() -> None:
    memory_bound = Ceilings(33e9, 1e18)
    one_step = least_seconds(SMOLLM2, [Request([1] * 32, 1)], 2.0, memory_bound)
    assert one_step == pytest.approx(268_959_744 / 33e9)
    two_steps = least_seconds(SMOLLM2, [Request([1] * 32, 2)], 2.0, memory_bound)
    assert two_steps == pytest.approx(2 * one_step + 33 * 23_040 / 33e9)
    compute_bound = Ceilings(1e18, 300e9)
    prompt = least_seconds(SMOLLM2, [Request([1] * 512, 1)] * 8, 2.0, compute_bound)
    matrices = 2 * (8 * 512 * SMOLLM2.layer_weights + 8 * SMOLLM2.head_weights)
    attention = 8 * 4 * 30 * 9 * 64 * (512 * 513 // 2)
    assert prompt == pytest.approx((matrices + attention) / 300e9)
    # Of two requests, the shorter leaves: from then on there is one row.
    both = least_seconds(SMOLLM2, [Request([1], 2), Request([1], 3)], 2.0, compute_bound)
    rows = [(2, 1), (2, 2), (1, 3)]
    flops = sum(
        2 * count * (SMOLLM2.layer_weights + SMOLLM2.head_weights) + count * SMOLLM2.attention_flops(context)
        for count, context in rows
    )
    assert both == pytest.approx(flops / 300e9)


def test_medians_and_ratios(comparison: Comparison) -> None:
    assert speeds(comparison).rows[0] == ["Orrery bf16", "85.0", "600.0"]
    assert speeds(comparison).rows[2] == ["vLLM bf16 eager", "40.0", "–"]
    assert ratios(comparison).rows == [["16 and 32 bits", "1.70", "2.50"], ["quantised", "1.25", "2.50"]]


def test_what_failed_is_told(comparison: Comparison) -> None:
    assert failures(comparison) == [
        "vLLM fp32: It is not installed.",
        "vLLM bf16 eager, dec32: It did not answer within 3 s.",
    ]


def test_the_documents(comparison: Comparison, tmp_path: Path) -> None:
    (tmp_path / "benchmarks.md").write_text(f"# Before\n\n{BEGIN}\nold\n{END}\n\nAfter.\n")
    tables = all_tables(comparison, SMOLLM2, REQUESTS)
    for _ in range(2):
        write_documents(tmp_path, comparison, tables)
    text = (tmp_path / "benchmarks.md").read_text()
    assert text.startswith(f"# Before\n\n{BEGIN}\n") and text.endswith(f"{END}\n\nAfter.\n")
    assert "old" not in text
    assert "| Orrery bf16 | 85.0 | 600.0 |" in text
    assert "memory read at 33.0 GB/s" in text
    assert "| Orrery bf16 | 9.0 | 3.0 | 200 | 1,000 |" in text
    assert "- vLLM fp32: It is not installed." in text
    assert msgspec.json.decode((tmp_path / "benchmarks.json").read_bytes(), type=Comparison) == comparison
    picture = ElementTree.parse(tmp_path / "images/benchmarks.svg").getroot()
    assert {"Orrery bf16", "dec32", "600", "not measured"} <= {each.text for each in picture.iter()}


def test_a_document_without_the_marks_is_left_alone(comparison: Comparison, tmp_path: Path) -> None:
    (tmp_path / "benchmarks.md").write_text("# Mine\n")
    with pytest.raises(WorkloadError, match="must hold the lines"):
        write_documents(tmp_path, comparison, [])
    assert [path.name for path in tmp_path.iterdir()] == ["benchmarks.md"]


def test_the_picture_of_nothing() -> None:
    empty = Comparison(model="<m>", rounds=1, workloads=["dec1"], machine=MACHINE)
    assert ElementTree.fromstring(chart.draw(empty)) is not None


def test_the_contenders_of_a_bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    contenders = all_contenders("orrery-tiny", tmp_path, 2)
    assert len({each.name for each in contenders}) == len(contenders)
    missing = {each.engine for each in contenders if each.missing}
    assert missing == {"vLLM", "llama.cpp"}
    assert all("make bench-peers" in (each.missing or "make bench-peers") for each in contenders)


def test_rounds_of_this_engine_and_of_some_that_fail(tiny_model_path: Path) -> None:
    settings = {"model": "orrery-tiny", "dtype": "float32", "max_model_len": 64, "enable_prefix_caching": False}

    def contender(variant: str, needs: tuple[Path, ...] = (), **more: object) -> Contender:
        python = Path(sys.executable)
        environment = {"OMP_NUM_THREADS": "1"}
        return Contender("Orrery", variant, 4.0, python, "orrery_engine", {**settings, **more}, environment, needs)

    contenders = [
        contender("short", max_model_len=36),
        contender("broken", no_such_argument=1),
        contender("absent", needs=(Path("no/such/file"),)),
    ]
    comparison = Comparison(model="orrery-tiny", rounds=2, workloads=["pre8", "dec1"], machine=MACHINE)
    said: list[str] = []
    rounds = run_rounds(comparison, contenders, WORKLOADS, lambda: Ceilings(33e9, 300e9), said.append)
    assert list(rounds) == [1, 2]
    short, broken, absent = comparison.contenders
    assert comparison.read_bytes_per_second == [33e9] * 2
    assert comparison.flops_per_second == [300e9] * 2
    # The workload that failed was tried once, and the one after it had its turn in the next round.
    assert "36" in (short.workloads["pre8"].failure or "")
    assert len(short.workloads["dec1"].tokens_per_second) == 1
    assert len(short.seconds_to_ready) == 2
    assert len(short.peak_memory_bytes) == 1
    assert "no_such_argument" in (broken.failure or "")
    assert "no/such/file" in (absent.failure or "")
    assert "round 2 of 2: Orrery short, dec1" in said
    assert said.count("round 1 of 2: Orrery broken, starting") == 1
    assert not any("round 2 of 2: Orrery broken" in each or "absent" in each for each in said)
    tables = all_tables(comparison, ModelShape.of_folder(tiny_model_path), WORKLOADS)
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)


def test_the_ceilings_of_this_machine() -> None:
    ceilings = measure_ceilings(threads=1)
    assert 1e8 < ceilings.read_bytes_per_second < 1e13
    assert 1e8 < ceilings.flops_per_second < 1e15


def test_this_machine() -> None:
    machine = Machine.this(threads=1)
    assert machine.cores == os.cpu_count()
    assert machine.cpu
