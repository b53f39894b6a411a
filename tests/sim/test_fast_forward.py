"""Fast-forward: a core that leaves settled decodes alone decides as one that looks at every row of every step."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest

from engine.config import EngineConfig
from engine.core.engine_core import EngineCore
from engine.core.messages import EngineCoreRequest, ModelRunnerOutput, RequestStatus, SchedulerOutput
from engine.core.scheduler import coasting
from engine.core.scheduler.coasting import Coasting
from engine.errors import ConfigError
from engine.metrics.summary import MetricsSummary
from engine.models.architecture import Architecture
from engine.sampling_params import SamplingParams
from engine.trace.events import StepScheduled
from engine.trace.file import read_trace
from engine.trace.recorder import Recorder
from engine.workload import open_workload
from sim.cost_model.devices import DEVICES
from sim.cost_model.model_files import find_architecture
from sim.expansion import Expansion
from sim.modeled import DraftingModel, MadeUpTokens
from sim.observer import Observer
from sim.replay import replay
from sim.scenario import resolve_scenario
from sim.simulation import Simulation
from tests.mutants.mutation import Edit, Mutant, planted

MAX_MODEL_LEN = 512
#: No run here takes so many.
MOST_STEPS = 20_000
#: A setting with as many running requests as the budget has tokens.
BUDGET_USED_UP = 176


class Run(NamedTuple):
    """What a simulation leaves."""

    trace: bytes
    summary: MetricsSummary
    now_ns: int
    num_named: int
    """Rows that its steps named."""


def run(
    setting: dict[str, Any], path: Path | None, *, fast_forward: bool, architecture: Architecture | None = None
) -> Run:
    options = dict(setting)
    workload, seed = options.pop("workload"), options.pop("seed")
    config = EngineConfig.from_args("llama-3.1-8b", max_model_len=MAX_MODEL_LEN, **options)
    scenario = resolve_scenario(config, DEVICES["h100"], architecture or find_architecture("llama-3.1-8b"))
    record = None if path is None else lambda clock: Recorder.to_file(path, scenario.header, clock=clock)
    simulation = Simulation(scenario, trace=record, fast_forward=fast_forward)
    num_named, execute = 0, simulation._executor.execute_model

    def execute_model(plan: SchedulerOutput) -> None:
        nonlocal num_named
        num_named += len(plan.rows)
        assert plan.step < MOST_STEPS, "it never ends"
        execute(plan)

    simulation._executor.execute_model = execute_model  # type: ignore[method-assign, assignment]
    try:
        summary = simulation.run(open_workload(workload, Random(seed))).summarise((50, 99))
    finally:
        if simulation._recorder is not None:
            simulation._recorder.close()
    return Run(path.read_bytes() if path else b"", summary, simulation.clock.now_ns, num_named)


def drawn_setting(seed: int) -> dict[str, Any]:
    """Ample and scarce blocks, ample and scarce budget, either policy, chunks of prompts, blocks of three sizes."""
    draw = Random(seed)
    block_size = draw.choice((8, 16, 32))
    budget = draw.choice((8, 64, 64, 512, 2048))
    scarce = MAX_MODEL_LEN // block_size + draw.choice((1, 8, 40))
    lengths = f"input={draw.choice((5, 40, 200, 'uniform:2:300'))},output={draw.choice((1, 3, 40, 'uniform:5:150'))}"
    arrivals = f"rate={draw.choice((5, 50, 500))},num={draw.choice((3, 20, 50))},priorities={1 + 2 * (seed % 2)}"
    return {
        "seed": seed,
        "workload": f"synthetic:{arrivals},{lengths}",
        "block_size": block_size,
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(budget, draw.choice((2, 8, 16, 64))),
        "num_gpu_blocks_override": draw.choice((None, scarce, scarce)),
        "enable_prefix_caching": draw.random() < 0.6,
        "policy": draw.choice(("fcfs", "priority")),
        "long_prefill_token_threshold": draw.choice((0, 0, 24, 24)),
    }


def compare(seed: int, folder: Path, architecture: Architecture | None = None) -> Run:
    setting = drawn_setting(seed)
    stepped = run(setting, folder / "stepped.jsonl", fast_forward=False, architecture=architecture)
    expanded = run(setting, folder / "expanded.jsonl", fast_forward=True, architecture=architecture)
    unrecorded = run(setting, None, fast_forward=True, architecture=architecture)
    assert expanded.trace == stepped.trace, setting
    assert expanded[1:3] == unrecorded[1:3] == stepped[1:3], setting
    return expanded


@pytest.mark.parametrize("seed", range(40))
def test_the_expanded_trace_is_the_stepped_one_byte_for_byte(seed: int, tmp_path: Path) -> None:
    compare(seed, tmp_path)


def windowed(folder: Path, window: int) -> Architecture:
    """A model all of whose layers look back so many tokens."""
    config = json.loads((Path(coasting.__file__).parents[3] / "sim/cost_model/models/llama-3.1-8b.json").read_text())
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}
    config.pop("rope_scaling")
    (folder / "config.json").write_text(json.dumps(config))
    return find_architecture(str(folder / "config.json"))


@pytest.mark.parametrize("seed", range(40, 52))
def test_so_it_is_with_sliding_windows(seed: int, tmp_path: Path) -> None:
    compare(seed, tmp_path, windowed(tmp_path, 48))


def test_most_rows_are_not_named_and_the_trace_replays(tmp_path: Path) -> None:
    setting = {"seed": 0, "workload": "synthetic:rate=40,input=64,output=200,num=60"}
    path = tmp_path / "run.jsonl"
    fast = run(setting, path, fast_forward=True)
    assert fast.num_named < 60 * 200 / 50, "a prompt, perhaps in chunks, and the end of each"
    assert run(setting, None, fast_forward=False).num_named == fast.trace.count(b'"schedule.request"') >= 60 * 200
    report = replay(read_trace(path))
    assert report.num_divergences == 0 and report.num_decisions > 12_000


PLANTED = (
    Edit(Coasting._are_settled, "if most_blocks > manager.block_pool.num_free_blocks", "if False"),
    Edit(Coasting._are_settled, "if len(running) >= plan.budget", "if False"),
    Edit(coasting._Coaster.next_look, "in_block)", "in_block + 1)"),
    Edit(coasting.num_settled_steps, "- 1 - num_tokens", "- num_tokens"),
    Edit(coasting.num_settled_steps, "num_tokens > request.num_prompt_tokens and ", ""),
    Edit(Coasting.to_look_at, "self._num_kv_tokens += num_rows", "pass"),
    Edit(Coasting.to_look_at, "plan.budget -= num_rows", "pass"),
    Edit(Coasting.wake, "self._num_kv_tokens -= request.num_computed_tokens", "pass"),
    Edit(Observer.stepped, "request.num_output_tokens += num_steps", "pass"),
)


@pytest.mark.parametrize("edit", PLANTED, ids=[edit.right for edit in PLANTED])
def test_an_error_in_it_would_be_seen(edit: Edit, tmp_path: Path) -> None:
    with planted(Mutant("planted", (edit,), ())), pytest.raises((AssertionError, ValueError)):
        for seed in (BUDGET_USED_UP, *range(20)):
            compare(seed, tmp_path)


def core_of(**options: Any) -> EngineCore:
    config = EngineConfig.from_args("llama-3.1-8b", max_model_len=MAX_MODEL_LEN, **options)
    scenario = resolve_scenario(config, DEVICES["h100"], find_architecture("llama-3.1-8b"))
    return EngineCore(config, scenario.kv_cache, MAX_MODEL_LEN)


def test_who_is_aborted_while_it_coasts_has_all_its_tokens() -> None:
    core, tokens = core_of(), MadeUpTokens(1000)
    core.foresee(tokens)
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    core.add(EngineCoreRequest(request_id="a", prompt_token_ids=(1, 2, 3), sampling_params=params))
    request = core.requests["a"]
    free = core.scheduler.kv_cache_manager.block_pool.num_free_blocks
    for _ in range(30):
        plan = core.schedule()
        sampled = [[tokens.token(row.serial, row.num_tokens_after)] for row in plan.rows]
        serials = [row.serial for row in plan.rows]
        core.update(plan.step, ModelRunnerOutput(step=plan.step, serials=serials, sampled_token_ids=sampled))
    assert request.coasts and request.num_output_tokens < 30
    assert core.abort(["a"]) == ["a"]
    assert request.token_ids == [1, 2, 3, *(tokens.token(0, position) for position in range(3, 33))]
    assert request.num_computed_tokens == 32 and request.status is RequestStatus.FINISHED_ABORTED
    assert core.scheduler.kv_cache_manager.block_pool.num_free_blocks == free
    assert not core.schedule().rows


def test_who_stands_behind_a_prompt_is_woken_when_the_budget_shrinks() -> None:
    core, tokens = (
        core_of(max_num_batched_tokens=200, long_prefill_token_threshold=24, max_num_seqs=16),
        MadeUpTokens(9),
    )
    core.foresee(tokens)
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    for name, length in (("a", 150), ("b", 150), ("short", 10)):
        core.add(EngineCoreRequest(request_id=name, prompt_token_ids=(1,) * length, sampling_params=params))
    for step in range(1, 6):
        plan = core.schedule()
        sampled = [[tokens.token(row.serial, row.num_tokens_after)] if row.serial == 2 else [] for row in plan.rows]
        serials = [row.serial for row in plan.rows]
        core.update(step, ModelRunnerOutput(step=step, serials=serials, sampled_token_ids=sampled))
    assert core.requests["short"].coasts
    core.reconfigure(msgspec.structs.replace(core.scheduler.config, max_num_batched_tokens=30))
    plan = core.schedule()
    assert [(row.serial, row.num_scheduled_tokens) for row in plan.rows] == [(0, 24), (1, 6)]
    assert plan.coasting is not None and plan.coasting.num_rows == 0 and plan.coasting.woken == {2: 3}


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=100),
        SamplingParams(max_tokens=100, ignore_eos=True, stop_token_ids=[5]),
        SamplingParams(max_tokens=100, ignore_eos=True, logprobs=1),
    ],
    ids=["EOS may end it", "a token may stop it", "its log probabilities are asked for"],
)
def test_nothing_is_settled_where_the_tokens_decide(params: SamplingParams) -> None:
    core, tokens = core_of(), MadeUpTokens(1000)
    core.foresee(tokens)
    request = EngineCoreRequest(request_id="a", prompt_token_ids=(1, 2), sampling_params=params, eos_token_ids=(0,))
    core.add(request)
    for _ in range(5):
        plan = core.schedule()
        assert [row.serial for row in plan.rows] == [0]
        core.update(plan.step, ModelRunnerOutput(step=plan.step, serials=[0], sampled_token_ids=[[7]]))


def test_drafts_and_steps_in_flight_cannot_be_foreseen() -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
    for options in ({"speculative_config": drafts}, {"async_scheduling": True}):
        with pytest.raises(ConfigError, match="only without speculation, async_scheduling"):
            core_of(**options).foresee(MadeUpTokens(1000))


def test_a_step_in_which_nothing_runs_is_no_end(tmp_path: Path) -> None:
    """The one that runs is the least urgent, needs a block, and makes room for one that is not admitted."""
    setting = {
        "seed": 5,
        "workload": "synthetic:rate=20,input=16,output=100,num=8,priorities=2",
        "num_gpu_blocks_override": 34,
        "policy": "priority",
    }
    stepped = run(setting, tmp_path / "stepped.jsonl", fast_forward=False)
    fast = run(setting, tmp_path / "fast.jsonl", fast_forward=True)
    assert b'"requests":[],"num_scheduled_tokens":[]' in stepped.trace
    assert fast.trace == stepped.trace and fast.summary == stepped.summary
    assert stepped.summary.completed == 8 and stepped.summary.num_preemptions > 0


def test_a_foreseen_core_refuses_what_it_cannot_do() -> None:
    core, tokens = core_of(), MadeUpTokens(1000)
    core.foresee(tokens)
    with pytest.raises(ValueError, match="foreseen already"):
        core.foresee(tokens)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    core.add(EngineCoreRequest(request_id="a", prompt_token_ids=(1, 2), sampling_params=params))
    core.schedule()
    with pytest.raises(ValueError, match="while a foreseen step is in flight"):
        core.abort(["a"])
    assert core.requests.keys() == {"a"}


def test_the_expansion_says_nothing_of_a_prompt_that_gets_nothing() -> None:
    events: list[Any] = []

    class Sink:
        step = 0

        def emit(self, event: Any) -> None:
            events.append(event)

    tokens = MadeUpTokens(1000)
    expansion = Expansion(Sink(), tokens)
    config = EngineConfig.from_args(
        "llama-3.1-8b", max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=200, long_prefill_token_threshold=24
    )
    config = msgspec.structs.replace(config, scheduler=msgspec.structs.replace(config.scheduler, max_num_seqs=16))
    scenario = resolve_scenario(config, DEVICES["h100"], find_architecture("llama-3.1-8b"))
    core = EngineCore(config, scenario.kv_cache, MAX_MODEL_LEN, expansion)
    coasting = core.foresee(tokens)
    expansion.coasters = lambda: coasting.serials
    for serial, length in enumerate((10, 150, 150)):
        params = SamplingParams(max_tokens=50, ignore_eos=True)
        core.add(EngineCoreRequest(request_id=str(serial), prompt_token_ids=(1,) * length, sampling_params=params))
    for step in range(1, 5):
        if step == 4:
            core.reconfigure(msgspec.structs.replace(core.scheduler.config, max_num_batched_tokens=20))
        plan = core.schedule()
        sampled = [[tokens.token(row.serial, row.num_tokens_after)] if row.serial == 0 else [] for row in plan.rows]
        serials = [row.serial for row in plan.rows]
        core.update(step, ModelRunnerOutput(step=step, serials=serials, sampled_token_ids=sampled))
        expansion.end_step()
    last = [event for event in events if isinstance(event, StepScheduled)][-1]
    assert (last.requests, last.num_scheduled_tokens, last.total_num_scheduled_tokens) == ([0, 1], [1, 19], 20)


def test_a_simulation_with_drafts_steps() -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
    config = EngineConfig.from_args("llama-3.1-8b", max_model_len=MAX_MODEL_LEN, speculative_config=drafts)
    scenario = resolve_scenario(config, DEVICES["h100"], find_architecture("llama-3.1-8b"))
    simulation = Simulation(scenario, DraftingModel(2, 0.7, 0, 0))
    summary = simulation.run(open_workload("synthetic:rate=40,input=64,output=50,num=10", Random(0))).summarise()
    assert summary.completed == 10 and summary.num_accepted_tokens > 0
