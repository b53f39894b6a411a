"""`orrery simulate`: what would happen, under one configuration or several."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from rich.console import Console
from rich.text import Text
from tqdm import tqdm
from typer import Option

from engine.cli.engine_options import with_engine_options
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.metrics.summary import MetricsSummary
from engine.metrics.table import comparison_table
from engine.metrics.tally import Tally
from engine.trace.recorder import Recorder
from engine.workload import FORMATS, Workload, open_workload
from sim.clock import VirtualClock
from sim.cost_model.calibrated import CalibratedDevice
from sim.cost_model.device_file import Device, find_device
from sim.cost_model.model_files import KNOWN_MODELS, find_architecture
from sim.modeled import DraftingModel
from sim.scenario import Scenario, resolve_scenario
from sim.simulation import Simulation


@with_engine_options
def simulate(
    workload: Annotated[str, Option(help="A file, or synthetic:rate=10,input=512,output=256,num=1000,…")],
    device: Annotated[str, Option(help="a100, h100, h200, l4, rtx4090, cpu, or a file of `orrery calibrate`.")],
    model: Annotated[
        str | None,
        Option(help=f"{', '.join(KNOWN_MODELS)}, a config.json or a folder. [default: the calibrated one]"),
    ] = None,
    workload_format: Annotated[str | None, Option(help=f"Of the file: {', '.join(FORMATS)}.")] = None,
    num_prompts: Annotated[int | None, Option(min=1, help="Requests at most.")] = None,
    request_rate: Annotated[float, Option(help="Requests per second of a file without times.")] = float("inf"),
    burstiness: Annotated[float, Option(help="1: Poisson arrivals; below: in bursts; above: more even.")] = 1.0,
    config: Annotated[list[Path] | None, Option(help="YAML of engine arguments; repeat it to compare several.")] = None,
    trace: Annotated[
        Path | None, Option(help="Record the run here; with several configs, their names are added.")
    ] = None,
    percentile: Annotated[list[float] | None, Option(help="Of the latencies. [default: 99]")] = None,
    goodput: Annotated[
        list[str] | None, Option(help="An objective in milliseconds: ttft:500, tpot:50, e2el:9000.")
    ] = None,
    acceptance_rate: Annotated[float, Option(min=0, max=1, help="How often a draft is right.")] = 0.7,
    draft_latency_ms: Annotated[float, Option(min=0, max=1e9, help="What drafting adds to a step.")] = 0.0,
    random_seed: Annotated[int, Option(help="Of the workload and the drafts.")] = 0,
    fast_forward: Annotated[
        bool, Option(help="Look at a decode only in steps that change something for it; the result is the same.")
    ] = True,
    output_json: Annotated[Path | None, Option(help="Write the results here, under vLLM's keys.")] = None,
    **engine_args: Any,
) -> None:
    """Run the engine's own control plane on a virtual clock, without a model: what would happen, and how fast."""
    console = Console(highlight=False)
    where = find_device(device)
    configs = _configs(model, where, config or [], engine_args)
    objectives = _objectives(goodput or [])
    summaries: dict[str, MetricsSummary] = {}
    for name, engine_config in configs.items():
        scenario = resolve_scenario(engine_config, where, None if model is None else find_architecture(model))
        requests = open_workload(
            workload,
            random.Random(random_seed),
            format=workload_format,
            count=num_prompts,
            rate=request_rate,
            burstiness=burstiness,
        )
        speculative = engine_config.speculative
        drafting = None
        if speculative is not None:
            if speculative.draft_confidence_threshold:
                raise ConfigError(
                    "draft_confidence_threshold must be 0 where drafts are simulated: nobody knows how sure of them a "
                    "drafter would be."
                )
            drafting = DraftingModel(
                speculative.num_speculative_tokens, acceptance_rate, round(draft_latency_ms * 1e6), random_seed
            )
        path = None if trace is None else _trace_path(trace, name, len(configs))
        tally = _run(scenario, drafting, path, requests, name, fast_forward=fast_forward)
        summaries[name] = tally.summarise(tuple(percentile or (99.0,)), objectives or None)
        console.print(Text(str(requests), "dim"))
        console.print(Text(_what(scenario), "dim"))
        if path is not None:
            console.print(Text(f"recorded in {path}", "dim"))
    console.print()
    console.print(comparison_table(summaries))
    if output_json is not None:
        results = {name: summary.to_json() for name, summary in summaries.items()}
        output_json.write_text(json.dumps(results if len(results) > 1 else next(iter(results.values())), indent=2))


def _run(
    scenario: Scenario,
    drafting: DraftingModel | None,
    path: Path | None,
    requests: Workload,
    name: str,
    *,
    fast_forward: bool,
) -> Tally:
    with tqdm(desc=f"simulating {name}", unit=" requests", leave=False, disable=None) as bar:

        def record(clock: VirtualClock) -> Recorder:
            assert path is not None
            return Recorder.to_file(path, scenario.header, clock=clock)

        recorded = None if path is None else record
        return Simulation(scenario, drafting, recorded, bar.update, fast_forward=fast_forward).run(requests)


def _configs(
    model: str | None, device: Device, files: list[Path], engine_args: Mapping[str, Any]
) -> dict[str, EngineConfig]:
    """By name; what the command line says goes for all of them, a file's word counts more."""
    name = model or (device.model.name if isinstance(device, CalibratedDevice) else device.name)
    if not files:
        return {name: EngineConfig.from_args(name, **engine_args)}
    named = {}
    for file in files:
        if file.stem in named:
            raise ConfigError(
                f"Two configurations are named {file.stem}: results are told apart by their files' names."
            )
        named[file.stem] = EngineConfig.from_args(name, **{**engine_args, **_arguments(file)})
    return named


def _arguments(file: Path) -> dict[str, Any]:
    """Engine arguments by name; dashes are as good as underscores."""
    try:
        values = msgspec.yaml.decode(file.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, OSError) as error:
        raise ConfigError(f"{file} must be YAML of engine arguments by name: {error}.") from error
    return {name.replace("-", "_"): value for name, value in values.items()}


def _objectives(words: list[str]) -> dict[str, float]:
    objectives = {}
    for word in words:
        name, _, limit = word.partition(":")
        try:
            objectives[name] = float(limit)
        except ValueError as error:
            raise ConfigError(f"goodput takes objectives such as ttft:500, in milliseconds, got {word!r}.") from error
    return objectives


def _trace_path(trace: Path, name: str, num_configs: int) -> Path:
    """One file a configuration: `run.jsonl.zst` becomes `run-small.jsonl.zst`."""
    if num_configs == 1:
        return trace
    stem, dot, rest = trace.name.partition(".")
    return trace.with_name(f"{stem}-{name}{dot}{rest}")


def _what(scenario: Scenario) -> str:
    blocks = scenario.kv_cache.num_gpu_blocks
    tokens = (blocks - 1) * scenario.kv_cache.block_size
    return f"{scenario.model.name} on {scenario.device}: {blocks:,} KV cache blocks, room for {tokens:,} tokens"
