"""Real logits through the sampler's steps, and through Hugging Face's logits processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor

from engine.core.messages import NewRequestData, ScheduledRow
from engine.frontend.bad_words import bad_words_token_ids
from engine.frontend.tokenizer import Tokenizer
from engine.sample.sampler import SamplingMetadata, process_logits, truncated_logits
from engine.sampling_params import SamplingParams
from engine.worker.input_batch import InputBatch

from .conftest import Reference

VOCAB_SIZE = 2048
EOS = 2
TEXTS = ["Once upon a time, a brave", "The moon is the moon and", "What color is the sea? The sea is"]


@pytest.fixture(scope="module")
def rows(reference: Reference, tokenizer: Tokenizer) -> tuple[list[list[int]], Tensor]:
    """Texts as token ids, and what the model says behind each."""
    ids = [tokenizer.encode(text) for text in TEXTS]
    return ids, torch.stack([reference.logits(each)[-1] for each in ids])


def metadata_of(token_ids: list[list[int]], num_prompt: int, params: list[SamplingParams]) -> SamplingMetadata:
    """What the batch makes of requests whose first tokens are their prompts and the others their output."""
    batch = InputBatch(len(params), max_model_len=64, block_size=16, vocab_size=VOCAB_SIZE, eos_token_ids=(EOS,))
    for serial, (ids, each) in enumerate(zip(token_ids, params, strict=True)):
        new = NewRequestData(token_ids=ids, num_prompt_tokens=num_prompt, sampling_params=each)
        row = ScheduledRow(
            serial=serial, request_id="", num_scheduled_tokens=1, num_computed_tokens=0, block_ids=([],), new=new
        )
        batch.update(row)
    places = np.array([batch.row_of(serial) for serial in range(len(params))])
    return batch.sampling_metadata(places, torch.device("cpu"))


def check(
    rows: tuple[list[list[int]], Tensor],
    params: SamplingParams,
    processor: Callable[..., Any],
    num_prompt: int,
    seen_from: int = 0,
) -> Tensor:
    """Our logits equal those of the other processor, which sees the tokens from `seen_from` on. Returns them."""
    token_ids, logits = rows
    before = logits.clone()
    metadata = metadata_of(token_ids, num_prompt, [params] * len(token_ids))
    ours = truncated_logits(process_logits(logits, metadata), metadata)
    assert torch.equal(logits, before), "the model's own logits are needed for log probabilities"
    theirs = torch.cat(
        [
            processor(torch.tensor([ids[seen_from:]]), row[None].clone())
            for ids, row in zip(token_ids, logits, strict=True)
        ]
    )
    torch.testing.assert_close(ours, theirs)
    return ours


@pytest.mark.parametrize("penalty", [0.8, 1.0, 1.2, 3.0])
def test_repetition_penalty(rows: tuple[list[list[int]], Tensor], penalty: float) -> None:
    params = SamplingParams(seed=0, repetition_penalty=penalty)
    check(rows, params, hf.RepetitionPenaltyLogitsProcessor(penalty), num_prompt=3)


@pytest.mark.parametrize("top_k", [1, 5, 50, VOCAB_SIZE])
def test_top_k(rows: tuple[list[list[int]], Tensor], top_k: int) -> None:
    ours = check(rows, SamplingParams(seed=0, top_k=top_k), hf.TopKLogitsWarper(top_k), num_prompt=3)
    assert (ours > -torch.inf).sum(dim=-1).tolist() == [top_k] * len(TEXTS)


@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 0.99, 1.0])
def test_top_p(rows: tuple[list[list[int]], Tensor], top_p: float) -> None:
    check(rows, SamplingParams(seed=0, top_p=top_p), hf.TopPLogitsWarper(top_p), num_prompt=3)


@pytest.mark.parametrize("min_p", [1e-4, 0.05, 0.5, 1.0])
def test_min_p(rows: tuple[list[list[int]], Tensor], min_p: float) -> None:
    check(rows, SamplingParams(seed=0, min_p=min_p), hf.MinPLogitsWarper(min_p), num_prompt=3)


def test_all_of_them_in_their_order(rows: tuple[list[list[int]], Tensor]) -> None:
    params = SamplingParams(seed=0, repetition_penalty=1.4, temperature=0.7, min_p=0.01, top_k=40, top_p=0.9)
    processors = hf.LogitsProcessorList(
        [
            hf.RepetitionPenaltyLogitsProcessor(1.4),
            hf.TemperatureLogitsWarper(0.7),
            hf.MinPLogitsWarper(0.01),
            hf.TopKLogitsWarper(40),
            hf.TopPLogitsWarper(0.9),
        ]
    )
    check(rows, params, processors, num_prompt=3)


def test_bad_words(rows: tuple[list[list[int]], Tensor], tokenizer: Tokenizer) -> None:
    words = ["moon", "the sea is blue", "lighthouse", " brave"]
    spelled = bad_words_token_ids(words, tokenizer)
    assert max(map(len, spelled)) > 1
    # The last text ends with all of a bad word but its last token.
    sea = (*rows[0][2][-2:], 700)
    params = SamplingParams(seed=0, bad_words=words, bad_words_token_ids=(*spelled, sea))
    processor = hf.NoBadWordsLogitsProcessor([list(word) for word in (*spelled, sea)])
    ours = check(rows, params, processor, num_prompt=1, seen_from=1)
    assert ours[2, sea[-1]] == -torch.inf
    assert ours[0, sea[-1]] > -torch.inf


@pytest.mark.parametrize("min_tokens", [0, 3, 4, 5, 50])
def test_min_tokens(rows: tuple[list[list[int]], Tensor], min_tokens: int) -> None:
    ids, logits = [each[:7] for each in rows[0]], rows[1]
    params = SamplingParams(seed=0, min_tokens=min_tokens, max_tokens=100, stop_token_ids=[9])
    processor = hf.MinNewTokensLengthLogitsProcessor(3, min_tokens, [EOS, 9], device="cpu")
    ours = check((ids, logits), params, processor, num_prompt=3)
    assert bool((ours[:, EOS] == -torch.inf).all()) == (min_tokens > 4)


def test_logit_bias(rows: tuple[list[list[int]], Tensor]) -> None:
    bias = {5: 3.0, 100: -7.5, 2047: 100.0}
    processor = hf.SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()])
    check(rows, SamplingParams(seed=0, logit_bias=bias), processor, num_prompt=3)


def test_allowed_token_ids(rows: tuple[list[list[int]], Tensor]) -> None:
    everything_else = [[token] for token in range(VOCAB_SIZE) if token not in (5, 6, 7)]
    params = SamplingParams(seed=0, allowed_token_ids=[5, 6, 7])
    check(rows, params, hf.NoBadWordsLogitsProcessor(everything_else), num_prompt=1, seen_from=1)


def test_a_batch_without_any_of_this_pays_nothing(rows: tuple[list[list[int]], Tensor]) -> None:
    metadata = metadata_of(rows[0], 3, [SamplingParams(seed=0, temperature=0.5, top_k=4)] * len(TEXTS))
    assert process_logits(rows[1], metadata) is rows[1]


def test_no_row_depends_on_its_neighbours(rows: tuple[list[list[int]], Tensor]) -> None:
    ids, logits = rows
    params = [
        SamplingParams(temperature=0, repetition_penalty=2.0, logit_bias={9: 4.0}),
        SamplingParams(temperature=0),
        SamplingParams(
            seed=1, presence_penalty=1.0, min_tokens=9, bad_words_token_ids=((5,),), allowed_token_ids=[5, 6]
        ),
    ]
    together = process_logits(logits, metadata_of(ids, 3, params))
    backwards = process_logits(logits.flip(0), metadata_of(ids[::-1], 3, params[::-1])).flip(0)
    assert torch.equal(together, backwards)
    assert torch.equal(together[1], logits[1])
    for place in range(3):
        alone = process_logits(logits[place : place + 1], metadata_of(ids[place : place + 1], 3, [params[place]]))
        assert torch.equal(alone[0], together[place])
