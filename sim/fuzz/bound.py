"""When everything must be over: a bound on the steps that the core needs once nothing new comes in.

Let `work(r)` be the steps that request r needs if no step leaves it out and nobody takes its blocks: its tokens in
chunks of at most `chunk = min(max_num_batched_tokens, long_prefill_token_threshold or ∞)`, one step for each token it
may still put out, and the steps in flight that its last output may have to wait for.

*First come, first served.* The first running request is never passed over: it is planned first, so the budget is
whole, and it is never a victim while anyone runs behind it; alone it fits, since the pool has room for one request of
full length. So in every step it does a step of its work, and keeps it. When it leaves, the next one is first. If nobody
runs, the first of the waiting ones is admitted, and is first. Hence at most the sum of work(r) over all requests.

*Priority.* Let u be the most urgent living request. If u waits, nobody is admitted before it, so the running ones only
become fewer: each step the first of them does a step of its work, or one of them is preempted and does not come back.
That lasts at most n + sum of work(r) steps; then u runs, and is no victim while anyone else runs. Requests planned
before u may still use up the budget, but a request that is preempted comes back behind u, so that lasts at most
another n + sum of work(r) steps. Then u is passed over no more. So u is done after twice that and its own work, and n
requests after n times as much.

*KV from elsewhere.* Blocks into which a connector loads are in the way of the first running request: it may have to
give up its own, and all its work. A request is loaded in the background once, so that can happen n times, and after
each time the bound above holds anew. (Steps in which an answer is awaited are not counted; when none is, a running
request that is alone takes the blocks of those whose KV has come and who still wait.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sim.fuzz.episode import Setting


class Remaining(NamedTuple):
    """What is left to do for a living request, at most."""

    num_tokens: int
    """Tokens it has: in the worst case all of them are computed anew."""
    num_output_tokens: int
    """Tokens it may still put out."""


def steps_to_finish(setting: Setting, living: Iterable[Remaining]) -> int:
    """Steps after which every request has ended, if none arrives and every collaborator has answered."""
    chunk = min(setting.max_num_batched_tokens, setting.long_prefill_token_threshold or setting.max_num_batched_tokens)
    work = [
        -(-(num_tokens + num_output_tokens) // chunk) + num_output_tokens + setting.steps_in_flight
        for num_tokens, num_output_tokens in living
    ]
    one_by_one = sum(work)
    if setting.policy == "priority":
        one_by_one += len(work) * 2 * (len(work) + one_by_one)
    return one_by_one * (1 + len(work) if setting.kv_connector else 1)
