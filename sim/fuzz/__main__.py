"""`python -m sim.fuzz --steps N --seed S`, or `--episode SEED` to see one episode again."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress

from sim.fuzz.campaign import examine, run_campaign
from sim.fuzz.draw import draw_episode
from sim.fuzz.report import campaign_lines, failure_lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fuzzer. Returns 1 if something broke or was seen too seldom, else 0."""
    parser = argparse.ArgumentParser(prog="python -m sim.fuzz", description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="engine steps to play (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="what the seeds of the episodes are drawn from")
    parser.add_argument("--episode", type=int, metavar="SEED", help="play one episode, and shrink it if it fails")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps must be an integer >= 1, got {options.steps}")
    return _episode(options.episode) if options.episode is not None else _campaign(options.steps, options.seed)


def _episode(seed: int) -> int:
    failure = examine(draw_episode(seed))
    if failure is None:
        print(f"episode {seed} breaks nothing")
        return 0
    print(*failure_lines(failure), sep="\n")
    return 1


def _campaign(num_steps: int, seed: int) -> int:
    started = time.perf_counter()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("steps", total=num_steps)
        campaign = run_campaign(num_steps, seed, lambda steps: progress.advance(task, steps))
    print(*campaign_lines(campaign), sep="\n")
    if campaign.failure is not None:
        print("", *failure_lines(campaign.failure), sep="\n")
    print(f"{campaign.num_steps / (time.perf_counter() - started):,.0f} steps/s", file=sys.stderr)
    return int(campaign.failure is not None or bool(campaign.missing))


if __name__ == "__main__":
    sys.exit(main())
