"""Opening a trace in the terminal: a large one takes a while the first time, and a bar says how far it is."""

from __future__ import annotations

from pathlib import Path

from tqdm import tqdm

from sim.timeline import Timeline


def open_with_bar(path: Path) -> Timeline:
    """Open a trace file. Raises as `Timeline.open`."""
    with tqdm(desc="looking the trace through", total=100, leave=False, disable=None, bar_format="{l_bar}{bar}") as bar:
        return Timeline.open(path, lambda share: bar.update(int(100 * share) - bar.n))
