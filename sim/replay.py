"""Replay: the proof that a trace tells the truth.

Every decision is stripped from the trace. A fresh `EngineCore` (the very code that made the recording) is fed the
inputs alone, and must bring forth the same decisions, field by field, between the same inputs. Only `seq` and `ts`
are not compared: they count the observations too, and tell the time.

What is derived from the inputs by a backend (the masks of a grammar, the states of its automaton) is recomputed and
compared like a decision if the replay is given that backend, and else trusted. The verdicts on drafts need none: they
follow from the recorded probabilities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from typing import Any, NamedTuple

from engine.core.seams import GrammarBackend
from engine.errors import OrreryError
from engine.trace.events import EVENT_TYPES, Event, EventClass, GrammarBitmaskFilled, OutputText, tag_of
from engine.trace.file import AnyTrace
from sim.field_differences import FieldDifference, differing_fields
from sim.recorded import AnswersEnd
from sim.recorded_core import RecordedCore


class Divergence(NamedTuple):
    """The first decision that the inputs do not explain."""

    step: int
    recorded: Event | None
    """What the file says; None if the file lacks a decision that follows from its inputs."""
    recomputed: Event | None
    """What follows from the inputs; None if nothing does."""
    differences: list[FieldDifference]
    """Recorded first, recomputed second."""
    why: str
    state: dict[str, Any]
    """The core when it happened: queues, free blocks, steps in flight."""


class ReplayReport(NamedTuple):
    """What a replay found."""

    agreed: Counter[type[Event]]
    """By type: decisions that were regenerated, and derived events that were recomputed, and agreed."""
    num_inputs: int
    num_steps: int
    divergence: Divergence | None
    truncated: str | None
    """If the trace ends in the middle of a step, or its file was cut short: where, in one sentence."""
    num_trusted: int
    """Derived events that nobody recomputed."""

    @property
    def num_decisions(self) -> int:
        """Decisions that were regenerated and agreed."""
        return sum(number for kind, number in self.agreed.items() if kind.kind is EventClass.DECISION)

    @property
    def num_recomputed(self) -> int:
        """Derived events that were recomputed and agreed."""
        return self.agreed.total() - self.num_decisions

    @property
    def num_divergences(self) -> int:
        """0 or 1: a core that has decided otherwise once is in another state, and what follows proves nothing."""
        return int(self.divergence is not None)

    def __str__(self) -> str:
        divergences = "1 divergence" if self.divergence else "0 divergences"
        return f"{self.num_decisions} decisions, {divergences}"


class _Collector:
    """Takes the events of the replayed core, and stamps them as the recorder of the original did."""

    def __init__(self, engine: int, rank: int, compared: Set[type[Event]]) -> None:
        self.step = 0
        self.decisions: list[Event] = []
        self._engine, self._rank = engine, rank
        self._compared = compared

    def emit(self, event: Event) -> None:
        if type(event) in self._compared:
            event.step, event.engine, event.rank = self.step, self._engine, self._rank
            self.decisions.append(event)

    def take(self) -> list[Event]:
        """The decisions, and what was derived, since the last call."""
        decisions, self.decisions = self.decisions, []
        return decisions


class _Exchange(NamedTuple):
    """An input, and what the file says it led to."""

    input: Event | None
    recorded: list[Event]
    """Decisions, and what is derived and computed again."""
    heard: list[Event]
    """What collaborators answered meanwhile, and what is derived and trusted."""


class Replay:
    """A core that is being fed a trace, call by call: nothing of what is over is kept.

    Args:
        trace: what was recorded.
        grammar_backend: one that compiles a grammar the moment it is asked to; None: what the trace says is trusted.
    """

    def __init__(self, trace: AnyTrace, grammar_backend: GrammarBackend | None = None) -> None:
        self.trace = trace
        header = trace.header
        self._compared = _compared_types(recomputes=grammar_backend is not None)
        self._collector = _Collector(header.engine, header.rank, self._compared)
        self._recorded = RecordedCore(trace, self._collector, grammar_backend)
        self.core = self._recorded.core
        self._answers_ended = False
        self._num_trusted = 0
        self._last: type[Event] = Event

    def run(self) -> ReplayReport:
        """Feed every input and compare every decision, up to the first that differs."""
        num_inputs, agreed = 0, Counter[type[Event]]()
        divergence, truncated = None, self.trace.truncated
        exchanges = self._exchanges()
        exchange = next(exchanges)
        while True:
            upcoming = next(exchanges, None)
            refusal = self._exchange(exchange)
            recomputed = self._collector.take()
            num_agreed = _num_agreed(exchange.recorded, recomputed)
            num_inputs += exchange.input is not None
            agreed.update(map(type, exchange.recorded[:num_agreed]))
            if num_agreed < len(exchange.recorded) or num_agreed < len(recomputed) or refusal:
                whole = num_agreed == len(exchange.recorded)
                if whole and upcoming is None and self._may_be_cut(refusal):
                    truncated = truncated or f"The trace ends in the middle of step {self._collector.step}."
                else:
                    divergence = self._diverge(exchange, recomputed, num_agreed, refusal)
            if upcoming is None or divergence is not None:
                break
            exchange = upcoming
        return ReplayReport(
            agreed, num_inputs, self.core.scheduler.step, divergence, truncated, num_trusted=self._num_trusted
        )

    def _exchanges(self) -> Iterator[_Exchange]:
        """Cut the trace before every call. Observations are left out."""
        current = _Exchange(None, [], [])
        for event in self.trace.events:
            self._last = type(event)
            if type(event) in self._compared:
                current.recorded.append(event)
            elif event.kind is EventClass.INPUT and not event.is_answer:
                yield current
                current = _Exchange(event, [], [event])
            elif event.kind is not EventClass.OBSERVATION:
                current.heard.append(event)
        yield current

    def _exchange(self, exchange: _Exchange) -> str | None:
        """Make a call; the collaborators answer as they did. Returns why the core refused it, if it did."""
        for event in exchange.heard:
            self._num_trusted += event.kind is EventClass.DERIVED
            self._recorded.hear(event)
        refusal = self._feed(exchange.input) if exchange.input is not None else None
        return refusal or self._fill_bitmasks(exchange.recorded)

    def _may_be_cut(self, refusal: str | None) -> bool:
        """Whether a crash may have cut the file between an input and the end of its decisions.

        It may have come between two lines, where the file shows no trace of it. Text is made of a step only after it.
        """
        return (not refusal or self._answers_ended) and self._last is not OutputText

    def _feed(self, event: Event) -> str | None:
        """Make the call that an input event records. Returns why the core refused it, if it did."""
        try:
            return self._recorded.feed(event)
        except (OrreryError, ValueError, LookupError) as error:
            self._answers_ended = isinstance(error, AnswersEnd)
            return f"the core refuses this input: {error}"

    def _fill_bitmasks(self, recorded: list[Event]) -> str | None:
        """Ask for the masks that were asked for here. Returns why the core refuses, if it does."""
        try:
            for event in recorded:
                if isinstance(event, GrammarBitmaskFilled):
                    self.core.grammar_bitmask(event.step)
        except (ValueError, LookupError) as error:
            return f"no mask can be filled: {error}"
        return None

    def _diverge(self, exchange: _Exchange, recomputed: list[Event], agreed: int, refusal: str | None) -> Divergence:
        if refusal and agreed == len(exchange.recorded):
            return Divergence(self._step_of(exchange.input), exchange.input, None, [], refusal, self._state())
        recorded = exchange.recorded[agreed] if agreed < len(exchange.recorded) else None
        computed = recomputed[agreed] if agreed < len(recomputed) else None
        differences = differing_fields(recorded, computed) if recorded is not None and computed is not None else []
        if recorded is None:
            why = f"the file lacks a {_type(computed)} that follows from its inputs"
        elif computed is None:
            why = f"nothing in the inputs leads to this {_type(recorded)}"
        elif not differences:
            why = f"a {_type(computed)} follows from the inputs, not a {_type(recorded)}"
        else:
            why = f"{', '.join(difference.field for difference in differences)} came out otherwise"
        return Divergence(self._step_of(recorded or computed), recorded, computed, differences, why, self._state())

    def _state(self) -> dict[str, Any]:
        scheduler = self.core.scheduler
        return {
            "step": scheduler.step,
            "running": [f"r{request.serial}" for request in scheduler.running],
            "waiting": [f"r{request.serial}" for request in scheduler.waiting.first(16)],
            "num_waiting": len(scheduler.waiting),
            "free_blocks": scheduler.kv_cache_manager.block_pool.num_free_blocks,
        }

    @staticmethod
    def _step_of(event: Event | None) -> int:
        return event.step if event is not None else 0


def replay(trace: AnyTrace, grammar_backend: GrammarBackend | None = None) -> ReplayReport:
    """Run a trace's inputs through a fresh engine core and compare the decisions with the recorded ones.

    Args:
        trace: what was recorded.
        grammar_backend: to recompute what follows from grammars, too; one that compiles a grammar at once.
    """
    return Replay(trace, grammar_backend).run()


def _compared_types(*, recomputes: bool) -> frozenset[type[Event]]:
    """Types of event that the core brings forth again; `recomputes`: there is a backend."""
    return frozenset(
        kind
        for kind in EVENT_TYPES.values()
        if kind.kind is EventClass.DECISION
        or (kind.kind is EventClass.DERIVED and (recomputes or not kind.needs_backend))
    )


def _num_agreed(recorded: list[Event], recomputed: list[Event]) -> int:
    """How many decisions agree before the first that does not."""
    for index, (old, new) in enumerate(zip(recorded, recomputed, strict=False)):
        new.seq, new.ts = old.seq, old.ts
        if old != new:
            return index
    return min(len(recorded), len(recomputed))


def _type(event: Event | None) -> str:
    return tag_of(event) if event is not None else "decision"
