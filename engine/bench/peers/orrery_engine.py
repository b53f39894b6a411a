"""This engine, through `LLM`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .protocol import Request, Timing, serve

_NS = 1e-9


class Orrery:
    """`settings` are the arguments of `LLM`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from engine.llm import LLM

        # The metrics are where TTFT and ITL come from; vLLM collects its own as well.
        self._llm = LLM(disable_log_stats=False, **settings)

    def run(self, requests: Sequence[Request]) -> list[Timing]:
        from engine.sampling_params import SamplingParams

        params = [SamplingParams(temperature=0.0, max_tokens=each.out, ignore_eos=True) for each in requests]
        outputs = self._llm.generate([{"prompt_token_ids": each.prompt} for each in requests], params, use_tqdm=False)
        timings = []
        for output in outputs:
            if output.error is not None:
                raise RuntimeError(output.error)
            count, seen = len(output.outputs[0].token_ids), output.metrics
            assert seen is not None and seen.ttft_ns is not None
            itl = None if seen.tpot_ns is None else seen.tpot_ns * _NS
            timings.append(Timing(count, seen.ttft_ns * _NS, itl))
        return timings

    def close(self) -> None:
        self._llm.llm_engine.close()


if __name__ == "__main__":
    serve(Orrery)
