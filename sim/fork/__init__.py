"""Fork: a recorded run up to some step, and from there on as it would have gone otherwise.

The core is brought to the step by feeding it the recorded inputs, so it is the recorded core; then something is changed
and the simulator goes on. What comes out is a trace like any other: it replays, keeps the invariants, and can be forked
again.

::

    recorded run   ──────────────┬─────────────────────────────►  its tokens, its arrivals
                          step N │  other limits, requests left out
    fork                         └─────────────────────────────►  the same, decided anew
"""

from sim.fork.change import Change
from sim.fork.fork import fork_trace

__all__ = ["Change", "fork_trace"]
