"""`python -m engine.bench.guided [MODEL]`: what holding the output to a JSON schema adds to a decode step.

The same engine takes turns with a batch that is free and one in which every request is guided, sampled alike.
Compilation is done before: measured is a step, from the first token of the batch to the last.
"""

from __future__ import annotations

import statistics
import sys
import time

from rich.console import Console
from rich.table import Table

from engine.guided_decoding import GuidedDecodingParams
from engine.llm import LLM
from engine.sampling_params import SamplingParams

BATCH_SIZE = 8
OUTPUT_TOKENS = 64
ROUNDS = 7
#: It cannot come to its end before the output does.
SCHEMA = {
    "type": "array",
    "minItems": 50,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array"}},
        "required": ["name", "age", "tags"],
    },
}


def milliseconds_per_step(llm: LLM, guided: GuidedDecodingParams | None) -> float:
    """Of a batch's decode steps, from its first token to its last."""
    engine = llm.llm_engine
    for number in range(BATCH_SIZE):
        params = SamplingParams(
            temperature=1.0, seed=number, max_tokens=OUTPUT_TOKENS, ignore_eos=True, guided_decoding=guided
        )
        engine.add_request(str(number), f"A list of people, number {number}: ", params)
    while not any(output.outputs[0].token_ids for output in engine.step()):
        pass
    steps, started = 0, time.perf_counter()
    while engine.has_unfinished_requests():
        engine.step()
        steps += 1
    return (time.perf_counter() - started) / steps * 1e3


def main(model: str = "smollm2-135m") -> None:
    """Measure and print."""
    guided = GuidedDecodingParams(json=SCHEMA)
    llm = LLM(model, dtype="bfloat16", max_model_len=256, max_num_seqs=BATCH_SIZE, enable_prefix_caching=False)
    with llm.llm_engine:
        rounds = [(milliseconds_per_step(llm, None), milliseconds_per_step(llm, guided)) for _ in range(ROUNDS + 1)]
    counted = rounds[1:]
    table = Table(box=None, padding=(0, 2))
    for column in ("output", "ms a step", "beside free"):
        table.add_column(column, justify="left" if column == "output" else "right")
    added = statistics.median(held / free - 1 for free, held in counted)
    table.add_row("free", f"{statistics.median(free for free, _ in counted):.2f}", "")
    table.add_row("JSON schema", f"{statistics.median(held for _, held in counted):.2f}", f"{added:+.1%}")
    console = Console(highlight=False)
    console.print(f"{model}, bfloat16, decode steps of {BATCH_SIZE}, medians of {ROUNDS} interleaved rounds\n")
    console.print(table)


if __name__ == "__main__":
    main(*sys.argv[1:2])
