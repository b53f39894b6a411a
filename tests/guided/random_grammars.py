"""Grammars of every form, drawn at random or written by hand, and parsers that owe nothing to the engine."""

from __future__ import annotations

import random
import re
from typing import Any

import lark

_UNICODE = "äßé日本☂"


def random_regex(rng: random.Random) -> str:
    """A regular expression that a model is likely to come to the end of."""
    return "".join(_random_piece(rng, depth=2) for _ in range(rng.randint(1, 4)))


def _random_piece(rng: random.Random, depth: int) -> str:
    kind = rng.choice(["word", "class", "class", "group", "alternatives", "any"]) if depth else "word"
    match kind:
        case "word":
            letters = [rng.choice("abcdefgh ,:-_'\"" + _UNICODE) for _ in range(rng.randint(1, 5))]
            return "".join(map(re.escape, letters)) + rng.choice(["", "", "", "\\.", "\\(x\\)", "\\\\"])
        case "class":
            inside = rng.choice(
                ["[a-z]", "[0-9]", r"\d", r"\w", "[^a-m]", "[A-Z_é]", r"[\]\-x]", "[日-本0-3]", r"[^\n\"]"]
            )
            return inside + _random_count(rng)
        case "any":
            return "." + rng.choice(["", "{1,4}", "?"])
        case "group":
            inner = "".join(_random_piece(rng, depth - 1) for _ in range(rng.randint(1, 2)))
            return f"({inner}){_random_count(rng)}"
    options = "|".join(_random_piece(rng, depth - 1) for _ in range(rng.randint(2, 4)))
    return f"(?:{options}){rng.choice(['', '', '?', '{1,2}'])}"


def _random_count(rng: random.Random) -> str:
    low = rng.randint(0, 3)
    if rng.random() < 0.02:  # a small model, once in such a loop, seldom finds its way out
        return rng.choice("*+")
    return rng.choice(["", "", "?", f"{{{low + 1}}}", f"{{{low},{low + rng.randint(1, 3)}}}"])


