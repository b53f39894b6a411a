"""`ModelRunner`: one step, from the scheduler's plan to the sampled tokens.

In the order of the story: update states, prepare inputs, forward pass, gather the last-token states, sample (or, where
there are drafts, verify), propose drafts for the next step.
"""

from __future__ import annotations

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
from engine.sample.sampler import SamplingMetadata, process_logits
from engine.spec_decode.metadata import SpecDecodeMetadata, calc_spec_decode_metadata
from engine.spec_decode.proposer import Proposals, Proposer, SampledStep, num_wanted_drafts
from engine.speculation import DraftProbs, Speculation
from engine.trace.events import StepExecuted
from engine.trace.recorder import Recorder
from engine.worker.copies import to_device
from engine.worker.cuda_graphs import DecodeGraphs
from engine.worker.dispatch import ExecutionMode, GraphDispatcher
from engine.worker.input_batch import NO_LOGPROBS, InputBatch
from engine.worker.input_buffers import DeviceInputs, InputBuffers, stay_on_host
from engine.worker.layer_groups import group_layers
from engine.worker.prompt_embeds import input_embeds
from engine.worker.prompt_logprobs import gather_prompt_logprobs
from engine.worker.sampled_rows import SampledRows, logits_event, sample_rows
from engine.worker.step_clock import clock_of
from engine.worker.step_inputs import StepInputs, prepare_inputs
from engine.worker.verifier import Verifier


