"""The simulator and everything that reads a trace: what was decided, whether it holds, what would follow from it.

`state.py` folds the events of a trace into a snapshot (with `pool.py` for the block pool and `plan.py` for the step
being planned); `timeline.py` finds any step of a long trace quickly and sums a trace up; `invariants/` holds what
every trace must keep; `replay.py` runs the recorded inputs through the engine core again and compares every decision;
`fuzz/` plays everything that may happen to the core against it.
Imports `engine.core`, `engine.trace` and the standard library; never torch, no clock, no randomness of its own. May
be imported by `viz`.
"""
