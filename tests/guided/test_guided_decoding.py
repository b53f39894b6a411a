"""What a user may ask of an output, and what is refused at the door."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError, RequestError
from engine.frontend.response_format import guided_decoding_of
from engine.guided_decoding import GrammarSpec, GuidedDecodingParams
from engine.sampling_params import SamplingParams

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Model:
    """What a Pydantic model looks like from outside."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return SCHEMA


@pytest.mark.parametrize(
    ("asked", "spec"),
    [
        ({"choice": ["Positive", "Negative", "Positive"]}, ("choice", '["Positive","Negative"]')),
        ({"regex": r"\d+"}, ("regex", r"\d+")),
        ({"json": '{"type": "integer"}'}, ("json", '{"type": "integer"}')),
        ({"json": SCHEMA}, ("json", msgspec.json.encode(SCHEMA).decode())),
        ({"json": Model}, ("json", msgspec.json.encode(SCHEMA).decode())),
        ({"json_object": True}, ("json_object", "")),
        ({"grammar": 'root ::= "a"'}, ("grammar", 'root ::= "a"')),
        ({"structural_tag": {"structures": [], "triggers": []}}, ("structural_tag", '{"structures":[],"triggers":[]}')),
    ],
)
def test_every_form_becomes_a_spec(asked: dict[str, Any], spec: tuple[Any, str]) -> None:
    assert GuidedDecodingParams(**asked).spec() == GrammarSpec(kind=spec[0], text=spec[1])


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({}, "exactly one of json, regex"),
        ({"json_object": False}, "exactly one of json, regex"),
        ({"regex": "a", "choice": ["a"]}, "got regex and choice"),
        ({"regex": ""}, "regex must be a non-empty string"),
        ({"regex": "\ud800"}, "regex must be valid Unicode"),
        ({"grammar": 3}, "grammar must be a non-empty string"),
        ({"choice": []}, "choice must be a list of at least one text"),
        ({"choice": "yes"}, "choice must be a list of at least one text"),
        ({"choice": ["yes", ""]}, "choice must be a non-empty string"),
        ({"json": "{"}, "json must be JSON"),
        ({"json": 3}, "json must be JSON as text or as a dict"),
        ({"json": {"type": object}}, "json must hold nothing but JSON values"),
        ({"json": {"const": float("nan")}}, "json must hold nothing but JSON values: Out of range float"),
        ({"json_object": "yes"}, "json_object must be True or False"),
        ({"regex": "a", "backend": "outlines"}, "backend must be one of auto, xgrammar"),
        ({"regex": "a", "whitespace_pattern": " ?"}, "whitespace_pattern is for json and json_object only"),
        ({"json": {}, "whitespace_pattern": " ?", "disable_any_whitespace": True}, "contradict each other"),
        ({"regex": "a", "disable_any_whitespace": 1}, "disable_any_whitespace must be True or False"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        GuidedDecodingParams(**asked)


def test_the_parameters_are_part_of_the_sampling_parameters() -> None:
    params = SamplingParams(guided_decoding=GuidedDecodingParams(choice=["a", "b"]))
    assert msgspec.json.decode(msgspec.json.encode(params), type=SamplingParams) == params
    with pytest.raises(RequestError, match="guided_decoding must be GuidedDecodingParams, got str"):
        SamplingParams(guided_decoding="[ab]")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("response_format", "kind"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, "json_object"),
        ({"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}, "json"),
        ({"type": "structural_tag", "structures": [], "triggers": []}, "structural_tag"),
    ],
)
def test_the_response_format_of_openai(response_format: dict[str, Any] | None, kind: str | None) -> None:
    guided = guided_decoding_of(response_format)
    assert (guided.spec().kind if guided else None) == kind


@pytest.mark.parametrize(
    ("response_format", "why"),
    [
        ({"type": "xml"}, "must have a type out of text, json_object, json_schema, structural_tag"),
        ({}, "must have a type"),
        ("json_object", "must have a type"),
        ({"type": "json_schema", "json_schema": {"name": "person"}}, "must have a schema in its json_schema"),
        ({"type": "json_schema"}, "must have a schema in its json_schema"),
    ],
)
def test_a_response_format_that_is_none_is_refused(response_format: Any, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        guided_decoding_of(response_format)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("guided_decoding_backend", "outlines"),
        ("max_grammar_bytes", 0),
        ("grammar_compile_timeout", 0.0),
        ("grammar_compile_timeout", float("nan")),
        ("max_compiling_grammars", 0),
        ("grammar_cache_bytes", -1),
        ("max_automaton_states", 1),
    ],
)
def test_limits_are_checked_at_the_door(argument: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        EngineConfig.from_args("orrery-tiny", **{argument: value})
