"""The engine as a map: its parts along the way of a request, those at work in a step lit, and how much passed."""

from __future__ import annotations

from typing import NamedTuple

from engine.trace import events as ev
from sim.timeline import StepView, Timeline
from viz.figures.html import Html, el
from viz.figures.parts import Selection, count, empty, panel


class _Part(NamedTuple):
    """A part of the engine, what it does, and what it did in the step: nothing if it rested."""

    name: str
    job: str
    did: str


def engine_map(timeline: Timeline, view: StepView, selection: Selection) -> Html:
    """Draw the parts in the order in which a request meets them."""
    parts = _parts(view)
    lit = sum(1 for part in parts if part.did)
    core = [part for part in parts if part.name in _CORE]
    outside = [_box(part) for part in parts if part.name not in _CORE]
    before, behind = outside[:2], outside[2:]
    inside = el("div", "core", el("span", "core-name", "EngineCore"), *(_box(part) for part in core))
    return panel(
        "engine-map",
        "Engine map",
        f"the way of step {view.step}: {lit} of {len(parts)} parts had something to do",
        el("div", "map", *before, inside, *behind),
        None if lit else empty("Nothing moved: the trace ends before this step was planned."),
    )


_CORE = ("Scheduler", "KVCacheManager", "StructuredOutputManager")


def _parts(view: StepView) -> tuple[_Part, ...]:
    counts = _Counts(view)
    arrived, rows, tokens = len(view.arrivals), counts.rows, counts.tokens
    sent = f"{count(rows, 'request')}, {count(tokens, 'token')}" if rows else ""
    sampled = f"{count(counts.appended, 'token')} sampled" if counts.appended else ""
    return (
        _Part("LLMEngine.add_request", "takes a prompt", f"{count(arrived, 'prompt')} came in" if arrived else ""),
        _Part("Processor", "turns text into token ids", f"{count(arrived, 'prompt')} tokenized" if arrived else ""),
        _Part("Scheduler", "shares the token budget out", f"planned {sent}" if sent else counts.planned),
        _Part("KVCacheManager", "hands out, shares and takes back blocks", counts.blocks),
        _Part("StructuredOutputManager", "masks what a grammar forbids", counts.grammar),
        _Part("Executor", "carries the plan to the workers", sent if counts.ran else ""),
        _Part("ModelRunner", "runs the model over the super-sequence", count(tokens, "token") if counts.ran else ""),
        _Part("Sampler", "chooses the next tokens", sampled),
        _Part("OutputProcessor", "turns tokens into text", counts.text),
    )


class _Counts:
    """What passed through the parts in a step."""

    def __init__(self, view: StepView) -> None:
        scheduled = [e for e in view.events if isinstance(e, ev.StepScheduled)]
        self.rows = sum(len(e.requests) for e in scheduled)
        self.tokens = sum(e.total_num_scheduled_tokens for e in scheduled)
        self.planned = "nothing to compute" if scheduled else ""
        self.ran = self.rows > 0 and any(isinstance(e, ev.StepOutput) for e in view.events)
        self.appended = sum(len(e.appended) for e in view.events if isinstance(e, ev.UpdateRequest))
        self.blocks = _blocks(view)
        masks = sum(len(e.requests) for e in view.events if isinstance(e, ev.GrammarBitmaskFilled))
        self.grammar = f"{count(masks, 'request')} masked" if masks else ""
        told = {e.request for e in view.events if isinstance(e, ev.OutputText)}
        self.text = f"text for {count(len(told), 'request')}" if told else ""


def _blocks(view: StepView) -> str:
    kinds = ((ev.KVAllocated, "handed out"), (ev.KVTouched, "shared"), (ev.KVFreed, "given back"))
    counted = [
        (sum(len(event.block_ids) for event in view.events if isinstance(event, kind)), word) for kind, word in kinds
    ]
    told = [f"{number} {word}" for number, word in counted if number]
    return f"blocks: {', '.join(told)}" if told else ""


def _box(part: _Part) -> Html:
    return el(
        "div",
        "part lit-part" if part.did else "part",
        el("b", "", part.name),
        el("span", "", part.job),
        el("em", "", part.did or "rests"),
        data_part_name=part.name,
        data_active=bool(part.did),
        data_tip=f"{part.name} {part.job}; look it up in docs/glossary.md",
    )
