"""Which JSON schemas the compiler holds an output to.

xgrammar reads over some keywords as if they were not there, or takes a weaker one for them. An output would then be
valid JSON and still break its schema; so a schema that uses them is refused, with the place in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from engine.guided.errors import GrammarError
from engine.plain_values import shown

_UNHEEDED = (
    "multipleOf",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "$dynamicRef",
    "$recursiveRef",
)

#: Say nothing about what is valid, so they may stand beside anything.
_ANNOTATIONS = frozenset(
    "$id $schema $comment $defs $anchor definitions title description default deprecated discriminator examples "
    "readOnly writeOnly nullable".split()
)

#: Keywords whose schema is taken alone: others beside them are read over.
_ALONE = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")

_SCHEMA = ("items", "additionalProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems")
_SCHEMAS = ("prefixItems", "anyOf", "oneOf", "allOf")
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")

_JSON_TYPES = {str: "string", bool: "boolean", type(None): "null", list: "array", dict: "object"}


def require_heeded(schema: Any) -> None:
    """Refuse a schema that the compiler would not hold an output to.

    Args:
        schema: decoded JSON.

    Raises:
        GrammarError: with the keyword and where it stands.
    """
    for place, each in _schemas(schema, "#"):
        unheeded = [key for key in _UNHEEDED if each.get(key) not in (None, False)]
        if unheeded:
            raise GrammarError(f"the compiler does not support {unheeded[0]} of JSON schemas (at {place})")
        _require_alone(each, place)
        _require_declared(each, place)
        _require_plain_pattern(each, place)
        if len(each.get("oneOf") or ()) > 1:
            _require_disjoint(each["oneOf"], schema, place)


def _schemas(schema: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a schema and where it stands, itself first; what is merely data is left out."""
    if not isinstance(schema, dict):
        return
    yield place, schema
    for key in _SCHEMA:
        yield from _schemas(schema.get(key), f"{place}/{key}")
    for key in _SCHEMAS:
        listed = schema.get(key)
        for index, each in enumerate(listed if isinstance(listed, list) else ()):
            yield from _schemas(each, f"{place}/{key}/{index}")
    for key in _NAMED_SCHEMAS:
        named = schema.get(key)
        for name, each in named.items() if isinstance(named, dict) else ():
            yield from _schemas(each, f"{place}/{key}/{name}")


def _require_alone(schema: dict[str, Any], place: str) -> None:
    keyword = next((key for key in _ALONE if key in schema), None)
    if keyword is None:
        return
    if keyword == "allOf" and isinstance(schema["allOf"], list) and len(schema["allOf"]) > 1:
        raise GrammarError(f"the compiler does not support allOf of several JSON schemas (at {place})")
    others = sorted(set(schema) - _ANNOTATIONS - {keyword})
    if keyword in ("enum", "const") and others == ["type"]:
        values = schema["enum"] if keyword == "enum" else [schema["const"]]
        types = _types(schema) or set()
        wrong = [value for value in values if not _type_names(value) & types] if isinstance(values, list) else []
        if wrong:
            raise GrammarError(f"{shown(wrong[0])} in {keyword} is not of the type beside it (at {place})")
    elif others:
        raise GrammarError(f"the compiler does not support {others[0]} beside {keyword} in JSON schemas (at {place})")


def _require_declared(schema: dict[str, Any], place: str) -> None:
    required, properties = schema.get("required"), schema.get("properties") or {}
    undeclared = [name for name in required if name not in properties] if isinstance(required, list) else []
    if undeclared:
        raise GrammarError(f"required names {shown(undeclared[0])}, which is not in properties (at {place})")


def _require_plain_pattern(schema: dict[str, Any], place: str) -> None:
    """What a pattern spells out goes into the output as it is: a quote or backslash there would end the string."""
    patterns = [schema.get("pattern"), *(schema.get("patternProperties") or ())]
    if any(isinstance(pattern, str) and ('"' in pattern or "\\\\" in pattern) for pattern in patterns):
        raise GrammarError(f"a pattern of a JSON schema cannot ask for quotes or backslashes (at {place})")


def _require_disjoint(options: Any, root: Any, place: str) -> None:
    """The compiler takes oneOf for anyOf; that is the same where no value matches two of them."""
    resolved = [_resolve(option, root) for option in options]
    for (index, one), (other, another) in combinations(enumerate(resolved), 2):
        if not _disjoint(one, another, root):
            raise GrammarError(
                f"options {index} and {other} of oneOf may both match, which the compiler cannot rule out (at {place})"
            )


def _disjoint(one: Any, another: Any, root: Any) -> bool:
    if not isinstance(one, dict) or not isinstance(another, dict):
        return False
    values = _values(one), _values(another)
    if values[0] is not None and values[1] is not None:
        return not any(value in values[1] for value in values[0])
    types = _types(one), _types(another)
    if types[0] is not None and types[1] is not None and not types[0] & types[1]:
        return True
    if types != ({"object"}, {"object"}):
        return False
    shared = set(one.get("required") or ()) & set(another.get("required") or ())
    properties = one.get("properties") or {}, another.get("properties") or {}
    return any(
        _disjoint(_resolve(properties[0].get(name), root), _resolve(properties[1].get(name), root), root)
        for name in sorted(shared)
    )


def _values(schema: dict[str, Any]) -> list[Any] | None:
    """The only values that match it, if it lists them."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _types(schema: dict[str, Any]) -> set[str] | None:
    """The JSON types of what matches it, as far as it says; every integer is a number."""
    values, named = _values(schema), schema.get("type")
    if named is not None:
        names = set(named) if isinstance(named, list) else {str(named)}
    elif values is not None:
        names = set().union(*map(_type_names, values))
    else:
        return None
    return names | {"number"} if "integer" in names else names | {"integer"} if "number" in names else names


def _type_names(value: Any) -> set[str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"number", "integer"} if float(value).is_integer() else {"number"}
    return {_JSON_TYPES.get(type(value), "object")}


def _resolve(schema: Any, root: Any) -> Any:
    """What a schema that is only a reference within the same document refers to."""
    for _ in range(16):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        schema = root
        for key in reference[2:].split("/"):
            schema = schema.get(key) if isinstance(schema, dict) else None
    return schema
