"""`ModelRunner`: one step, from the scheduler's plan to the sampled tokens.

In the order of the story: update states, prepare inputs, forward pass, gather the last-token states, sample.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.attention.backend import AttentionBackend
from engine.core.messages import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.layers.attention import AttentionMetadata
from engine.logprobs import TopLogprobs
from engine.models.causal_lm import CausalLM
from engine.sample.grammar_mask import mask_guided_rows
from engine.sample.logprobs import top_logprobs
from engine.sample.sampler import SamplingMetadata, process_logits, sample, truncated_logits, why_unsampled
from engine.trace.events import ForwardLogits, StepExecuted
from engine.trace.recorder import Recorder
from engine.worker.copies import read_back, to_device
from engine.worker.cuda_graphs import DecodeGraphs
from engine.worker.dispatch import ExecutionMode, GraphDispatcher
from engine.worker.input_batch import NO_LOGPROBS, InputBatch
from engine.worker.input_buffers import DeviceInputs, InputBuffers, stay_on_host
from engine.worker.layer_groups import group_layers
from engine.worker.prompt_embeds import input_embeds
from engine.worker.prompt_logprobs import gather_prompt_logprobs
from engine.worker.step_clock import clock_of
from engine.worker.step_inputs import StepInputs, prepare_inputs

#: Tokens per sampled row that `forward.logits` shows.
TRACED_TOP_TOKENS = 10

_LARGEST = torch.finfo(torch.float32).max


class _PendingStep(NamedTuple):
    """A step between its two phases."""

    scheduler_output: SchedulerOutput
    inputs: StepInputs | None
    """None for a step without rows."""
    execution: ExecutionMode | None
    logits: Tensor | None
    """[sampled requests, vocab_size] float32; None if no request is sampled."""
    prompt_logprobs: list[list[TopLogprobs] | None] | None
    """As `ModelRunnerOutput` has them."""
    marks: tuple[Any, Any, Any]
    """Of the step's clock: at the start, before and after the forward pass; None when nothing is traced."""


