"""All engine arguments as options of a command, made out of the fields of `EngineConfig`: what it knows, they know."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from typer import Option

from engine.config import CacheConfig, ExecutionConfig, ModelConfig, SchedulerConfig
from engine.errors import ConfigError

_PARTS = (ModelConfig, SchedulerConfig, CacheConfig, ExecutionConfig)
_SPECULATIVE = "speculative_config"
_OWN = ("model",)
"""Every command has its own option for these."""


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that ends in `**engine_args: Any` an option for each of them.

    An option that is not given is not passed on, so the defaults stay the engine's.
    """
    own = inspect.signature(command)
    parameters = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    named = {each.name for each in parameters}
    offered = {name: parameter for name, parameter in _engine_parameters().items() if name not in named}

    def run(**values: Any) -> None:
        given = {name: value for name, value in values.items() if name not in offered or value is not None}
        if given.get(_SPECULATIVE) is not None:
            given[_SPECULATIVE] = _decoded(given[_SPECULATIVE])
        command(**given)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    types_of_own = typing.get_type_hints(command, include_extras=True)
    parameters = [each.replace(annotation=types_of_own[each.name]) for each in parameters]
    run.__signature__ = own.replace(parameters=[*parameters, *offered.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in [*parameters, *offered.values()]}
    return run


def _engine_parameters() -> dict[str, inspect.Parameter]:
    """One keyword parameter per engine argument, annotated as typer wants it."""
    parameters = {"trace": _parameter("trace", Path, "record the run here, as .jsonl or .jsonl.zst")}
    parameters["trace_level"] = _parameter("trace_level", str, "how finely: control, forward or full")
    parameters[_SPECULATIVE] = _parameter(
        _SPECULATIVE, str, 'who drafts, as JSON: {"method": "ngram", "num_speculative_tokens": 3}'
    )
    for part in _PARTS:
        hints = typing.get_type_hints(part, include_extras=True)
        for field in msgspec.structs.fields(part):
            if field.name not in _OWN:
                kind, described = _kind_and_description(hints[field.name])
                default = "" if field.default is None else f" [default: {_spelled(field.default)}]"
                parameters[field.name] = _parameter(field.name, kind, described + default)
    return parameters


def _decoded(speculative_config: str) -> Any:
    try:
        return msgspec.json.decode(speculative_config)
    except msgspec.DecodeError as error:
        raise ConfigError(f"speculative_config must be a JSON object: {error}.") from error


def _parameter(name: str, kind: type, described: str) -> inspect.Parameter:
    annotation: Any = Annotated[kind | None, Option(help=described, show_default=False)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _kind_and_description(hint: Any) -> tuple[type, str]:
    """The plain type of a field such as `Annotated[int | None, Meta(description=…)]`, and its description."""
    allowed, meta = typing.get_args(hint)
    if typing.get_origin(allowed) in (typing.Union, types.UnionType):
        (allowed,) = (each for each in typing.get_args(allowed) if each is not type(None))
    if typing.get_origin(allowed) is typing.Literal:
        # The engine itself says which values it allows, in a better sentence.
        values = typing.get_args(allowed)
        return type(values[0]), f"{meta.description}; one of {', '.join(map(str, values))}"
    elif typing.get_origin(allowed) is tuple:  # an option that may be repeated
        (item, _) = typing.get_args(allowed)
        allowed = list[item]  # type: ignore[valid-type]
    return allowed, meta.description


def _spelled(default: Any) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)
