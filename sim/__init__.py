"""The simulator and everything that reads a trace: what was decided, whether it holds, what would follow from it.

`state.py` folds the events of a trace into a snapshot (with `pool.py` for the block pool and `plan.py` for the step
being planned); `timeline.py` finds any step of a long trace quickly, with the index that `trace_index.py` makes;
`query/` answers in which steps something holds and what happened to a block or a request, `preemptions.py` what a
preemption cost; `invariants/` holds what every trace must keep; `replay.py` runs the recorded inputs through the
engine core again and compares every decision; `simulation.py` runs the core on a virtual clock over a workload,
`cost_model/` says how long its steps take;
`export/` writes traces for other tools; `fuzz/` plays everything that may happen to the core against it.
Imports `engine.core`, `engine.trace` and the standard library; never torch, no clock, no randomness of its own. May
be imported by `viz`.
"""
