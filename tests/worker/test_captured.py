"""Captured decodes give the tokens of the reference, whatever padding and earlier steps left in their places.

Here the recorder repeats the recorded work over the same tensors, which is what a CUDA graph does; that one does is
tested on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.trace.events import StepExecuted
from engine.worker.cuda_graphs import CudaGraphRecorder, DecodeGraphs
from engine.worker.input_buffers import InputBuffers
from engine.worker.model_runner import ModelRunner
from engine.worker.profile import expected_graph_bytes
from tests.models.random_models import save_random_model
from tests.worker.test_runner import BLOCK_SIZE, Script, prompt_of, record

SIZES = (1, 2, 4)


@pytest.fixture(scope="module")
def small_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that even an interpreter runs in a moment."""
    folder = tmp_path_factory.mktemp("small_llama")
    save_random_model(folder, "llama", num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
    return folder


class Repeater:
    """Records work by keeping it."""

    def __init__(self) -> None:
        self.num_replays = 0

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        work()

        def replay() -> None:
            self.num_replays += 1
            work()

        return replay


def capture_on_a_cpu(script: Script) -> Repeater:
    """Give a worker that runs on a CPU what one on a GPU has."""
    worker, recorder = script.executor._worker, Repeater()
    plain = worker.runner
    max_blocks = -(-script.facts.max_model_len // BLOCK_SIZE)
    buffers = InputBuffers(64, max(SIZES), max_blocks, 1, worker.device)
    graphs = DecodeGraphs(
        worker.decoder, worker.backend, [None], buffers, script.facts.max_model_len, max(SIZES), recorder
    )
    graphs.capture(SIZES)
    worker.runner = ModelRunner(worker.decoder, plain.batch, worker.backend, buffers, graphs)
    return recorder


def run(script: Script) -> list[list[int]]:
    """Prompts, chunks and decodes in turn; what each request put out."""
    for serial, length in enumerate((11, 5, 20)):
        script.add(serial, prompt_of(length, serial))
    for shares in ({0: 11, 1: 5}, {0: 1, 1: 1}, {0: 1, 1: 1, 2: 9}, {2: 11, 1: 1}):
        script.step(shares)
    for _ in range(2):
        script.step({2: 1, 0: 1, 1: 1})
    script.release(0)
    script.step({1: 1})
    return [script.output(serial) for serial in range(3)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the real thing is at hand")
def test_replays_over_the_same_places_give_the_right_tokens(small_llama: Path, tmp_path: Path) -> None:
    arguments = {"device": "cpu", "max_model_len": 64, "max_num_batched_tokens": 16}
    expected = run(Script(small_llama, attention_backend="torch", **arguments))
    script = Script(small_llama, attention_backend="triton", **arguments)
    recorder = capture_on_a_cpu(script)
    finish = record(script, tmp_path / "trace.jsonl", "control")
    assert run(script) == expected
    executed = [event for event in finish() if isinstance(event, StepExecuted)]
    assert [(step.mode, step.num_tokens, step.num_padded_tokens) for step in executed] == [
        ("eager", 16, 16),
        ("captured", 2, 2),
        ("eager", 11, 11),
        ("eager", 12, 12),
        *[("captured", 3, 4)] * 2,
        ("captured", 1, 1),
    ]
    assert recorder.num_replays == 4


@pytest.mark.gpu
def test_graphs_give_the_eager_tokens(small_llama: Path, tmp_path: Path) -> None:
    arguments = {"device": "cuda", "dtype": "float32", "attention_backend": "triton", "max_model_len": 64}
    expected = run(Script(small_llama, enforce_eager=True, **arguments))
    script = Script(small_llama, **arguments)
    finish = record(script, tmp_path / "trace.jsonl", "control")
    assert run(script) == expected
    modes = [event.mode for event in finish() if isinstance(event, StepExecuted)]
    assert modes.count("captured") == 4


@pytest.mark.gpu
def test_a_recorded_graph_reads_what_lies_there_at_its_replay() -> None:
    numbers, doubled = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")

    def double() -> None:
        doubled.copy_(2 * numbers)

    replay = CudaGraphRecorder().record(double)
    numbers.fill_(21)
    replay()
    assert doubled.tolist() == [42.0] * 4


def test_what_graphs_will_take_follows_from_the_first_two() -> None:
    assert expected_graph_bytes([100, 3], 10) == 127
    assert expected_graph_bytes([100], 1) == 100
    assert expected_graph_bytes([100, -5], 10) == 100