def random_schema(rng: random.Random) -> dict[str, Any]:
    """A JSON schema: nested objects, arrays, enumerations, numbers, strings, references, Unicode."""
    definitions: dict[str, Any] = {
        "leaf": _random_leaf(rng),
        "list": {
            "type": "object",
            "properties": {
                "value": {"$ref": "#/$defs/leaf"},
                "next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
        },
    }
    schema = _random_value(rng, depth=3) if rng.random() < 0.2 else _random_object(rng, depth=2)
    return {**schema, "$defs": definitions} if "$ref" in str(schema) else schema


def _random_value(rng: random.Random, depth: int) -> dict[str, Any]:
    if depth == 0 or rng.random() < 0.5:
        return (
            {"$ref": rng.choice(["#/$defs/leaf"] * 3 + ["#/$defs/list"])} if rng.random() < 0.15 else _random_leaf(rng)
        )
    if rng.random() < 0.2:
        return {"anyOf": [_random_value(rng, depth - 1) for _ in range(2)]}
    return _random_object(rng, depth - 1) if rng.random() < 0.6 else _random_array(rng, depth - 1)


def _random_object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(["name", "age", "größe", "日付", "is ok", 'a"b', "x-y", "_", "items"], rng.randint(1, 4))
    properties = {name: _random_value(rng, depth) for name in names}
    required = [name for name in names if rng.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _random_array(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(0, 2)
    if rng.random() < 0.2:
        parts = [_random_leaf(rng) for _ in range(rng.randint(1, 3))]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
    return {"type": "array", "items": _random_value(rng, depth), "minItems": low, "maxItems": low + rng.randint(0, 2)}


def _random_leaf(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    return rng.choice(
        [
            {"type": "integer"} if rng.random() < 0.06 else {"type": "integer", "minimum": 0, "maximum": 120},
            {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 200)},
            {"type": "number"} if rng.random() < 0.06 else {"type": "integer", "exclusiveMinimum": 3, "maximum": 99},
            {"type": "number", "minimum": low, "exclusiveMaximum": low + 7}
            if rng.random() < 0.06
            else {"type": "null"},
            {"type": "boolean"},
            {"type": "null"},
            {"type": "string", "maxLength": rng.randint(1, 12)},
            {"type": "string", "minLength": 2, "maxLength": 5},
            {"type": "string", "pattern": rng.choice(["^[a-z]{2,6}$", "^\\d{3}-\\d{2}$", "^(ab|.)[^x]$"])},
            {"type": "string", "format": rng.choice(["date", "uuid", "ipv4"])},
            {"enum": rng.sample([1, 2.5, "grün", "日本", 'a"b\\', None, True, [1], {"k": "v"}], rng.randint(1, 4))},
            {"const": rng.choice(["☂", 0, -3, "", False])},
        ]
    )


#: EBNF in the dialect of llama.cpp; `as_lark` says the same for a parser.
EBNF_GRAMMARS = [
    'root ::= "yes" | "no" | "maybe"',
    'root ::= [0-9]+ ("." [0-9] [0-9])?',
    'root ::= "(" root ")" | [a-z]',
    'root ::= word (" " word)? (" " word)? "."\nword ::= [a-z] [a-z]? [a-z]? [a-z]?',
    'root ::= expr\nexpr ::= term (("+" | "-") term)?\nterm ::= [0-9] [0-9]? | "(" expr ")"',
    'root ::= "SELECT " col (", " col)* " FROM " table\ncol ::= "id" | "name" | "*"\ntable ::= "users" | "orders"',
    'root ::= "<" name ">" body "</" name ">"\nname ::= "b" | "i"\nbody ::= [a-z ] [a-z ]? [a-z ]? [a-z ]?',
    'root ::= list\nlist ::= "[" (item (", " item)?)? "]"\nitem ::= [0-9] | list',
    'root ::= [A-Z] [a-z]? [a-z]? [a-z]? ", " [A-Z] [a-z]? [a-z]? "!"',
    'root ::= time | date\ntime ::= [0-2] [0-9] ":" [0-5] [0-9]\ndate ::= [0-9] [0-9] [0-9] [0-9] "-" [0-1] [0-9]',
    'root ::= "日本" | "größe" | [äöü] [äöü]?',
    'root ::= key "=" value (";" key "=" value)?\nkey ::= [a-c] [a-c]?\nvalue ::= "\\"" [^"\\\\\\n] [^"\\\\\\n]? "\\""',
    'root ::= "0x" hex hex? hex? hex?\nhex ::= [0-9a-f]',
    'root ::= move " " move\nmove ::= [a-h] [1-8] | [KQRBN] [a-h] [1-8] | "O-O"',
    'root ::= and (" or " and)?\nand ::= not (" and " not)?\nnot ::= "not " not | "true" | "false" | "(" root ")"',
    'root ::= "#" [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] | "rgb(" byte "," byte "," byte ")"\nbyte ::= [0-9] [0-9]?',
    'root ::= line line?\nline ::= "- " [a-z] [a-z]? [a-z]? [a-z]? "\\n"',
    'root ::= octet "." octet "." octet "." octet\noctet ::= [1-9]? [0-9]',
    'root ::= "if " cond " then " act (" else " act)?\ncond ::= [xyz] ("<" | ">") [0-9]\nact ::= [xyz] "=" [0-9]',
    'root ::= a | b\na ::= "a" b?\nb ::= "b" a?',
]

_JSON = r"""
root ::= ws value ws
value ::= "{" ws (member (ws "," ws member)*)? ws "}" | "[" ws (value (ws "," ws value)*)? ws "]" | text | number | word
member ::= text ws ":" ws value
text ::= "\"" char* "\""
char ::= [^"\\\x00-\x1f] | "\\" ["\\/bfnrt] | "\\u" hex hex hex hex
hex ::= [0-9a-fA-F]
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9] [0-9]*)? ([eE] [+-]? [0-9] [0-9]*)?
word ::= "true" | "false" | "null"
ws ::= [ \t\n\r]*
"""


def parser_of(ebnf: str) -> lark.Lark:
    """An Earley parser for a grammar, character by character."""
    return lark.Lark(as_lark(ebnf), start="root", parser="earley", lexer="dynamic", ambiguity="resolve")


def json_parser() -> lark.Lark:
    """Of any JSON text."""
    return parser_of(_JSON.strip())


def is_prefix(parser: lark.Lark, text: str) -> bool:
    """Whether a text begins something that the parser accepts."""
    try:
        parser.parse(text)
    except lark.exceptions.UnexpectedEOF:
        return True
    except lark.exceptions.UnexpectedInput:
        return False
    return True


def accepts(parser: lark.Lark, text: str) -> bool:
    """Whether the parser accepts a text."""
    try:
        parser.parse(text)
    except lark.exceptions.UnexpectedInput:
        return False
    return True


def as_lark(ebnf: str) -> str:
    """The same grammar in lark's words; literals fall into letters, so that a text may break off anywhere."""
    rules = re.sub(r"^(\w+) ::=", r"\1:", ebnf, flags=re.MULTILINE)
    return re.sub(r'"((?:\\.|[^"\\])*)"|(\[(?:\\.|[^\]\\])*\])', _spelled, rules)


def _spelled(found: re.Match[str]) -> str:
    if found[2]:
        return "/" + found[2].replace("/", r"\/") + "/"
    return "(" + " ".join(f'"{letter}"' for letter in re.findall(r"\\.|.", found[1])) + ")"
