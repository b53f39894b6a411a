"""Diff: where two runs part, and how two moments differ.

`diff_runs` compares the streams of what went into two cores and what they decided, up to the first difference, and what
became of each request. `diff_states` compares two states: of two steps of a run, or of the same step of two runs.
"""

from sim.diff.runs import FirstDifference, RequestChange, RunDiff, diff_runs
from sim.diff.states import StateDiff, diff_states
from sim.diff.steps import steps_that_differ

__all__ = ["FirstDifference", "RequestChange", "RunDiff", "StateDiff", "diff_runs", "diff_states", "steps_that_differ"]
