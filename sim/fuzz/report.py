"""What the fuzzer prints. The same run prints the same."""

from __future__ import annotations

from collections.abc import Iterator

from sim.fuzz.campaign import Campaign, Failure
from sim.fuzz.situations import MINIMUM, required


def campaign_lines(campaign: Campaign) -> Iterator[str]:
    """The table of situations, then the verdict."""
    yield f"{'situation':60} {'seen':>10} {'required':>10}"
    for name in MINIMUM:
        mark = "  too few" if name in campaign.missing else ""
        yield f"{name:60} {campaign.situations.counts[name]:>10,} {required(name, campaign.num_steps):>10,}{mark}"
    yield ""
    verdict = "1 violation" if campaign.failure else "0 violations"
    yield (
        f"{campaign.num_steps:,} steps in {campaign.num_episodes:,} episodes, "
        f"{campaign.num_replayed:,} of them replayed: {verdict}"
    )
    if campaign.failure is None and campaign.missing:
        yield f"seen too seldom: {', '.join(campaign.missing)}"


def failure_lines(failure: Failure) -> Iterator[str]:
    """What broke, how to see it again, and the little that is needed for it."""
    violation, smallest = failure.violation, failure.smallest
    yield f"episode {failure.seed} breaks “{violation.invariant}”: {violation.sentence}"
    yield f"again: python -m sim.fuzz --episode {failure.seed}"
    yield ""
    yield "It takes no more than"
    yield f"  {smallest.setting}"
    for arrival in smallest.arrivals:
        yield f"  {arrival}"
    if smallest.failures:
        yield f"  forward pass fails in steps {', '.join(map(str, smallest.failures))}"
    for tick, moment in smallest.resets:
        yield f"  reset_prefix_cache at tick {tick}, {moment}"
    yield ""
    yield "and ends with the events"
    for event in failure.last_events:
        yield f"  {event}"
