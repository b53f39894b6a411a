"""`ChatTemplate`: messages of a conversation become the text that the model was trained to read.

A template is a Jinja program that a model's author wrote. It runs in a sandbox, in the same environment that
transformers gives it: trimmed blocks, loop controls, `{% generation %}`, `tojson`, `raise_exception`, `strftime_now`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ModelError, RequestError
from engine.plain_values import shown

#: Stands behind the text of a message that is to be continued, to find its end in what the template makes of it.
_MARK = "CONTINUED-HERE"

#: A template is a program: it fails like any other, at a message without what it asks for, or at a division by zero.
_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)

#: What a template is told by keywords of their own.
_OWN_NAMES = frozenset(("messages", "tools", "add_generation_prompt", "continue_final_message"))

#: A turn of a conversation: at least a `role`, and a `content` that is text or a list of `{"type": "text", …}` parts.
Message = Mapping[str, Any]


class ChatTemplate:
    """The chat template of a model.

    Args:
        source: the template itself.
        special_tokens: texts of the special tokens by name (`bos_token`, …), which the template may use.

    Raises:
        RequestError: the template has a mistake in it.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        if not isinstance(source, str):
            raise RequestError(f"chat_template must be a Jinja template as a string, got {shown(source)}.")
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except _FAILURES as error:
            raise RequestError(f"The chat template cannot be read: {_one_line(error)}.") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as text.

        Args:
            messages: the turns so far.
            add_generation_prompt: end with the beginning of an answer, which the model is to go on with.
            continue_final_message: end in the middle of the last message, which the model is to go on with.
            tools: descriptions of functions that the model may call, as JSON schemas.
            more: whatever else the template knows, by name.

        Raises:
            RequestError: the messages are no conversation, or the template refuses them.
        """
        if not isinstance(messages, Sequence):
            raise RequestError(f"A conversation must be a list of messages, got {shown(messages)}.")
        more = _names(more)
        turns = [_checked(message) for message in messages]
        if not turns:
            raise RequestError("messages must hold at least one message.")
        if add_generation_prompt and continue_final_message:
            raise RequestError("add_generation_prompt and continue_final_message exclude each other: set one to False.")
        if continue_final_message:
            turns[-1]["content"] = f"{turns[-1].get('content') or ''}{_MARK} "
        try:
            text = self._template.render(
                messages=turns,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                **{"documents": None, **self._special_tokens, **more},
            )
        except _FAILURES as error:
            raise RequestError(f"The chat template refuses these messages: {_one_line(error)}.") from error
        return _cut_at_mark(text) if continue_final_message else text


def load_chat_template(folder: Path, source: str | None = None) -> ChatTemplate:
    """The chat template of a model: `source`, else its `chat_template.jinja`, else that in its `tokenizer_config.json`.

    Raises:
        ModelError: `tokenizer_config.json` cannot be read.
        RequestError: the template has a mistake in it, or there is none.
    """
    config_file = folder / "tokenizer_config.json"
    try:
        config = json.loads(config_file.read_bytes()) if config_file.is_file() else {}
    except ValueError as error:
        raise ModelError(f"{config_file} is not JSON: {error}.") from error
    if not isinstance(config, dict):
        raise ModelError(f"{config_file} must hold a JSON object.")
    file = folder / "chat_template.jinja"
    if source is None:
        source = _text_of(file) if file.is_file() else _default_of(config.get("chat_template"), config_file)
    if source is None:
        raise RequestError("The model has no chat template: give one as chat_template, or use generate.")
    return ChatTemplate(source, _special_tokens(config))


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}.") from error


def _default_of(templates: object, file: Path) -> str | None:
    """The template of a configuration, which may hold several, each with a name."""
    if isinstance(templates, list) and all(isinstance(each, dict) for each in templates):
        templates = next((each.get("template", 0) for each in templates if each.get("name") == "default"), None)
    if templates is not None and not isinstance(templates, str):
        raise ModelError(f"chat_template must be a string, or a list of named ones, got {shown(templates)} in {file}.")
    return templates


def _names(more: object) -> dict[str, Any]:
    if more is not None and (not isinstance(more, Mapping) or not all(isinstance(name, str) for name in more)):
        raise RequestError(f"chat_template_kwargs must map names to values, got {shown(more)}.")
    names = dict(more or {})
    taken = sorted(names.keys() & _OWN_NAMES)
    if taken:
        raise RequestError(f"chat_template_kwargs must not hold {taken[0]}: it is told by its own keyword.")
    return names


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    named = {name: token for name, token in config.items() if name.endswith("_token") and token}
    return {
        name: token if isinstance(token, str) else str(token.get("content", ""))
        for name, token in named.items()
        if isinstance(token, (str, dict))
    }


def _checked(message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f'A message must be {{"role": …, "content": …}}, got {_one_line(message)}.')
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": "\n".join(map(_text_of_part, content))}
    if content is not None and not isinstance(content, str):
        raise RequestError(f"The content of a message must be text or a list of parts, got {type(content).__name__}.")
    return dict(message)


def _text_of_part(part: object) -> str:
    text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        raise RequestError(f'A part of a message must be {{"type": "text", "text": …}}, got {_one_line(part)}.')
    return text


def _cut_at_mark(text: str) -> str:
    place = text.rfind(_MARK)
    if place < 0:
        raise RequestError("The last message cannot be continued: the template does not show its content.")
    # A template that strips the content takes the space behind the mark, and then the one before it goes as well.
    stripped = not text.startswith(_MARK + " ", place)
    return text[:place].rstrip() if stripped else text[:place]


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.datetime.now().strftime(format)
    return environment


class _GenerationBlock(Extension):
    """`{% generation %}` … `{% endgeneration %}` marks what the assistant says, for training; here it is plain text."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own, it leaves `<`, `>` and `&` as they are: a prompt is no web page."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _one_line(value: object) -> str:
    text = " ".join(str(value).split()).rstrip(".")
    return text if len(text) <= 120 else text[:120] + "…"
