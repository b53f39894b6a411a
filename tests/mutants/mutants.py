"""The errors that are planted. Each is a slip that is easily made, and that the engine would survive for a while."""

from __future__ import annotations

from engine.core.kv_cache.block_hash import hash_request_tokens
from engine.core.kv_cache.block_pool import BlockPool
from engine.core.kv_cache.group import CacheGroup
from engine.core.kv_cache.manager import KVCacheManager
from engine.core.kv_cache.sliding_window import SlidingWindowGroup
from engine.core.kv_transfer import KVTransferManager
from engine.core.request import Request
from engine.core.scheduler import stop, update
from engine.core.scheduler.plan import StepPlan
from engine.core.scheduler.scheduler import Scheduler
from tests.mutants.mutation import Edit, Mutant

MUTANTS = (
    Mutant(
        "hash boundary off by one",
        (Edit(hash_request_tokens, "len(token_ids) - block_size + 1", "len(token_ids) - block_size"),),
        ("block hashes equal vLLM's",),
    ),
    Mutant(
        "salt left out of the hash",
        (Edit(hash_request_tokens, "start, end, cache_salt,", "start, end, None,"),),
        ("block hashes equal vLLM's",),
    ),
    Mutant(
        "parent hash left out",
        (Edit(hash_request_tokens, "parent = block_hash.value", "parent = none_hash"),),
        ("block hashes equal vLLM's",),
    ),
    Mutant(
        "reference count not taken on a hit",
        (Edit(BlockPool.touch, "block.ref_count += 1", "block.ref_count += block.ref_count == 0"),),
        ("reference counts",),
    ),
    Mutant(
        "block not returned on abort",
        (
            Edit(
                Scheduler.finish,
                "self.kv_transfer_manager.free_when_done(request, why)",
                "status is status.FINISHED_ABORTED or self.kv_transfer_manager.free_when_done(request, why)",
            ),
        ),
        ("clean end",),
    ),
    Mutant(
        "freed head first instead of tail first",
        (
            Edit(
                CacheGroup.free,
                "in reversed(self.req_to_blocks.pop(serial, []))",
                "in self.req_to_blocks.pop(serial, [])",
            ),
        ),
        ("freed tail first",),
    ),
    Mutant(
        "evicted hash left in the map",
        (Edit(BlockPool.uncache, "del twins[block.block_id]", "pass"),),
        ("prefix hits",),
    ),
    Mutant(
        "whole prompt taken as a hit",
        (Edit(KVCacheManager.get_computed_blocks, "request.num_tokens - 1", "request.num_tokens"),),
        ("never the whole prompt",),
    ),
    Mutant(
        "draft tokens cached",
        (
            Edit(KVCacheManager.cache_blocks, "min(num_tokens, request.num_tokens)", "num_tokens"),
            Edit(
                KVCacheManager._hashes_of,
                "self.block_size <= request.num_tokens",
                "self.block_size <= request.num_tokens + len(request.spec_token_ids)",
            ),
            Edit(KVCacheManager._hashes_of, "request.token_ids", "[*request.token_ids, *request.spec_token_ids]"),
        ),
        ("hash of its tokens", "no crash"),
    ),
    Mutant(
        "same-step victim's budget not returned",
        (Edit(StepPlan.take_back, "self.budget += row.scheduled.num_scheduled_tokens", "pass"),),
        ("token budget",),
    ),
    Mutant(
        "same-step victim's hashes not unregistered",
        (Edit(Scheduler._preempt, "unregister(row.registered,", "unregister([],"),),
        ("written before read",),
    ),
    Mutant(
        "skipped requests reordered",
        (Edit(Scheduler._schedule_waiting, "in reversed(skipped_waiting_requests)", "in skipped_waiting_requests"),),
        ("queues in order",),
    ),
    Mutant(
        "preempted request's tokens lost",
        (
            Edit(
                Scheduler._preempt,
                "victim.spec_token_ids = []",
                "victim.spec_token_ids = []; del victim.token_ids[victim.num_prompt_tokens :]",
            ),
        ),
        ("tokens given", "prefix hits", "clean end"),
    ),
    Mutant(
        "late output applied to a reused id",
        (
            Edit(
                update.apply_output,
                "request, is_outdated = row.request, row.is_outdated",
                "request = {r.request_id: r for r in scheduler.running}.get(row.scheduled.request_id, row.request); "
                "row = type(row)(request, row.scheduled, row.registered, row.num_preemptions); "
                "is_outdated = row.is_outdated",
            ),
        ),
        ("output taken in", "nothing after the end"),
    ),
    Mutant(
        "max_tokens off by one under async",
        (Edit(Request.awaits_its_last_token, ">= self.max_tokens", "> self.max_tokens"),),
        ("nothing is planned behind the last token",),
    ),
    Mutant(
        "max_tokens off by one",
        (
            Edit(
                stop.check_stop,
                "num_output_tokens >= request.max_tokens",
                "request.num_output_tokens > request.max_tokens",
            ),
        ),
        ("stop conditions",),
    ),
    Mutant(
        "token of a request that was resumed and preempted again kept",
        (Edit(update._why_dropped, "or preempted_anew", ""),),
        ("client: what the model says",),
    ),
    Mutant(
        "hashes of a failed forward kept",
        (Edit(update.apply_failure, "unregister(promises,", "unregister([],"),),
        ("written before read", "client: what the model says"),
    ),
    Mutant(
        "steps behind a failed forward trusted",
        (Edit(update._what_failed, "if step is plan or life in lives", "if step is plan"),),
        ("client: what the model says", "written before read"),
    ),
    Mutant(
        "block given up while the window still sees it",
        (Edit(SlidingWindowGroup._num_passed, "self.sliding_window + 1", "self.sliding_window + 2"),),
        ("passed by the window",),
    ),
    Mutant(
        "KV loaded into blocks that a step in flight still writes",
        (Edit(KVTransferManager.update_state_after_alloc, "if load.steps:", "if False:"),),
        ("episodes that broke once",),
    ),
    Mutant(
        "blocks that are being received freed with their request",
        (Edit(KVTransferManager.free_when_done, "if not receiving and not sending:", "if not sending:"),),
        ("held blocks",),
    ),
    Mutant(
        "accepted drafts counted as rejected",
        (Edit(update._take_back_rejected, "len(token_ids) - 1", "0"),),
        ("output taken in",),
    ),
)
