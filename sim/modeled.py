"""`ModeledExecutor`: runs no model. Tokens are made up, the time of a step is a cost model's."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from engine.core.messages import GrammarBitmask, ModelRunnerOutput, ScheduledRow, SchedulerOutput
from sim.clock import VirtualClock
from sim.cost_model.composition import StepComposition
from sim.cost_model.cost_model import CostModel

_MASK = (1 << 64) - 1


class TokenSource(Protocol):
    """What the model says, without the model."""

    def token(self, serial: int, position: int) -> int:
        """The token at a position of a request, prompt included; the same whenever it is asked."""

    def other(self, serial: int, position: int) -> int:
        """A token that is not the one at that position."""


class MadeUpTokens:
    """Tokens that mean nothing.

    Args:
        vocab_size: they are below it.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def token(self, serial: int, position: int) -> int:
        """See `TokenSource`."""
        return (serial * 40_503 + position * 25_173) % self.vocab_size

    def tokens(self, serial: int, position: int, count: int) -> list[int]:
        """See `seams.Foresight`."""
        first, vocab_size = serial * 40_503 + position * 25_173, self.vocab_size
        return [number % vocab_size for number in range(first, first + count * 25_173, 25_173)]

    def other(self, serial: int, position: int) -> int:
        """See `TokenSource`."""
        return (self.token(serial, position) + 1) % self.vocab_size


class Drafter(Protocol):
    """Proposes tokens, without a model."""

    @property
    def num_speculative_tokens(self) -> int:
        """Most drafts per request and step."""

    @property
    def draft_ns(self) -> int:
        """What drafting adds to a step."""

    def drafts(self, serial: int, position: int, most: int, tokens: TokenSource) -> list[int]:
        """What a request may say next.

        Args:
            serial: the request.
            position: of the first of them.
            most: so many are wanted.
            tokens: what it will say.
        """


class DraftingModel(NamedTuple):
    """A `Drafter` known by how often it is right."""

    num_speculative_tokens: int
    acceptance_rate: float
    """Probability that a draft is accepted, given that those before it were."""
    draft_ns: int = 0
    seed: int = 0
    """Decides which drafts are right."""

    def drafts(self, serial: int, position: int, most: int, tokens: TokenSource) -> list[int]:
        """See `Drafter`. Whether the draft for a position is right is the same whenever it is asked."""
        return [
            tokens.token(serial, place) if self._is_right(serial, place) else tokens.other(serial, place)
            for place in range(position, position + most)
        ]

    def _is_right(self, serial: int, position: int) -> bool:
        return _mixed(self.seed, serial, position) < self.acceptance_rate


class StepRun(NamedTuple):
    """What the executor did last."""

    composition: StepComposition
    num_resumed: int
    """Rows that came back after a preemption."""
    drafted: tuple[int, ...]
    """Drafts verified, by their place among those of their request."""
    accepted: tuple[int, ...]
    """Of these, the drafts accepted."""


