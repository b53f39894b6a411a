"""What every trace must keep, as named invariants that are checked event by event.

`invariant.py` what an invariant is · `scheduling.py` budget, queues, victims · `blocks.py` the block pool ·
`content.py` what the blocks hold: hashes, and KV that is written before it is read · `transfer.py` KV from elsewhere ·
`lifecycle.py` the life of a request and its output · `forward.py` the tensors against the plan · `speculation.py`
drafts and their verdicts · `checker.py` runs them over a trace or beside a live core · `report.py` the table of
`orrery check`.
"""

from sim.invariants.checker import INVARIANTS, CheckReport, InvariantChecker, check, check_trace
from sim.invariants.invariant import Invariant, Violation
from sim.invariants.report import render

__all__ = [
    "INVARIANTS",
    "CheckReport",
    "Invariant",
    "InvariantChecker",
    "Violation",
    "check",
    "check_trace",
    "render",
]
