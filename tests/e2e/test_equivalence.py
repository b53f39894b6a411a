"""The engine's tokens are the model's tokens, however the engine came by them.

The oracle is Hugging Face `generate`, greedy and in float32. Batching, preemption, chunked prefill and prefix hits may
change when a token is computed and in which blocks its KV lies, never which token it is; and each test asserts from
the trace that what it is about did happen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.frontend.prompts import Prompt
from engine.frontend.tokenizer import Tokenizer
from engine.llm import LLM
from engine.models.store import resolve_model
from engine.sampling_params import SamplingParams
from engine.trace.events import Event, KVLookup, SchedulePreempted, ScheduleRequest, StepScheduled
from engine.trace.file import Trace, read_trace
from sim.replay import replay

EventType = TypeVar("EventType", bound=Event)

NUM_OUTPUT_TOKENS = 24
MAX_MODEL_LEN = 512

#: Logits closer than this may change places with the order in which floats are added up.
NEAR_TIE = 1e-4
#: And closer than this when weights and cache are rounded to bfloat16, which keeps 8 bits of each number.
NEAR_TIE_OF_BFLOAT16 = 0.5

SENTENCES = [
    "The",
    "Hello, my name is",
    "The capital of France is",
    "Once upon a time there was a clockmaker who",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Question: Why is the sky blue?\nAnswer:",
    "Water boils at one hundred degrees, and it freezes at",
    "<|im_start|>user\nWhat is a planet?<|im_end|>\n<|im_start|>assistant\n",
    "今天天气",
    "Dear Sir or Madam, I am writing to you because the parcel that I ordered in the spring",
]
PASSAGE = """\
An orrery is a clockwork model of the solar system. A crank turns a train of gears, the gears turn the arms,
and at the end of each arm a small painted ball goes round a brass sun. The first of them were built for lords
who wanted to own the heavens, but soon they stood in schools and in the halls of learned societies, where a
lecturer would turn the crank slowly and stop whenever somebody asked a question. That is the use of such a
machine: it can be stopped. The real planets never wait for anybody. In the model one may hold the earth still
between two days, look along the arm toward the moon, and see why there is an eclipse in this month and none
in the next. One may turn the crank backwards, which no astronomer has ever done with the sky, and watch a
comet return to where it came from. The makers knew that their balls were too large and their distances too
small, and they did not mind, for nothing in the model was there to be measured. It was there to be
understood. When a gear was worn and a planet fell behind, the lecturer would open the case and show the
wheels to the pupils, and some of them learned more from the wheels than from the planets. They saw that a
year is a count of teeth, that a month is another, and that between the two there must always be a remainder,
which is the reason why calendars are so untidy.
"""
#: Lengths of the prompts cut out of the passage: at, beside and between the borders of blocks.
CUTS = [1, 15, 16, 17, 32, 33, 64, 100, 161, 256, 400]


class Case(NamedTuple):
    """A model, prompts as token ids, and what Hugging Face makes of them."""

    model: str
    prompts: list[list[int]]
    expected: list[list[int]]
    gaps: list[list[float]]
    """Per output token how far its logit is above the second best."""


class Run(NamedTuple):
    """What one call of `generate` brought: tokens per prompt, and the events recorded meanwhile."""

    tokens: list[list[int]]
    events: list[Event]

    def of(self, kind: type[EventType]) -> list[EventType]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def num_preemptions(self) -> int:
        return len(self.of(SchedulePreempted))

    @property
    def num_hit_tokens(self) -> int:
        return sum(lookup.num_hit_tokens for lookup in self.of(KVLookup))

    @property
    def most_chunks(self) -> int:
        """Of the prompt that was computed in most pieces, how many they were."""
        chunks = Counter(each.request for each in self.of(ScheduleRequest) if each.phase == "prefill")
        return max(chunks.values())

    @property
    def widest_step(self) -> int:
        return max(len(step.requests) for step in self.of(StepScheduled))

    @property
    def has_mixed_step(self) -> bool:
        phases: dict[int, set[str]] = {}
        for each in self.of(ScheduleRequest):
            phases.setdefault(each.step, set()).add(each.phase)
        return {"prefill", "decode"} in phases.values()


class Recorded:
    """An `LLM` and the trace of all it does."""

    def __init__(self, model: str, folder: Path, **engine_args: Any) -> None:
        self._file = folder / "trace.jsonl"
        self.llm = LLM(
            model=model,
            device="cpu",
            max_model_len=MAX_MODEL_LEN,
            trace=self._file,
            trace_level="control",
            **{"dtype": "float32", **engine_args},
        )

    def run(self, prompts: Sequence[list[int]], params: SamplingParams | list[SamplingParams], apart: bool) -> Run:
        """Generate for all prompts together, or one after the other."""
        before = len(self.trace().events)
        inputs: list[Prompt] = [{"prompt_token_ids": prompt} for prompt in prompts]
        each = params if isinstance(params, list) else [params] * len(inputs)
        groups = [[n] for n in range(len(inputs))] if apart else [list(range(len(inputs)))]
        tokens = [
            output.outputs[0].token_ids
            for group in groups
            for output in self.llm.generate([inputs[n] for n in group], [each[n] for n in group], use_tqdm=False)
        ]
        assert not self.llm.llm_engine.has_unfinished_requests()
        return Run(tokens, self.trace().events[before:])

    def trace(self) -> Trace:
        """All that it has recorded so far."""
        return read_trace(self._file)

    def forget(self) -> None:
        """Start without cached prefixes; this is refused unless every block has been given back."""
        assert self.llm.llm_engine.reset_prefix_cache()


@pytest.fixture(
    scope="module",
    params=[pytest.param("orrery-tiny"), pytest.param("smollm2-135m", marks=pytest.mark.real_model)],
)
def case(request: pytest.FixtureRequest) -> Case:
    """A model and what Hugging Face makes of the prompts; computed once."""
    folder = (
        request.getfixturevalue("smollm2_path") if request.param == "smollm2-135m" else resolve_model(request.param)
    )
    prompts = _prompts(Tokenizer.from_folder(folder))
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    completions = [_complete(model, prompt) for prompt in prompts]
    return Case(request.param, prompts, [tokens for tokens, _ in completions], [gaps for _, gaps in completions])


def _prompts(tokenizer: Tokenizer) -> list[list[int]]:
    passage = tokenizer.encode(PASSAGE, add_special_tokens=False) * 2
    # Each cut begins elsewhere, so that prefixes are shared only where a test wants them to be.
    cuts = [passage[start : start + length] for start, length in zip(range(0, 400, 3), CUTS, strict=False)]
    return [*map(tokenizer.encode, SENTENCES), *cuts]


@torch.inference_mode()
def _complete(model: Any, prompt: list[int]) -> tuple[list[int], list[float]]:
    """Greedy tokens, and how clear each choice was."""
    result = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NUM_OUTPUT_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.cat(result.logits).topk(2).values
    return result.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist()


@pytest.fixture(scope="module")
def roomy(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Room for everything at once."""
    yield from _engine(case, tmp_path_factory, num_gpu_blocks_override=600, max_num_batched_tokens=8192)


