"""From every form to a grammar: which texts it lets through, and why a bad one is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import xgrammar

from engine.guided.errors import GrammarError
from engine.guided.grammars import make_grammar
from engine.guided_decoding import GuidedDecodingParams

LONGEST = 2**18
EOS = 256


@pytest.fixture(scope="module")
def compiler() -> xgrammar.GrammarCompiler:
    """For a vocabulary of the 256 bytes and an end."""
    vocabulary = [bytes([byte]) for byte in range(256)] + [b""]
    info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, stop_token_ids=[EOS])
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def accepts(compiler: xgrammar.GrammarCompiler, asked: dict[str, Any], text: str) -> bool:
    grammar = make_grammar(GuidedDecodingParams(**asked).spec(), LONGEST)
    matcher = xgrammar.GrammarMatcher(compiler.compile_grammar(grammar))
    return matcher.accept_string(text) and matcher.is_completed()


TAGS = {
    "structures": [{"begin": "<f>", "schema": {"type": "string", "maxLength": 2}, "end": "</f>"}],
    "triggers": ["<f"],
}


#: Names whose last letters are hexadecimal digits, beside a string that makes the grammar be written anew.
KEYS = {"type": "object", "properties": {name: {"type": "string", "maxLength": 1} for name in ("größe", "ÿ1")}}


@pytest.mark.parametrize(
    ("asked", "right", "wrong"),
    [
        ({"choice": ['a"b\\', "é\n日", "\U0001f600"]}, ['a"b\\', "é\n日", "\U0001f600"], ["a", "é", 'a"b\\a']),
        ({"regex": r"(\d{3}-){1,2}[^x]é"}, ["123-yé", "123-456-yé"], ["123-xé", "12-yé", "123-ye"]),
        ({"grammar": 'root ::= "(" root ")" | [0-9]+'}, ["12", "((7))"], ["", "(7", "()"]),
        ({"json_object": True}, ["{}", '{"a": [1, null, {"b": "\\u00e9"}]}'], ["[1]", "{'a': 1}", '{"a": 1,}']),
        ({"json": {"type": "string", "maxLength": 2}}, ['"é!"', '""'], ['"abc"', '"\t"', '"\x00"']),
        ({"json": {"type": "string", "pattern": "^a.c$"}}, ['"abc"'], ['"a"c"', '"a\\c"', '"a\nc"', '"ac"']),
        ({"json": KEYS}, ['{"größe": "a"}', '{"ÿ1": "a"}'], ['{"gr\u00f6\u0dfe": "a"}']),
        ({"json": True}, ["3", "[null]"], ["", "nul"]),
        ({"structural_tag": TAGS}, ["", "a < f", 'x<f>"é"</f>y'], ["<f", '<f>"\t"</f>', '<f>"abc"</f>', "<f>3</f>"]),
    ],
)
def test_a_grammar_lets_the_right_texts_through(
    compiler: xgrammar.GrammarCompiler, asked: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not accepts(compiler, asked, text)] == []
    assert [text for text in wrong if accepts(compiler, asked, text)] == []


@pytest.mark.parametrize(
    ("white", "right", "wrong"),
    [
        ({}, ["[1,2]", "[ 1,\n2 ]"], ["[1 2]"]),
        ({"disable_any_whitespace": True}, ["[1, 2]"], ["[1,2]", "[1,  2]", "[ 1]"]),
        ({"whitespace_pattern": "[ _]?"}, ["[1,2]", "[_1, 2_]"], ["[1,  2]", "[\n1]"]),
        ({"whitespace_pattern": "(root)?"}, ["[root1,2]"], ["[ 1]"]),
    ],
)
def test_white_space_is_what_was_asked_for(
    compiler: xgrammar.GrammarCompiler, white: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    asked = {"json": {"type": "array", "items": {"type": "integer"}}, **white}
    assert [text for text in right if not accepts(compiler, asked, text)] == []
    assert [text for text in wrong if accepts(compiler, asked, text)] == []


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"regex": "(ab"}, "Regex parsing error at position 4: The parenthesis is not closed"),
        ({"regex": "(?=a)b"}, "Lookahead is not supported yet"),
        ({"regex": "a{3,1}"}, "Lower bound is larger than upper bound"),
        ({"grammar": "root ::= foo"}, 'Rule "foo" is not defined'),
        ({"grammar": 'start ::= "a"'}, 'The root rule with name "root" is not found'),
        ({"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000}, "Nest layer exceeded the maximum limit"),
        ({"grammar": 'root ::= "a" root'}, "the grammar is empty: no text matches it"),
        ({"grammar": "root ::= root"}, "the grammar is empty: no text matches it"),
        ({"json": {"type": "obj"}}, 'Unsupported type "obj"'),
        ({"json": {"$ref": "#/$defs/nobody"}}, "Cannot find field"),
        ({"json": {"enum": []}}, "enum array must not be empty"),
        ({"json": False}, "Schema 'false' cannot accept any value"),
        ({"json": "[1]"}, "Schema should be an object or bool"),
        ({"json": {"oneOf": 3}}, ""),
        ({"json": {"properties": ["a"]}}, ""),
        ({"structural_tag": {}}, "Structural tag must have a format field"),
        ({"structural_tag": {"structures": [{"begin": "<f>"}], "triggers": []}}, ""),
        ({"regex": "a" * (LONGEST + 1)}, "the grammar has 262,145 bytes, max_grammar_bytes allows 262,144"),
    ],
)
def test_a_grammar_that_is_none_is_refused_with_the_reason(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(GrammarError) as refusal:
        make_grammar(GuidedDecodingParams(**asked).spec(), LONGEST)
    assert why in str(refusal.value)
    assert "/project/" not in str(refusal.value)


OBJECT = {"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind"]}
OTHER = {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]}


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "integer", "multipleOf": 5}, "multipleOf"),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"const": 3}}, "contains"),
        ({"type": "integer", "not": {"const": 3}}, "not"),
        ({"type": "integer", "if": {"const": 3}, "then": {"const": 4}}, "if"),
        ({"type": "object", "properties": {"a": {"multipleOf": 2}}}, "#/properties/a"),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "allOf"),
        ({"$ref": "#/$defs/x", "minimum": 3, "$defs": {"x": {"type": "integer"}}}, "minimum beside $ref"),
        ({"type": "integer", "anyOf": [{"minimum": 3}]}, "type beside anyOf"),
        ({"type": "integer", "enum": [1, "a"]}, "not of the type beside it"),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, "not in properties"),
        ({"type": "string", "pattern": 'a"b'}, "quotes or backslashes"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "options 0 and 1 of oneOf"),
        ({"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, "options 0 and 1 of oneOf"),
    ],
)
def test_a_schema_that_the_compiler_would_not_hold_to_is_refused(schema: dict[str, Any], keyword: str) -> None:
    with pytest.raises(GrammarError) as refusal:
        make_grammar(GuidedDecodingParams(json=schema).spec(), LONGEST)
    assert keyword in str(refusal.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        {"oneOf": [OBJECT, {"$ref": "#/$defs/other"}], "$defs": {"other": OTHER}},
        {"oneOf": [{"enum": [1, 2]}, {"enum": ["3"]}]},
        {"type": "string", "enum": ["not", "if"], "title": "multipleOf"},
        {"type": "object", "properties": {"not": {"type": "integer"}, "contains": {"type": "null"}}},
        {"allOf": [{"type": "integer"}]},
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": False},
        {"const": {"multipleOf": 3}},
    ],
)
def test_what_only_looks_like_an_unheeded_keyword_is_fine(schema: dict[str, Any]) -> None:
    assert make_grammar(GuidedDecodingParams(json=json.dumps(schema)).spec(), LONGEST) is not None


def test_schemas_that_are_nested_too_deep_are_refused() -> None:
    def nested(depth: int) -> str:
        return '{"type":"array","items":' * depth + '{"type":"string"}' + "}" * depth

    make_grammar(GuidedDecodingParams(json=nested(20)).spec(), LONGEST)
    with pytest.raises(GrammarError, match="the schema is nested more than 128 deep"):
        make_grammar(GuidedDecodingParams(json=nested(200)).spec(), LONGEST)
