"""One step of a trace, from its queues to its tokens."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from engine.trace.events import Header
from sim.timeline import StepView
from viz.cut import is_planned, plan_of
from viz.explain import explain
from viz.terminal.forward_pass import forward_pass
from viz.terminal.kv_memory import kv_memory
from viz.terminal.scheduler import scheduler
from viz.terminal.why import why
from viz.terminal.words import counted, listed, one_line


def step_view(name: str, view: StepView, last_step: int) -> RenderableType:
    """Draw a step; `name` is that of the trace file, `last_step` the number of its last one."""
    reasons = explain(view)
    return Group(
        masthead(name, view.header),
        _headline(view, last_step),
        scheduler(view),
        kv_memory(view),
        forward_pass(view),
        why(reasons, planned=is_planned(view)),
    )


def masthead(name: str, header: Header) -> Text:
    """What trace this is."""
    pool = f"{header.kv_cache.num_gpu_blocks:,} blocks × {header.kv_cache.block_size} tokens"
    facts = listed([name, Path(header.model.name).name, pool, header.config.scheduler.policy, f"level {header.level}"])
    return Text.assemble(("\nOrrery", "bold"), "  ", (one_line(facts), "dim"), "\n")


def _headline(view: StepView, last_step: int) -> Text:
    plan = plan_of(view)
    rows = plan.rows.values() if plan else ()
    prefills = [row.num_scheduled_tokens for row in rows if row.phase == "prefill"]
    decodes = [row.num_scheduled_tokens for row in rows if row.phase == "decode"]
    facts = listed(
        [
            f"{counted(sum(prefills), 'token')} of {counted(len(prefills), 'prefill')}" if prefills else "",
            f"{counted(sum(decodes), 'token')} of {counted(len(decodes), 'decode')}" if decodes else "",
            counted(len(view.arrivals), "arrival"),
            counted(len(plan.preempted), "preemption") if plan else "",
        ]
    )
    nothing = "nothing to compute" if is_planned(view) else "cut short"
    return Text.assemble((f"Step {view.step} / {last_step}", "bold reverse"), "  ", facts or nothing, "\n")
