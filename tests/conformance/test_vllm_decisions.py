"""The core decides what vLLM decides: every field of every step of recorded workloads.

The vectors were recorded from the scheduler and KV cache manager of vLLM 0.10.1.1. A case is a configuration and a
list of steps; a step holds what came in (`in`) and what vLLM decided (`out`).

`vllm_scheduler_more.jsonl.gz` was recorded in the same way, from a recorder that reproduces every case of the first
file: EAGLE, resets, aborts, tiny pools, blocks, budgets and odd sizes. In its families `mended_…` two slips of that
version were mended first: a victim that this step had scheduled already leaves the step again, with
its budget, drafts and hashes, and several requests skipped in one step keep their order.
"""

from __future__ import annotations

from typing import Any

from engine.config import EngineConfig, KVCacheConfig, KVCacheGroup
from engine.core.engine_core import EngineCore
from engine.core.kv_cache.block_hash import none_hash_for
from engine.core.messages import EngineCoreRequest, ModelRunnerOutput, RequestStatus, SchedulerOutput
from engine.core.request import Request
from engine.sampling_params import GrammarSpec, SamplingParams
from sim.recorded import RecordedGrammarBackend


class AnyPool(KVCacheConfig, frozen=True, kw_only=True):
    """A pool of any size: the recorded scheduler was given pools that an engine would refuse at its start."""

    def require_room_for(self, max_model_len: int, config: EngineConfig) -> None:
        """A request may be longer than the pool; it then waits for ever, here as there."""


class Bench:
    """A core that is taken through one case."""

    def __init__(self, case: dict[str, Any]) -> None:
        config = case["config"]
        drafts = config.get("num_speculative_tokens")
        method = "eagle" if config.get("eagle") else "ngram"
        engine_config = EngineConfig.from_args(
            "no-model",
            block_size=config["block_size"],
            max_num_batched_tokens=config["max_num_batched_tokens"],
            max_num_seqs=config["max_num_seqs"],
            policy=config["policy"],
            long_prefill_token_threshold=config["long_prefill_token_threshold"],
            enable_prefix_caching=config["enable_prefix_caching"],
            speculative_config={"method": method, "num_speculative_tokens": drafts} if drafts else None,
        )
        kv_cache = AnyPool(
            num_gpu_blocks=config["num_gpu_blocks"],
            block_size=config["block_size"],
            groups=(KVCacheGroup(num_layers=1, block_bytes=1),),
            none_hash=none_hash_for("sha256"),
        )
        self.core = EngineCore(engine_config, kv_cache, config["max_model_len"], None, RecordedGrammarBackend())
        self.eos_token_ids = (case["eos_token_id"],)
        self.by_priority = config["policy"] == "priority"
        self.requests: dict[str, Request] = {}

    def before_schedule(self, given: dict[str, Any]) -> dict[str, Any]:
        """What comes in before the step is planned; returns what it leads to."""
        for added in given.get("add", []):
            self._add(added)
        self.core.abort(given.get("abort", []))
        for request_id in given.get("grammar_ready", []):
            self.core.grammar_ready(request_id)
        return {"reset": self.core.reset_prefix_cache()} if given.get("reset_prefix_cache") else {}

    def schedule(self) -> tuple[SchedulerOutput, dict[str, Any]]:
        """Plan the step; returns the plan, and the decisions in the words of the vectors."""
        before = {request_id: request.status for request_id, request in self.core.requests.items()}
        preemptions = {request_id: request.num_preemptions for request_id, request in self.core.requests.items()}
        plan = self.core.schedule()
        preempted = [
            request.request_id
            for request in self.core.requests.values()
            if request.num_preemptions > preemptions[request.request_id]
        ]
        if not self.by_priority:  # the victims are taken from the end of the running queue, and each goes to the front
            preempted = [request.request_id for request in self.core.scheduler.waiting][: len(preempted)][::-1]
        return plan, {
            "scheduled": [
                [
                    row.request_id,
                    row.num_scheduled_tokens,
                    row.num_computed_tokens,
                    row.block_ids[0],
                    list(row.draft_token_ids),
                ]
                for row in plan.rows
            ],
            "preempted": sorted(preempted) if self.by_priority else preempted,
            "resumed": [row.request_id for row in plan.rows if before[row.request_id] is RequestStatus.PREEMPTED],
            "running": [request.request_id for request in self.core.scheduler.running],
            "waiting": [request.request_id for request in self.core.scheduler.waiting],
        }

    def after_schedule(self, plan: SchedulerOutput, given: dict[str, Any]) -> dict[str, Any]:
        """Abort in flight, answer the plan; returns who finished, and the free blocks."""
        self.core.abort(given.get("abort_in_flight", []))
        live = dict(self.core.requests)
        if plan.rows:
            ids = [row.request_id for row in plan.rows]
            output = ModelRunnerOutput(
                step=plan.step,
                serials=[row.serial for row in plan.rows],
                sampled_token_ids=[given.get("sampled", {}).get(request_id, []) for request_id in ids],
                draft_token_ids=[given.get("drafts", {}).get(request_id, []) for request_id in ids],
            )
            self.core.update(plan.step, output)
        return {
            "finished": {
                request_id: request.status.name for request_id, request in live.items() if request.status.is_finished
            },
            "free_blocks_after": self.core.scheduler.kv_cache_manager.block_pool.num_free_blocks,
        }

    def outputs(self) -> dict[str, list[int]]:
        """Every request's output tokens."""
        return {
            request_id: request.token_ids[request.num_prompt_tokens :] for request_id, request in self.requests.items()
        }

    def _add(self, added: dict[str, Any]) -> None:
        self.core.add(
            EngineCoreRequest(
                request_id=added["request_id"],
                prompt_token_ids=tuple(added["prompt_token_ids"]),
                sampling_params=SamplingParams(
                    max_tokens=added["max_tokens"],
                    ignore_eos=added["ignore_eos"],
                    stop_token_ids=tuple(added["stop_token_ids"]),
                    seed=0,
                ),
                eos_token_ids=self.eos_token_ids,
                priority=added["priority"],
                cache_salt=added.get("cache_salt"),
                grammar=GrammarSpec(kind="regex", text=".*") if added.get("guided") else None,
            )
        )
        self.requests[added["request_id"]] = self.core.requests[added["request_id"]]


def test_every_step_is_decided_as_vllm_decides_it(workload: dict[str, Any]) -> None:
    bench = Bench(workload)
    for number, step in enumerate(workload["steps"]):
        decided = bench.before_schedule(step["in"])
        plan, planned = bench.schedule()
        decided |= planned | bench.after_schedule(plan, step["in"])
        expected = step["out"]
        assert {field: decided.get(field) for field in expected} == expected, f"step {number}"
    assert bench.outputs() == workload["outputs"]
