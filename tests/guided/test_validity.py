"""The promise of guided decoding, with a real model at temperature 1: what is finished is valid, what is not is the
beginning of something valid; with drafts as well as without.

A sample runs by default. `ORRERY_ALL_GRAMMARS=1` runs all: 200 regular expressions, 100 JSON schemas, 20 grammars.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import regex

from engine.guided_decoding import GuidedDecodingParams
from engine.llm import LLM
from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams
from tests.guided.random_grammars import (
    EBNF_GRAMMARS,
    accepts,
    is_prefix,
    json_parser,
    parser_of,
    random_regex,
    random_schema,
)

ALL = os.environ.get("ORRERY_ALL_GRAMMARS") == "1"
NUM_REGEXES, NUM_SCHEMAS, NUM_GRAMMARS = (200, 100, 20) if ALL else (24, 12, 6)
PROMPT = "Here is a short example:"

pytestmark = pytest.mark.real_model


#: Drafts of a few layers of the model itself, so that many are accepted and many are not; none; and n-grams.
DRAFTERS: dict[str, dict[str, Any] | None] = {
    "no drafts": None,
    "its own layers": {"method": "draft_model", "num_speculative_tokens": 2, "num_draft_layers": 12},
    "n-grams": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 4},
}


@pytest.fixture(scope="module", params=DRAFTERS if ALL else ["no drafts", "n-grams"])
def real_llm(smollm2_path: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    speculative = DRAFTERS[request.param]
    if speculative is not None:
        speculative = {**speculative, "disable_by_batch_size": None}
        if speculative["method"] == "draft_model":
            speculative["model"] = str(smollm2_path)
    llm = LLM(str(smollm2_path), max_num_seqs=16, max_model_len=512, speculative_config=speculative)
    yield llm
    llm.llm_engine.close()


def run(llm: LLM, forms: list[dict[str, Any]], max_tokens: int) -> list[RequestOutput]:
    params = [
        SamplingParams(guided_decoding=GuidedDecodingParams(**form), temperature=1.0, seed=seed, max_tokens=max_tokens)
        for seed, form in enumerate(forms)
    ]
    return llm.generate([PROMPT] * len(forms), params)


def judge(
    outputs: list[RequestOutput],
    is_valid: Callable[[int, str], bool],
    may_become_valid: Callable[[int, str], bool],
) -> None:
    """At least nine of ten finish, and nothing that came out is wrong."""
    wrong: list[tuple[int, str]] = []
    num_finished = 0
    for index, output in enumerate(outputs):
        assert output.error is None, (index, output.error)
        text, finished = output.outputs[0].text, output.outputs[0].finish_reason == "stop"
        num_finished += finished
        # A text may break off in the middle of a character.
        if not (is_valid(index, text) if finished else may_become_valid(index, text.rstrip("\ufffd"))):
            wrong.append((index, text))
    assert wrong == []
    assert num_finished >= 0.9 * len(outputs)


def test_regular_expressions(real_llm: LLM) -> None:
    patterns = [random_regex(random.Random(seed)) for seed in range(NUM_REGEXES)]
    compiled = [regex.compile(pattern, regex.DOTALL | regex.ASCII) for pattern in patterns]
    judge(
        run(real_llm, [{"regex": pattern} for pattern in patterns], max_tokens=96),
        lambda index, text: compiled[index].fullmatch(text) is not None,
        lambda index, text: compiled[index].fullmatch(text, partial=True) is not None,
    )


def test_json_schemas(real_llm: LLM) -> None:
    schemas = [random_schema(random.Random(seed)) for seed in range(NUM_SCHEMAS)]
    any_json = json_parser()

    def is_valid(index: int, text: str) -> bool:
        try:
            value = json.loads(text)
        except ValueError:
            return False
        return jsonschema.Draft202012Validator(schemas[index]).is_valid(value)

    # At this temperature a small model gets lost in white space, where any is allowed.
    white: list[dict[str, Any]] = [{"disable_any_whitespace": True}, {"whitespace_pattern": r"[ \n]{0,2}"}]
    forms = [{"json": schema, **white[index % 2]} for index, schema in enumerate(schemas)]
    judge(run(real_llm, forms, max_tokens=320), is_valid, lambda index, text: is_prefix(any_json, text))


def test_grammars(real_llm: LLM) -> None:
    grammars = EBNF_GRAMMARS[:NUM_GRAMMARS]
    parsers = [parser_of(grammar) for grammar in grammars]
    judge(
        run(real_llm, [{"grammar": grammar} for grammar in grammars], max_tokens=96),
        lambda index, text: accepts(parsers[index], text),
        lambda index, text: is_prefix(parsers[index], text),
    )
