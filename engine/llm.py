"""`LLM`: the offline front door. Prompts in, completions out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from engine.config import TraceLevel
from engine.errors import RequestError
from engine.frontend.processor import Prompt
from engine.frontend.tokenizer import Tokenizer
from engine.llm_engine import LLMEngine, NewRequest
from engine.loop.interrupt import InterruptBetweenSteps
from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams


class LLM:
    """A model that completes prompts::

        llm = LLM(model="orrery-tiny", max_num_seqs=8, trace="run.jsonl")
        outputs = llm.generate(["Once upon a time", "The moon"], SamplingParams(temperature=0.0))
        print(outputs[0].outputs[0].text)

    Args:
        model: `orrery-tiny`, `smollm2-135m`, a hub name or a folder.
        trace: a file to record the run in (`.jsonl`, or `.jsonl.zst` for a compressed one).
        trace_level: how finely: control, forward (the default with `trace`) or full.
        disable_log_stats: False: collect metrics, for `llm.llm_engine.get_metrics()` and `RequestOutput.metrics`.
        engine_args: vLLM's names; `engine.config` lists and explains them.

    Raises:
        ConfigError: an argument is unknown or out of range, or does not suit the machine.
        ModelError: the model is missing, unsupported or does not fit.
        TraceError: the trace file cannot be written.
    """

    def __init__(
        self,
        model: str,
        *,
        trace: str | Path | None = None,
        trace_level: TraceLevel | None = None,
        disable_log_stats: bool = True,
        **engine_args: Any,
    ) -> None:
        self.llm_engine = LLMEngine.from_engine_args(
            model, trace=trace, trace_level=trace_level, disable_log_stats=disable_log_stats, **engine_args
        )
        self._num_requests = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete all prompts, as many at a time as fit.

        Args:
            prompts: one prompt or a sequence of them, each as text, `{"prompt": text}` or
                `{"prompt_token_ids": [...]}`.
            sampling_params: for all prompts alike, or one per prompt; None: the defaults.
            use_tqdm: draw a progress bar, if standard error is a terminal.

        Returns:
            One output per prompt, in the order of the prompts. A request that the engine could not finish has the
            finish reason `error` and says why in `error`.

        Raises:
            RequestError: a prompt or its parameters are invalid; then none of them has run.
            KeyboardInterrupt: Ctrl-C; the requests are taken out, and the engine can be used on.
        """
        new_requests = self._new_requests(prompts, sampling_params)
        request_ids = [new.request_id for new in new_requests]
        with InterruptBetweenSteps() as interrupt:
            self.llm_engine.add_requests(new_requests)
            try:
                outputs = self._run(request_ids, interrupt, use_tqdm)
            except BaseException:
                self.llm_engine.abort_request(request_ids)
                raise
        return [outputs[request_id] for request_id in request_ids]

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.llm_engine.tokenizer

    def _new_requests(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[NewRequest]:
        several = list(prompts) if isinstance(prompts, Sequence) and not isinstance(prompts, str) else [prompts]
        if isinstance(sampling_params, Sequence):
            each = list(sampling_params)
        else:
            each = [SamplingParams() if sampling_params is None else sampling_params] * len(several)
        if len(each) != len(several):
            raise RequestError(
                "sampling_params must be one SamplingParams, or one per prompt: "
                f"got {len(each)} for {len(several)} prompts."
            )
        first = self._num_requests
        self._num_requests += len(several)
        return [
            NewRequest(str(number), prompt, params)
            for number, (prompt, params) in enumerate(zip(several, each, strict=True), start=first)
        ]

    def _run(
        self, request_ids: list[str], interrupt: InterruptBetweenSteps, use_tqdm: bool
    ) -> dict[str, RequestOutput]:
        """Step until these requests have finished; returns their last outputs by id."""
        waiting_for = set(request_ids)
        outputs: dict[str, RequestOutput] = {}
        # None: only where standard error is a terminal.
        disable = None if use_tqdm else True
        with tqdm(total=len(request_ids), desc="Prompts", unit="prompt", disable=disable) as progress:
            while waiting_for:
                for output in self.llm_engine.step():
                    if output.finished and output.request_id in waiting_for:
                        outputs[output.request_id] = output
                        waiting_for.remove(output.request_id)
                        progress.update()
                interrupt.check()
        return outputs
