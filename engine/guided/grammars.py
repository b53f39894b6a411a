"""From what a user asked for to a grammar: one in EBNF, whatever the language it was written in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from engine.guided.ebnf import TOKEN, UnknownSyntax, is_productive, literal, parse
from engine.guided.errors import GrammarError
from engine.guided.json_schema import require_heeded
from engine.guided_decoding import GrammarSpec

if TYPE_CHECKING:
    from xgrammar import Grammar

#: White space between the parts of JSON, as the compiler writes it.
_ANY_WHITESPACE = r"[ \n\t]*"
_WHITESPACE_RULE = "whitespace"

#: Arrays and objects of a schema within one another.
_MOST_NESTED = 128

#: What must not stand in a JSON string as it is: control characters, the quote, the backslash.
_ESCAPED_IN_STRINGS = r"\0-\x1f\"\\"

#: Characters that Python's `re.escape` escapes without need.
_PLAIN = frozenset(" #&~")

_ESCAPED = re.compile(r"\\(x([0-9A-Fa-f]{2})|.)", re.DOTALL)

_FROM_WHERE = re.compile(r"^\s*\[[\d:]+\] \S+:\d+: |Check failed: \(.*?\) is false: ")


def make_grammar(spec: GrammarSpec, max_bytes: int) -> Grammar:
    """The grammar of a request.

    Args:
        spec: what its output must match.
        max_bytes: of the specification, and of the grammar in EBNF.

    Raises:
        GrammarError: something is wrong with it; the reason is the compiler's, where it is the compiler that minds.
    """
    _require_small(len(spec.text.encode()), max_bytes)
    if spec.kind in ("json", "structural_tag"):
        _require_shallow(msgspec.json.decode(spec.text))
    try:
        grammar = _MAKERS[spec.kind](spec)
    except GrammarError:
        raise
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        # Of a schema that is none, anything may be wrong, here as in the compiler.
        raise GrammarError(reason(error)) from error
    text = str(grammar)
    _require_small(len(text), max_bytes)
    _require_not_empty(text)
    return grammar


def reason(error: Exception) -> str:
    """What the compiler says, without where in its source it says so."""
    return " ".join(_FROM_WHERE.sub("", str(error)).split()).rstrip(".")


def _require_small(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise GrammarError(f"the grammar has {num_bytes:,} bytes, max_grammar_bytes allows {max_bytes:,}")


def _require_shallow(schema: object) -> None:
    """What a compiler needs for a schema grows with the square of its depth, in time and in memory."""
    level, depth = [schema], 0
    while level:
        if depth > _MOST_NESTED:
            raise GrammarError(f"the schema is nested more than {_MOST_NESTED} deep")
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level, depth = [each for some in inner for each in some], depth + 1


def _require_not_empty(text: str) -> None:
    try:
        rules = parse(text)
    except UnknownSyntax:
        return  # then the first mask tells
    if not is_productive(rules):
        raise GrammarError("the grammar is empty: no text matches it")


def _choice(spec: GrammarSpec) -> Grammar:
    choices = msgspec.json.decode(spec.text, type=list[str])
    return _from_ebnf("root ::= " + " | ".join(map(literal, choices)))


def _regex(spec: GrammarSpec) -> Grammar:
    from xgrammar import Grammar

    # Python escapes more than it must, and the compiler would complain of these on standard error.
    return Grammar.from_regex(_ESCAPED.sub(lambda found: found[1] if found[1] in _PLAIN else found[0], spec.text))


def _grammar(spec: GrammarSpec) -> Grammar:
    return _from_ebnf(spec.text)


def _json(spec: GrammarSpec) -> Grammar:
    from xgrammar import Grammar

    require_heeded(_decode(spec.text))
    grammar = Grammar.from_json_schema(spec.text, any_whitespace=spec.any_whitespace)
    return _settle_json(grammar, spec)


def _json_object(spec: GrammarSpec) -> Grammar:
    from xgrammar import Grammar

    # The schema that says nothing, in an object: the built-in grammar takes no wish about white space.
    grammar = Grammar.from_json_schema(
        '{"type":"object","additionalProperties":true}', any_whitespace=spec.any_whitespace
    )
    return _settle_json(grammar, spec)


def _structural_tag(spec: GrammarSpec) -> Grammar:
    from xgrammar import Grammar

    tag = _decode(spec.text)
    if isinstance(tag, dict) and "structures" in tag:
        tag = _of_structures(tag)
    _require_heeded_within(tag)
    grammar = Grammar.from_structural_tag(tag)
    return _settle_json(grammar, spec) if '"json_schema"' in spec.text or '"schema"' in spec.text else grammar


_MAKERS = {
    "choice": _choice,
    "regex": _regex,
    "grammar": _grammar,
    "json": _json,
    "json_object": _json_object,
    "structural_tag": _structural_tag,
}


def _from_ebnf(text: str) -> Grammar:
    from xgrammar import Grammar

    return Grammar.from_ebnf(text)


def _decode(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GrammarError(f"it is not JSON: {error}") from error


def _of_structures(tag: dict[str, Any]) -> dict[str, Any]:
    """The older form, as OpenAI-like servers take it: structures with begin, schema and end, and their triggers."""
    tags = [
        {
            "begin": structure["begin"],
            "content": {"type": "json_schema", "json_schema": structure.get("schema") or True},
            "end": structure["end"],
        }
        for structure in tag["structures"]
    ]
    return {
        "type": "structural_tag",
        "format": {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags},
    }


def _require_heeded_within(tag: Any) -> None:
    if isinstance(tag, dict):
        if tag.get("type") == "json_schema":
            require_heeded(tag.get("json_schema"))
        for value in tag.values():
            _require_heeded_within(value)
    elif isinstance(tag, list):
        for value in tag:
            _require_heeded_within(value)


def _settle_json(grammar: Grammar, spec: GrammarSpec) -> Grammar:
    """Let strings be JSON strings everywhere, and white space what was asked for.

    Inside the strings of a schema with maxLength or pattern, the compiler lets through what JSON wants escaped.
    """
    written = str(grammar)
    text = TOKEN.sub(lambda found: _spelled(found[0]) if found.lastgroup in ("literal", "chars") else found[0], written)
    if spec.whitespace_pattern is not None:
        text = text.replace(_ANY_WHITESPACE, f" {_WHITESPACE_RULE} ") + _whitespace_rules(spec.whitespace_pattern)
    return grammar if text == written else _from_ebnf(text)


def _spelled(token: str) -> str:
    """A literal or class, to be read again: the compiler writes `\\xdf`, but reads on behind two digits."""
    if token.startswith("["):
        token = _no_escapes(token)
    return _ESCAPED.sub(lambda found: f"\\u00{found[2]}" if found[2] else found[0], token)


def _no_escapes(characters: str) -> str:
    """Take what a JSON string must escape out of a class of characters that only strings use."""
    if characters.startswith("[^"):
        return characters if characters.startswith(r"[^\0-\x1f\"\\") else f"[^{_ESCAPED_IN_STRINGS}{characters[2:]}"
    if characters == r"[\0-\U0010ffff]":
        return f"[^{_ESCAPED_IN_STRINGS}]"
    return r"[ \xa0]" if characters == r"[\f\n\r\t\v \xa0]" else characters


def _whitespace_rules(pattern: str) -> str:
    """The rules of a regular expression, under names that no other rule has."""
    from xgrammar import Grammar

    rules = str(Grammar.from_regex(pattern))
    return "\n" + TOKEN.sub(
        lambda found: found[0].replace("root", _WHITESPACE_RULE, 1) if found.lastgroup == "name" else found[0], rules
    )
