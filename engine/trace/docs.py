"""Writes `docs/trace.md` and `docs/trace.schema.json` from the event types: `python -m engine.trace.docs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from engine.trace.described import doc_of, fields_of, meaning_of
from engine.trace.events import EVENT_TYPES, SCHEMA_VERSION, AnyEvent, Event, Header
from engine.trace.examples import HEADER, example_events
from engine.trace.file import FRAME_BYTES

FOLDER = Path(__file__).parents[2] / "docs"

#: Families of types, by the first word of a type; those of a family are listed together.
_FAMILIES = {
    "Start-up of the worker": ("worker",),
    "Requests": ("request", "token", "output"),
    "Grammars": ("grammar",),
    "Speculative decoding": ("spec",),
    "Steps": ("schedule", "step", "executor", "update", "config"),
    "KV cache": ("kv", "cache"),
    "KV transfer": ("kv_transfer",),
    "Forward pass and sampling": ("forward",),
}

_INTRODUCTION = f"""# The trace

<!-- Written by `python -m engine.trace.docs` from `engine/trace/events.py`; do not edit. -->

A trace records everything that entered the engine core and everything it decided. It is what replay, the invariants,
the app and the lessons read; `docs/trace.schema.json` describes every line for other tools. This is version
{SCHEMA_VERSION} of the schema.

## The file

JSON Lines in UTF-8: the first line is the **header**, every other line one **event**.

- `NAME.jsonl` is plain text. It is flushed after every step.
- `NAME.jsonl.zst` is the same lines in zstandard frames that are independent of each other, each of at most
  {FRAME_BYTES // 2**20} MiB of whole lines. `zstd -dc NAME.jsonl.zst` prints them.
- A file cut short by a crash can be read up to its last whole line (its last whole frame), and every tool says that
  it was cut.
- The object of a line names its type in `type`. `seq` strictly increases. A reader refuses a `schema_version` that it
  does not know; within a version, fields may be added, so unknown ones are to be ignored.
- A request is named by its *serial*, the order of its arrival, which never comes back; `request.added` gives the
  client's id. A block is named by its number in the pool; block 0 is the null block. Hashes are hexadecimal, bytes are
  base64.

## Classes

| class | what it is | what a replay does with it |
| --- | --- | --- |
| input | a call into the core, or an answer that a collaborator gave it | feeds it in again, in this order |
| decision | something the core returned or changed | regenerates it, and compares every field but `seq` and `ts` |
| derived | a function of the inputs: verdicts on drafts; with a backend, masks of grammars | compares it, if it can |
| observation | text, timings, tensors | leaves it out |

`orrery replay FILE` strips every decision, runs the engine core on the inputs alone, and must bring forth the same
decisions between the same inputs: none missing, none more, in the same order.

## Levels

| level | what is in the file |
| --- | --- |
| off | no file is written |
| control | inputs, decisions, and text: nothing that grows with the vocabulary or the number of waiting requests |
| forward | also the tensors of every forward pass, and the likeliest tokens of every sampled row |
| full | everything there is |

## A step

In the order in which its events stand in the file:

1. `schedule.called`, `step.started`
2. per running request what made room for it (`kv.allocated`, `kv.cached`; if blocks are short, first
   `schedule.preempted`, `kv.uncached`, `kv.freed` and `request.status` of a victim), then its `schedule.request`
3. per admitted request `kv.lookup`, `kv_transfer.matched`, `kv.touched`, `kv.allocated`, `kv.cached`,
   `request.status`, `schedule.request`; without the last one if it waits for KV from elsewhere; `schedule.skipped` for
   the first one that a reason kept out
4. with drafts, `spec.paused` if some requests get none; `step.scheduled`: the plan is complete, and its tokens count
   as computed
5. `forward.inputs`, `grammar.bitmask` if a guided row samples, `forward.logits`, `step.executed`
6. `step.output` or `executor.failed`; with drafts, per row `spec.probs`, `spec.verdict`, `spec.proposed`; then per row
   `update.request`, of a guided one `grammar.advanced`, and where a request ends `request.status`,
   `kv_transfer.finished`, `kv.freed` or `kv.held`, `request.finished`
7. `token.pieces`, `output.text`

Before the first step stands what the worker did to be ready: `worker.device_initialized`, `worker.model_loaded`,
`worker.profiled`, `worker.kv_cache_allocated`, `worker.graph_captured`. It happened before the trace began: its events
tell how long it took, and their `ts` only when they were written.

Between two steps stand the calls of clients and collaborators, each with what it changed: `request.added`,
`request.aborted`, `grammar.ready`, `grammar.failed`, `kv_transfer.done`, `cache.reset`.
"""


def markdown() -> str:
    """The text of `docs/trace.md`."""
    examples = example_events()
    parts = [_INTRODUCTION, _overview(), _header_section(), _common_section()]
    for title, prefixes in _FAMILIES.items():
        parts.append(f"## {title}\n")
        parts += [_event_section(tag, examples[tag]) for tag in EVENT_TYPES if _prefix(tag) in prefixes]
    return "\n".join([*parts, *_struct_sections()])


def schema() -> dict[str, Any]:
    """The JSON Schema of a line: the header or any event."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of an Orrery trace",
        "description": f"Version {SCHEMA_VERSION}. The first line of a file is the header, every other line an event.",
        **msgspec.json.schema(Header | AnyEvent),
    }


