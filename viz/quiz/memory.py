"""Questions about KV memory: which block is handed out, what it loses, what a prompt finds, what is left."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from engine.trace import events as ev
from sim.pool import NULL_BLOCK
from sim.request_state import RequestState
from sim.state import State
from sim.timeline import StepView
from viz.explain import RULES
from viz.explain.words import count
from viz.quiz.question import Choice, Question, amounts, choices, sentence, why_of

#: Earlier requests with which a prompt is compared, the newest first.
_COMPARED = 100


def _block(block_id: int, why: str, *, right: bool = False) -> Choice:
    return Choice(f"block {block_id}", why, right=right)


def _number(choice: Choice) -> int:
    return int(choice.words.removeprefix("block "))


# --- handed out -------------------------------------------------------------------------------------------------


def handed_out(view: StepView) -> Question | None:
    """Which block does a request get?"""
    event = next((event for event in view.events if isinstance(event, ev.KVAllocated)), None)
    if event is None:
        return None
    queue = list(view.before.pool.free_block_queue)
    if queue[:1] != event.block_ids[:1]:
        return None  # what happened earlier in the step has changed the queue
    first = event.block_ids[0]
    several = len(event.block_ids) > 1
    needs = f"r{event.request} needs {count(len(event.block_ids), 'new block')} in this step"
    return Question(
        view.step,
        f"{needs}. Which one does it get{' first' if several else ''}?",
        choices(_block(first, why_of(view, event), right=True), _other_blocks(view.before, queue, event), _number),
        RULES["new blocks"],
        ("pool",),
        "kv",
        request=event.request,
        block=first,
    )


def _other_blocks(before: State, queue: list[int], event: ev.KVAllocated) -> Iterator[Choice]:
    first, table = event.block_ids[0], before.requests[event.request].block_ids[event.group]
    if queue[-1] not in event.block_ids:
        yield _block(queue[-1], "It joined free_block_queue last, so it is handed out last.")
    if table and table[-1] + 1 < before.pool.num_blocks and table[-1] + 1 != first:
        yield _block(table[-1] + 1, "Blocks of a request need not lie side by side: its block table finds them.")
    if min(queue) != first:
        yield _block(min(queue), "Numbers do not count: only the place in free_block_queue does.")
    in_use = (number for number, owners in enumerate(before.pool.owners) if owners)
    for number in in_use:
        yield _block(number, f"It is in use by r{before.pool.owners[number][0]}.")
        break
    yield _block(NULL_BLOCK, "Block 0 is the null block: it stands for no block, and is never handed out.")


# --- evicted ----------------------------------------------------------------------------------------------------


def evicted(view: StepView) -> Question | None:
    """Which cached content is lost?"""
    events = [event for event in view.events if isinstance(event, ev.KVAllocated) and event.evicted_block_ids]
    lost = [block_id for event in events for block_id in event.evicted_block_ids]
    if not lost or view.before.pool.ref_counts[lost[0]]:
        return None  # nothing is evicted, or what a preemption has freed in this very step
    first = lost[0]
    asked = "Which one is it" if len(lost) == 1 else f"This happens to {len(lost)} blocks. Which one is the first"
    return Question(
        view.step,
        f"A block is handed out in this step although it is cached, and loses its content. {asked}?",
        choices(_block(first, why_of(view, events[0]), right=True), _not_evicted(view.before, lost), _number),
        RULES["new blocks"],
        ("pool",),
        "kv",
        request=events[0].request,
        block=first,
    )


def _not_evicted(before: State, lost: list[int]) -> Iterator[Choice]:
    pool = before.pool
    queue = [block_id for block_id in pool.free_block_queue if block_id not in lost]
    cached = [block_id for block_id in queue if pool.hashes[block_id] is not None]
    empty = [block_id for block_id in queue if pool.hashes[block_id] is None]
    if cached:
        yield _block(cached[-1], "It was used more recently: it stands at the back of free_block_queue.")
    for block_id, owners in enumerate(pool.owners):
        if owners and pool.hashes[block_id] is not None and block_id not in lost:
            yield _block(block_id, f"It is in use by r{owners[0]}: only free blocks are handed out.")
            break
    for block_id in empty[:1]:
        yield _block(block_id, "It is free and empty: nothing that could be found is in it.")
    for block_id in cached[-2:-1]:
        yield _block(block_id, "It stands further back in free_block_queue than the one that is taken.")


# --- found ------------------------------------------------------------------------------------------------------


def prefix_hit(view: StepView) -> Question | None:
    """How many tokens of a prompt are found in the prefix cache?"""
    for event in view.events:
        if isinstance(event, ev.KVLookup):
            request = view.before.requests[event.request]
            like, shared = _most_alike(view.before, request)
            if like is not None and event.num_hit_tokens <= shared and request.num_preemptions == 0:
                return _hit(view, event, like, shared)
    return None


def _hit(view: StepView, event: ev.KVLookup, like: RequestState, shared: int) -> Question:
    length, num_hit, size = event.num_queried_tokens, event.num_hit_tokens, view.before.block_size
    whole = shared // size * size
    alike = f"The {shared:,} tokens that are alike fill {count(whole // size, 'block')} of {size}, and all are found."
    wrong = [
        (shared, f"Only full blocks can be found, and {shared:,} tokens end within one."),
        (whole, "Not all of these blocks can be found: some are not full yet, or were handed out again."),
        (whole + size, "The last of these blocks holds other tokens at its end, so it has another hash."),
        (length, "All of its tokens cannot be found: the last is always computed, as the answer begins there."),
        (0, "The first of these blocks can be found: a block keeps its content until it is handed out anew."),
        (size, "Not only the first block: block after block is looked up, until one is not found."),
    ]
    asked = f"r{event.request} comes with {count(length, 'token')}; the first {shared:,} are also those of {like.name}"
    return Question(
        view.step,
        f"{asked}. How many of its tokens are found in the prefix cache?",
        amounts(num_hit, alike if num_hit == whole else why_of(view, event), wrong, "token"),
        RULES["lookup"],
        ("queues", "pool"),
        "kv",
        request=event.request,
    )


def _most_alike(state: State, request: RequestState) -> tuple[RequestState | None, int]:
    """The earlier request that begins most like this one, and for how many tokens; a block of them at least."""
    best, most, prompt = None, state.block_size - 1, request.prompt_token_ids
    key = (request.cache_salt, request.lora_request, request.mm_features)
    for serial in sorted(state.requests, reverse=True)[:_COMPARED]:
        other = state.requests[serial]
        if serial == request.serial or (other.cache_salt, other.lora_request, other.mm_features) != key:
            continue
        pairs = zip(prompt, other.token_ids, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if shared > most:
            best, most = other, shared
    return best, most


# --- left -------------------------------------------------------------------------------------------------------


def free_blocks(view: StepView) -> Question | None:
    """How many blocks can still be handed out?"""
    taken = sum(len(event.block_ids) for event in view.events if isinstance(event, ev.KVAllocated))
    scheduled = next((event for event in view.events if isinstance(event, ev.StepScheduled)), None)
    if not taken or scheduled is None:
        return None
    before, left = view.before.pool.num_free, scheduled.free_blocks
    revived = sum(event.ref_counts.count(1) for event in view.events if isinstance(event, ev.KVTouched))
    returned = left - before + taken + revived
    sums = [f"{before:,} were free", f"{count(taken, 'block')} {'is' if taken == 1 else 'are'} handed out"]
    sums += [f"{revived:,} cached {'one is' if revived == 1 else 'ones are'} shared anew"] if revived else []
    sums += [f"{returned:,} came back"] if returned else []
    num_rows, size = len(view.plan.rows), view.before.block_size
    wrong = [
        (before, f"The plan hands out {count(taken, 'block')}{f', and {returned:,} come back' if returned else ''}."),
        (view.planned.pool.counts()["free"], "Cached blocks that nobody holds are free as well."),
        (before - num_rows, "Not one block for each request: who has slots left in its last block needs none."),
        (before - scheduled.total_num_scheduled_tokens, f"A token does not fill a block: {size} of them do."),
        (left + 1, "The null block is never handed out, and not counted."),
        (left - 1, "The null block was never counted among the free ones."),
    ]
    return Question(
        view.step,
        f"free_block_queue holds {count(before, 'block')}. How many are left once this step is planned?",
        amounts(left, sentence(", ".join(sums)), wrong, "block"),
        RULES["slots"],
        ("queues", "pool"),
        "kv",
    )
