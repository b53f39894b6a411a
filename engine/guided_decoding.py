"""What the output of a guided request must look like: as a user says it, and as the engine passes it on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.errors import RequestError
from engine.plain_values import plain_bool, require_json, require_text, shown

BACKENDS = ("auto", "xgrammar")

_FORMS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the output of a guided request must match. Equal ones are compiled once."""

    kind: Annotated[
        Literal["choice", "regex", "json", "json_object", "grammar", "structural_tag"],
        Meta(description="the language it is written in"),
    ]
    text: Annotated[str, Meta(description="the pattern, schema or EBNF itself; choices and schemas as JSON")]
    any_whitespace: Annotated[
        bool, Meta(description="of JSON: whether any white space may stand between its parts, or only `, ` and `: `")
    ] = True
    whitespace_pattern: Annotated[
        str | None, Meta(description="of JSON: what may stand wherever white space may, as a regular expression")
    ] = None


class GuidedDecodingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the output of a request is guided, with vLLM's names::

        SamplingParams(guided_decoding=GuidedDecodingParams(choice=["Positive", "Negative"]))

    Exactly one of the first six says what it must match. Immutable; validated when it is made, as far as that goes
    without a compiler.

    Raises:
        RequestError: none or several of them are given, or a value is not of its kind.
    """

    json: Annotated[
        str | dict[str, Any] | None, Meta(description="a JSON schema, as text, dict, or a Pydantic model's class")
    ] = None
    regex: Annotated[str | None, Meta(description="a regular expression that the whole output matches")] = None
    choice: Annotated[Sequence[str] | None, Meta(description="the output is one of these texts")] = None
    grammar: Annotated[str | None, Meta(description="a context-free grammar in llama.cpp's EBNF")] = None
    json_object: Annotated[bool | None, Meta(description="True: any JSON object")] = None
    structural_tag: Annotated[
        str | dict[str, Any] | None,
        Meta(description="free text in which certain tags begin something guided, such as a call of a tool"),
    ] = None
    backend: Annotated[str | None, Meta(description="who compiles the grammar: auto or xgrammar")] = None
    disable_fallback: Annotated[bool, Meta(description="as vLLM has it; there is one backend, and nothing else")] = (
        False
    )
    disable_any_whitespace: Annotated[
        bool, Meta(description="JSON: write it in one line, with `, ` and `: ` between its parts")
    ] = False
    disable_additional_properties: Annotated[
        bool,
        Meta(description="as vLLM has it; properties that a schema does not speak of are never put out"),
    ] = False
    whitespace_pattern: Annotated[
        str | None, Meta(description="JSON: a regular expression for what may stand between its parts")
    ] = None

    def __post_init__(self) -> None:
        given = [name for name in _FORMS if getattr(self, name) is not None]
        if self.json_object is False:
            given.remove("json_object")
        if len(given) != 1:
            raise RequestError(
                f"guided_decoding must have exactly one of {', '.join(_FORMS)}, got {' and '.join(given) or 'none'}."
            )
        for name in ("regex", "grammar", "whitespace_pattern"):
            if getattr(self, name) is not None:
                self._settle(name, require_text(name, getattr(self, name)))
        for name in ("disable_fallback", "disable_any_whitespace", "disable_additional_properties"):
            self._settle(name, plain_bool(name, getattr(self, name)))
        if self.json is not None:
            self._settle("json", _as_json("json", self.json))
        if self.structural_tag is not None:
            self._settle("structural_tag", _as_json("structural_tag", self.structural_tag))
        if self.choice is not None:
            self._settle("choice", _as_choices(self.choice))
        if self.json_object is not None:
            self._settle("json_object", plain_bool("json_object", self.json_object))
        if self.backend is not None and self.backend not in BACKENDS:
            raise RequestError(f"backend must be one of {', '.join(BACKENDS)}, got {shown(self.backend)}.")
        self._check_whitespace()

    def _settle(self, name: str, value: Any) -> None:
        msgspec.structs.force_setattr(self, name, value)

    def _check_whitespace(self) -> None:
        if self.whitespace_pattern is None:
            return
        if self.json is None and not self.json_object:
            raise RequestError("whitespace_pattern is for json and json_object only: leave it out.")
        if self.disable_any_whitespace:
            raise RequestError("whitespace_pattern and disable_any_whitespace contradict each other: leave out one.")

    def spec(self) -> GrammarSpec:
        """The same for the engine."""
        if self.choice is not None:
            text = msgspec.json.encode(self.choice).decode()
            return GrammarSpec(kind="choice", text=text)
        if self.regex is not None:
            return GrammarSpec(kind="regex", text=self.regex)
        if self.grammar is not None:
            return GrammarSpec(kind="grammar", text=self.grammar)
        if self.structural_tag is not None:
            return GrammarSpec(kind="structural_tag", text=str(self.structural_tag))
        return GrammarSpec(
            kind="json_object" if self.json is None else "json",
            text="" if self.json is None else str(self.json),
            any_whitespace=not self.disable_any_whitespace,
            whitespace_pattern=self.whitespace_pattern,
        )


def _as_json(name: str, value: Any) -> str:
    """A JSON object as text, from text, a mapping, or the class of a Pydantic model."""
    if isinstance(value, str):
        try:
            msgspec.json.decode(value.encode())
        except (UnicodeEncodeError, msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"{name} must be JSON, got {shown(value)}: {error}.") from error
        return value
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    if not isinstance(value, Mapping | bool):
        raise RequestError(f"{name} must be JSON as text or as a dict, got {shown(value)}.")
    require_json(name, value)
    return msgspec.json.encode(value).decode()


def _as_choices(value: Any) -> tuple[str, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or not value:
        raise RequestError(f"choice must be a list of at least one text, got {shown(value)}.")
    return tuple(dict.fromkeys(require_text("choice", text) for text in value))
