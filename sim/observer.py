"""`Observer`: the metrics of a simulation, taken from what the core says, so that nothing need be recorded."""

from __future__ import annotations

from array import array

from engine.core.messages import EngineCoreOutputs, SchedulerOutput
from engine.metrics.iteration import IterationMetrics
from engine.metrics.request import RequestMetrics
from engine.metrics.tally import Tally
from sim.modeled import StepRun


class Observer:
    """Follows requests and steps; of those that have ended it keeps what a summary needs.

    Args:
        usable_blocks: of the pool, the null block not counted.
        token_budget: `max_num_batched_tokens`.
    """

    def __init__(self, usable_blocks: int, token_budget: int) -> None:
        self.tally = Tally()
        self._usable_blocks = usable_blocks
        self._token_budget = token_budget
        self._live: dict[int, RequestMetrics] = {}
        self._queried = self._hit = 0
        self._ends_ns = array("q")
        """Of the steps."""

    def added(self, serial: int, request_id: str, num_prompt_tokens: int, arrival_ns: int) -> None:
        """A request has joined."""
        self._live[serial] = RequestMetrics(serial, request_id, num_prompt_tokens, arrival_ns)

    def stepped(
        self,
        plan: SchedulerOutput,
        outputs: EngineCoreOutputs,
        run: StepRun,
        *,
        started_ns: int,
        ended_ns: int,
        free_blocks: int,
        num_waiting: int,
        queried_tokens: int,
        hit_tokens: int,
    ) -> list[int]:
        """A step has come to its end. Returns the serials that ended with it.

        Args:
            plan, outputs: what went into it, and what the core says of it.
            run: what the executor did.
            started_ns, ended_ns: when.
            free_blocks: once it was planned.
            num_waiting: as planning began.
            queried_tokens, hit_tokens: of the prefix cache, since the simulation began.
        """
        coasting = plan.coasting
        for serial, num_steps in coasting.woken.items() if coasting is not None else ():
            request = self._live[serial]
            request.output_times_ns += self._ends_ns[-num_steps:]
            request.num_output_tokens += num_steps
        for row in plan.rows:
            if row.new is not None:
                request = self._live[row.serial]
                if request.first_scheduled_ns is None:
                    request.first_scheduled_ns = started_ns
        ended = []
        num_coasting = 0 if coasting is None else coasting.num_rows
        num_output_tokens = num_coasting
        for news in outputs.outputs:
            request = self._live[news.serial]
            if news.new_token_ids:
                request.output_times_ns.append(ended_ns)
                request.num_output_tokens += len(news.new_token_ids)
                num_output_tokens += len(news.new_token_ids)
            if news.finish_reason is not None:
                request.finished_ns, request.finish_reason = ended_ns, news.finish_reason
                self.tally.add_request(self._live.pop(news.serial))
                ended.append(news.serial)
        self.tally.add_iteration(
            IterationMetrics(
                plan.step,
                started_ns=started_ns,
                ended_ns=ended_ns,
                token_budget=self._token_budget,
                num_running=len(plan.rows) + num_coasting,
                num_waiting=num_waiting,
                usable_blocks=self._usable_blocks,
                free_blocks=free_blocks,
                num_rows=len(plan.rows) + num_coasting,
                prefill_tokens=run.composition.num_prefill_tokens,
                decode_tokens=run.composition.num_decode_tokens,
                output_tokens=num_output_tokens,
                preemptions=run.num_resumed,
                queried_tokens=queried_tokens - self._queried,
                hit_tokens=hit_tokens - self._hit,
                finishes=len(ended),
                drafted=run.drafted,
                accepted=run.accepted,
            )
        )
        self._queried, self._hit = queried_tokens, hit_tokens
        self._ends_ns.append(ended_ns)
        return ended
