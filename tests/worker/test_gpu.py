"""What only a GPU can show: copies that nobody waits for, clocks in the stream, memory that is kept to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from engine.trace.events import GraphCaptured, KVCacheAllocated, MemoryProfiled, StepExecuted
from engine.worker.copies import read_back, to_device
from engine.worker.input_buffers import InputBuffers
from engine.worker.memory import device_memory
from engine.worker.step_clock import CudaClock
from tests.worker.test_input_buffers import step_of
from tests.worker.test_runner import Script, greedy, prompt_of, record

pytestmark = pytest.mark.gpu
RandomModel = tuple[Path, transformers.PreTrainedModel]


@pytest.fixture
def cuda() -> torch.device:
    return torch.device("cuda:0")


def test_copies_arrive(cuda: torch.device) -> None:
    numbers = np.arange(1000, dtype=np.int64)
    on_device = to_device(numbers, cuda)
    assert on_device.device == cuda
    doubled, first = read_back(on_device * 2, on_device[:1])
    assert doubled.is_pinned()
    assert doubled.tolist() == (2 * numbers).tolist()
    assert first.tolist() == [0]


def test_the_clock_of_the_stream_measures_what_lies_between_its_marks(cuda: torch.device) -> None:
    clock, matrix = CudaClock(), torch.ones(2048, 2048, device=cuda)
    first = clock.mark()
    second = clock.mark()
    for _ in range(20):
        matrix = matrix @ matrix
    third = clock.mark()
    assert clock.nanoseconds(second, third) > clock.nanoseconds(first, second) >= 0


def test_steps_written_down_in_a_row_each_arrive_whole(cuda: torch.device) -> None:
    buffers = InputBuffers(max_num_tokens=40, max_num_requests=8, max_blocks=5, num_groups=2, device=cuda)
    seen = []
    for seed in range(6):
        inputs = step_of([1, 1, 1], [4, 5, 6], 5, seed)
        placed = buffers.place(inputs, 4)
        # Queued behind the copies; nothing waits until the end.
        seen.append((inputs, placed.input_ids.clone(), placed.groups[1].block_tables.clone()))
    for inputs, input_ids, tables in seen:
        assert input_ids[:3].tolist() == inputs.input_ids.tolist()
        assert torch.equal(tables[:3].cpu(), inputs.block_tables[1])


@pytest.mark.parametrize("enforce_eager", [True, False])
def test_tokens_are_those_of_the_reference(random_llama: RandomModel, enforce_eager: bool) -> None:
    folder, model = random_llama
    script = Script(folder, device="cuda", dtype="float32", enforce_eager=enforce_eager)
    prompts = {serial: prompt_of(length, serial) for serial, length in ((0, 21), (1, 9), (2, 40))}
    for serial, prompt in prompts.items():
        script.add(serial, prompt)
    script.step({0: 8, 1: 9})
    script.step({0: 13, 1: 1, 2: 15})
    script.step({0: 1, 1: 1, 2: 25})
    for _ in range(8):
        script.step({2: 1, 0: 1, 1: 1})
    for serial, prompt in prompts.items():
        output = script.output(serial)
        assert len(output) >= 9
        assert output == greedy(model, prompt, len(output))


def test_the_cache_and_the_graphs_keep_to_the_memory_that_was_promised(
    random_llama: RandomModel, tmp_path: Path, cuda: torch.device
) -> None:
    torch.cuda.empty_cache()
    before = device_memory(cuda)
    script = Script(random_llama[0], device="cuda", max_num_seqs=64, kv_cache_memory_bytes=256 << 20)
    finish = record(script, tmp_path / "trace.jsonl", "control")
    script.add(0, prompt_of(5, 0))
    script.step({0: 5})
    script.step({0: 1})
    events = finish()
    (profiled,) = (event for event in events if isinstance(event, MemoryProfiled))
    (cache,) = (event for event in events if isinstance(event, KVCacheAllocated))
    (captured,) = (event for event in events if isinstance(event, GraphCaptured))
    assert captured.sizes == [1, 2, 4, *range(8, 65, 8)]
    assert cache.num_bytes <= cache.budget_bytes
    assert [event.mode for event in events if isinstance(event, StepExecuted)] == ["eager", "captured"]
    taken = before.available - device_memory(cuda).available
    promised = cache.budget_bytes + profiled.activation_bytes + profiled.graph_bytes
    # Beside these there are the weights (small), libraries and their workspaces.
    assert taken < promised + (1 << 30)
