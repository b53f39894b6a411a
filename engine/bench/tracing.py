"""`python -m engine.bench.tracing [MODEL]`: what recording a run adds to its decode steps.

Three engines of the same model, one untraced, one at level control, one at level forward, take turns with the same
batch. Compared is the CPU time of the thread that runs everything, since other work on the machine does not count in
it.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engine.config import TraceLevel
from engine.llm import LLM
from engine.sampling_params import SamplingParams
from engine.workload.synthetic import random_requests

BATCH_SIZE = 32
INPUT_TOKENS = 32
OUTPUT_TOKENS = 24
ROUNDS = 5


def seconds_of_decoding(llm: LLM) -> float:
    """Thread CPU seconds of a batch from its first token to its last."""
    engine = llm.llm_engine
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    batch = random_requests(
        BATCH_SIZE,
        random.Random(0),
        range(engine.model.vocab_size),
        input_tokens=INPUT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
    )
    for number, request in enumerate(batch):
        engine.add_request(str(number), {"prompt_token_ids": request.token_ids}, params)
    engine.step()
    started = time.thread_time()
    while engine.has_unfinished_requests():
        engine.step()
    return time.thread_time() - started


def _engine(model: str, level: TraceLevel, folder: Path) -> LLM:
    off = level == "off"
    return LLM(
        model=model,
        trace=None if off else folder / f"{level}.jsonl",
        trace_level=None if off else level,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=BATCH_SIZE,
        enable_prefix_caching=False,
    )


def main(model: str = "smollm2-135m") -> None:
    """Measure and print."""
    levels: tuple[TraceLevel, ...] = ("off", "control", "forward")
    with tempfile.TemporaryDirectory() as folder:
        engines = {level: _engine(model, level, Path(folder)) for level in levels}
        rounds = [{level: seconds_of_decoding(engines[level]) for level in levels} for _ in range(ROUNDS + 1)]
        for llm in engines.values():
            llm.llm_engine.close()
    steps = OUTPUT_TOKENS - 1
    table = Table(box=None, padding=(0, 2))
    for column in ("level", "CPU ms a step", "beside off"):
        table.add_column(column, justify="left" if column == "level" else "right")
    for level in levels:
        counted = rounds[1:]
        milliseconds = statistics.median(each[level] for each in counted) / steps * 1e3
        ratio = statistics.median(each[level] / each["off"] for each in counted)
        table.add_row(level, f"{milliseconds:.2f}", f"{ratio - 1:+.1%}")
    console = Console(highlight=False)
    console.print(f"{model}, float32, decode steps of {BATCH_SIZE}, medians of {ROUNDS} interleaved rounds\n")
    console.print(table)


if __name__ == "__main__":
    main(*sys.argv[1:2])