class ModelRunner:
    """Runs steps on a loaded decoder whose attention layers have their KV cache bound.

    Args:
        decoder: the model, on its device.
        batch: the persistent batch.
        backend: who attends; the same that the cache was bound with.
        buffers: where the inputs of a step go, on a GPU.
        graphs: captured forward passes, if there are any.
    """

    def __init__(
        self,
        decoder: CausalLM,
        batch: InputBatch,
        backend: AttentionBackend[Any],
        buffers: InputBuffers | None = None,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self.decoder = decoder
        self.batch = batch
        self.backend = backend
        self.graphs = graphs
        self.trace: Recorder | None = None
        self._pending: _PendingStep | None = None
        self._device = decoder.device
        self._clock = clock_of(self._device)
        self._place = stay_on_host if buffers is None else buffers.place
        self._dispatcher = GraphDispatcher(() if graphs is None else graphs.sizes)
        self._sliding_windows = [group.sliding_window for group in group_layers(decoder.architecture.sliding_windows)]

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Run the forward pass of a step; its logits wait for `sample_tokens`."""
        self._pending = None
        started = self._mark()
        self._update_states(scheduler_output)
        if not scheduler_output.rows:
            self._pending = _PendingStep(scheduler_output, None, None, None, None, (started, started, started))
            return
        inputs = prepare_inputs(self.batch, scheduler_output.rows)
        if self.trace is not None and self.trace.records("forward"):
            self.trace.step = scheduler_output.step
            self.trace.emit(inputs.event(self.batch))
        embeds = input_embeds(self.batch, inputs, self.decoder)
        num_tokens, num_requests = inputs.input_ids.numel(), len(inputs.serials)
        execution = self._dispatcher.dispatch(num_tokens, num_requests, has_embeds=embeds is not None)
        placed = self._place(inputs, execution.num_padded_tokens)
        if self.graphs is not None and execution.mode == "captured":
            prepared = self._mark()
            hidden = self.graphs.replay(execution.num_padded_tokens)[:num_tokens]
        else:
            metadata = self.attention_metadata(inputs, placed)
            prepared = self._mark()
            hidden = self.decoder(placed.input_ids, placed.positions, metadata, embeds)
        logits = prompt_logprobs = None
        if inputs.sampled.size:
            logits = self.decoder.compute_logits(self._last_token_states(hidden, inputs))
        if self.batch.prompt_logprobs:
            prompt_logprobs = gather_prompt_logprobs(self.batch, inputs, hidden, self.decoder.compute_logits)
        marks = (started, prepared, self._mark())
        self._pending = _PendingStep(scheduler_output, inputs, execution, logits, prompt_logprobs, marks)

    @torch.inference_mode()
    def sample_tokens(self, grammar_bitmask: GrammarBitmask | None = None) -> ModelRunnerOutput:
        """Sample from the logits of the step whose forward pass ran last.

        Args:
            grammar_bitmask: what its guided rows may sample; None if there are none.
        """
        if self._pending is None:
            raise RuntimeError("sample_tokens was called without a step: execute_model comes first.")
        pending, self._pending = self._pending, None
        step, inputs = pending.scheduler_output.step, pending.inputs
        if inputs is None:
            return ModelRunnerOutput(step=step, serials=[], sampled_token_ids=[])
        sampled_token_ids: list[list[int]] = [[] for _ in inputs.serials]
        logprobs: list[list[TopLogprobs]] | None = None
        errors: dict[int, str] = {}
        if pending.logits is not None:
            rows = inputs.rows[inputs.sampled]
            metadata = self.batch.sampling_metadata(rows, self._device)
            processed = process_logits(pending.logits, metadata)
            if grammar_bitmask is not None:
                processed = self._mask(processed, pending.logits, grammar_bitmask, inputs, metadata)
            on_device = sample(processed, metadata)
            # NaN is the maximum of its row, so that one number per row says whether it could be sampled.
            greedy = metadata.all_greedy
            largest = processed.gather(-1, on_device[:, None])[:, 0] if greedy else processed.amax(dim=-1)
            tokens, largest = read_back(on_device, largest)
            failed = why_unsampled(largest)
            errors = {inputs.serials[inputs.sampled[index]]: why for index, why in failed.items()}
            logprobs = self._logprobs(inputs, pending.logits, on_device, failed)
            self.batch.append_tokens(rows, tokens.numpy())
            for index, (place, token) in enumerate(zip(inputs.sampled.tolist(), tokens.tolist(), strict=True)):
                sampled_token_ids[place] = [] if index in failed else [token]
            if self.trace is not None and self.trace.records("forward"):
                self.trace.step = step
                serials = [inputs.serials[place] for place in inputs.sampled.tolist()]
                event = _logits_event(serials, pending.logits, processed, metadata, tokens, failed)
                self.trace.show_tokens(token_id for row in event.top_token_ids for token_id in row)
                self.trace.emit(event)
        if self.trace is not None:
            self.trace.step = step
            self.trace.emit(self._executed_event(pending))
        return ModelRunnerOutput(
            step=step,
            serials=inputs.serials,
            sampled_token_ids=sampled_token_ids,
            logprobs=logprobs,
            prompt_logprobs=pending.prompt_logprobs,
            errors=errors or None,
        )

    def _mask(
        self,
        processed: Tensor,
        logits: Tensor,
        grammar_bitmask: GrammarBitmask,
        inputs: StepInputs,
        metadata: SamplingMetadata,
    ) -> Tensor:
        row_of = {inputs.serials[place]: row for row, place in enumerate(inputs.sampled.tolist())}
        rows = np.array([row_of[serial] for serial in grammar_bitmask.serials], dtype=np.int64)
        return mask_guided_rows(
            processed,
            logits,
            grammar_bitmask.words,
            to_device(rows, self._device),
            self.batch.eos_token_ids,
            constrained=bool(metadata.constrained),
        )

    def _logprobs(
        self, inputs: StepInputs, logits: Tensor, tokens: Tensor, failed: Container[int]
    ) -> list[list[TopLogprobs]] | None:
        """Log probabilities of the sampled tokens [sampled requests], per request of the step; None if none asked."""
        num_top = self.batch.num_logprobs[inputs.rows[inputs.sampled]]
        asked = (num_top != NO_LOGPROBS).nonzero()[0]
        if not asked.size:
            return None
        places = to_device(asked, self._device)
        told = top_logprobs(logits[places], tokens[places], num_top[asked].tolist())
        logprobs: list[list[TopLogprobs]] = [[] for _ in inputs.serials]
        for row, entry in zip(asked.tolist(), told, strict=True):
            logprobs[int(inputs.sampled[row])] = [] if row in failed else [entry]
        return logprobs

    def attention_metadata(self, inputs: StepInputs, placed: DeviceInputs) -> AttentionMetadata:
        """What the attention layers need of a step, once for all of them."""
        return AttentionMetadata(
            tuple(
                self.backend.plan(host, device, window)
                for host, device, window in zip(inputs.groups, placed.groups, self._sliding_windows, strict=True)
            )
        )

    def _last_token_states(self, hidden: Tensor, inputs: StepInputs) -> Tensor:
        """The hidden states that become logits, [sampled requests, hidden_size]."""
        if inputs.sampled.size == len(hidden):  # a step of decodes: all of them
            return hidden
        return hidden[to_device(inputs.logits_indices, self._device)]

    def _update_states(self, scheduler_output: SchedulerOutput) -> None:
        for serial in scheduler_output.released:
            self.batch.release(serial)
        for row in scheduler_output.rows:
            self.batch.update(row)

    def _mark(self) -> Any:
        """This moment of the step; None when nothing is traced."""
        return self._clock.mark() if self.trace is not None else None

    def _executed_event(self, pending: _PendingStep) -> StepExecuted:
        assert pending.inputs is not None and pending.execution is not None  # a step without rows has no event
        started, prepared, forwarded = pending.marks
        between = self._clock.nanoseconds
        return StepExecuted(
            mode=pending.execution.mode,
            num_tokens=pending.inputs.input_ids.numel(),
            num_padded_tokens=pending.execution.num_padded_tokens,
            prepare_ns=between(started, prepared),
            forward_ns=between(prepared, forwarded),
            sample_ns=between(forwarded, self._mark()),
        )


def _logits_event(
    serials: list[int],
    logits: Tensor,
    processed: Tensor,
    metadata: SamplingMetadata,
    tokens: Tensor,
    failed: Container[int],
) -> ForwardLogits:
    """The rows that were sampled; those that failed have nothing to show that JSON could hold."""
    top = logits.topk(min(TRACED_TOP_TOKENS, logits.shape[-1]), dim=-1)
    probs = torch.softmax(processed, dim=-1)
    if not metadata.all_greedy:
        rows = metadata.random_rows
        probs[rows] = torch.softmax(truncated_logits(processed[rows], metadata.random()), dim=-1)
    # A model may rule a token out by itself; JSON has no infinity.
    top_logits = top.values.clamp(-_LARGEST, _LARGEST).nan_to_num(-_LARGEST).tolist()
    top_ids, top_probs, sampled = top.indices.tolist(), probs.gather(-1, top.indices).tolist(), tokens.tolist()
    shown = [row for row in range(len(serials)) if row not in failed]
    return ForwardLogits(
        requests=[serials[row] for row in shown],
        top_token_ids=[top_ids[row] for row in shown],
        top_logits=[top_logits[row] for row in shown],
        top_probs=[top_probs[row] for row in shown],
        sampled_token_ids=[sampled[row] for row in shown],
    )
