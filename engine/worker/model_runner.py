"""`ModelRunner`: one step, from the scheduler's plan to the sampled tokens.

In the order of the story: update states, prepare inputs, forward pass, gather the last-token states, sample.
"""

from __future__ import annotations

import time
from collections.abc import Container
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.attention.backend import AttentionBackend, AttentionInputs
from engine.core.messages import ModelRunnerOutput, SchedulerOutput
from engine.layers.attention import AttentionMetadata
from engine.logprobs import TopLogprobs
from engine.models.decoder import Decoder
from engine.sample.logprobs import top_logprobs
from engine.sample.sampler import SamplingMetadata, process_logits, sample, truncated_logits, why_unsampled
from engine.trace.events import ForwardLogits, StepExecuted
from engine.trace.recorder import Recorder
from engine.worker.input_batch import NO_LOGPROBS, InputBatch
from engine.worker.layer_groups import group_layers
from engine.worker.prompt_embeds import input_embeds
from engine.worker.prompt_logprobs import gather_prompt_logprobs
from engine.worker.step_inputs import StepInputs, prepare_inputs

#: Tokens per sampled row that `forward.logits` shows.
TRACED_TOP_TOKENS = 10

_LARGEST = torch.finfo(torch.float32).max


class _PendingStep(NamedTuple):
    """A step between its two phases."""

    scheduler_output: SchedulerOutput
    inputs: StepInputs | None
    """None for a step without rows."""
    logits: Tensor | None
    """[sampled requests, vocab_size] float32; None if no request is sampled."""
    prompt_logprobs: list[list[TopLogprobs] | None] | None
    """As `ModelRunnerOutput` has them."""
    stamps: tuple[int, int, int]
    """perf_counter_ns at the start, before and after the forward pass; zeros when nothing is traced."""


class ModelRunner:
    """Runs steps on a loaded decoder whose attention layers have their KV cache bound.

    Args:
        decoder: the model, on its device.
        batch: the persistent batch.
        backend: who attends; the same that the cache was bound with.
    """

    def __init__(self, decoder: Decoder, batch: InputBatch, backend: AttentionBackend[Any]) -> None:
        self.decoder = decoder
        self.batch = batch
        self.backend = backend
        self.trace: Recorder | None = None
        self._pending: _PendingStep | None = None
        self._device = decoder.embed_tokens.device
        self._sliding_windows = [group.sliding_window for group in group_layers(decoder.architecture.sliding_windows)]

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Run the forward pass of a step; its logits wait for `sample_tokens`."""
        self._pending = None
        started = self._now()
        self._update_states(scheduler_output)
        if not scheduler_output.rows:
            self._pending = _PendingStep(scheduler_output, None, None, None, (started, started, started))
            return
        inputs = prepare_inputs(self.batch, scheduler_output.rows)
        if self.trace is not None and self.trace.records("forward"):
            self.trace.step = scheduler_output.step
            self.trace.emit(inputs.event(self.batch))
        metadata = self.attention_metadata(inputs)
        prepared = self._now()
        embeds = input_embeds(self.batch, inputs, self.decoder.embed_tokens)
        input_ids = inputs.input_ids.to(self._device)
        hidden = self.decoder(input_ids, inputs.positions.to(self._device), metadata, embeds)
        logits = prompt_logprobs = None
        if inputs.sampled.size:
            last_token_states = hidden[torch.from_numpy(inputs.logits_indices).to(self._device)]
            logits = self.decoder.compute_logits(last_token_states)
        if self.batch.prompt_logprobs:
            prompt_logprobs = gather_prompt_logprobs(self.batch, inputs, hidden, self.decoder.compute_logits)
        stamps = (started, prepared, self._now())
        self._pending = _PendingStep(scheduler_output, inputs, logits, prompt_logprobs, stamps)

    @torch.inference_mode()
    def sample_tokens(self) -> ModelRunnerOutput:
        """Sample from the logits of the step whose forward pass ran last."""
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
            on_device = sample(processed, metadata)
            failed = why_unsampled(processed)
            errors = {inputs.serials[inputs.sampled[index]]: why for index, why in failed.items()}
            logprobs = self._logprobs(inputs, pending.logits, on_device, failed)
            tokens = on_device.cpu()
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
            self.trace.emit(_executed_event(pending, inputs.input_ids.numel(), self._now()))
        return ModelRunnerOutput(
            step=step,
            serials=inputs.serials,
            sampled_token_ids=sampled_token_ids,
            logprobs=logprobs,
            prompt_logprobs=pending.prompt_logprobs,
            errors=errors or None,
        )

    def _logprobs(
        self, inputs: StepInputs, logits: Tensor, tokens: Tensor, failed: Container[int]
    ) -> list[list[TopLogprobs]] | None:
        """Log probabilities of the sampled tokens [sampled requests], per request of the step; None if none asked."""
        num_top = self.batch.num_logprobs[inputs.rows[inputs.sampled]]
        asked = (num_top != NO_LOGPROBS).nonzero()[0]
        if not asked.size:
            return None
        places = torch.from_numpy(asked).to(self._device)
        told = top_logprobs(logits[places], tokens[places], num_top[asked].tolist())
        logprobs: list[list[TopLogprobs]] = [[] for _ in inputs.serials]
        for row, entry in zip(asked.tolist(), told, strict=True):
            logprobs[int(inputs.sampled[row])] = [] if row in failed else [entry]
        return logprobs

    def attention_metadata(self, inputs: StepInputs) -> AttentionMetadata:
        """What the attention layers need of a step, once for all of them."""
        plans = []
        for window, slots, tables in zip(self._sliding_windows, inputs.slot_mappings, inputs.block_tables, strict=True):
            host = AttentionInputs(tables, inputs.query_start_loc, inputs.seq_lens, slots)
            on_device = AttentionInputs(*(tensor.to(self._device) for tensor in host))
            plans.append(self.backend.plan(host, on_device, window))
        return AttentionMetadata(tuple(plans))

    def _update_states(self, scheduler_output: SchedulerOutput) -> None:
        for serial in scheduler_output.released:
            self.batch.release(serial)
        for row in scheduler_output.rows:
            self.batch.update(row)

    def _now(self) -> int:
        """Nanoseconds, after the device has done what it was given; 0 when nothing is traced."""
        if self.trace is None:
            return 0
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter_ns()


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


def _executed_event(pending: _PendingStep, num_tokens: int, now: int) -> StepExecuted:
    started, prepared, forwarded = pending.stamps
    return StepExecuted(
        mode="eager",
        num_tokens=num_tokens,
        num_padded_tokens=num_tokens,
        prepare_ns=prepared - started,
        forward_ns=forwarded - prepared,
        sample_ns=now - forwarded,
    )