def write(folder: Path = FOLDER) -> None:
    """Write both files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trace.md").write_text(markdown(), encoding="utf-8")
    (folder / "trace.schema.json").write_text(schema_text(), encoding="utf-8")


def schema_text() -> str:
    """The text of `docs/trace.schema.json`."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _prefix(tag: str) -> str:
    return tag.partition(".")[0]


def _overview() -> str:
    lines = ["## Types\n", "| type | class | level | |", "| --- | --- | --- | --- |"]
    for prefixes in _FAMILIES.values():
        for tag, event in EVENT_TYPES.items():
            if _prefix(tag) in prefixes:
                anchor = tag.replace(".", "")
                lines.append(f"| [`{tag}`](#{anchor}) | {event.kind.value} | {event.level} | {_sentence(event)} |")
    return "\n".join(lines) + "\n"


def _header_section() -> str:
    return "\n".join(["## The header\n", doc_of(Header), "", *_field_table(Header, ()), "", _example(HEADER), ""])


def _common_section() -> str:
    return "\n".join(["## What all events share\n", *_field_table(Event, ()), ""])


def _event_section(tag: str, example: Event) -> str:
    event = type(example)
    lines = [f"### {tag}\n", f"*{event.kind.value}, level {event.level}.* {doc_of(event)}\n"]
    table = _field_table(event, Event.__struct_fields__)
    return "\n".join([*lines, *(table or ["No field of its own."]), "", _example(example), ""])


def _struct_sections() -> list[str]:
    """The records inside the header and `request.added`."""
    lines = ["## Records\n"]
    for struct in _records():
        lines += [f"### {struct.__name__}\n", f"{doc_of(struct)}\n", *_field_table(struct, ()), ""]
    return lines


def _records() -> list[type[msgspec.Struct]]:
    found: dict[type[msgspec.Struct], None] = {}

    def visit(node: inspect.Type) -> None:
        node = node.type if isinstance(node, inspect.Metadata) else node
        if isinstance(node, inspect.StructType):
            if node.cls not in (Header, *EVENT_TYPES.values()):
                found[node.cls] = None
            for field in node.fields:
                visit(field.type)
        elif isinstance(node, inspect.UnionType):
            for each in node.types:
                visit(each)
        elif isinstance(node, (inspect.ListType, inspect.VarTupleType)):
            visit(node.item_type)

    for root in (Header, *EVENT_TYPES.values()):
        visit(inspect.type_info(root))
    return list(found)


def _field_table(struct: type[msgspec.Struct], left_out: tuple[str, ...]) -> list[str]:
    fields = [field for field in msgspec.structs.fields(struct) if field.name not in left_out]
    if not fields:
        return []
    types = {field.name: field for field in fields_of(struct)}
    rows = [f"| `{field.name}` | {_type(types[field.name].type)} | {_meaning(types[field.name])} |" for field in fields]
    return ["| field | type | meaning |", "| --- | --- | --- |", *rows]


def _meaning(field: inspect.Field) -> str:
    default = (
        ""
        if field.required or field.default is msgspec.NODEFAULT
        else f" (default {msgspec.json.encode(field.default).decode()})"
    )
    return (meaning_of(field) + default).replace("|", "\\|").strip()


def _type(node: inspect.Type) -> str:
    """A type in words: `list of integers`, `string or null`."""
    match node:
        case inspect.Metadata():
            return _type(node.type)
        case inspect.LiteralType():
            return " or ".join(f"`{value}`" for value in node.values)
        case inspect.EnumType():
            return " or ".join(f"`{member.value}`" for member in node.cls)
        case inspect.UnionType():
            # null last, whatever order the annotation has
            members = sorted(node.types, key=lambda member: isinstance(member, inspect.NoneType))
            return " or ".join(_type(member) for member in members)
        case inspect.ListType() | inspect.VarTupleType():
            return f"list of {_plural(_type(node.item_type))}"
        case inspect.TupleType():
            return f"pair of {_plural(_type(node.item_types[0]))}"
        case inspect.DictType():
            return f"object of {_plural(_type(node.value_type))}"
        case inspect.StructType():
            return f"[{node.cls.__name__}](#{node.cls.__name__.lower()})"
        case _:
            return _PLAIN[type(node)]


_PLAIN: dict[type[inspect.Type], str] = {
    inspect.IntType: "integer",
    inspect.StrType: "string",
    inspect.BoolType: "boolean",
    inspect.FloatType: "number",
    inspect.BytesType: "bytes",
    inspect.NoneType: "null",
    inspect.AnyType: "value",
}


def _plural(words: str) -> str:
    head, space, rest = words.partition(" ")
    return f"{head if head.endswith(('s', ')')) else head + 's'}{space}{rest}"


def _sentence(struct: type[msgspec.Struct]) -> str:
    return doc_of(struct).partition(". ")[0].rstrip(".").replace("|", "\\|")


def _example(record: msgspec.Struct) -> str:
    return f"```json\n{msgspec.json.encode(record).decode()}\n```"


if __name__ == "__main__":
    write()
