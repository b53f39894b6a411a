"""Scripted steps through the executor give Hugging Face's greedy tokens, whatever the steps do to a request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from engine.config import EngineConfig, KVCacheConfig, ModelFacts
from engine.core.messages import ModelRunnerOutput, NewRequestData, ScheduledRow, SchedulerOutput
from engine.errors import ForwardError
from engine.executor.uniproc import UniProcExecutor
from engine.sampling_params import SamplingParams
from engine.trace.events import (
    DeviceInitialized,
    Event,
    ForwardInputs,
    ForwardLogits,
    Header,
    KVCacheAllocated,
    MemoryProfiled,
    ModelLoaded,
    StepExecuted,
)
from engine.trace.file import read_trace
from engine.trace.recorder import Recorder

BLOCK_SIZE = 8
GREEDY = SamplingParams(temperature=0, max_tokens=None)
RandomModel = tuple[Path, transformers.PreTrainedModel]


class Script:
    """A scheduler without decisions: the test says which request gets how many tokens in a step."""

    def __init__(self, folder: Path, **engine_args: object) -> None:
        arguments = {"max_num_seqs": 3, "max_num_batched_tokens": 64, "block_size": BLOCK_SIZE, **engine_args}
        self.config = EngineConfig.from_args(str(folder), **arguments)
        self.executor = UniProcExecutor(self.config)
        self.facts: ModelFacts
        self.kv_cache: KVCacheConfig
        self.facts, self.kv_cache = self.executor.initialize()
        self.tokens: dict[int, list[int]] = {}
        self.num_prompt: dict[int, int] = {}
        self.params: dict[int, SamplingParams] = {}
        self.computed: dict[int, int] = {}
        self.blocks: dict[int, list[int]] = {}
        self._free = list(range(1, self.kv_cache.num_gpu_blocks))
        self._released: list[int] = []
        self._step = 0

    def add(self, serial: int, prompt: list[int], params: SamplingParams = GREEDY) -> None:
        self.tokens[serial], self.num_prompt[serial], self.params[serial] = list(prompt), len(prompt), params

    def release(self, serial: int) -> None:
        """Finish or preempt a request: its blocks are others' from now on."""
        self._free = self.blocks.pop(serial) + self._free
        del self.computed[serial]
        self._released.append(serial)

    def plan(self, shares: dict[int, int]) -> SchedulerOutput:
        self._step += 1
        rows = []
        for serial, num_tokens in shares.items():
            new = serial not in self.computed
            computed = self.computed.setdefault(serial, 0)
            blocks = self.blocks.setdefault(serial, [])
            wanted = -(-(computed + num_tokens) // BLOCK_SIZE)
            added = [self._free.pop(0) for _ in range(wanted - len(blocks))]
            blocks.extend(added)
            rows.append(
                ScheduledRow(
                    serial=serial,
                    request_id=f"r{serial}",
                    num_scheduled_tokens=num_tokens,
                    num_computed_tokens=computed,
                    block_ids=(added,),
                    new=NewRequestData(
                        token_ids=self.tokens[serial],
                        num_prompt_tokens=self.num_prompt[serial],
                        sampling_params=self.params[serial],
                    )
                    if new
                    else None,
                )
            )
            self.computed[serial] += num_tokens
        released, self._released = self._released, []
        return SchedulerOutput(step=self._step, rows=rows, released=released)

    def step(self, shares: dict[int, int]) -> ModelRunnerOutput:
        plan = self.plan(shares)
        self.executor.execute_model(plan)
        output = self.executor.sample_tokens(None)
        assert output.step == plan.step
        assert output.serials == list(shares)
        for serial, sampled in zip(output.serials, output.sampled_token_ids, strict=True):
            assert len(sampled) == (self.computed[serial] == len(self.tokens[serial]))
            self.tokens[serial] += sampled
        return output

    def output(self, serial: int) -> list[int]:
        return self.tokens[serial][self.num_prompt[serial] :]


def prompt_of(length: int, seed: int) -> list[int]:
    return torch.randint(3, 131, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def greedy(model: transformers.PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    tokens = model.generate(  # type: ignore[operator]
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    output: list[int] = tokens[0, len(prompt) :].tolist()
    return output


def test_chunks_decodes_release_and_resume_give_the_reference_tokens(random_llama: RandomModel) -> None:
    folder, model = random_llama
    script = Script(folder)
    prompts = {serial: prompt_of(length, serial) for serial, length in ((0, 21), (1, 9), (2, 40), (3, 17))}
    for serial, prompt in prompts.items():
        script.add(serial, prompt)
    script.step({0: 8, 1: 9})  # a chunk beside a whole prompt
    script.step({0: 8, 1: 1})  # a chunk beside a decode
    script.step({1: 1, 0: 5, 2: 11})  # the last chunk, in another order
    for _ in range(4):
        script.step({0: 1, 2: 1, 1: 1})  # a chunk of one token looks like a decode
    script.release(1)  # preempted with output
    script.step({2: 25, 0: 1})
    script.step({3: 17, 2: 1, 0: 1})  # a newcomer in its row and its blocks
    script.release(0)  # finished
    script.step({1: len(script.tokens[1]) - 3, 3: 1})  # resumed in two chunks
    script.step({1: 3, 2: 1, 3: 1})
    for _ in range(10):
        script.step({2: 1, 3: 1, 1: 1})
    for serial, prompt in prompts.items():
        output = script.output(serial)
        assert len(output) >= 6
        assert output == greedy(model, prompt, len(output)), f"request {serial}"


def test_seeded_sampling_survives_batching_and_preemption(random_llama: RandomModel) -> None:
    folder, _ = random_llama
    params = SamplingParams(temperature=1.0, top_p=0.95, seed=77, max_tokens=None)
    alone = Script(folder)
    alone.add(0, prompt_of(12, 5), params)
    alone.step({0: 12})
    for _ in range(9):
        alone.step({0: 1})

    crowded = Script(folder)
    crowded.add(4, prompt_of(10, 6), SamplingParams(temperature=2.0, seed=1, max_tokens=None))
    crowded.add(0, prompt_of(12, 5), params)
    crowded.step({4: 10, 0: 5})
    crowded.step({0: 7, 4: 1})
    for _ in range(4):
        crowded.step({4: 1, 0: 1})
    crowded.release(0)
    crowded.step({4: 1})
    crowded.step({0: 17, 4: 1})
    for _ in range(4):
        crowded.step({0: 1, 4: 1})
    assert crowded.output(0) == alone.output(0)


def test_a_request_may_fill_the_model_length(random_llama: RandomModel) -> None:
    folder, model = random_llama
    script = Script(folder, max_model_len=16)
    prompt = prompt_of(15, 8)
    script.add(0, prompt)
    script.step({0: 15})
    assert script.output(0) == greedy(model, prompt, 1)
    script.step({0: 1})  # its last position; what is sampled there lies beyond the length
    assert script.output(0) == greedy(model, prompt, 2)


def test_a_step_may_only_release(random_llama: RandomModel) -> None:
    folder, model = random_llama
    script = Script(folder, max_num_seqs=1)
    for serial in range(3):
        script.add(serial, prompt_of(5, serial))
        script.step({serial: 5})
        script.release(serial)
        assert script.step({}).sampled_token_ids == []
    assert script.output(2) == greedy(model, script.tokens[2][:5], 1)


@pytest.mark.parametrize("phase", ["forward", "sampling"])
def test_a_failed_forward_says_why_and_the_next_one_runs(
    random_llama: RandomModel, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = random_llama
    script = Script(folder)
    script.add(0, prompt_of(5, 0))
    script.add(1, prompt_of(5, 1))

    def fail(*_: object) -> None:
        raise RuntimeError("out of cheese")

    with monkeypatch.context() as patch:
        runner = script.executor._worker.runner
        owner, name = (runner.decoder, "compute_logits") if phase == "forward" else (runner.batch, "sampling_metadata")
        patch.setattr(owner, name, fail)
        script.executor.execute_model(script.plan({0: 5}))
        with pytest.raises(ForwardError, match="RuntimeError: out of cheese") as raised:
            script.executor.sample_tokens(None)
    assert isinstance(raised.value.__cause__, RuntimeError)
    script.release(0)
    script.step({1: 5})
    assert script.output(1) == greedy(model, script.tokens[1][:5], 1)


def test_a_row_that_cannot_be_taken_in_is_a_forward_error(random_llama: RandomModel) -> None:
    folder, _ = random_llama
    script = Script(folder)
    script.add(0, prompt_of(5, 0), SamplingParams(temperature=1.0))
    script.executor.execute_model(script.plan({0: 5}))
    with pytest.raises(ForwardError, match="given no seed"):
        script.executor.sample_tokens(None)
    script.release(0)
    script.add(1, prompt_of(5, 1))
    script.step({1: 5})


def test_sampling_without_a_step_is_a_forward_error(random_llama: RandomModel) -> None:
    script = Script(random_llama[0])
    with pytest.raises(ForwardError, match="without a step"):
        script.executor.sample_tokens(None)


def record(script: Script, path: Path, level: str) -> Callable[[], list[Event]]:
    header = Header(
        schema_version=1,
        engine_version="test",
        level=level,  # type: ignore[arg-type]
        config=script.config,
        model=script.facts,
        kv_cache=script.kv_cache,
        tokenizer="",
        device=script.executor.device,
        environment={},
    )
    recorder = Recorder.to_file(path, header)
    script.executor.record_to(recorder)

    def finish() -> list[Event]:
        recorder.close()
        return list(read_trace(path).events)

    return finish


def of_steps(events: list[Event]) -> list[Event]:
    """What was recorded after the start-up."""
    return [event for event in events if event.step]


def test_events_of_a_step(random_llama: RandomModel, tmp_path: Path) -> None:
    script = Script(random_llama[0])
    finish = record(script, tmp_path / "trace.jsonl", "forward")
    script.add(0, prompt_of(12, 0), SamplingParams(temperature=0.5, top_k=3, seed=9))
    script.add(1, prompt_of(9, 1))
    script.step({0: 4})
    script.step({0: 8, 1: 9})
    first, first_executed, inputs, logits, executed = of_steps(finish())

    assert isinstance(first, ForwardInputs)
    assert (first.step, first.logits_indices) == (1, [])
    assert isinstance(first_executed, StepExecuted)
    assert isinstance(inputs, ForwardInputs)
    assert inputs.step == 2
    assert inputs.requests == [0, 1]
    assert inputs.input_ids == script.tokens[0][4:12] + script.tokens[1][:9]
    assert inputs.positions == [*range(4, 12), *range(9)]
    assert inputs.query_start_loc == [0, 8, 17]
    assert inputs.seq_lens == [12, 9]
    assert inputs.block_tables == [script.blocks[0], script.blocks[1]]
    places = [(0, position) for position in range(4, 12)] + [(1, position) for position in range(9)]
    assert inputs.slot_mapping == [
        script.blocks[serial][position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        for serial, position in places
    ]
    assert inputs.logits_indices == [7, 16]

    assert isinstance(logits, ForwardLogits)
    assert logits.requests == [0, 1]
    assert logits.sampled_token_ids == [script.tokens[0][12], script.tokens[1][9]]
    for row in (0, 1):
        assert len(logits.top_token_ids[row]) == 10
        assert logits.top_logits[row] == sorted(logits.top_logits[row], reverse=True)
    expected = torch.softmax(torch.tensor(logits.top_logits[0][:3]) / 0.5, 0)
    torch.testing.assert_close(torch.tensor(logits.top_probs[0][:3]), expected, atol=1e-5, rtol=1e-5)
    assert logits.top_probs[0][3:] == [0.0] * 7
    assert logits.sampled_token_ids[1] == logits.top_token_ids[1][0]
    assert 0.0 < sum(logits.top_probs[1]) <= 1.0

    assert isinstance(executed, StepExecuted)
    assert (executed.mode, executed.num_tokens, executed.num_padded_tokens) == ("eager", 17, 17)
    assert min(executed.prepare_ns, executed.forward_ns, executed.sample_ns) > 0


def test_level_control_records_no_tensors(random_llama: RandomModel, tmp_path: Path) -> None:
    script = Script(random_llama[0])
    finish = record(script, tmp_path / "trace.jsonl", "control")
    script.add(0, prompt_of(4, 0))
    script.step({0: 4})
    assert [type(event) for event in of_steps(finish())] == [StepExecuted]


def test_a_trace_begins_with_how_the_worker_came_to_be_ready(random_llama: RandomModel, tmp_path: Path) -> None:
    script = Script(random_llama[0], device="cpu", attention_backend="torch")
    device, model, profiled, cache = record(script, tmp_path / "trace.jsonl", "control")()
    assert isinstance(device, DeviceInitialized)
    assert (device.step, device.device) == (0, "cpu")
    assert 0 < device.available_bytes <= device.total_bytes
    assert isinstance(model, ModelLoaded)
    assert (model.num_parameters, model.attention_backend) == (script.facts.num_parameters, "torch")
    assert model.weight_bytes == 4 * model.num_parameters
    assert isinstance(profiled, MemoryProfiled)
    assert (profiled.num_tokens, profiled.graph_bytes) == (64, 0)
    assert isinstance(cache, KVCacheAllocated)
    assert cache.num_gpu_blocks == script.kv_cache.num_gpu_blocks
    assert cache.num_bytes == cache.num_gpu_blocks * script.kv_cache.groups[0].block_bytes <= cache.budget_bytes
    assert min(each.duration_ns for each in (device, model, profiled, cache)) > 0
