"""`LLMEngine`: the whole engine in one process, one `step` at a time."""

from __future__ import annotations

import importlib.metadata
import platform
import weakref
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from engine.config import EngineConfig, KVCacheConfig, ModelFacts, TraceConfig, TraceLevel
from engine.core.engine_core import EngineCore
from engine.core.kv_cache.stats import PrefixCacheStats
from engine.core.messages import EngineCoreRequest
from engine.errors import ConfigError, OrreryError
from engine.executor.uniproc import UniProcExecutor
from engine.frontend.chat_template import ChatTemplate, load_chat_template
from engine.frontend.output_processor import OutputProcessor
from engine.frontend.parallel_sampling import fan_out
from engine.frontend.processor import Processor
from engine.frontend.prompts import Prompt, PromptContent
from engine.frontend.tokenizer import Tokenizer
from engine.guided.compiler import GrammarCompiler
from engine.guided.xgrammar_backend import XGrammarBackend
from engine.loop.inproc_client import InprocClient
from engine.loop.interrupt import InterruptBetweenSteps
from engine.metrics import MetricsCollector, RunMetrics
from engine.outputs import RequestOutput
from engine.sample.logits_processors import LogitsProcessor
from engine.sampling_params import SamplingParams
from engine.trace.events import SCHEMA_VERSION, STOP_STRING, Header
from engine.trace.recorder import Recorder

#: Finished requests, and steps, that a running engine keeps the metrics of.
METRICS_WINDOW = 100_000


class NewRequest(NamedTuple):
    """A request as a user states it."""

    request_id: str
    prompt: Prompt
    sampling_params: SamplingParams
    priority: int = 0


class _Admitted(NamedTuple):
    """A request that is in order: its text, its name, and the core requests that it comes to."""

    prompt: str | None
    request_id: str
    core_requests: list[EngineCoreRequest]

    def ids(self) -> Iterable[str]:
        """Its name, and those that the core will know it by."""
        return dict.fromkeys([self.request_id, *(request.request_id for request in self.core_requests)])


