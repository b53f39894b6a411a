"""A model without weights whose next token depends on all the KV it reads, and a worker that runs it on paged memory.

The KV of a position is one number: a digest of the token there and of the KV before it. The next token is a digest of
the newest KV of every block, read through the block table. So whatever the core gets wrong about memory (a block
shared that holds another prefix, one handed out twice, one read before it is written, a token lost or doubled) ends
as a wrong token, and `Continuation` says what the right one is without any memory to get wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.core.messages import ModelRunnerOutput, ScheduledRow, SchedulerOutput
from sim.fuzz.episode import EOS, Setting
from sim.fuzz.failure import broken

#: Tokens the model may say: EOS and the ones above it.
VOCABULARY = 40


class Continuation:
    """What the model says after a sequence of tokens, computed from nothing but these."""

    def __init__(self, setting: Setting, token_ids: tuple[int, ...] | list[int]) -> None:
        self.kv: list[int] = []
        self._setting = setting
        for token_id in token_ids:
            self.append(token_id)

    def append(self, token_id: int) -> None:
        """Compute one token more."""
        self.kv.append(_kv(self.kv[-1] if self.kv else 0, token_id))

    def next_token(self) -> int:
        """The token that follows."""
        position = len(self.kv) - 1
        size = self._setting.block_size
        return _sample([self.kv[at] for window in self._setting.windows for at in _seen(size, window, position)])


def _kv(before: int, token_id: int) -> int:
    return hash((before, token_id))


def _seen(block_size: int, window: int | None, position: int) -> list[int]:
    """The positions whose KV a token reads: in every block that it sees, the newest one."""
    first = 0 if window is None else max(0, position - window + 1)
    ends = range((first // block_size + 1) * block_size - 1, position, block_size)
    return [*ends, position]


def _sample(seen: list[int]) -> int:
    return EOS + hash(tuple(seen)) % VOCABULARY


class Load(NamedTuple):
    """KV that comes from elsewhere, for the positions from `first` on."""

    serial: int
    block_tables: tuple[list[int], ...]
    first: int
    kv: list[int]


class _Sequence:
    """A request in the worker's batch: its tokens, and per KV cache group its block table."""

    def __init__(self, token_ids: list[int], block_tables: list[list[int]]) -> None:
        self.token_ids = token_ids
        self.block_tables = block_tables


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
        self._writers = [-1] * len(self._kv)
        self._batch: dict[int, _Sequence] = {}

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run a step."""
        self._update_batch(plan)
        for load in plan.kv_connector_metadata or ():
            self.load(load)
        sampled = [self._forward(self._batch[row.serial], row) for row in plan.rows]
        drafts: list[list[int]] | None = None
        if self._setting.drafter:
            assert plan.num_drafts_wanted is not None
            wanted = zip(plan.rows, sampled, plan.num_drafts_wanted, strict=True)
            drafts = [self._propose(row.serial, most) if new else [] for row, new, most in wanted]
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
                self._write(sequence.block_tables, position, 0, row.serial)
            if row.num_tokens_after >= len(sequence.token_ids):
                sequence.token_ids.append(0)

    def load(self, load: Load) -> None:
        """Let KV arrive from elsewhere."""
        for position, value in enumerate(load.kv, load.first):
            self._write(load.block_tables, position, value, load.serial)

    def writers(self, block_tables: Sequence[list[int]]) -> dict[int, int]:
        """Who wrote last into the slots of some blocks: serial by slot, -1 for nobody."""
        size = self._size
        blocks = [block_id for table in block_tables for block_id in table]
        return {at: self._writers[at] for block in blocks for at in range(block * size, (block + 1) * size)}

    def _update_batch(self, plan: SchedulerOutput) -> None:
        for serial in plan.released:
            self._batch.pop(serial, None)  # one that was planned but never left has not been here
        for row in plan.rows:
            if row.new is not None:
                self._batch[row.serial] = _Sequence(list(row.new.token_ids), [list(table) for table in row.block_ids])
            else:
                for table, added in zip(self._batch[row.serial].block_tables, row.block_ids, strict=True):
                    table.extend(added)

    def _forward(self, sequence: _Sequence, row: ScheduledRow) -> list[int]:
        tokens, tables = [*sequence.token_ids, *row.draft_token_ids], sequence.block_tables
        value = self._kv[self._slot(tables[0], row.num_computed_tokens - 1)] if row.num_computed_tokens else 0
        for position in range(row.num_computed_tokens, row.num_tokens_after):
            value = _kv(value, tokens[position])
            self._write(tables, position, value, row.serial)
        sampled: list[int] = []
        for position in range(len(sequence.token_ids) - 1, row.num_tokens_after):
            sampled.append(self._next_token(tables, position))
            if tokens[position + 1 : position + 2] != sampled[-1:]:
                break  # the end, or a draft that is not what the model says
        sequence.token_ids += sampled
        return sampled

    def _propose(self, serial: int, most: int) -> list[int]:
        continuation = Continuation(self._setting, self._batch[serial].token_ids)
        drafts: list[int] = []
        die = abs(hash((continuation.kv[-1], self._setting.draft_luck)))
        for _ in range(die % (most + 1)):
            die = abs(hash((die, 1)))
            right = die % 100 < self._setting.draft_luck
            drafts.append(continuation.next_token() if right else EOS + die % VOCABULARY)
            continuation.append(drafts[-1])
        return drafts

    def _next_token(self, tables: list[list[int]], position: int) -> int:
        return _sample(
            [
                self._kv[self._slot(table, at)]
                for table, window in zip(tables, self._setting.windows, strict=True)
                for at in _seen(self._size, window, position)
            ]
        )

    def _write(self, tables: Sequence[list[int]], position: int, value: int, serial: int) -> None:
        for table in tables:
            slot = self._slot(table, position)
            if slot < self._size:
                raise broken("nothing is kept in the null block", f"position {position} of {table} was written")
            self._kv[slot], self._writers[slot] = value, serial

    def _slot(self, table: list[int], position: int) -> int:
        return table[position // self._size] * self._size + position % self._size