@pytest.fixture(scope="module")
def tight(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """A pool that holds one request of full length and nothing beside it."""
    yield from _engine(case, tmp_path_factory, num_gpu_blocks_override=MAX_MODEL_LEN // 16 + 1)


@pytest.fixture(scope="module")
def chunked(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Steps of few tokens, of which no prompt may take all; and small blocks."""
    yield from _engine(
        case,
        tmp_path_factory,
        num_gpu_blocks_override=1200,
        block_size=8,
        max_num_batched_tokens=100,
        long_prefill_token_threshold=36,
    )


def _engine(case: Case, folders: pytest.TempPathFactory, **engine_args: Any) -> Iterator[Recorded]:
    recorded = Recorded(case.model, folders.mktemp(case.model), **engine_args)
    yield recorded
    recorded.llm.llm_engine.close()


GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT_TOKENS)


def check(case: Case, run: Run) -> None:
    """Every token is Hugging Face's; where one is not, say how near a tie it was."""
    differences = []
    for number, (ours, theirs) in enumerate(zip(run.tokens, case.expected, strict=True)):
        if ours != theirs:
            at = next(
                (n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
            )
            gap = case.gaps[number][at] if at < len(theirs) else float("nan")
            near = ", a near-tie" if gap < NEAR_TIE else ""
            differences.append(
                f"prompt {number} of {len(case.prompts[number])} tokens: output token {at} is {ours[at : at + 1]}, "
                f"expected {theirs[at : at + 1]}, whose logit leads by {gap:.2e}{near}"
            )
    assert not differences, "\n".join(differences)


def test_the_prompts_are_of_many_lengths_and_leave_no_choice_open(case: Case) -> None:
    lengths = [len(prompt) for prompt in case.prompts]
    assert len(lengths) >= 20
    assert (min(lengths), max(lengths)) == (1, 400)
    assert min(gap for gaps in case.gaps for gap in gaps) > NEAR_TIE


def test_one_by_one(case: Case, roomy: Recorded) -> None:
    roomy.forget()
    run = roomy.run(case.prompts, GREEDY, apart=True)
    check(case, run)
    assert run.widest_step == 1
    assert run.num_preemptions == 0


def test_all_in_one_batch(case: Case, roomy: Recorded) -> None:
    roomy.forget()
    run = roomy.run(case.prompts, GREEDY, apart=False)
    check(case, run)
    assert run.widest_step == len(case.prompts)
    assert run.num_preemptions == 0


def test_with_prefix_hits_and_in_another_order(case: Case, roomy: Recorded) -> None:
    roomy.forget()
    roomy.run(case.prompts, GREEDY, apart=False)
    run = roomy.run(case.prompts[::-1], GREEDY, apart=False)
    check(case, run._replace(tokens=run.tokens[::-1]))
    assert run.num_hit_tokens > 0
    # Of a prompt that fills its blocks, all but the last block is found: one token at least is computed.
    lookups = zip(case.prompts[::-1], run.of(KVLookup), strict=True)
    hits = {len(prompt): lookup.num_hit_tokens for prompt, lookup in lookups}
    assert (hits[16], hits[17], hits[32], hits[33], hits[64], hits[400]) == (0, 16, 16, 32, 48, 384)


def test_with_preemption(case: Case, tight: Recorded) -> None:
    run = tight.run(case.prompts, GREEDY, apart=False)
    check(case, run)
    assert run.num_preemptions > 0


def test_with_chunked_prefill(case: Case, chunked: Recorded) -> None:
    chunked.forget()
    run = chunked.run(case.prompts, GREEDY, apart=False)
    check(case, run)
    assert run.most_chunks >= 400 // 36
    assert run.has_mixed_step


def test_on_the_operators_of_torch(case: Case, tmp_path: Path) -> None:
    # The other tests run on what `auto` chooses: the compiled kernels, where there is a compiler.
    engine = Recorded(case.model, tmp_path, attention_backend="torch", num_gpu_blocks_override=600)
    check(case, engine.run(case.prompts, GREEDY, apart=False))
    engine.llm.llm_engine.close()


def test_bfloat16_changes_only_what_is_nearly_tied(case: Case, tmp_path: Path) -> None:
    engine = Recorded(case.model, tmp_path, dtype="bfloat16", num_gpu_blocks_override=600)
    tokens = engine.run(case.prompts, GREEDY, apart=False).tokens
    engine.llm.llm_engine.close()
    pairs = list(zip(tokens, case.expected, strict=True))
    parted = {
        number: next(n for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
        for number, (ours, theirs) in enumerate(pairs)
        if ours != theirs
    }
    assert len(parted) < len(pairs) / 2
    gaps = [case.gaps[number][at] for number, at in parted.items()]
    assert max(gaps, default=0.0) < NEAR_TIE_OF_BFLOAT16, gaps


def test_seeded_sampling_does_not_depend_on_any_of_it(
    case: Case, roomy: Recorded, tight: Recorded, chunked: Recorded
) -> None:
    # Prompts of 32 to 161 tokens: all of them fit into the tight pool at first, and then they grow.
    prompts, greedy = case.prompts[-7:-2], case.expected[-7:-2]
    params = [
        SamplingParams(temperature=0.9, top_k=40, top_p=0.95, seed=seed, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True)
        for seed in range(len(prompts))
    ]
    for engine in (roomy, tight, chunked):
        engine.forget()
    alone = roomy.run(prompts, params, apart=True)
    assert alone.tokens != greedy
    with_hits = roomy.run(prompts, params, apart=False)
    preempted = tight.run(prompts, params, apart=False)
    in_chunks = chunked.run(prompts, params, apart=False)
    assert with_hits.num_hit_tokens > 0
    assert with_hits.widest_step == len(prompts)
    assert preempted.num_preemptions > 0
    assert in_chunks.most_chunks > 1
    assert with_hits.tokens == preempted.tokens == in_chunks.tokens == alone.tokens


def test_every_trace_of_it_replays(roomy: Recorded, tight: Recorded, chunked: Recorded) -> None:
    for engine in (roomy, tight, chunked):
        report = replay(engine.trace())
        assert report.divergence is None, report.divergence
        assert report.num_decisions > 1000
