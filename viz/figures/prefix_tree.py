"""What the prefix cache holds, as the tree it is: a hash names a block by its tokens *and* by the hash before it.

::

    none hash ─┬─ "Once upon a time" ─── "in a small town" ─┬─ "by the sea"      two texts that part behind
               │                                            └─ "in the hills"    their second block
               └─ "The old clock in"

Of a large cache a few chains are taken: first those that the step is about, then those in use, then the newest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.trace import events as ev
from sim.pool import NULL_BLOCK, Origin, PoolState
from sim.state import State
from sim.timeline import StepView
from viz.figures.parts import Selection

#: Chains that are taken, and those of them whose end was evicted in the step.
_MOST_CHAINS, _MOST_GONE = 16, 5


class Content(NamedTuple):
    """A full block's content, which can be found by its hash."""

    hash: str
    parent: str
    block_ids: tuple[int, ...]
    """Blocks that hold it, oldest first; of one that is gone, the block that held it."""
    gone: bool
    """It was evicted in the step."""


@dataclass
class PrefixTree:
    """The chains that are drawn."""

    contents: dict[str, Content] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)
    """By hash; the first of all stands under the none hash."""
    cut_off: list[str] = field(default_factory=list)
    """Hashes that nobody bears any more, while their children can still be found."""
    hits: dict[str, list[int]] = field(default_factory=dict)
    """Contents that a lookup of the step found, and the requests that did."""
    new: set[str] = field(default_factory=set)
    """Contents that got their hash in the step."""
    left_out: Counter[str] = field(default_factory=Counter)
    """By hash, how many of its children are not drawn."""
    num_left_out: int = 0
    """Contents that are not drawn."""


def prefix_tree(view: StepView, selection: Selection) -> PrefixTree:
    """The tree as the step's plan leaves it, with what the plan has evicted."""
    return _Growth(view).tree(selection)


class _Growth:
    """Takes chain after chain into a tree."""

    def __init__(self, view: StepView) -> None:
        self._view = view
        self._state: State = view.planned
        self._pool: PoolState = view.planned.pool
        self._none_hash = view.header.kv_cache.none_hash
        self._gone = self._find_gone()
        self._tree = PrefixTree()

    def tree(self, selection: Selection) -> PrefixTree:
        tree = self._tree
        self._mark()
        for num_chains, block_hash in enumerate(self._ends(selection), 1):
            self._take(block_hash)
            if num_chains == _MOST_CHAINS:
                break
        tree.cut_off = [parent for parent in tree.children if parent != self._none_hash and parent not in tree.contents]
        self._see_the_rest()
        return tree

    def _see_the_rest(self) -> None:
        """Count what is left out. Children stand in the order in which they got their hash, so that they keep their
        place from step to step. The only pass over a whole cache, which may hold hundreds of thousands of hashes."""
        tree, origins = self._tree, self._pool.origins
        contents, order, parents = tree.contents, dict[str, int](), list[str | None]()
        for place, (block_hash, block_ids) in enumerate(self._pool.cached_block_hash_to_block.items()):
            if block_hash in contents:
                order[block_hash] = place
            else:
                origin = origins[block_ids[0]]
                parents.append(origin and origin.parent)
        for siblings in tree.children.values():
            siblings.sort(key=lambda block_hash: order.get(block_hash, len(origins)))
        tree.left_out.update(parent for parent in parents if parent == self._none_hash or parent in contents)
        tree.num_left_out = len(parents) + sum(block_hash not in contents for block_hash in self._gone)

    def _find_gone(self) -> dict[str, Content]:
        """What the step has evicted, by hash; not what it has cached itself and evicted again."""
        before, cached, gone = self._view.before.pool, self._pool.cached_block_hash_to_block, {}
        for event in self._view.events:
            if not isinstance(event, ev.KVAllocated):
                continue
            for block_id, block_hash in zip(event.evicted_block_ids, event.evicted_hashes, strict=True):
                if before.hashes[block_id] == block_hash and block_hash not in cached:
                    gone[block_hash] = Content(block_hash, _parent(before.origins[block_id]), (block_id,), gone=True)
        return gone

    def _mark(self) -> None:
        tree, cached = self._tree, self._pool.cached_block_hash_to_block
        for event in self._view.events:
            if isinstance(event, ev.KVCached):
                tree.new.update(block_hash for block_hash in event.hashes if block_hash in cached)
            elif isinstance(event, ev.KVLookup):
                for block_hash in dict.fromkeys(self._found(event)):
                    tree.hits.setdefault(block_hash, []).append(event.request)

    def _found(self, event: ev.KVLookup) -> Iterator[str]:
        """Hashes of the blocks that a lookup found."""
        for block_id in (block_id for group in event.block_ids for block_id in group if block_id != NULL_BLOCK):
            block_hash = self._pool.hashes[block_id] or self._view.before.pool.hashes[block_id]
            if block_hash is not None and (block_hash in self._pool.cached_block_hash_to_block):
                yield block_hash

    def _ends(self, selection: Selection) -> Iterator[str]:
        """Ends of chains, the ones most worth seeing first; none that is part of a chain taken before."""
        for block_hash in self._worth_seeing(selection):
            if block_hash not in self._tree.contents:
                yield block_hash

    def _worth_seeing(self, selection: Selection) -> Iterator[str]:
        hashes, tree = self._pool.hashes, self._tree
        if selection.block is not None and selection.block < self._pool.num_blocks:
            yield from filter(None, [hashes[selection.block]])
        yield from reversed(tree.hits)
        for event in self._filled():
            yield from (block_hash for block_hash in reversed(event.hashes) if block_hash in tree.new)
        num_gone = 0
        for block_hash in self._gone:
            if block_hash not in tree.contents and num_gone < _MOST_GONE:
                num_gone += 1
                yield block_hash
        holders = sorted(self._state.holders, key=lambda request: request.serial != selection.request)
        for request in holders:
            for table in request.block_ids:
                yield from filter(None, (hashes[block_id] for block_id in reversed(table)))
        yield from reversed(self._pool.cached_block_hash_to_block)

    def _filled(self) -> list[ev.KVCached]:
        """Where blocks got full: first those of requests that looked their prefix up, as they go on from there."""
        events = self._view.events
        asked = {event.request for event in events if isinstance(event, ev.KVLookup)}
        filled = [event for event in events if isinstance(event, ev.KVCached)]
        return sorted(filled, key=lambda event: event.request not in asked)

    def _take(self, block_hash: str) -> None:
        """Take a content and everything before it."""
        tree, cached = self._tree, self._pool.cached_block_hash_to_block
        while block_hash in cached or block_hash in self._gone:
            if block_hash in tree.contents:
                return
            content = self._content(block_hash)
            tree.contents[block_hash] = content
            tree.children.setdefault(content.parent, []).append(block_hash)
            block_hash = content.parent

    def _content(self, block_hash: str) -> Content:
        block_ids = self._pool.cached_block_hash_to_block.get(block_hash)
        if block_ids is None:
            return self._gone[block_hash]
        return Content(block_hash, _parent(self._pool.origins[block_ids[0]]), block_ids, gone=False)


def _parent(origin: Origin | None) -> str:
    assert origin is not None
    assert origin.parent is not None, "A block that bears a hash knows the one before it."
    return origin.parent
