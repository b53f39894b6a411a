"""The rules by which the engine decides: each in one line, with the function that holds it."""

from __future__ import annotations

from typing import NamedTuple

from viz.source import Place

_SCHEDULER = "engine/core/scheduler/scheduler.py"
_UPDATE = "engine/core/scheduler/update.py"
_POOL = "engine/core/kv_cache/block_pool.py"
_MANAGER = "engine/core/kv_cache/manager.py"
_TRANSFER = "engine/core/kv_transfer.py"
_CORE = "engine/core/engine_core.py"
_GUIDED = "engine/core/structured_output.py"


class Rule(NamedTuple):
    """What always holds when a decision of one kind is made."""

    statement: str
    """One sentence."""
    place: Place


def _rule(path: str, symbol: str, statement: str) -> Rule:
    return Rule(statement, Place(path, symbol))


RULES = {
    "running": _rule(
        _SCHEDULER,
        "Scheduler._schedule_running",
        "Running requests come first, in their order: each gets its tokens until the budget of the step is spent.",
    ),
    "line": _rule(
        _SCHEDULER,
        "Scheduler._schedule_waiting",
        "Waiting requests are admitted in their order: the first that finds no room stops everyone behind it.",
    ),
    "admission": _rule(
        _SCHEDULER,
        "Scheduler._admit",
        "A waiting request runs once the pool has a block for every token that it gets in this step.",
    ),
    "plan": _rule(
        _SCHEDULER,
        "Scheduler._depart",
        "With the plan complete, its tokens count as computed: the forward pass is on its way.",
    ),
    "tokens": _rule(
        "engine/core/scheduler/wanted.py",
        "tokens_wanted",
        "A request wants every token not yet computed; budget, threshold and max_model_len may cut that.",
    ),
    "limit": _rule(
        _SCHEDULER,
        "Scheduler._admission_limit",
        "Nobody is admitted in a step that preempted, without budget, or while max_num_seqs requests run.",
    ),
    "gate": _rule(
        "engine/core/scheduler/admission.py",
        "AdmissionGates.why_wait",
        "Who waits for a grammar or for KV from elsewhere is passed over, and keeps its place in the line.",
    ),
    "slots": _rule(
        _MANAGER,
        "KVCacheManager.allocate_slots",
        "A request gets all the blocks that its tokens of this step need, or none.",
    ),
    "victim": _rule(
        _SCHEDULER,
        "Scheduler._choose_victim",
        "If a running request finds no block, another gives way: the one admitted last, or the least urgent.",
    ),
    "lookup": _rule(
        _MANAGER,
        "KVCacheManager.get_computed_blocks",
        "The longest run of full blocks with known hashes, from the first token on, need not be computed again.",
    ),
    "touch": _rule(
        _POOL,
        "BlockPool.touch",
        "A block found by its hash is shared: its reference count rises, and it leaves free_block_queue.",
    ),
    "new blocks": _rule(
        _POOL,
        "BlockPool.get_new_blocks",
        "Blocks are taken from the head of free_block_queue: the longest unused first; what they cached is lost.",
    ),
    "cache": _rule(
        _POOL,
        "BlockPool.cache_full_blocks",
        "A block gets its hash when it is full: from then on every request that begins alike can share it.",
    ),
    "uncache": _rule(
        _MANAGER,
        "KVCacheManager.unregister",
        "Blocks whose KV was never written lose their hash at once.",
    ),
    "free": _rule(
        _POOL,
        "BlockPool.free_blocks",
        "Freed blocks join the tail of free_block_queue, the end of the request first; their hashes stay.",
    ),
    "reset": _rule(
        _POOL,
        "BlockPool.reset_prefix_cache",
        "Cached prefixes are forgotten only when no block is in use.",
    ),
    "limits change": _rule(
        _CORE,
        "EngineCore.reconfigure",
        "New limits hold from the next step on; nobody who runs already is sent away.",
    ),
    "append": _rule(
        _UPDATE,
        "_append_until_stop",
        "New tokens are added one by one, up to the one that ends the request.",
    ),
    "verdict": _rule(
        "engine/speculation.py",
        "num_accepted",
        "Drafts are accepted from the left up to the first rejected one; one token of the model's own follows.",
    ),
    "proposal": _rule(
        "engine/core/spec_bookkeeping.py",
        "tell_speculation",
        "What a drafter proposes is verified in the request's next step, in one forward pass.",
    ),
    "drafting": _rule(
        "engine/core/scheduler/drafting.py",
        "DraftingPolicy.num_drafts_wanted",
        "Nobody drafts in a large batch, and a request whose drafts keep being rejected pauses.",
    ),
    "drop": _rule(
        _UPDATE,
        "_why_dropped",
        "Output of a request that has ended, or was preempted and resumed, meanwhile is not taken in.",
    ),
    "failure": _rule(
        _UPDATE,
        "apply_failure",
        "If a forward pass fails, the requests that were in it end; all others go on.",
    ),
    "stop": _rule(
        "engine/core/scheduler/stop.py",
        "check_stop",
        "After each token: max_model_len or max_tokens reached, the end of the sequence, or a stop token.",
    ),
    "abort": _rule(
        _CORE,
        "EngineCore.abort",
        "An aborted request ends at once, wherever it is, and its blocks are free for others.",
    ),
    "compile": _rule(
        _GUIDED,
        "StructuredOutputManager.grammar_init",
        "The grammar of a new request is compiled beside the engine's steps, which go on meanwhile.",
    ),
    "mask": _rule(
        _GUIDED,
        "StructuredOutputManager.grammar_bitmask",
        "Before sampling, every token that the grammar does not allow next is masked.",
    ),
    "advance": _rule(
        _GUIDED,
        "StructuredOutputManager.accept_tokens",
        "The automaton of a grammar reads each new token, and so knows what may follow.",
    ),
    "match": _rule(
        _TRANSFER,
        "KVTransferManager.get_num_new_matched_tokens",
        "Beyond the local prefix, a connector may have KV that another engine computed.",
    ),
    "arrival": _rule(
        _TRANSFER,
        "KVTransferManager.take_arrived",
        "KV that has arrived counts as computed; the request then runs like any other.",
    ),
    "hold": _rule(
        _TRANSFER,
        "KVTransferManager.free_when_done",
        "Blocks that a connector still reads or writes stay out of the pool, even after their request's end.",
    ),
    "let go": _rule(
        _TRANSFER,
        "KVTransferManager.kv_done",
        "When its transfers are over, the blocks of an ended request return to the pool.",
    ),
    "reclaim": _rule(
        _SCHEDULER,
        "Scheduler._reclaim_from_waiting",
        "If nobody runs and blocks are missing, the last waiting request that holds some gives them up.",
    ),
}
