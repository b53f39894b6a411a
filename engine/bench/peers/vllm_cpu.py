"""vLLM, through its `LLM`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .protocol import Request, Timing, per_token, serve


class Vllm:
    """`settings` are the arguments of vLLM's `LLM`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from vllm import LLM

        self._llm = LLM(disable_log_stats=False, **settings)

    def run(self, requests: Sequence[Request]) -> list[Timing]:
        from vllm import SamplingParams

        params = [SamplingParams(temperature=0.0, max_tokens=each.out, ignore_eos=True) for each in requests]
        outputs = self._llm.generate([{"prompt_token_ids": each.prompt} for each in requests], params, use_tqdm=False)
        timings = []
        for output in outputs:
            count, seen = len(output.outputs[0].token_ids), output.metrics
            itl = per_token(seen.first_token_ts, seen.last_token_ts, count)
            timings.append(Timing(count, seen.first_token_latency, itl))
        return timings

    def close(self) -> None:
        del self._llm  # takes its engine process with it


# vLLM spawns processes, which import this module again.
if __name__ == "__main__":
    serve(Vllm)