class _PendingStep(NamedTuple):
    """A step between its two phases."""

    scheduler_output: SchedulerOutput
    inputs: StepInputs | None
    """None for a step without rows."""
    execution: ExecutionMode | None
    logits: Tensor | None
    """[sampled requests + drafts, vocab_size] float32; None if no request is sampled."""
    hidden: Tensor | None
    """[num_tokens, hidden_size], as the decoder returns it."""
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
        drafter: who proposes tokens for the next step; None: nobody.
    """

    def __init__(
        self,
        decoder: CausalLM,
        batch: InputBatch,
        backend: AttentionBackend[Any],
        buffers: InputBuffers | None = None,
        graphs: DecodeGraphs | None = None,
        drafter: Proposer | None = None,
    ) -> None:
        self.decoder = decoder
        self.batch = batch
        self.backend = backend
        self.graphs = graphs
        self.trace: Recorder | None = None
        self._drafter = drafter
        self._verifier = Verifier()
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
            self._pending = _PendingStep(scheduler_output, None, None, None, None, None, (started, started, started))
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
        self._pending = _PendingStep(scheduler_output, inputs, execution, logits, hidden, prompt_logprobs, marks)

    @torch.inference_mode()
    def sample_tokens(self, grammar_bitmask: GrammarBitmask | None = None) -> ModelRunnerOutput:
        """Sample from the logits of the step whose forward pass ran last, and have drafts proposed for the next one.

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
        probs: dict[int, DraftProbs] = {}
        if pending.logits is not None:
            rows = inputs.rows[inputs.sampled]
            drafts = calc_spec_decode_metadata(self.batch, inputs) if inputs.num_drafts.any() else None
            if drafts is None:
                metadata = self.batch.sampling_metadata(rows, self._device)
            else:
                metadata = self.batch.sampling_metadata(rows[drafts.request], self._device, drafts.num_before)
            processed = process_logits(pending.logits, metadata)
            if grammar_bitmask is not None:
                processed = self._mask(processed, pending.logits, grammar_bitmask, inputs, metadata, drafts)
            if drafts is None:
                sampled, last = sample_rows(processed, metadata)
                self.batch.append_tokens(rows, last)
            else:
                sampled = self._verifier.verify(processed, metadata, drafts, self._serials(inputs), self.trace)
                probs = sampled.probs
                for row, token_ids in zip(rows.tolist(), sampled.token_ids, strict=True):
                    self.batch.extend_tokens(row, token_ids)
            for place, token_ids in zip(inputs.sampled.tolist(), sampled.token_ids, strict=True):
                sampled_token_ids[place] = token_ids
            errors = {inputs.serials[inputs.sampled[index]]: why for index, why in sampled.failed.items()}
            logprobs = self._logprobs(inputs, pending.logits, sampled)
            if self.trace is not None and self.trace.records("forward"):
                self.trace.step = step
                event = logits_event(self._serials(inputs), pending.logits, processed, metadata, sampled)
                self.trace.show_tokens(token_id for row in event.top_token_ids for token_id in row)
                self.trace.emit(event)
        proposals = self._propose(pending, sampled_token_ids) if self._drafter is not None else None
        if self.trace is not None:
            self.trace.step = step
            self.trace.emit(self._executed_event(pending))
        return ModelRunnerOutput(
            step=step,
            serials=inputs.serials,
            sampled_token_ids=sampled_token_ids,
            draft_token_ids=proposals.draft_token_ids if proposals is not None else None,
            logprobs=logprobs,
            prompt_logprobs=pending.prompt_logprobs,
            speculation=self._speculation(inputs, probs, proposals),
            errors=errors or None,
        )

    @staticmethod
    def _serials(inputs: StepInputs) -> list[int]:
        """Of the sampled requests."""
        return [inputs.serials[place] for place in inputs.sampled.tolist()]

    def _mask(
        self,
        processed: Tensor,
        logits: Tensor,
        grammar_bitmask: GrammarBitmask,
        inputs: StepInputs,
        metadata: SamplingMetadata,
        drafts: SpecDecodeMetadata | None,
    ) -> Tensor:
        serials = self._serials(inputs)
        first_rows = range(len(serials) + 1) if drafts is None else drafts.first_rows.tolist()
        rows_of = {serial: range(*first_rows[index : index + 2]) for index, serial in enumerate(serials)}
        rows = np.array([row for serial in grammar_bitmask.serials for row in rows_of[serial]], dtype=np.int64)
        return mask_guided_rows(
            processed,
            logits,
            grammar_bitmask.words,
            to_device(rows, self._device),
            self.batch.eos_token_ids,
            constrained=bool(metadata.constrained),
        )

    def _logprobs(self, inputs: StepInputs, logits: Tensor, sampled: SampledRows) -> list[list[TopLogprobs]] | None:
        """Log probabilities of the new tokens, per request of the step; None if none asked."""
        num_top = self.batch.num_logprobs[inputs.rows[inputs.sampled]]
        asked = (num_top != NO_LOGPROBS).nonzero()[0].tolist()
        if not asked:
            return None
        logprobs: list[list[TopLogprobs]] = [[] for _ in inputs.serials]
        whose = [index for index in asked for _ in sampled.token_ids[index]]
        if whose:
            rows = np.array([row for index in asked for row in sampled.rows_of(index)], dtype=np.int64)
            token_ids = np.array([token_id for index in asked for token_id in sampled.token_ids[index]])
            places = to_device(rows, self._device)
            told = top_logprobs(logits[places], to_device(token_ids, self._device), num_top[whose].tolist())
            for index, entry in zip(whose, told, strict=True):
                logprobs[int(inputs.sampled[index])].append(entry)
        return logprobs

    def _propose(self, pending: _PendingStep, sampled_token_ids: list[list[int]]) -> Proposals:
        """Ask the drafter; what its drafts were drawn from is kept until they are verified."""
        assert self._drafter is not None and pending.inputs is not None and pending.hidden is not None
        inputs = pending.inputs
        num_sampled = np.array([len(token_ids) for token_ids in sampled_token_ids], dtype=np.int64)
        most = pending.scheduler_output.num_drafts_wanted
        assert most is not None, "A plan says how many drafts it wants where there is a drafter."
        num_wanted = num_wanted_drafts(self.batch, inputs.rows, num_sampled, most)
        step = SampledStep(self.batch, inputs, pending.hidden, num_sampled, num_wanted)
        proposals = self._drafter.propose_draft_token_ids(step)
        self._verifier.expect(inputs.serials, proposals.probs)
        if self.trace is not None:
            self.trace.step = pending.scheduler_output.step
            self.trace.show_tokens(token_id for token_ids in proposals.draft_token_ids for token_id in token_ids)
        return proposals

    def _speculation(
        self, inputs: StepInputs, probs: dict[int, DraftProbs], proposals: Proposals | None
    ) -> Speculation | None:
        if self.trace is None or proposals is None:
            return None
        matches = zip(inputs.serials, proposals.matches or (), strict=False)
        found = {serial: match for serial, match in matches if match is not None}
        return Speculation(probs=probs, matches=found)

    def attention_metadata(self, inputs: StepInputs, placed: DeviceInputs) -> AttentionMetadata:
        """What the attention layers need of a step, once for all of them."""
        return AttentionMetadata(
            tuple(
                self.backend.plan(host, device, window)
                for host, device, window in zip(inputs.groups, placed.groups, self._sliding_windows, strict=True)
            )
        )

    def _last_token_states(self, hidden: Tensor, inputs: StepInputs) -> Tensor:
        """The hidden states that become logits, [sampled requests + drafts, hidden_size]."""
        indices = inputs.logits_indices
        if indices.size == len(hidden):  # a step of decodes: all of them
            return hidden
        return hidden[to_device(indices, self._device)]

    def _update_states(self, scheduler_output: SchedulerOutput) -> None:
        for serial in scheduler_output.released:
            self.batch.release(serial)
            self._verifier.forget(serial)
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
