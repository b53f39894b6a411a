"""Coasting: a decode that is settled beforehand is left alone.

While a running request gets one token a step, and can end by its length alone, nothing about its coming steps is open
but where its KV goes. Where somebody knows what the model will say, too (`seams.Foresight`, in a simulation), no step
need name it before its last::

    step       41  42  43  44  45  46  47  48
    r3         ●   ·   ·   ·   ■   □   ·   ·     45 fills its block, 46 takes a new one
    r7         ●   ·   ·   ·   ·   ·   ·   ●     48 is its end
    r9                 ●   ·   ·   ·   ·   ·     a prompt, computed in step 43

● is planned, run and taken in like any row; ■ and □ only ask the KV cache, in their turn; · is only counted. The
decisions are those of a scheduler that looks at every row in every step. Where they might not be, because blocks or
budget could run out in a step, all are woken first.
"""

from __future__ import annotations

from collections.abc import Collection

from engine.core.kv_cache.manager import KVCacheManager
from engine.core.messages import CoastingRows, RequestStatus
from engine.core.request import Request
from engine.core.scheduler.plan import StepPlan
from engine.core.seams import Foresight


def num_settled_steps(request: Request, max_model_len: int) -> int:
    """In how many of the coming steps a running request gets one token and goes on, whatever that token is.

    None, if more is wanted of its tokens than their ids.
    """
    num_tokens = len(request.token_ids)
    is_decode = num_tokens > request.num_prompt_tokens and num_tokens - request.num_computed_tokens == 1
    if not is_decode or request.num_output_placeholders or request.spec_token_ids:
        return 0
    params = request.sampling_params
    if request.eos_token_ids or params.stop_token_ids or params.logprobs is not None or request.grammar is not None:
        return 0
    return min(request.max_tokens + request.num_prompt_tokens, max_model_len) - 1 - num_tokens


class _Coaster:
    """A request that is not named.

    Its counts and its tokens are those after step `known`; steps have not named it since `named`, nor will they before
    `end`.
    """

    __slots__ = ("end", "known", "named", "request")

    def __init__(self, request: Request, step: int, num_settled: int) -> None:
        self.request = request
        self.known = self.named = step
        self.end = step + num_settled + 1

    def next_look(self, num_placed: int) -> int:
        """The step that has to ask the KV cache for it, or to name it.

        Args:
            num_placed: steps after `known` for which the KV cache has been asked already.
        """
        in_block = self.request.num_placed_tokens - len(self.request.token_ids)
        return min(self.end, self.known + 1 + max(num_placed, in_block))


class Coasting:
    """The running requests that steps do not name.

    Args:
        foresight: knows their tokens.
        kv_cache_manager: the scheduler's.
        max_model_len: most tokens of a request.
    """

    def __init__(self, foresight: Foresight, kv_cache_manager: KVCacheManager, max_model_len: int) -> None:
        self._foresight = foresight
        self._kv_cache_manager = kv_cache_manager
        self._max_model_len = max_model_len
        self._coasters: dict[int, _Coaster] = {}
        self._due: dict[int, list[_Coaster]] = {}
        """By the step that has to look at them; some may have been woken before."""
        self._num_kv_tokens = 0
        """Of all coasters: tokens in the cache after the last step."""
        self._woken: dict[int, int] = {}
        """By serial, requests woken that the executor has not heard of: through how many steps they coasted."""
        self._last_plan: StepPlan | None = None

    def to_look_at(self, running: list[Request], plan: StepPlan) -> list[Request]:
        """The running requests that a step has to look at, in their order; the plan is told how many coast.

        Returns:
            `running` itself if nobody coasts through this step: only then may blocks run out, so that somebody is
            preempted.
        """
        if self._last_plan is not None:
            self._let_coast(self._last_plan)
            if not self._last_plan.is_empty:  # else nobody has heard of those woken
                self._woken = {}
        self._last_plan, last = plan, plan.step - 1
        for coaster in self._due.pop(plan.step, ()):
            if self._coasters.get(coaster.request.serial) is coaster:
                if coaster.end == plan.step:
                    self.wake(coaster.request, last)
                else:
                    self._bring_to(coaster, last)
                    coaster.request.coasts = False
        requests = running
        if self._coasters:
            requests = [request for request in running if not request.coasts]
            if not self._are_settled(running, requests, plan):
                for coaster in list(self._coasters.values()):
                    self.wake(coaster.request, last)
                requests = running
        num_rows = len(self._coasters)
        self._num_kv_tokens += num_rows
        plan.budget -= num_rows
        plan.coasting = CoastingRows(num_rows=num_rows, num_kv_tokens=self._num_kv_tokens, woken=self._woken)
        return requests

    @property
    def serials(self) -> Collection[int]:
        """Who coasts; between planning a step and taking its output in: through that step."""
        return self._coasters.keys()

    def goes_on(self, request: Request) -> bool:
        """Whether a request coasts on through the step that has just placed its next token."""
        coaster = self._coasters.get(request.serial)
        if coaster is None:
            return False
        self._look_in(coaster, coaster.next_look(num_placed=1))
        request.coasts = True
        return True

    def wake(self, request: Request, last: int) -> None:
        """Bring a request that coasts to where it is after step `last`: the next step names it."""
        coaster = self._coasters.pop(request.serial, None)
        if coaster is not None:
            self._bring_to(coaster, last)
            request.coasts = False
            self._num_kv_tokens -= request.num_computed_tokens
            if last > coaster.named:
                self._woken[request.serial] = last - coaster.named

    def _let_coast(self, plan: StepPlan) -> None:
        """Name those of a step's requests no more whose next steps are settled, now that its output is taken in."""
        for row in plan.rows.values():
            request = row.request
            if request.status is not RequestStatus.RUNNING:
                continue
            num_settled = num_settled_steps(request, self._max_model_len)
            if num_settled > 0:
                coaster = self._coasters[request.serial] = _Coaster(request, plan.step, num_settled)
                self._num_kv_tokens += request.num_computed_tokens
                request.coasts = True
                self._look_in(coaster, coaster.next_look(num_placed=0))

    def _look_in(self, coaster: _Coaster, step: int) -> None:
        self._due.setdefault(step, []).append(coaster)

    def _bring_to(self, coaster: _Coaster, last: int) -> None:
        request, num_steps = coaster.request, last - coaster.known
        request.num_computed_tokens += num_steps
        request.token_ids += self._foresight.tokens(request.serial, len(request.token_ids), num_steps)
        coaster.known = last

    def _are_settled(self, running: list[Request], requests: list[Request], plan: StepPlan) -> bool:
        """Whether nothing that the requests to look at may get in this step can be at anybody's expense."""
        if len(running) >= plan.budget:
            return False
        manager, num_groups = self._kv_cache_manager, len(self._kv_cache_manager.coordinator.groups)
        most_blocks, most_tokens, prompts = 0, len(running) - len(requests), []
        for request in requests:
            num_wanted = len(request.token_ids) - request.num_computed_tokens
            most_tokens += num_wanted
            most_blocks += num_groups * (num_wanted // manager.block_size + 1)
            if num_wanted > 1:
                prompts.append(request)
        if most_blocks > manager.block_pool.num_free_blocks:
            return False
        if most_tokens < plan.budget:
            return True
        # The rest of a prompt takes what budget it finds: everybody before it has to have been given theirs.
        behind = running[running.index(prompts[0]) :] if prompts else []
        return not any(request.serial in self._coasters for request in behind)
