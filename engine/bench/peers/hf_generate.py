"""Hugging Face `generate`: one static batch, padded on the left."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from .protocol import Request, Timing, per_token, serve


class HuggingFace:
    """`settings`: model (a folder) and dtype."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(
            settings["model"], dtype=getattr(torch, settings["dtype"])
        ).eval()

    def run(self, requests: Sequence[Request]) -> list[Timing]:
        """A static batch runs until its longest request is done; only the tokens that were asked for count."""
        import torch

        longest = max(len(each.prompt) for each in requests)
        pads = [longest - len(each.prompt) for each in requests]
        prompts = torch.tensor([[0] * pad + each.prompt for pad, each in zip(pads, requests, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads])
        most = max(each.out for each in requests)
        times = StepTimes()
        with torch.inference_mode():
            started = time.perf_counter()
            tokens = self._model.generate(
                prompts,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=most,
                max_new_tokens=most,
                pad_token_id=0,
                stopping_criteria=[times],
            )
        assert tokens.shape == (len(requests), longest + most)
        first = times.seen[0]
        return [
            Timing(each.out, first - started, per_token(first, times.seen[each.out - 1], each.out)) for each in requests
        ]

    def close(self) -> None:
        del self._model


class StepTimes:
    """A stopping criterion that never stops: `generate` calls it after every step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.seen.append(time.perf_counter())
        return input_ids.new_zeros(input_ids.shape[0]).bool()


if __name__ == "__main__":
    serve(HuggingFace)
