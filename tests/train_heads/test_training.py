"""Heads learn: batches hold what they say, positions mean what the engine means, a few steps make a loss smaller."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM

from engine.models.store import resolve_model
from scripts.train_heads.acceptance import measure
from scripts.train_heads.curve import draw, read_curve
from scripts.train_heads.eagle import EagleInTraining
from scripts.train_heads.examples import Batch, Examples
from scripts.train_heads.medusa import MedusaInTraining
from scripts.train_heads.prompts import beginnings, chat_prompts, is_held_out
from scripts.train_heads.questions import chat, self_asked
from scripts.train_heads.recipes import RECIPES, Schedule
from scripts.train_heads.states import write_states
from scripts.train_heads.texts import Text, read_texts, write_texts
from scripts.train_heads.training import train
from tests.models.random_models import save_random_model

VOCAB_SIZE, HIDDEN_SIZE = 131, 64


@pytest.fixture
def target(tmp_path: Path) -> LlamaForCausalLM:
    model = cast(LlamaForCausalLM, save_random_model(tmp_path / "target", "llama tied"))
    return model.eval().requires_grad_(False)


def made_up_texts(number: int) -> list[Text]:
    """Answers that count, so that what comes next can be known."""
    starts = torch.randint(3, 90, (number,), generator=torch.Generator().manual_seed(3)).tolist()
    return [Text(n, [1, start], list(range(start + 1, start + 21))) for n, start in enumerate(starts)]


def examples_of(target: LlamaForCausalLM, folder: Path) -> Examples:
    texts = made_up_texts(48)
    return Examples(texts, write_states(target, texts, folder / "states.f16"))


def test_states_are_the_targets_after_its_last_norm(target: LlamaForCausalLM, tmp_path: Path) -> None:
    examples = examples_of(target, tmp_path)
    batch = next(examples.held_out())
    with torch.inference_mode():
        logits = target(batch.token_ids).logits
    torch.testing.assert_close(batch.states @ target.lm_head.weight.T, logits, atol=0.02, rtol=0)
    assert batch.answers.tolist() == [[False] * 2 + [True] * 20]


def test_states_go_on_where_they_were_cut_off(target: LlamaForCausalLM, tmp_path: Path) -> None:
    texts, path = made_up_texts(5), tmp_path / "states.f16"
    whole = np.array(write_states(target, texts, path))
    with path.open("r+b") as file:
        file.truncate(2 * HIDDEN_SIZE * (22 * 3 + 7))
    assert np.array_equal(write_states(target, texts, path), whole)


def test_texts_go_on_where_they_were_cut_off(tmp_path: Path) -> None:
    prompts = [[1, 40 + number] for number in range(6)]
    path = tmp_path / "texts.jsonl"
    first = write_texts("orrery-tiny", prompts[:2], path, 1000, 5)
    with path.open("ab") as file:
        file.write(b'{"number": 2, "prom')
    everything = write_texts("orrery-tiny", prompts, path, 1000, 5)
    assert everything[:2] == first and [text.prompt for text in everything] == prompts
    assert read_texts(path) == everything
    assert all(1 <= len(text.answer) <= 5 for text in everything)
    with pytest.raises(ValueError, match=r"texts.jsonl has answers to other prompts"):
        write_texts("orrery-tiny", prompts[::-1], path, 1000, 5)


def test_questions_go_on_where_they_were_cut_off(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("orrery-tiny"))
    path = tmp_path / "questions.jsonl"
    first = self_asked("orrery-tiny", tokenizer, path, 2)
    with path.open("ab") as file:
        file.write(b'"How m')
    number = sum(line != b"null" for line in path.read_bytes().splitlines()[:-1]) + 2
    everything = self_asked("orrery-tiny", tokenizer, path, number)
    whole = tmp_path / "whole.jsonl"
    assert self_asked("orrery-tiny", tokenizer, whole, number) == everything
    assert whole.read_bytes() == path.read_bytes()
    assert len(everything) == number and everything[:2] == first == self_asked("orrery-tiny", tokenizer, path, 2)
    assert len({tuple(prompt) for prompt in everything}) == number
    empty = chat(tokenizer, "")
    assert all(len(prompt) >= len(empty) + 4 and prompt[:3] == empty[:3] for prompt in everything)


def test_prompts_are_varied_and_the_same_every_time() -> None:
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("orrery-tiny"))
    for made in (chat_prompts, beginnings):
        prompts = made(tokenizer)
        assert prompts == made(tokenizer)
        assert len({tuple(prompt) for prompt in prompts}) > 800
        assert len([n for n in range(len(prompts)) if is_held_out(n)]) >= 25
    assert set(RECIPES) == {"orrery-tiny", "smollm2-135m"}


def test_the_draft_vocabulary_is_what_the_target_writes_most(target: LlamaForCausalLM, tmp_path: Path) -> None:
    texts = [Text(1, [90, 91], [7, 7, 7, 5, 5, 9]), Text(2, [90], [7, 5, 3])]
    examples = Examples(texts, write_states(target, texts, tmp_path / "states.f16"))
    assert examples.most_frequent(2).tolist() == [5, 7]
    assert examples.most_frequent(6).tolist() == [0, 1, 3, 5, 7, 9]  # what was never written fills up from the lowest


def test_a_round_has_every_text_once_beside_others_of_its_length(target: LlamaForCausalLM, tmp_path: Path) -> None:
    lengths = torch.randperm(79, generator=torch.Generator().manual_seed(1)).tolist()
    texts = [Text(n + 1, [n, 90], [7] * (length + 1)) for n, length in enumerate(lengths) if not is_held_out(n + 1)]
    examples = Examples(texts, write_states(target, texts, tmp_path / "states.f16"))
    batches = list(examples.batches(4, seed=0))
    assert len(batches) == examples.num_batches(4)
    assert sorted(n for batch in batches for n in batch.token_ids[:, 0].tolist()) == sorted(t.prompt[0] for t in texts)
    assert sum(batch.answers.numel() for batch in batches) < 1.2 * sum(len(text.token_ids) for text in texts)
    again = examples.batches(4, seed=0)
    assert all(torch.equal(one.token_ids, other.token_ids) for one, other in zip(batches, again, strict=True))
    assert batches[0].token_ids.tolist() != next(examples.batches(4, seed=1)).token_ids.tolist()


def head_of(kind: str, target: LlamaForCausalLM, target_ids: Tensor) -> EagleInTraining | MedusaInTraining:
    torch.manual_seed(0)
    return EagleInTraining(target, target_ids, 2) if kind == "eagle" else MedusaInTraining(target, target_ids, 2)


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_a_few_steps_make_the_loss_smaller(kind: str, target: LlamaForCausalLM, tmp_path: Path) -> None:
    examples = examples_of(target, tmp_path)
    curve = tmp_path / f"{kind}.csv"
    losses = []
    for _ in range(2):
        head = head_of(kind, target, examples.most_frequent(100))
        train(head, examples, Schedule(rounds=12, batch=8, peak_lr=3e-3), curve)
        losses.append(read_curve(curve, "loss"))
    assert losses[0] == losses[1], "a training with the same seed is the same"
    assert losses[0][-1][1] < losses[0][0][1]
    with curve.open() as file:
        last = list(csv.DictReader(file))[-1]
    assert last["step"] == "72" and float(last["mean_acceptance_length"]) >= 1.0


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_hits_are_those_of_the_token_two_further_on(kind: str, target: LlamaForCausalLM) -> None:
    """A head that always says 50 hits where a draft's token is 50, and nowhere else."""
    head = head_of(kind, target, torch.arange(40, 60))
    head.lm_head.data.zero_()
    head.vocabulary.hit = lambda logits, token_ids: token_ids == 50  # type: ignore[method-assign]
    token_ids = torch.arange(40, 56)[None]
    answers = torch.arange(16)[None] >= 4
    hits = head.hits(Batch(token_ids, torch.randn(1, 16, HIDDEN_SIZE), answers))
    # From state i, draft d is token i + 2 + d; drafts begin once the answer's first token, 44 at 4, is drawn.
    for number, hit in enumerate(hits):
        assert hit.nonzero().flatten().tolist() == [50 - 45 - number]
    assert {len(hit) for hit in hits} == {16 - 5 - (len(hits) - 1)}


def test_acceptance_counts_a_draft_only_behind_accepted_ones(target: LlamaForCausalLM, tmp_path: Path) -> None:
    head = head_of("medusa", target, torch.arange(131))
    head.hits = lambda batch: [  # type: ignore[method-assign]
        torch.tensor([True, True, False, False]),
        torch.tensor([True, False, True, False]),
    ]
    acceptance = measure(head, examples_of(target, tmp_path))
    assert acceptance.by_position == [0.5, 0.25]
    assert acceptance.mean_length == 1.75


def test_the_picture_shows_both_curves(tmp_path: Path) -> None:
    for kind in ("eagle", "medusa"):
        lines = "step,loss,mean_acceptance_length\n20,4.0,\n40,2.0,1.5\n60,1.0,1.9\n"
        (tmp_path / f"{kind}.csv").write_text(lines)
    picture = draw("orrery-tiny", tmp_path)
    assert picture.count("<polyline") == 4 and "1.90" in picture
