"""What is said of predictions: errors, limits, and a page that holds every run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.bench.results import Machine
from engine.config import KVCacheConfig, KVCacheGroup
from scripts.accuracy.comparison import MEASURES, Accuracy, Compared
from scripts.accuracy.documents import document
from scripts.accuracy.measurement import Figures, capacity, predicted
from scripts.accuracy.runs import CALIBRATION, HELD_OUT
from sim.cost_model.calibrated import TERMS, CalibratedDevice
from sim.cost_model.composition import StepComposition
from tests.model_facts import model_facts


@pytest.fixture(scope="module")
def device() -> CalibratedDevice:
    model = model_facts(vocab_size=1000, max_model_len=1024)
    groups = (KVCacheGroup(num_layers=1, block_bytes=1),)
    kv_cache = KVCacheConfig(num_gpu_blocks=100, block_size=16, groups=groups, none_hash="00")
    return CalibratedDevice(
        name="cpu",
        model=model,
        kv_cache=kv_cache,
        knee=8,
        terms_ns=dict.fromkeys(TERMS, 0.0) | {"step": 5e6, "token": 1e6, "decode_pair": 500.0},
        residuals={},
        num_left_out=0,
        largest=StepComposition.of([]),
        traces=("a",),
    )


def figures(value: float) -> Figures:
    return Figures(**dict.fromkeys(MEASURES, value), num_preemptions=0, prefix_cache_hit_rate=0.0, duration=1.0)


def compared(name: str, real: list[float], predicted: float, **changes: Any) -> Compared:
    run = Compared(
        name=name,
        workload="",
        engine_args={},
        load=0.5,
        is_saturated=False,
        real=[figures(value) for value in real],
        predicted=figures(predicted),
    )
    return msgspec.structs.replace(run, **changes)


def accuracy(device: CalibratedDevice, *runs: Compared) -> Accuracy:
    return Accuracy(machine=Machine.this(1), is_quick=True, device=device, runs=list(runs))


def test_the_limit_follows_the_spread_and_a_percentile_is_allowed_twice_as_much(device: CalibratedDevice) -> None:
    verdicts = accuracy(device, compared("a", [100.0, 90.0, 110.0], 80.0), compared("b", [100.0], 110.0)).verdicts()
    assert [each.measure for each in verdicts] == list(MEASURES)
    assert all(each.error == pytest.approx(0.15) and each.spread == pytest.approx(0.2) for each in verdicts)
    assert [each.limit for each in verdicts] == pytest.approx([0.3] * 4 + [0.6] * 3)
    steady = accuracy(device, compared("a", [100.0], 91.0)).verdicts()
    assert [each.limit for each in steady] == pytest.approx([0.05] * 4 + [0.1] * 3)
    assert [each.is_kept for each in steady] == [False] * 4 + [True] * 3


def test_ttft_is_not_judged_above_saturation(device: CalibratedDevice) -> None:
    queued = compared("b", [100.0], 300.0, is_saturated=True)
    by_name = {each.measure: each for each in accuracy(device, compared("a", [100.0], 100.0), queued).verdicts()}
    assert by_name["median_ttft"].num_runs == by_name["p99_ttft"].num_runs == 1
    assert by_name["median_ttft"].error == 0.0
    assert by_name["median_itl"].num_runs == 2 and by_name["median_itl"].error == pytest.approx(1.0)
    page = document(accuracy(device, compared("a", [100.0], 100.0), queued))
    assert "**a try**" in page
    assert "| b (saturated) | 100.0 | 300.0 | +200.0% |" in document(
        accuracy(device, compared("a", [100.0], 100.0), queued)
    )


def test_the_runs_are_what_they_say(device: CalibratedDevice) -> None:
    assert len(CALIBRATION) >= 4 and len(HELD_OUT) >= 12
    assert sum(run.is_saturated for run in HELD_OUT) == 2
    by_name = {run.name: run for run in HELD_OUT}
    assert len(by_name) == len(HELD_OUT)
    for name in ("short of blocks", "shared prefixes", "the same, not cached"):
        run = by_name[name]
        summary = predicted(device, run.requests(capacity(device, run), 13.0), run.engine_args)
        assert (summary.num_preemptions > 0) == (name == "short of blocks")
        assert (summary.prefix_cache_hits > 0) == (name == "shared prefixes")
