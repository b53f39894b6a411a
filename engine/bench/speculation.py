"""What speculation brings: tokens per second with drafts, as a ratio to those without, and tokens per verification.

`python -m engine.bench.speculation` runs each method beside plain decoding, in turns within one process, greedily.
Drafts change no token of a greedy request, so both do the same work. Chat prompts show trained heads; a text that is to
be copied shows n-grams. At batch 32 speculation has to switch itself down where it does not pay.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from engine.llm import LLM
from engine.sampling_params import SamplingParams

QUESTIONS = (
    "What is the difference between weather and climate?",
    "Give me three tips for growing tomatoes on a balcony.",
    "Explain to a child why the sky is blue.",
    "Write a short poem about the sea in winter.",
    "How do I boil an egg so that the yolk stays soft?",
    "Summarize the rules of chess in a few sentences.",
    "Why do we have leap years?",
    "List five uses of baking soda at home.",
)
PASSAGE = (
    "The lighthouse keeper wrote down the height of the tide every hour. At six it was two metres, at seven it was "
    "three metres, at eight it was four metres, and at nine the water stood at the door of the boat house. Then the "
    "wind turned to the north, and the tide fell to three metres at ten and to two metres at eleven."
)
CHAT = tuple([{"role": "user", "content": question}] for question in QUESTIONS)
#: A text that has been copied once, and is begun again.
COPY = (f"{PASSAGE}\n\n{PASSAGE}\n\n{PASSAGE[:60]}",)

METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
    "eagle": {"method": "eagle", "num_speculative_tokens": 4, "draft_confidence_threshold": 0.5},
    "medusa": {"method": "medusa", "num_speculative_tokens": 3, "draft_confidence_threshold": 0.4},
}


class Workload(NamedTuple):
    """Conversations or texts, so many of them at once."""

    prompts: tuple[Any, ...]
    batch_size: int
    max_tokens: int
    ignore_eos: bool = True
    """Whether every answer has `max_tokens`; else the model ends it, as in a chat."""


#: Of one prompt at a time, and of 32. What a chat model says behind the end of its answer is no measure of a drafter.
WORKLOADS = {
    "copy": Workload(COPY, 1, 80),
    "chat": Workload(CHAT, 1, 256, ignore_eos=False),
    "chat-32": Workload(CHAT * 4, 32, 48),
}


class Sample(NamedTuple):
    """One pass over a workload."""

    tokens_per_second: float
    tokens_per_verification: float | None


def run(llm: LLM, workload: Workload) -> Sample:
    """Serve a workload, `batch_size` prompts at a time."""
    params = SamplingParams(temperature=0.0, max_tokens=workload.max_tokens, ignore_eos=workload.ignore_eos)
    before = llm.llm_engine.get_metrics()
    num_tokens, started = 0, time.perf_counter()
    for first in range(0, len(workload.prompts), workload.batch_size):
        some = list(workload.prompts[first : first + workload.batch_size])
        ask = llm.generate if isinstance(some[0], str) else llm.chat
        outputs = ask(some, params, use_tqdm=False)
        num_tokens += sum(len(output.outputs[0].token_ids) for output in outputs)
    seconds = time.perf_counter() - started
    after = llm.llm_engine.get_metrics()
    verified = sum(after.drafted[:1]) - sum(before.drafted[:1])
    accepted = sum(after.accepted) - sum(before.accepted)
    return Sample(num_tokens / seconds, 1 + accepted / verified if verified else None)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m engine.bench.speculation", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    arguments = parser.parse_args()

    def load(speculative_config: dict[str, Any] | None) -> LLM:
        return LLM(
            arguments.model,
            dtype=arguments.dtype,
            max_model_len=512,
            max_num_seqs=32,
            enable_prefix_caching=False,
            disable_log_stats=False,
            speculative_config=speculative_config,
        )

    engines = {"plain": load(None)} | {name: load(METHODS[name]) for name in arguments.methods}
    table = Table(box=None, padding=(0, 2))
    for column in ("workload", "drafts by", "tokens/s", "÷ plain", "tokens per verification"):
        table.add_column(column, justify="left" if column in ("workload", "drafts by") else "right")
    for name in arguments.workloads:
        workload = WORKLOADS[name]
        for llm in engines.values():
            run(llm, workload._replace(prompts=workload.prompts[:1], max_tokens=8))
        samples: dict[str, list[Sample]] = {engine: [] for engine in engines}
        for _ in range(arguments.rounds):
            for engine, llm in engines.items():
                samples[engine].append(run(llm, workload))
        for engine, measured in samples.items():
            ratio = statistics.median(
                mine.tokens_per_second / plain.tokens_per_second
                for mine, plain in zip(measured, samples["plain"], strict=True)
            )
            length = measured[-1].tokens_per_verification
            speed = statistics.median(sample.tokens_per_second for sample in measured)
            table.add_row(name, engine, f"{speed:.1f}", f"{ratio:.2f}", "" if length is None else f"{length:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
