"""A model without weights whose next token depends on all the KV it reads, and a worker that runs it on paged memory.

The KV of a position is one number: a digest of the token there and of the KV before it. The next token is a digest of
the newest KV of every block, read through the block table. So whatever the core gets wrong about memory (a block
shared that holds another prefix, one handed out twice, one read before it is written, a token lost or doubled) ends
as a wrong token, and `Continuation` says what the right one is without any memory to get wrong.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.core.messages import ModelRunnerOutput, ScheduledRow, SchedulerOutput
from sim.fuzz.episode import EOS, Setting

#: Tokens the model may say: EOS and the ones above it.
VOCABULARY = 40


class Continuation:
    """What the model says after a sequence of tokens, computed from nothing but these."""

    def __init__(self, block_size: int, token_ids: tuple[int, ...] | list[int]) -> None:
        self.kv: list[int] = []
        self._block_size = block_size
        for token_id in token_ids:
            self.append(token_id)

    def append(self, token_id: int) -> None:
        """Compute one token more."""
        self.kv.append(_kv(self.kv[-1] if self.kv else 0, token_id))

    def next_token(self) -> int:
        """The token that follows."""
        tops = self.kv[self._block_size - 1 :: self._block_size]
        if len(self.kv) % self._block_size:
            tops.append(self.kv[-1])
        return _sample(tops)


def _kv(before: int, token_id: int) -> int:
    return hash((before, token_id))


def _sample(tops: list[int]) -> int:
    return EOS + hash(tuple(tops)) % VOCABULARY


class Load(NamedTuple):
    """KV that comes from elsewhere, for the positions from `first` on."""

    block_table: list[int]
    first: int
    kv: list[int]


class _Sequence:
    """A request in the worker's batch."""

    def __init__(self, token_ids: list[int], block_table: list[int]) -> None:
        self.token_ids = token_ids
        self.block_table = block_table


class ToyWorker:
    """Executes plans on one array of KV, knowing of the requests only what the plans say.

    Args:
        setting: block size, drafter.
        num_blocks: blocks of the pool, the null block included.
    """

    def __init__(self, setting: Setting, num_blocks: int) -> None:
        self._setting = setting
        self._size = setting.block_size
        self._kv = list(range(-num_blocks * setting.block_size, 0))  # no digest of anything
        self._batch: dict[int, _Sequence] = {}

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run a step."""
        self._update_batch(plan)
        for load in plan.kv_connector_metadata or ():
            self.load(load)
        sampled = [self._forward(self._batch[row.serial], row) for row in plan.rows]
        drafts: list[list[int]] | None = None
        if self._setting.drafter:
            drafts = [self._propose(row.serial) if new else [] for row, new in zip(plan.rows, sampled, strict=True)]
        return ModelRunnerOutput(
            step=plan.step,
            serials=[row.serial for row in plan.rows],
            sampled_token_ids=sampled,
            draft_token_ids=drafts,
        )

    def fail(self, plan: SchedulerOutput) -> None:
        """Run a step that raises halfway: what its rows would have written and sampled is spoiled."""
        self._update_batch(plan)
        for row in plan.rows:
            sequence = self._batch[row.serial]
            for position in range(row.num_computed_tokens, row.num_tokens_after):
                self._kv[self._slot(sequence.block_table, position)] = self.spoiled_by(row.serial)
            if row.num_tokens_after >= len(sequence.token_ids):
                sequence.token_ids.append(0)

    def load(self, load: Load) -> None:
        """Let KV arrive from elsewhere."""
        for position, value in enumerate(load.kv, load.first):
            self._kv[self._slot(load.block_table, position)] = value

    def read(self, block_table: list[int], num_tokens: int) -> list[int]:
        """The KV of the first tokens of a block table, as many as it has slots for."""
        num_tokens = min(num_tokens, len(block_table) * self._size)
        return [self._kv[self._slot(block_table, position)] for position in range(num_tokens)]

    @staticmethod
    def spoiled_by(serial: int) -> int:
        """What a forward pass that raises leaves in the slots of a request."""
        return -serial - 1

    def _update_batch(self, plan: SchedulerOutput) -> None:
        for serial in plan.released:
            self._batch.pop(serial, None)  # one that was planned but never left has not been here
        for row in plan.rows:
            if row.new is not None:
                self._batch[row.serial] = _Sequence(list(row.new.token_ids), list(row.block_ids[0]))
            else:
                self._batch[row.serial].block_table += row.block_ids[0]

    def _forward(self, sequence: _Sequence, row: ScheduledRow) -> list[int]:
        tokens, table = [*sequence.token_ids, *row.draft_token_ids], sequence.block_table
        value = self._kv[self._slot(table, row.num_computed_tokens - 1)] if row.num_computed_tokens else 0
        for position in range(row.num_computed_tokens, row.num_tokens_after):
            value = _kv(value, tokens[position])
            self._kv[self._slot(table, position)] = value
        sampled: list[int] = []
        for position in range(len(sequence.token_ids) - 1, row.num_tokens_after):
            sampled.append(_sample(self._tops(table, position)))
            if tokens[position + 1 : position + 2] != sampled[-1:]:
                break  # the end, or a draft that is not what the model says
        sequence.token_ids += sampled
        return sampled

    def _propose(self, serial: int) -> list[int]:
        continuation = Continuation(self._size, self._batch[serial].token_ids)
        drafts: list[int] = []
        die = abs(hash((continuation.kv[-1], self._setting.draft_luck)))
        for _ in range(die % (self._setting.num_speculative_tokens + 1)):
            die = abs(hash((die, 1)))
            right = die % 100 < self._setting.draft_luck
            drafts.append(continuation.next_token() if right else EOS + die % VOCABULARY)
            continuation.append(drafts[-1])
        return drafts

    def _tops(self, table: list[int], position: int) -> list[int]:
        """The newest KV of every block up to a position."""
        size, whole = self._size, (position + 1) // self._size
        tops = [self._kv[block_id * size + size - 1] for block_id in table[:whole]]
        if (position + 1) % size:
            tops.append(self._kv[self._slot(table, position)])
        return tops

    def _slot(self, table: list[int], position: int) -> int:
        return table[position // self._size] * self._size + position % self._size
