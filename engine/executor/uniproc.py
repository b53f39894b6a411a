"""`UniProcExecutor`: one worker, called in the engine's own process."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import EngineConfig, KVCacheConfig, ModelFacts
from engine.core.messages import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.errors import ForwardError
from engine.models.store import resolve_model
from engine.sample.logits_processors import LogitsProcessor
from engine.trace.recorder import Recorder
from engine.worker.worker import Worker


class UniProcExecutor:
    """The `Executor` seam over a single worker.

    Args:
        config: the engine's configuration; its model is looked up at once.
        logits_processors: custom ones.

    Raises:
        ModelError: there is no such model.
    """

    def __init__(self, config: EngineConfig, logits_processors: Sequence[LogitsProcessor] = ()) -> None:
        needs_weights = config.model.load_format != "dummy"
        self.model_path = resolve_model(config.model.model, needs_weights=needs_weights)
        self._worker = Worker(config, self.model_path, logits_processors)
        self._failure: Exception | None = None

    def initialize(self) -> tuple[ModelFacts, KVCacheConfig]:
        """Ready the device, load the model, size the KV cache.

        Raises:
            ConfigError: device, dtype, length or memory asked for cannot be had.
            ModelError: the model is damaged, unsupported or too large.
        """
        self._worker.init_device()
        return self._worker.load_model(), self._worker.init_kv_cache()

    @property
    def device(self) -> str:
        """Where the model runs, `cpu` or `cuda:0`."""
        return str(self._worker.device)

    def record_to(self, recorder: Recorder) -> None:
        """Send the worker's events to the file of a recorder from now on."""
        # With a step of its own: in an asynchronous loop the worker is one step behind the core.
        self._worker.record_to(recorder.another())

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Run the forward pass of a step. If it fails, `sample_tokens` says so: the answer to a step is asked there."""
        self._failure = None
        try:
            self._worker.runner.execute_model(scheduler_output)
        except Exception as error:  # noqa: BLE001 - kept, and raised by sample_tokens
            self._failure = error

    def sample_tokens(self, grammar_bitmask: GrammarBitmask | None) -> ModelRunnerOutput:
        """Sample from the logits of the step that ran last.

        Raises:
            ForwardError: its forward pass or its sampling failed; the next step can run all the same.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise _forward_error(failure) from failure
        try:
            return self._worker.runner.sample_tokens(grammar_bitmask)
        except Exception as error:
            raise _forward_error(error) from error

    def shutdown(self) -> None:
        """Let go of the model and its KV cache."""
        del self._worker


def _forward_error(cause: Exception) -> ForwardError:
    return ForwardError(f"The forward pass failed: {type(cause).__name__}: {cause}")
