"""`orrery bench throughput`: a set of requests, all given at once, as `vllm bench throughput` measures it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.errors import ConfigError, ForwardError
from engine.sampling_params import SamplingParams
from engine.workload.request import WorkloadRequest

if TYPE_CHECKING:
    from engine.llm import LLM


class Throughput(NamedTuple):
    """What came of a set of requests."""

    elapsed: float
    """Seconds from the requests, as text or token ids, to the last token."""
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    """Of all completions."""

    def report(self, model: str) -> dict[str, Any]:
        """The result under the keys of `vllm bench throughput --output-json`; `tokens_per_second` counts both kinds."""
        total = self.prompt_tokens + self.output_tokens
        return {
            "model_id": model,
            "elapsed_time": self.elapsed,
            "num_requests": self.num_requests,
            "total_num_tokens": total,
            "requests_per_second": self.num_requests / self.elapsed,
            "tokens_per_second": total / self.elapsed,
        }


def measure_throughput(
    llm: LLM, requests: Sequence[WorkloadRequest], *, n: int, disable_detokenize: bool, use_tqdm: bool = True
) -> Throughput:
    """Generate all requests.

    Args:
        llm: the engine.
        requests: what to generate.
        n: completions per request.
        disable_detokenize: make no text of the output.
        use_tqdm: draw a progress bar, if standard error is a terminal.

    Raises:
        ConfigError: a request is longer than the engine takes.
        RequestError: a prompt is none for this model.
        ForwardError: one could not be finished, so there is nothing to report.
    """
    require_room(llm, requests)
    prompts: list[Any] = [
        request.prompt if isinstance(request.prompt, str) else {"prompt_token_ids": request.prompt}
        for request in requests
    ]
    params = [
        SamplingParams(
            n=n,
            temperature=1.0,
            ignore_eos=True,
            max_tokens=request.output_tokens,
            detokenize=not disable_detokenize,
        )
        for request in requests
    ]
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=use_tqdm)
    elapsed = time.perf_counter() - started
    for output in outputs:
        if output.error is not None:
            raise ForwardError(output.error)
    return Throughput(
        elapsed=elapsed,
        num_requests=len(outputs),
        prompt_tokens=sum(len(output.prompt_token_ids) for output in outputs),
        output_tokens=sum(len(completion.token_ids) for output in outputs for completion in output.outputs),
    )


def require_room(llm: LLM, requests: Sequence[WorkloadRequest]) -> None:
    """Refuse what would be cut short: fewer tokens than were asked for would flatter the figures.

    Raises:
        ConfigError: prompt and output of a request are longer than `max_model_len` together.
    """
    longest = llm.llm_engine.model.max_model_len
    for request in requests:
        prompt = request.prompt
        length = len(llm.get_tokenizer().encode(prompt) if isinstance(prompt, str) else prompt)
        if length + request.output_tokens > longest:
            raise ConfigError(
                f"max_model_len is {longest}, but a request has {length} prompt tokens and asks for "
                f"{request.output_tokens} more."
            )
