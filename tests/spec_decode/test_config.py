"""What may be asked of speculative decoding, and the sentences that refuse the rest."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import EngineConfig, SpeculativeConfig
from engine.errors import ConfigError, ModelError, OrreryError
from engine.llm import LLM
from tests.models.random_models import save_random_model


def speculative(**options: Any) -> SpeculativeConfig:
    config = EngineConfig.from_args("orrery-tiny", speculative_config={"num_speculative_tokens": 3, **options})
    assert config.speculative is not None
    return config.speculative


@pytest.mark.parametrize(
    ("given", "shortest", "longest"),
    [
        ({}, 5, 5),
        ({"prompt_lookup_max": 4}, 4, 4),
        ({"prompt_lookup_min": 2}, 2, 2),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, 2, 4),
    ],
)
def test_lookup_lengths_are_completed_as_in_vllm(given: dict[str, int], shortest: int, longest: int) -> None:
    assert speculative(method="ngram", **given).prompt_lookup == (shortest, longest)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "ngrams"}, "method must be one of ngram, draft_model, medusa, eagle, got 'ngrams'"),
        ({}, "speculative_config must say method, which has no default"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens must be an integer >= 1, got 0"),
        ({"method": "ngram", "num_speculative_tokens": "3"}, "Expected `int`, got `str`"),
        ({"method": "ngram", "prompt_lookup_min": 0}, "prompt_lookup_min must be an integer >= 1, got 0"),
        (
            {"method": "ngram", "prompt_lookup_min": 3, "prompt_lookup_max": 2},
            "prompt_lookup_max must be an integer >=",
        ),
        ({"method": "ngram", "prompt_lookup": 3}, "prompt_lookup is not an option of speculative_config; known are"),
        (
            {"method": "ngram", "prompt_lookup_match": "best"},
            "prompt_lookup_match must be one of first, last, got 'best'",
        ),
        ({"method": "ngram", "model": "m"}, "model is an option of the method draft_model or medusa or eagle, not of"),
        ({"method": "eagle", "prompt_lookup_match": "last"}, "is an option of the method ngram, not of eagle"),
        ({"method": "ngram", "draft_confidence_threshold": 0.5}, "of the method draft_model or medusa or eagle, not"),
        ({"method": "eagle", "draft_confidence_threshold": 1.5}, r"threshold must be in \[0, 1\], got 1.5"),
        ({"method": "eagle", "draft_confidence_threshold": float("nan")}, r"threshold must be in \[0, 1\], got nan"),
        (
            {"method": "ngram", "disable_by_batch_size": 0},
            "disable_by_batch_size must be an integer >= 1, got 0",
        ),
        ({"method": "draft_model"}, "The method draft_model needs a model that drafts"),
        ({"method": "draft_model", "model": "m", "prompt_lookup_max": 3}, "is an option of the method ngram"),
        ({"method": "draft_model", "model": "m", "num_draft_layers": 0}, "num_draft_layers must be an integer >= 1"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        speculative(**options)


def test_the_number_of_drafts_must_be_said() -> None:
    with pytest.raises(ConfigError, match="speculative_config must say num_speculative_tokens"):
        EngineConfig.from_args("orrery-tiny", speculative_config={"method": "ngram"})


def test_it_must_be_a_mapping() -> None:
    with pytest.raises(ConfigError, match=r"speculative_config must hold method, num_speculative_tokens, .* got"):
        EngineConfig.from_args("orrery-tiny", speculative_config="ngram")


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({}, {}, "must have the vocabulary of the model, 2048 tokens, but"),
        ({"vocab_size": 2048, "max_position_embeddings": 100}, {}, "knows 100 positions: lower max_model_len"),
        ({"vocab_size": 2048}, {"num_draft_layers": 4}, "num_draft_layers=4 is more than the 3 layers there are"),
    ],
    ids=str,
)
def test_a_draft_model_must_fit(tmp_path: Any, changes: dict[str, Any], options: dict[str, Any], sentence: str) -> None:
    save_random_model(tmp_path, "llama", **changes)
    config = {"method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": 3, **options}
    with pytest.raises(ConfigError, match=sentence):
        LLM("orrery-tiny", max_model_len=200, speculative_config=config)


def test_a_window_in_either_model_is_refused(tmp_path: Any) -> None:
    save_random_model(tmp_path, "mistral windowed", vocab_size=2048)
    config = {"method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": 3}
    with pytest.raises(ConfigError, match="needs two models of full attention"):
        LLM("orrery-tiny", max_model_len=200, speculative_config=config)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "medusa", "num_speculative_tokens": 9}, "num_speculative_tokens must be at most 4, the number of"),
        (
            {"method": "eagle", "model": "orrery-tiny-medusa"},
            "must hold a draft head of architecture EagleHead, got Med",
        ),
        ({"method": "medusa", "model": "orrery-tiny-draft"}, "must hold a draft head of architecture MedusaHead, got"),
        (
            {"method": "eagle", "model": "no-such-head"},
            "There is no draft head 'no-such-head': give one of orrery-tiny-eagle",
        ),
    ],
    ids=str,
)
def test_heads_must_fit(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OrreryError, match=sentence):
        LLM("orrery-tiny", max_model_len=200, speculative_config={"num_speculative_tokens": 2, **options})


def test_a_head_of_another_model_is_refused(tmp_path: Any) -> None:
    save_random_model(tmp_path, "llama", vocab_size=2048)
    config = {"method": "eagle", "model": "orrery-tiny-eagle", "num_speculative_tokens": 2}
    with pytest.raises(ModelError, match=r"The draft head in .* is made for orrery-tiny: its hidden_size is"):
        LLM(str(tmp_path), max_model_len=200, speculative_config=config)
