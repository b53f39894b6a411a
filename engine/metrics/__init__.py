"""Metrics: how long requests took, and how full the steps were. One implementation for engine, benchmark and simulator.

`MetricsCollector` takes the events of a run, as they happen or out of a trace, and folds them into `RunMetrics`: a
`RequestMetrics` per request, an `IterationMetrics` per step, and a `MetricsSummary` for the whole, whose `to_json` has
the keys of vLLM's benchmarks. Of a long run a `Tally` keeps the latencies alone. Everything follows from the events and
their `ts`, so a live engine and the trace of the same run give the same numbers.

::

    arrival        first scheduled      first token                                last token
       │── queue ────────┼──── prefill ──────┼── ITL ──┼── ITL ──┼──── … ────┼── ITL ──│
       │────────── TTFT ─────────────────────┼─────────────── decode ──────────────────│
       │────────────────────────────────── E2EL ───────────────────────────────────────│

Times are integers, in nanoseconds since the trace began; summaries are in milliseconds, as in vLLM's benchmarks.
Imports `engine.trace.events` and the standard library; never torch, no clock.
"""

from engine.metrics.collector import MetricsCollector
from engine.metrics.iteration import IterationMetrics
from engine.metrics.request import RequestMetrics
from engine.metrics.run import RunMetrics
from engine.metrics.summary import MetricsSummary
from engine.metrics.tally import Tally

__all__ = ["IterationMetrics", "MetricsCollector", "MetricsSummary", "RequestMetrics", "RunMetrics", "Tally"]
