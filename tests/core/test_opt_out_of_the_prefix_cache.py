"""Requests that the prefix cache is not for: those whose whole prompt must be computed, and those without token ids."""

from __future__ import annotations

from typing import Any

from engine.core.engine_core import EngineCore
from engine.core.messages import EngineCoreRequest
from engine.sampling_params import SamplingParams

from .driver import DiceConnector, core_of, header, make_core, request, run_step

PROMPT = list(range(10, 26))


def finish(core: EngineCore, new: EngineCoreRequest) -> int:
    """Run one request to its end; prompt tokens that its first step computed."""
    core.add(new)
    computed = run_step(core).rows[0].num_scheduled_tokens
    while core.has_unfinished_requests():
        run_step(core)
    return computed


def test_who_asks_for_log_probabilities_of_the_prompt_computes_all_of_it() -> None:
    core = make_core()
    asking: dict[str, Any] = {"prompt_logprobs": 0, "max_tokens": 2}
    assert finish(core, request("first", PROMPT, **asking)) == 16
    assert finish(core, request("again", PROMPT, **asking)) == 16
    # What it has computed, others may share.
    assert finish(core, request("other", PROMPT, max_tokens=2)) == 4


def test_the_blocks_of_embeddings_are_shared_with_nobody() -> None:
    core = make_core()

    def embeds(name: str) -> EngineCoreRequest:
        return EngineCoreRequest(
            request_id=name,
            prompt_token_ids=(0,) * 16,
            sampling_params=SamplingParams(max_tokens=9, seed=0),
            prompt_embeds=object(),
        )

    assert [finish(core, embeds(name)) for name in ("a", "b")] == [16, 16]
    assert finish(core, request("tokens", [0] * 16)) == 16
    assert core.scheduler.kv_cache_manager.block_pool.num_blocks_in_use == 0


def test_no_connector_is_asked_for_them() -> None:
    class Eager(DiceConnector):
        def get_num_new_matched_tokens(
            self, serial: int, token_ids: list[int], num_computed_tokens: int
        ) -> tuple[int, bool]:
            return len(token_ids), False

    core = core_of(header(24, 4), None, Eager(0))
    assert finish(core, request("asks", PROMPT, prompt_logprobs=0)) == 16
    assert finish(core, request("does not", PROMPT)) == 1
