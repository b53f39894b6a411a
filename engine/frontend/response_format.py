"""OpenAI's `response_format`, as a request to a server states it, in the words of this engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import RequestError
from engine.guided_decoding import GuidedDecodingParams
from engine.plain_values import shown

_TYPES = ("text", "json_object", "json_schema", "structural_tag")


def guided_decoding_of(response_format: Mapping[str, Any] | None) -> GuidedDecodingParams | None:
    """What a response format asks of the output; None if anything is fine::

        {"type": "text"}
        {"type": "json_object"}
        {"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}
        {"type": "structural_tag", "structures": [{"begin": …, "schema": {…}, "end": …}], "triggers": […]}
        {"type": "structural_tag", "format": {…}}

    Raises:
        RequestError: it is none of these.
    """
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return GuidedDecodingParams(json_object=True)
    if kind == "json_schema":
        return GuidedDecodingParams(json=_schema(response_format.get("json_schema")))
    if kind == "structural_tag":
        return GuidedDecodingParams(structural_tag=dict(response_format))
    raise RequestError(f"response_format must have a type out of {', '.join(_TYPES)}, got {shown(response_format)}.")


def _schema(named: Any) -> dict[str, Any] | str:
    schema = named.get("schema") if isinstance(named, Mapping) else None
    if not isinstance(schema, Mapping | str):
        raise RequestError(f"response_format must have a schema in its json_schema, got {shown(named)}.")
    return schema if isinstance(schema, str) else dict(schema)
