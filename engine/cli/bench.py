"""`orrery bench latency` and `orrery bench throughput`: vLLM's flags, defaults, printed lines and JSON keys."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.markup import escape
from tqdm import tqdm
from typer import Option

from engine.bench.datasets import NAMES, NUM_PROMPTS, RANDOM_INPUT_LEN, RANDOM_OUTPUT_LEN, Dataset
from engine.cli.engine_options import with_engine_options
from engine.errors import ConfigError
from engine.metrics.table import comparison_table

if TYPE_CHECKING:
    from engine.llm import LLM

Model = Annotated[str, Option(help="orrery-tiny, smollm2-135m, a hub name or a folder.")]
Completions = Annotated[int, Option(min=1, help="Completions per prompt.")]
NoDetokenize = Annotated[bool, Option("--disable-detokenize", help="Make no text of the output.")]
OutputJson = Annotated[Path | None, Option(help="Write the result here as well, under vLLM's keys.")]


@with_engine_options
def latency(
    model: Model = "orrery-tiny",
    input_len: Annotated[int, Option(help="Tokens per prompt.")] = 32,
    output_len: Annotated[int, Option(help="Tokens per completion.")] = 128,
    batch_size: Annotated[int, Option(min=1, help="Prompts in the batch.")] = 8,
    n: Completions = 1,
    num_iters_warmup: Annotated[int, Option(min=0, help="Iterations before those that count.")] = 10,
    num_iters: Annotated[int, Option(min=1, help="Iterations that count.")] = 30,
    disable_detokenize: NoDetokenize = False,
    output_json: OutputJson = None,
    # vLLM's default here as well: every iteration has the same prompts, and would measure the cache.
    enable_prefix_caching: Annotated[bool, Option(help="Reuse the KV blocks of equal beginnings.")] = False,
    **engine_args: Any,
) -> None:
    """Measure the seconds that one batch takes, from its prompts to its last token."""
    from engine.bench.latency import measure_latency, report

    _require_place(output_json)
    llm = _load(model, enable_prefix_caching=enable_prefix_caching, **engine_args)
    with llm.llm_engine:
        latencies = measure_latency(
            llm,
            input_len=input_len,
            output_len=output_len,
            batch_size=batch_size,
            n=n,
            num_iters_warmup=num_iters_warmup,
            num_iters=num_iters,
            disable_detokenize=disable_detokenize,
            rounds=_with_progress_bar,
        )
    result = report(model, latencies)
    print(f"Avg latency: {result['avg_latency']} seconds")
    for percentage, seconds in result["percentiles"].items():
        print(f"{percentage}% percentile latency: {seconds} seconds")
    _save(result, output_json)


@with_engine_options
def throughput(
    model: Model = "orrery-tiny",
    dataset_name: Annotated[
        str | None,
        Option(help=f"One of {', '.join(NAMES)}. [default: sharegpt with a path, else random]"),
    ] = None,
    dataset_path: Annotated[Path | None, Option(help="The file, of whatever form its name says.")] = None,
    workload: Annotated[str | None, Option(help="Which workload of a file of token ids.")] = None,
    num_prompts: Annotated[
        int | None, Option(min=1, help=f"Requests. [default: {NUM_PROMPTS}; of token ids, the whole workload]")
    ] = None,
    no_oversample: Annotated[bool, Option("--no-oversample", help="Use no request of a file twice.")] = False,
    input_len: Annotated[
        int, Option("--input-len", "--random-input-len", help="Tokens per random prompt.")
    ] = RANDOM_INPUT_LEN,
    output_len: Annotated[
        int | None,
        Option(
            *(f"--{dataset}output-len" for dataset in ("", "random-", "sharegpt-", "custom-")),
            help=f"Tokens per completion. [default: what the file says; random: {RANDOM_OUTPUT_LEN}]",
        ),
    ] = None,
    random_range_ratio: Annotated[float, Option(help="Spread of the lengths of random requests, in [0, 1).")] = 0.0,
    prefix_len: Annotated[
        int, Option("--prefix-len", "--random-prefix-len", min=0, help="Tokens that all random prompts begin with.")
    ] = 0,
    skip_chat_template: Annotated[
        bool, Option("--skip-chat-template", help="Send custom prompts as they are.")
    ] = False,
    num_warmups: Annotated[int, Option(min=0, help="Requests before those that count.")] = 0,
    n: Completions = 1,
    seed: Annotated[int, Option(help="Of the choice of requests, and of the sampling.")] = 0,
    disable_detokenize: NoDetokenize = False,
    metrics: Annotated[
        bool, Option("--metrics", help="Show latencies and cache use too, collected meanwhile.")
    ] = False,
    output_json: OutputJson = None,
    **engine_args: Any,
) -> None:
    """Measure the tokens per second of many requests, given all at once."""
    _require_place(output_json)
    dataset = Dataset(
        name=dataset_name,
        path=dataset_path,
        workload=workload,
        oversample=not no_oversample,
        input_len=input_len,
        output_len=output_len,
        range_ratio=random_range_ratio,
        prefix_len=prefix_len,
        skip_chat_template=skip_chat_template,
    )
    llm = _load(model, seed=seed, disable_log_stats=not metrics, **engine_args)
    from engine.bench.throughput import measure_throughput

    with llm.llm_engine as engine:
        requests = dataset.requests(engine, num_prompts, seed)
        if num_warmups:
            warmups = dataset.requests(engine, num_warmups, seed + 1)
            measure_throughput(llm, warmups, n=n, disable_detokenize=disable_detokenize, use_tqdm=False)
        before = engine.get_metrics() if metrics else None
        measured = measure_throughput(llm, requests, n=n, disable_detokenize=disable_detokenize)
        collected = engine.get_metrics().since(before) if before is not None else None
    result = measured.report(model)
    print(
        f"Throughput: {result['requests_per_second']:.2f} requests/s, "
        f"{result['tokens_per_second']:.2f} total tokens/s, "
        f"{measured.output_tokens / measured.elapsed:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {measured.prompt_tokens}")
    print(f"Total num output tokens:  {measured.output_tokens}")
    if collected is not None:
        Console(highlight=False).print("", comparison_table({model: collected.summarise()}), sep="\n")
    _save(result, output_json)


def _load(model: str, **engine_args: Any) -> LLM:
    with Console(stderr=True).status(f"Loading {escape(model)} …"):
        # Inside the spinner: importing torch is a good part of the wait.
        from engine.llm import LLM

        return LLM(model=model, **engine_args)


def _with_progress_bar(phase: str, count: int) -> Iterable[int]:
    bar: Iterable[int] = tqdm(range(count), desc=phase, disable=None)
    return bar


def _require_place(path: Path | None) -> None:
    """See before anything is measured that the result can be written."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise ConfigError(f"output_json must be a file in a folder that is there, got {path}.")


def _save(result: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(result, indent=4) + "\n", encoding="utf-8")
