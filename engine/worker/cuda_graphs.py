"""Captured mode: the forward pass of a batch of decodes, recorded once as a CUDA graph and replayed ever after.

A decode step of a small model is hundreds of kernels of a few microseconds each, and launching them takes Python longer
than running them takes the GPU. A graph is launched as a whole. It repeats what was recorded to the letter: the same
kernels, sizes and addresses. So each batch size is captured by itself, inputs and outputs have fixed places, and what
changes from step to step (tokens, lengths, block tables) is read by the kernels from those places.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.attention.backend import AttentionBackend, AttentionInputs
from engine.layers.attention import AttentionMetadata
from engine.models.causal_lm import CausalLM
from engine.worker.input_buffers import InputBuffers


class GraphRecorder(Protocol):
    """Records work so that it can be repeated."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Do some work over tensors in fixed places, and return what does it again."""


class CudaGraphRecorder:
    """Records into CUDA graphs that share one memory pool.

    They may, as no two run at once and nothing that one leaves in the pool is read by another. Recorded from the
    largest to the smallest, each finds room in what the first one took.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See `GraphRecorder`."""
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # Once without recording: kernels are compiled and libraries take their workspaces at the first call.
            work()
            graph.capture_begin(pool=self._pool)
            try:
                work()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return graph.replay


class DecodeGraphs:
    """Graphs of a decoder's forward pass over batches of decodes.

    Args:
        decoder: the model, its KV cache bound.
        backend: who attends; one that `captures_decodes`.
        sliding_windows: per KV cache group.
        buffers: where the inputs of every step are put.
        max_model_len: most tokens of a request.
        largest: the largest batch that will be captured.
        recorder: what records.
    """

    def __init__(
        self,
        decoder: CausalLM,
        backend: AttentionBackend[Any],
        sliding_windows: Sequence[int | None],
        buffers: InputBuffers,
        max_model_len: int,
        largest: int,
        recorder: GraphRecorder,
    ) -> None:
        self._decoder = decoder
        self._backend = backend
        self._sliding_windows = sliding_windows
        self._buffers = buffers
        self._max_model_len = max_model_len
        self._recorder = recorder
        self._replays: dict[int, Callable[[], None]] = {}
        self._recorded: list[Callable[[], None]] = []
        """Kept for what it holds: graphs do not own the tensors that they read."""
        hidden_size = decoder.architecture.hidden_size
        self._hidden = torch.zeros(largest, hidden_size, dtype=decoder.dtype, device=decoder.device)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes that were captured, ascending."""
        return tuple(sorted(self._replays))

    @torch.inference_mode()
    def capture(self, sizes: Iterable[int]) -> None:
        """Record the forward pass of so many decodes each."""
        with _no_collection():
            for size in sorted(sizes, reverse=True):
                work = self._forward_pass(size)
                self._recorded.append(work)
                self._replays[size] = self._recorder.record(work)

    def replay(self, size: int) -> Tensor:
        """Run the forward pass over what lies in the buffers.

        Returns:
            Hidden states [size, hidden_size]; the next replay overwrites them.
        """
        self._replays[size]()
        return self._hidden[:size]

    def _forward_pass(self, size: int) -> Callable[[], None]:
        placed = self._buffers.place_padding(size)
        # Planned for the longest requests there can be: the graph must do for all others as well.
        longest = torch.full((size,), self._max_model_len)
        plans = []
        for group, window in zip(placed.groups, self._sliding_windows, strict=True):
            tables = torch.zeros(group.block_tables.shape, dtype=torch.int32)
            host = AttentionInputs(tables, torch.arange(size + 1), longest, torch.zeros(size, dtype=torch.int64))
            plans.append(self._backend.plan(host, group, window))
        metadata = AttentionMetadata(tuple(plans))

        def work() -> None:
            hidden = self._decoder(placed.input_ids, placed.positions, metadata)
            # Copied out of the graphs' pool, whose memory is the next graph's as well.
            self._hidden[:size].copy_(hidden)

        return work


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python's collector still: what it frees may belong to CUDA, which bears nothing else during a capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
