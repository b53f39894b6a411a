"""`LLM`: the offline front door. Prompts in, completions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from tqdm import tqdm

from engine.beam_search import BeamSearch, BeamSearchOutput, run_beam_searches
from engine.config import TraceLevel
from engine.errors import RequestError
from engine.frontend.chat_template import Message
from engine.frontend.prompts import Prompt
from engine.frontend.tokenizer import Tokenizer
from engine.llm_engine import LLMEngine, NewRequest
from engine.loop.interrupt import InterruptBetweenSteps
from engine.outputs import RequestOutput
from engine.plain_values import shown
from engine.sample.logits_processors import LogitsProcessor
from engine.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams


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
        logits_processors: custom ones, as `engine.sample.logits_processors` explains.
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
        logits_processors: Sequence[LogitsProcessor] = (),
        **engine_args: Any,
    ) -> None:
        self.llm_engine = LLMEngine.from_engine_args(
            model,
            trace=trace,
            trace_level=trace_level,
            disable_log_stats=disable_log_stats,
            logits_processors=logits_processors,
            **engine_args,
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
            prompts: one prompt or a sequence of them, each as text, `{"prompt": text}`,
                `{"prompt_token_ids": [...]}` or `{"prompt_embeds": tensor}`.
            sampling_params: for all prompts alike, or one per prompt; None: the defaults. Their `output_kind` makes
                no difference: outputs are returned when all is done.
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

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations::

            llm.chat([{"role": "user", "content": "What is an orrery?"}], SamplingParams(max_tokens=64))

        Args:
            messages: one conversation or a sequence of them; each a sequence of messages.
            sampling_params: for all conversations alike, or one per conversation; None: the defaults.
            use_tqdm: draw a progress bar, if standard error is a terminal.
            chat_template: a Jinja template in place of the model's own.
            add_generation_prompt: end the prompt with the beginning of an answer.
            continue_final_message: let the model go on with the last message.
            tools: descriptions of functions that the model may call, as JSON schemas.
            chat_template_kwargs: whatever else the template knows.

        Returns:
            One output per conversation, in their order.

        Raises:
            RequestError: the model has no chat template, the template refuses the messages, or the parameters are
                invalid; then nothing has run.
        """
        if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
            raise RequestError(f"messages must be a list of messages, or of conversations, got {shown(messages)}.")
        template = self.llm_engine.chat_template(chat_template)
        several = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        prompts: list[Prompt] = []
        for conversation in several:
            text = template.render(
                cast(Sequence[Message], conversation),
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                more=chat_template_kwargs,
            )
            # The template has put the special tokens where they belong.
            token_ids = self.get_tokenizer().encode(text, add_special_tokens=False)
            prompts.append({"prompt": text, "prompt_token_ids": token_ids})
        return self.generate(prompts, sampling_params, use_tqdm)

    def beam_search(self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams) -> list[BeamSearchOutput]:
        """Find the likeliest completions.

        Args:
            prompts: one prompt or a sequence of them, as text or token ids.
            params: width, length, score.

        Returns:
            One output per prompt, in the order of the prompts, each with the best sequences.

        Raises:
            RequestError: a prompt is invalid, or the search needs more log probabilities than `max_logprobs`.
        """
        if not isinstance(params, BeamSearchParams):
            raise RequestError(f"params must be BeamSearchParams, got {type(params).__name__}.")
        engine = self.llm_engine
        most = engine.config.model.max_logprobs
        if most != -1 and 2 * params.beam_width > most:
            raise RequestError(
                f"beam_width must be <= {most // 2}, since every step asks for the log probabilities of twice as many "
                f"tokens and max_logprobs is {most}, got {params.beam_width}."
            )
        contents = [engine.read_prompt(prompt) for prompt in _as_list(prompts)]
        if any(content.embeds is not None for content in contents):
            raise RequestError("beam_search takes prompts of text or token ids, not of embeddings.")
        model = engine.model
        searches = [BeamSearch(content, params, model.eos_token_ids, model.max_model_len) for content in contents]
        run_beam_searches(searches, params, lambda beams, step: self.generate(beams, step, use_tqdm=False))
        decode = self.get_tokenizer().decode
        return [
            BeamSearchOutput(
                sequences=[msgspec.structs.replace(found, text=decode(found.tokens)) for found in search.best()]
            )
            for search in searches
        ]

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.llm_engine.tokenizer

    def _new_requests(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[NewRequest]:
        several = _as_list(prompts)
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
            NewRequest(str(number), prompt, _final_only(params))
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


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    return list(prompts) if isinstance(prompts, Sequence) and not isinstance(prompts, str) else [prompts]


def _final_only(params: SamplingParams) -> SamplingParams:
    """The same parameters for who looks at the end alone."""
    # What is no SamplingParams is refused in the engine.
    if not isinstance(params, SamplingParams):
        return params
    return msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