class ModeledExecutor:
    """An `Executor` for a simulation: passes the time that a cost model says, and has its tokens from elsewhere.

    The token at a position is the same whenever it is asked for, so a preempted request says the same again.

    Args:
        cost_model: says how long steps take.
        clock: passes that time.
        tokens: what the model says.
        drafting: proposes drafts; None: nobody drafts.
    """

    def __init__(
        self,
        cost_model: CostModel,
        clock: VirtualClock,
        tokens: TokenSource,
        drafting: Drafter | None = None,
    ) -> None:
        self.last: StepRun
        self._cost_model = cost_model
        self._clock = clock
        self._tokens = tokens
        self._token = tokens.token
        self._drafting = drafting
        self._num_tokens: dict[int, int] = {}
        """Of the requests in the batch: prompt and output."""
        self._ends: dict[int, int] = {}
        """Of the requests in the batch: tokens that they end with."""
        self._seen: set[int] = set()
        self._plan: SchedulerOutput | None = None

    def execute_model(self, scheduler_output: SchedulerOutput) -> None:
        """Note what the step is."""
        self._plan = scheduler_output

    def sample_tokens(self, grammar_bitmask: GrammarBitmask | None) -> ModelRunnerOutput:
        """Let the step's time pass; every request whose tokens are all computed gets its next."""
        plan, self._plan = self._plan, None
        assert plan is not None, "sample_tokens was called without a step: execute_model comes first."
        for serial in plan.released:
            self._num_tokens.pop(serial, None)
        coasting = plan.coasting
        for serial, num_steps in coasting.woken.items() if coasting is not None else ():
            if serial in self._num_tokens:
                self._num_tokens[serial] += num_steps
        shares: list[tuple[int, int, int]] = []
        serials: list[int] = []
        sampled: list[list[int]] = []
        num_resumed = 0
        counts = _DraftCounts(0 if self._drafting is None else self._drafting.num_speculative_tokens)
        for row in plan.rows:
            if row.new is not None:
                num_resumed += self._join(row)
            serial, end = row.serial, row.num_computed_tokens + row.num_scheduled_tokens
            num_tokens, num_drafts = self._num_tokens[serial], len(row.draft_token_ids)
            serials.append(serial)
            if end < num_tokens + num_drafts:
                sampled.append([])
                shares.append((row.num_computed_tokens, row.num_scheduled_tokens, 0))
                continue
            if not num_drafts:
                sampled.append([self._token(serial, num_tokens)])
                self._num_tokens[serial] = num_tokens + 1
                shares.append((row.num_computed_tokens, row.num_scheduled_tokens, 1))
                continue
            num_accepted = self._num_accepted(row, num_tokens, counts)
            sampled.append([self._token(serial, num_tokens + place) for place in range(num_accepted + 1)])
            self._num_tokens[serial] = num_tokens + num_accepted + 1
            shares.append((row.num_computed_tokens, row.num_scheduled_tokens, 1 + num_drafts))
        composition = StepComposition.of(shares)
        if coasting is not None:
            composition = composition.with_decodes(coasting.num_rows, coasting.num_kv_tokens)
        most_drafts = plan.num_drafts_wanted or [0] * len(serials)
        draft_ns = self._drafting.draft_ns if self._drafting is not None and any(most_drafts) else 0
        self._clock.advance(self._cost_model.step_ns(composition) + draft_ns)
        self.last = StepRun(composition, num_resumed, tuple(counts.drafted), tuple(counts.accepted))
        drafts = (
            None
            if self._drafting is None
            else [
                self._drafts(serial, most) if token_ids else []
                for serial, token_ids, most in zip(serials, sampled, most_drafts, strict=True)
            ]
        )
        return ModelRunnerOutput(step=plan.step, serials=serials, sampled_token_ids=sampled, draft_token_ids=drafts)

    def shutdown(self) -> None:
        """Nothing to give back."""

    def take_over(self, serial: int, num_tokens: int, end: int | None) -> None:
        """A request is in the batch already.

        Args:
            serial: the request.
            num_tokens: its prompt and its output so far.
            end: tokens that it ends with; None: nothing but the context's length ends it.
        """
        self._seen.add(serial)
        self._num_tokens[serial] = num_tokens
        if self._drafting is not None and end is not None:
            self._ends[serial] = end

    def finished(self, serial: int) -> None:
        """A request has ended: nothing of it is kept."""
        self._seen.discard(serial)
        self._ends.pop(serial, None)

    def _join(self, row: ScheduledRow) -> bool:
        """A request enters the batch. Returns whether it has been there before."""
        assert row.new is not None
        self._num_tokens[row.serial] = len(row.new.token_ids)
        if row.serial in self._seen:
            return True
        self._seen.add(row.serial)
        if self._drafting is not None and row.new.sampling_params.max_tokens is not None:
            self._ends[row.serial] = row.new.num_prompt_tokens + row.new.sampling_params.max_tokens
        return False

    def _num_accepted(self, row: ScheduledRow, num_tokens: int, counts: _DraftCounts) -> int:
        accepted = 0
        for place, token_id in enumerate(row.draft_token_ids):
            counts.drafted[place] += 1
            if accepted == place and token_id == self._token(row.serial, num_tokens + place):
                counts.accepted[place] += 1
                accepted += 1
        return accepted

    def _drafts(self, serial: int, most: int) -> list[int]:
        """As a proposer does, no more than are wanted, nor than the request's own end leaves room for."""
        assert self._drafting is not None
        first = self._num_tokens[serial]
        left = self._ends.get(serial, first + most + 1) - first - 1
        return self._drafting.drafts(serial, first, max(0, min(left, most)), self._tokens)


class _DraftCounts:
    """Drafts of a step by their place."""

    def __init__(self, num_speculative_tokens: int) -> None:
        self.drafted = [0] * num_speculative_tokens
        self.accepted = [0] * num_speculative_tokens


def _mixed(*numbers: int) -> float:
    """A number in [0, 1) that looks random and is the same for the same numbers (SplitMix64's finalizer)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state / (1 << 64)
