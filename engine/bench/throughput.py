"""Output tokens per second of a batch: greedy, `ignore_eos`, prompts of random token ids, no prefix caching."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from engine.llm import LLM
from engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Workload(NamedTuple):
    """A batch of equal requests."""

    name: str
    batch_size: int
    input_tokens: int
    output_tokens: int


class Comparison(NamedTuple):
    """Medians over the rounds, in output tokens per second."""

    workload: Workload
    engine: float
    transformers: float

    @property
    def ratio(self) -> float:
        """The engine's speed as a multiple of `generate`'s."""
        return self.engine / self.transformers


WORKLOADS = (Workload("dec1", 1, 32, 64), Workload("dec8", 8, 32, 64), Workload("pre4", 4, 512, 8))


def compare(model: str, rounds: int, report: Callable[[str], None]) -> list[Comparison]:
    """Run every workload on the engine and on `transformers`, in turn, in float32.

    Args:
        model: a name that `LLM` takes.
        rounds: counted rounds; one more is run first to warm up.
        report: told what runs.
    """
    from transformers import AutoModelForCausalLM

    llm = LLM(model=model, dtype="float32", max_model_len=1024, max_num_seqs=8, enable_prefix_caching=False)
    reference = AutoModelForCausalLM.from_pretrained(llm.llm_engine.model_path, dtype=torch.float32).eval()
    comparisons = []
    for workload in WORKLOADS:
        prompts = prompts_of(workload, llm.llm_engine.model.vocab_size)
        speeds: dict[str, list[float]] = {"engine": [], "transformers": []}
        for round_number in range(rounds + 1):
            report(f"{workload.name}, round {round_number} of {rounds}")
            for name, seconds in (
                ("engine", _time_engine(llm, workload, prompts)),
                ("transformers", _time_reference(reference, workload, prompts)),
            ):
                if round_number:
                    speeds[name].append(workload.batch_size * workload.output_tokens / seconds)
        medians = {name: statistics.median(values) for name, values in speeds.items()}
        comparisons.append(Comparison(workload, medians["engine"], medians["transformers"]))
    llm.llm_engine.close()
    return comparisons


def prompts_of(workload: Workload, vocab_size: int) -> list[list[int]]:
    """Prompts of random token ids, the same in every run."""
    rng = random.Random(0)
    # Ids below 100 are special tokens in many vocabularies.
    return [[rng.randrange(100, vocab_size) for _ in range(workload.input_tokens)] for _ in range(workload.batch_size)]


def _time_engine(llm: LLM, workload: Workload, prompts: list[list[int]]) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=workload.output_tokens, ignore_eos=True)
    started = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    seconds = time.perf_counter() - started
    assert all(len(output.outputs[0].token_ids) == workload.output_tokens for output in outputs)
    return seconds


@torch.inference_mode()
def _time_reference(model: PreTrainedModel, workload: Workload, prompts: list[list[int]]) -> float:
    inputs = torch.tensor(prompts)
    started = time.perf_counter()
    tokens = model.generate(  # type: ignore[operator]
        inputs,
        attention_mask=torch.ones_like(inputs),
        do_sample=False,
        min_new_tokens=workload.output_tokens,
        max_new_tokens=workload.output_tokens,
        pad_token_id=0,
    )
    seconds = time.perf_counter() - started
    assert tokens.shape == (workload.batch_size, workload.input_tokens + workload.output_tokens)
    return seconds