class LLMEngine:
    """Loads a model and runs requests, a step at a time::

        engine = LLMEngine.from_engine_args("orrery-tiny")
        engine.add_request("first", "Once upon a time", SamplingParams(max_tokens=20))
        while engine.has_unfinished_requests():
            for output in engine.step():
                print(output.request_id, output.outputs[0].text)

    Args:
        config: the engine's configuration.
        trace: where to record the run; a trace level that is off then becomes `forward`.
        log_stats: collect the metrics of the run, for `get_metrics` and `RequestOutput.metrics`.
        logits_processors: custom ones, as `engine.sample.logits_processors` explains.

    Raises:
        ConfigError: the configuration does not suit the machine or the model.
        ModelError: the model is missing, unsupported or does not fit.
        TraceError: the trace file cannot be written.
    """

    def __init__(
        self,
        config: EngineConfig,
        trace: str | Path | None = None,
        *,
        log_stats: bool = False,
        logits_processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        config = _with_trace_level(config, trace)
        with ExitStack() as open_parts:
            executor = UniProcExecutor(config, logits_processors)
            open_parts.callback(executor.shutdown)
            model, kv_cache = executor.initialize()
            tokenizer = Tokenizer.from_folder(executor.model_path, model.name)
            kv_cache.require_room_for(model.max_model_len, config)
            collector = MetricsCollector(kv_cache, METRICS_WINDOW) if log_stats else None
            recorder = None
            if trace is not None:
                header = _header(config, model, kv_cache, tokenizer, executor.device)
                recorder = Recorder.to_file(trace, header, collector, tokenizer.token_bytes)
                open_parts.callback(recorder.close)
                executor.record_to(recorder)
            # What the core decides is all that metrics follow from; text and tensors are the trace file's alone.
            heard = Recorder.to_listener(collector) if recorder is None and collector is not None else recorder
            guided = config.guided_decoding
            compiler = GrammarCompiler(
                tokenizer, model.vocab_size, model.eos_token_ids, guided, draws=recorder is not None
            )
            grammar_backend = XGrammarBackend(compiler, guided)
            open_parts.callback(grammar_backend.shutdown)
            core = EngineCore(config, kv_cache, model.max_model_len, heard, grammar_backend)
            client = InprocClient(core, executor, grammar_backend, async_scheduling=config.scheduler.async_scheduling)
            open_parts.callback(client.shutdown)
            # Also when the engine is dropped, or the program ends: the trace file must be whole.
            self._finalizer = weakref.finalize(self, open_parts.pop_all().close)
        self.config = config
        self.model_path: Path = executor.model_path
        self.model = model
        self.kv_cache = kv_cache
        self.tokenizer = tokenizer
        self._recorder = recorder
        self._collector = collector
        self._client = client
        self._processor = Processor(
            tokenizer,
            model,
            config.model.seed,
            config.model.max_logprobs,
            logits_processors,
            disable_any_whitespace=guided.guided_decoding_disable_any_whitespace,
        )
        self._output_processor = OutputProcessor(tokenizer, recorder)
        self._num_arrived = 0
        self._undelivered: list[RequestOutput] = []

    @classmethod
    def from_engine_args(
        cls,
        model: str,
        *,
        trace: str | Path | None = None,
        trace_level: TraceLevel | None = None,
        disable_log_stats: bool = True,
        logits_processors: Sequence[LogitsProcessor] = (),
        **engine_args: Any,
    ) -> LLMEngine:
        """Build an engine from flat, vLLM-named arguments, e.g. `max_num_seqs=8`.

        Raises:
            ConfigError: an argument is unknown or out of range, or the trace's file and level contradict each other.
        """
        if trace_level is not None:
            engine_args["trace_level"] = trace_level
        config = EngineConfig.from_args(model, **engine_args)
        if trace is not None and trace_level == "off":
            raise ConfigError(
                f"trace_level is off, but the run is to be recorded in {trace}: leave out one of the two."
            )
        return cls(config, trace, log_stats=not disable_log_stats, logits_processors=logits_processors)

    def add_request(
        self, request_id: str, prompt: Prompt, sampling_params: SamplingParams | None = None, priority: int = 0
    ) -> None:
        """Let a request in; the coming steps run it.

        Args:
            request_id: any name that no unfinished request bears.
            prompt: text, `{"prompt": text}`, `{"prompt_token_ids": [...]}` or `{"prompt_embeds": tensor}`.
            sampling_params: how to choose tokens and when to stop; None: the defaults.
            priority: lower is served first under the priority policy.

        Raises:
            RequestError: something about it is invalid; the engine goes on as before.
        """
        self.add_requests([NewRequest(request_id, prompt, sampling_params or SamplingParams(), priority)])

    def add_requests(self, new_requests: Iterable[NewRequest]) -> None:
        """Let several requests in, or none of them if one is invalid.

        Raises:
            RequestError: something about one of them is invalid; the engine goes on as before.
        """
        self._require_open()
        admitted: list[_Admitted] = []
        for arrival, new in enumerate(new_requests, start=self._num_arrived):
            text, request = self._processor.process(
                new.request_id, new.prompt, new.sampling_params, arrival=arrival, priority=new.priority
            )
            admitted.append(_Admitted(text, request.request_id, fan_out(request)))
        self._output_processor.require_free(chain.from_iterable(each.ids() for each in admitted))
        try:
            for each in admitted:
                self._admit(each)
        except BaseException:
            self.abort_request([each.request_id for each in admitted])
            raise

    def step(self) -> list[RequestOutput]:
        """Run one step; returns where each request that it moved now stands.

        Ctrl-C is held back until the step is over; what it brought is then returned by the next call.
        """
        self._require_open()
        if self._undelivered:
            undelivered, self._undelivered = self._undelivered, []
            return undelivered
        with InterruptBetweenSteps() as interrupt:
            outputs = self._step()
        if interrupt.asked:
            self._undelivered = outputs
            interrupt.check()
        return outputs

    def _step(self) -> list[RequestOutput]:
        processed = self._output_processor.process_outputs(self._client.get_output())
        if processed.stopped:
            self._client.abort_requests(processed.stopped, cause=STOP_STRING)
        if self._recorder is not None:
            self._recorder.flush()
        return processed.request_outputs

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """Take requests out before their end; ids that are not alive are ignored. Their ids are free at once."""
        self._require_open()
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        self._client.abort_requests(self._output_processor.abort_requests(ids), cause="client")

    def read_prompt(self, prompt: Prompt) -> PromptContent:
        """The token ids of a prompt, as a request would have them.

        Raises:
            RequestError: it is no prompt, or too long.
        """
        return self._processor.read_prompt(prompt)

    def chat_template(self, source: str | None = None) -> ChatTemplate:
        """What makes a prompt of a conversation: `source`, a Jinja template, or else the model's own.

        Raises:
            RequestError: the template has a mistake in it, or the model has none.
        """
        return load_chat_template(self.model_path, source)

    def has_unfinished_requests(self) -> bool:
        """Whether any request waits or runs, or has news that nobody was told."""
        return bool(self._undelivered) or self._client.has_unfinished_requests()

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix. Refused, with False, while any request holds blocks."""
        self._require_open()
        return self._client.reset_prefix_cache()

    def get_metrics(self) -> RunMetrics:
        """How long requests took and how full the steps were, so far: of the last 100,000 finished requests, those
        that live, and the last 100,000 steps.

        Raises:
            ConfigError: the engine was made without `disable_log_stats=False`.
        """
        if self._collector is None:
            raise ConfigError("No metrics are collected: make the engine with disable_log_stats=False.")
        return self._collector.metrics()

    def make_prefix_cache_stats(self) -> PrefixCacheStats:
        """How much of what was asked of the prefix cache it had: over all, and over the last 1,000 requests."""
        self._require_open()
        return self._client.make_prefix_cache_stats()

    def close(self) -> None:
        """Give back the model's memory and finish the trace file; closing again does nothing."""
        self._finalizer()

    def __enter__(self) -> LLMEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _admit(self, admitted: _Admitted) -> None:
        self._num_arrived += 1
        for request in admitted.core_requests:
            serial = self._client.add_request(request)
            metrics = self._collector.request(serial) if self._collector is not None else None
            self._output_processor.add_request(serial, request, admitted.prompt, metrics)

    def _require_open(self) -> None:
        if not self._finalizer.alive:
            raise OrreryError("The engine is closed: make a new one.")


def _with_trace_level(config: EngineConfig, trace: str | Path | None) -> EngineConfig:
    level = config.trace.level
    if trace is None and level != "off":
        raise ConfigError(f"trace_level is {level}, but no file is named to record in: add trace=FILE.")
    if trace is not None and level == "off":
        return msgspec.structs.replace(config, trace=TraceConfig(level="forward"))
    return config


def _header(
    config: EngineConfig, model: ModelFacts, kv_cache: KVCacheConfig, tokenizer: Tokenizer, device: str
) -> Header:
    import engine

    return Header(
        schema_version=SCHEMA_VERSION,
        engine_version=engine.__version__,
        level=config.trace.level,
        config=config,
        model=model,
        kv_cache=kv_cache,
        tokenizer=f"{tokenizer.name} sha256:{tokenizer.digest}",
        device=device,
        environment={
            "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.machine()}",
            **{package: importlib.metadata.version(package) for package in ("torch", "tokenizers", "msgspec")},
        },
    )
