"""What the model said in a recorded run, for a run that goes otherwise.

What a model says does not depend on when it is asked: a request gets its recorded tokens in whatever steps it runs, and
so do drafters. Where the record ends, because the request was cut short there, tokens are made up.
"""

from __future__ import annotations

from engine.core.messages import GrammarBitmask
from engine.core.seams import AutomatonSteps
from engine.sampling_params import GrammarSpec
from engine.trace import events as ev
from engine.trace.file import AnyTrace
from sim.modeled import DraftingModel, MadeUpTokens, TokenSource


class RecordedTokens:
    """A `TokenSource`: the recorded output of every request, and what was cut off behind its stop: a draft is right
    there too.

    Args:
        trace: the recorded run.
    """

    def __init__(self, trace: AnyTrace) -> None:
        self._made_up = MadeUpTokens(trace.header.model.vocab_size)
        self._stops: dict[int, set[int]] = {}
        self._num_prompt_tokens: dict[int, int] = {}
        self._outputs: dict[int, list[int]] = {}
        self._refusals: dict[int, tuple[int, str]] = {}
        """By serial: behind how many tokens of output no more could be sampled, and why."""
        brought: dict[int, list[int]] = {}
        for event in trace.events:
            if isinstance(event, ev.RequestAdded):
                self._num_prompt_tokens[event.request] = len(event.prompt_token_ids)
                self._outputs[event.request] = []
                self._stops[event.request] = {*event.eos_token_ids, *(event.sampling_params.stop_token_ids or ())}
            elif isinstance(event, ev.UpdateRequest):
                token_ids = brought.get(event.request, event.appended)
                self._outputs[event.request].extend(token_ids[: len(event.appended) + event.num_cut])
            elif isinstance(event, ev.StepOutput):
                brought = dict(zip(event.requests, event.sampled_token_ids, strict=False))
                for serial, why in (event.errors or {}).items():
                    self._refusals[serial] = len(self._outputs[serial]), why

    def refusal(self, serial: int, num_output_tokens: int) -> str | None:
        """Why a request cannot have so many tokens of output: when it was recorded, none could be sampled there."""
        most, why = self._refusals.get(serial, (num_output_tokens, None))
        return why if num_output_tokens > most else None

    def token(self, serial: int, position: int) -> int:
        """The token at a position of a request; one that is made up ends nothing."""
        output, place = self._outputs[serial], position - self._num_prompt_tokens[serial]
        if place < len(output):
            return output[place]
        return self._harmless(serial, self._made_up.token(serial, position))

    def other(self, serial: int, position: int) -> int:
        """See `TokenSource`."""
        return self._harmless(serial, self.token(serial, position) + 1)

    def _harmless(self, serial: int, token_id: int) -> int:
        vocab_size = self._made_up.vocab_size
        while token_id % vocab_size in self._stops[serial]:
            token_id += 1
        return token_id % vocab_size


class WalkedAutomata:
    """A `GrammarBackend` that knows where the recorded tokens of each request led, in whatever portions they come.

    Args:
        trace: the recorded run.
    """

    def __init__(self, trace: AnyTrace) -> None:
        self._states: dict[int, list[int | None]] = {}
        self._ends: set[int] = set()
        self._walked: dict[int, int] = {}
        for event in trace.events:
            if isinstance(event, ev.GrammarAdvanced):
                self._states.setdefault(event.request, [event.before]).extend(event.after)
                if event.terminated:
                    self._ends.add(event.request)

    def grammar_init(self, serial: int, grammar: GrammarSpec) -> None:
        """When it was ready is an input."""

    def fill_bitmask(self, rows: list[tuple[int, tuple[int, ...]]]) -> GrammarBitmask:
        """No logits are masked here: only which rows would be."""
        return GrammarBitmask(serials=[serial for serial, _ in rows], words=None)

    def describe_masks(self, bitmask: GrammarBitmask) -> None:
        """Nothing is known of masks at other positions than the recorded ones."""

    def accept_tokens(self, serial: int, token_ids: list[int]) -> AutomatonSteps | None:
        """Where the tokens led; None behind the end of what is recorded."""
        states = self._states.get(serial)
        before = self._walked.get(serial, 0)
        after = before + len(token_ids)
        if states is None or after >= len(states):
            return None
        self._walked[serial] = after
        terminated = serial in self._ends and after == len(states) - 1
        return AutomatonSteps(states[before], states[before + 1 : after + 1], terminated)

    def release(self, serial: int) -> None:
        """Nothing is kept but what is recorded."""


class RecordedDrafts:
    """A `Drafter` that proposes behind the same tokens what was proposed there, and elsewhere is right as often.

    Elsewhere it never stops early: how sure a drafter would have been (`draft_confidence_threshold`) is not recorded.

    Args:
        trace: the recorded run.
        num_speculative_tokens: most drafts per request and step.
    """

    draft_ns = 0
    """Part of the recorded steps' time."""

    def __init__(self, trace: AnyTrace, num_speculative_tokens: int) -> None:
        self.num_speculative_tokens = num_speculative_tokens
        self._proposed: dict[tuple[int, int], list[int]] = {}
        num_tokens: dict[int, int] = {}
        brought: dict[int, list[int]] = {}
        accepted = judged = 0
        for event in trace.events:
            if isinstance(event, ev.RequestAdded):
                num_tokens[event.request] = len(event.prompt_token_ids)
            elif isinstance(event, ev.StepOutput):
                brought = dict(zip(event.requests, event.draft_token_ids or (), strict=False))
            elif isinstance(event, ev.UpdateRequest):
                num_tokens[event.request] += len(event.appended)
                if event.appended and event.request in brought:
                    self._proposed[event.request, num_tokens[event.request]] = brought[event.request]
            elif isinstance(event, ev.SpecVerdict):
                accepted += event.num_accepted
                judged += min(event.num_accepted + 1, len(event.draft_token_ids))
        self._elsewhere = DraftingModel(num_speculative_tokens, accepted / judged if judged else 0.0)

    def drafts(self, serial: int, position: int, most: int, tokens: TokenSource) -> list[int]:
        """See `Drafter`."""
        proposed = self._proposed.get((serial, position))
        return self._elsewhere.drafts(serial, position, most, tokens) if proposed is None else proposed[:most]
