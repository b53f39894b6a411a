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

#: Stands behind the text of a message that is to be continued, to find its end in what the template makes of it.
_MARK = "CONTINUED-HERE"

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
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise RequestError(f"The chat template cannot be read: {_one_line(error)}.") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **more: Any,
    ) -> str:
        """The conversation as text.

        Args:
            messages: the turns so far.
            add_generation_prompt: end with the beginning of an answer, which the model is to go on with.
            continue_final_message: end in the middle of the last message, which the model is to go on with.
            tools: descriptions of functions that the model may call, as JSON schemas.
            more: whatever else the template knows.

        Raises:
            RequestError: the messages are no conversation, or the template refuses them.
        """
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
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **{**self._special_tokens, **more},
            )
        # A template is a program: a message without what it asks for fails in it like in any other.
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
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
    file = folder / "chat_template.jinja"
    if source is None:
        source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(source, list):  # several, each with a name
        source = {each["name"]: each["template"] for each in source}.get("default")
    if source is None:
        raise RequestError("The model has no chat template: give one as chat_template, or use generate.")
    return ChatTemplate(source, _special_tokens(config))


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    named = {name: token for name, token in config.items() if name.endswith("_token") and token}
    return {
        name: token if isinstance(token, str) else str(token["content"])
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
