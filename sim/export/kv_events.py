"""A run's KV cache events as vLLM (0.33) publishes them, for routers and cache indexers that listen to these.

A batch holds what one step did: `[seconds, events, data parallel rank]`, and an event is a map of names. The file is a
batch a line in JSON, or, if its name ends in `.msgpack`, batch after batch in MessagePack, as they stand in the frames
that vLLM sends.

::

    [1.5, [{"type": "BlockStored", "block_hashes": [7133…], "parent_block_hash": null, "token_ids": [5, 6, …],
            "block_size": 16, "lora_id": null, "medium": "GPU", "lora_name": null, "group_idx": 0}], 0]

Hashes are the lowest 64 bits of ours. The medium is `GPU`, vLLM's word for the cache of the engine itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

import msgspec

from engine.core.kv_cache.extra_keys import extra_keys_of_block
from engine.trace import events as ev
from sim.export.walk import Report

_MEDIUM = "GPU"
_HASH_MASK = (1 << 64) - 1
_NS_PER_S = 1e9


def export_kv_events(header: ev.Header, events: Iterable[ev.Event], path: Path) -> Report:
    """Write what was stored in and removed from the prefix cache.

    Args:
        header: of the trace.
        events: of the trace, in order.
        path: the file; `.msgpack` at its end chooses MessagePack.

    Raises:
        OSError: the file cannot be written.
    """
    with path.open("wb") as file:
        translation = _Translation(header, file, as_msgpack=path.suffix == ".msgpack")
        for event in events:
            translation.feed(event)
        translation.end_batch()
    return translation.report


class _Translation:
    def __init__(self, header: ev.Header, file: IO[bytes], *, as_msgpack: bool) -> None:
        self.report = Report()
        self._file = file
        self._encode = msgspec.msgpack.encode if as_msgpack else msgspec.json.encode
        self._line_end = b"" if as_msgpack else b"\n"
        self._rank = header.engine
        self._block_size = header.kv_cache.block_size
        self._none_hash = header.kv_cache.none_hash
        self._added: dict[int, ev.RequestAdded] = {}
        self._tokens: dict[int, list[int]] = {}
        """Prompt and output so far of each living request."""
        self._batch: list[dict[str, Any]] = []
        self._batch_step, self._batch_ts = 0, 0

    def feed(self, event: ev.Event) -> None:
        translate = _TRANSLATED.get(type(event))
        if translate is None:
            self.report.left_out[ev.tag_of(event)] += 1
        else:
            translate(self, event)

    def end_batch(self) -> None:
        """Write the events of the step so far."""
        if self._batch:
            batch = [self._batch_ts / _NS_PER_S, self._batch, self._rank]
            self._file.write(self._encode(batch) + self._line_end)
            self.report.written["batches"] += 1
            self._batch.clear()

    def _put(self, event: ev.Event, kind: str, **fields: Any) -> None:
        if event.step != self._batch_step:
            self.end_batch()
        self._batch_step, self._batch_ts = event.step, event.ts
        self._batch.append({"type": kind, **fields})
        self.report.written[kind] += 1

    # --- requests: whose tokens they are -------------------------------------------------------------------------

    def _request_added(self, event: ev.RequestAdded) -> None:
        self._added[event.request] = event
        self._tokens[event.request] = list(event.prompt_token_ids)

    def _updated(self, event: ev.UpdateRequest) -> None:
        if event.request in self._tokens:
            self._tokens[event.request] += event.appended

    def _finished(self, event: ev.RequestFinished) -> None:
        self._added.pop(event.request, None)
        self._tokens.pop(event.request, None)

    # --- blocks ---------------------------------------------------------------------------------------------------

    def _stored(self, event: ev.KVCached) -> None:
        added = self._added.get(event.request)
        first, num_blocks = event.first_block, len(event.block_ids)
        tokens = self._tokens.get(event.request, [])[first * self._block_size : (first + num_blocks) * self._block_size]
        if added is None or added.has_prompt_embeds or len(tokens) < num_blocks * self._block_size:
            self.report.left_out["blocks stored whose tokens the trace does not hold"] += num_blocks
            return
        extra_keys = [self._extra_keys(added, number * self._block_size) for number in range(first, first + num_blocks)]
        self._put(
            event,
            "BlockStored",
            block_hashes=[_hash(each) for each in event.hashes],
            parent_block_hash=None if event.parent == self._none_hash else _hash(event.parent),
            token_ids=tokens,
            block_size=self._block_size,
            lora_id=None,
            medium=_MEDIUM,
            lora_name=added.lora_request.lora_name if added.lora_request else None,
            **({"extra_keys": extra_keys} if any(extra_keys) else {}),
            group_idx=event.group,
        )

    def _extra_keys(self, added: ev.RequestAdded, start: int) -> list[Any] | None:
        """What else went into the hash of the block that begins at a token, as vLLM says it: without the kinds."""
        keys = extra_keys_of_block(
            start, start + self._block_size, added.cache_salt, added.lora_request, added.mm_features
        )
        return [_UNTAGGED[str(kind)](*values) for kind, *values in keys] if keys else None

    def _evicted(self, event: ev.KVAllocated) -> None:
        if event.evicted_hashes:
            hashes = [_hash(each) for each in event.evicted_hashes]
            self._put(event, "BlockRemoved", block_hashes=hashes, medium=_MEDIUM, group_idx=event.group)

    def _uncached(self, event: ev.KVUncached) -> None:
        self._put(event, "BlockRemoved", block_hashes=[_hash(each) for each in event.hashes], medium=_MEDIUM)

    def _cleared(self, event: ev.CacheReset) -> None:
        if event.done:
            self._put(event, "AllBlocksCleared")


#: By the kind of an extra key: what vLLM publishes of it.
_UNTAGGED: dict[str, Callable[..., Any]] = {
    "lora": lambda name, path: name,
    "mm": lambda mm_hash, offset: (mm_hash, offset),
    "cache_salt": lambda salt: salt,
}


def _hash(hexadecimal: str) -> int:
    return int(hexadecimal, 16) & _HASH_MASK


_TRANSLATED: dict[type[ev.Event], Callable[[_Translation, Any], None]] = {
    ev.RequestAdded: _Translation._request_added,
    ev.UpdateRequest: _Translation._updated,
    ev.RequestFinished: _Translation._finished,
    ev.KVCached: _Translation._stored,
    ev.KVAllocated: _Translation._evicted,
    ev.KVUncached: _Translation._uncached,
    ev.CacheReset: _Translation._cleared,
}
