"""A whole trace: how its steps were filled, what became of every request, and which steps are worth a look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from engine.metrics import IterationMetrics, MetricsSummary
from engine.metrics.table import latency_table
from engine.trace import events as ev
from sim.summary import LifeLine, TraceSummary
from sim.timeline import Timeline
from viz.terminal.step import masthead
from viz.terminal.words import chip, counted, duration, line_style, listed, one_line, panel, share

_BARS = " ▁▂▃▄▅▆▇█"
_BAR_LINES = 3
_MOST_REQUESTS = 40
_MOST_EVENT_TYPES = 8
_STARTUP: dict[type[ev.Event], str] = {
    ev.DeviceInitialized: "device",
    ev.ModelLoaded: "model",
    ev.MemoryProfiled: "profile",
    ev.KVCacheAllocated: "KV cache",
    ev.GraphCaptured: "graphs",
}
#: Columns beside a life line: name, tokens, how it ended.
_BESIDE = 52


def trace_view(name: str, timeline: Timeline) -> RenderableType:
    """Draw a summary; `name` is that of the trace file."""
    if not timeline.steps:
        return Group(masthead(name, timeline.header), Text("The trace holds no step."))
    summary = timeline.summary()
    measured = summary.metrics.summarise()
    lives = list(timeline.life_lines.values())
    return Group(
        masthead(name, timeline.header),
        _facts(summary, measured, timeline),
        panel("Steps", "tokens per step, against the budget", _Steps(timeline.series)),
        panel("Requests", _lives_subtitle(), _Lives(lives[:_MOST_REQUESTS], timeline.steps), _left_out(lives)),
        panel("Latency", f"in milliseconds, of the {measured.completed:,} completed", _latencies(measured)),
        panel("Worth a look", f"orrery trace {one_line(name)} --step N", _worth_a_look(timeline.series, lives)),
        Text.assemble(("events  ", "dim"), _event_types(summary), "\n"),
    )


def _facts(summary: TraceSummary, measured: MetricsSummary, timeline: Timeline) -> RenderableType:
    num_blocks = timeline.header.kv_cache.num_gpu_blocks
    hit_rate = summary.num_hit_tokens / summary.num_queried_tokens if summary.num_queried_tokens else 0
    reasons = listed(f"{count:,} {reason}" for reason, count in summary.finish_reasons.most_common())
    rows = {
        "start-up": listed(_startup(timeline)),
        "steps": f"{summary.num_steps:,} in {duration(summary.duration_ns)}, {summary.num_decisions:,} decisions",
        "requests": f"{summary.num_requests:,}" + (f", ended by {reasons}" if reasons else ""),
        "tokens": f"{summary.num_prompt_tokens:,} of prompts, {summary.num_scheduled_tokens:,} computed, "
        f"{summary.num_output_tokens:,} generated",
        "per second": listed(_throughput(measured)),
        "prefix cache": f"{summary.num_hit_tokens:,} of {summary.num_queried_tokens:,} tokens hit ({share(hit_rate)}), "
        f"{summary.num_evictions:,} cached blocks evicted",
        "drafts": _drafts(measured, summary),
        "pool": f"{summary.peak_blocks_in_use:,} of {num_blocks - 1:,} blocks in use at most, "
        f"{share(measured.mean_kv_cache_usage or 0)} on average, "
        f"{counted(summary.num_preemptions, 'preemption') or 'no preemption'}",
    }
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for label, fact in rows.items():
        if fact:
            table.add_row(label, fact)
    if summary.truncated:
        table.add_row("cut short", Text(summary.truncated, "yellow"))
    return Group(table, "")


def _drafts(measured: MetricsSummary, summary: TraceSummary) -> str:
    """How many drafts were accepted, at their first place, their second, …; empty without speculation."""
    if measured.mean_acceptance_length is None:
        return ""
    drafted, accepted = summary.metrics.drafted, summary.metrics.accepted
    by_position = ", ".join(share(some / all_) for some, all_ in zip(accepted, drafted, strict=True))
    return (
        f"{measured.num_accepted_tokens:,} of {measured.num_draft_tokens:,} accepted (by position {by_position}), "
        f"{measured.mean_acceptance_length:.2f} tokens per verification"
    )


def _startup(timeline: Timeline) -> Iterator[str]:
    """How long the worker took to be ready; a trace begins with it, if a worker has made it."""
    for event in takewhile(lambda event: type(event) in _STARTUP, timeline.events):
        yield f"{_STARTUP[type(event)]} {duration(event.duration_ns)}"  # type: ignore[attr-defined]


def _throughput(measured: MetricsSummary) -> Iterator[str]:
    for value, what in (
        (measured.request_throughput, "requests"),
        (measured.output_throughput, "output tokens"),
        (measured.total_token_throughput, "with those of prompts"),
    ):
        if value is not None:
            yield f"{value:,.4g} {what}"


def _latencies(measured: MetricsSummary) -> RenderableType:
    if not measured.latencies_ms:
        return Text("none: no request has completed", "dim")
    return latency_table(measured)


class _Bucket(NamedTuple):
    """The steps that share one column of a drawing."""

    steps: list[IterationMetrics]

    @property
    def fullest(self) -> IterationMetrics:
        return max(self.steps, key=lambda facts: facts.tokens)

    @property
    def mark(self) -> str:
        if any(facts.preemptions for facts in self.steps):
            return "▼"
        if any(facts.hit_tokens for facts in self.steps):
            return "◆"
        return "●" if any(facts.finishes for facts in self.steps) else " "


class _Steps:
    """A column per step, or per few: as high as the budget was used, solid where prompts were computed."""

    def __init__(self, series: list[IterationMetrics]) -> None:
        self._series = series

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._series:
            yield Text("none: the trace ends before its first plan", "dim")
            return
        # Two columns a step where there is room, so that a short trace does not look like a comma.
        width = options.max_width - 12
        per_bucket = -(-len(self._series) // width)
        columns = 2 if 2 * len(self._series) <= width else 1
        buckets = [_Bucket(self._series[i : i + per_bucket]) for i in range(0, len(self._series), per_bucket)]
        budget = max(facts.token_budget for facts in self._series)
        top = min(budget, max(1, *(facts.tokens for facts in self._series)))
        for line in reversed(range(_BAR_LINES)):
            label = f"{top:,}" if line == _BAR_LINES - 1 else "0" if line == 0 else ""
            yield Text.assemble((f"{label:>8}  ", "dim"), *_bar_line(buckets, line, top, columns))
        yield Text.assemble((" " * 10), *((bucket.mark.ljust(columns), _mark_style(bucket.mark)) for bucket in buckets))
        first, last = self._series[0].step, self._series[-1].step
        span = len(buckets) * columns
        until = str(last).rjust(span - len(str(first))) if last > first else ""
        yield Text(f"{'step':>8}  {first}{until}", "dim")
        yield Text(f"{'':10}bright: prefill · dim: decode · ▼ preemption ◆ prefix hit ● finished", "dim")


def _bar_line(buckets: list[_Bucket], line: int, top: int, columns: int) -> Iterator[tuple[str, str]]:
    eighths = len(_BARS) - 1
    for bucket in buckets:
        facts = bucket.fullest
        height = max(1, round(eighths * _BAR_LINES * facts.tokens / top)) if facts.tokens else 0
        char = _BARS[max(0, min(eighths, height - eighths * line))]
        yield char.ljust(columns), "bold cyan" if facts.prefill_tokens else "dim cyan"


def _mark_style(mark: str) -> str:
    return {"▼": "bold red", "◆": "green", "●": "dim"}.get(mark, "")


def _lives_subtitle() -> str:
    return "· waiting  ▓ prefill  ━ decode  ▼ preempted  ● finished"


class _Lives:
    """A line per request over the steps of the trace."""

    def __init__(self, lives: list[LifeLine], steps: list[int]) -> None:
        self._lives = lives
        self._first, self._last = steps[0], steps[-1]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(10, min(options.max_width - _BESIDE, self._last - self._first + 1))
        table = Table.grid(padding=(0, 2))
        for _ in range(2):
            table.add_column(no_wrap=True)
        for _ in range(3):
            table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True)
        heads = ("", f"step {self._first} to {self._last}", "prompt", "cached", "output", "end")
        table.add_row(*(Text(head, "dim") for head in heads))
        for life in self._lives:
            request = life.request
            end = f"{request.finish_reason} in step {life.finished}" if life.finished is not None else "alive"
            table.add_row(
                chip(request.serial),
                Text(self._line(life, width), line_style(request.serial)),
                f"{request.num_prompt_tokens:,}",
                f"{request.num_cached_tokens:,}" if request.num_cached_tokens else "",
                f"{request.num_output_tokens:,}",
                Text(end, "" if request.is_completed else "bold"),
            )
        yield table

    def _line(self, life: LifeLine, width: int) -> str:
        span = self._last - self._first + 1

        def column(step: int) -> int:
            return min(width - 1, max(0, (step - self._first) * width // span))

        line = [" "] * width
        end = life.finished if life.finished is not None else self._last
        for place in range(column(life.added + 1), column(end) + 1):
            line[place] = "·"
        # Where steps share a column, the rarer thing is shown.
        for phase in ("━", "▓"):
            for step in life.scheduled:
                if _phase(life, step) == phase:
                    line[column(step)] = phase
        for step in life.preempted:
            line[column(step)] = "▼"
        if life.finished is not None:
            line[column(life.finished)] = "●"
        return "".join(line)


def _phase(life: LifeLine, step: int) -> str:
    return "━" if life.first_token is not None and step > life.first_token else "▓"


def _left_out(lives: list[LifeLine]) -> RenderableType:
    left_out = len(lives) - _MOST_REQUESTS
    return Text(f"… and {left_out:,} more", "dim") if left_out > 0 else Group()


def _worth_a_look(series: list[IterationMetrics], lives: list[LifeLine]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column()
    told = _remarkable(series, lives)
    if not told:
        return Text("none: no step has computed anything", "dim")
    for step, why in sorted(told.items()):
        table.add_row(str(step), listed(why))
    return table


def _remarkable(series: list[IterationMetrics], lives: list[LifeLine]) -> dict[int, list[str]]:
    """The first step of each kind of situation."""
    told: dict[int, list[str]] = {}

    def first(says: Callable[[IterationMetrics], str | None]) -> None:
        for facts in series:
            if sentence := says(facts):
                told.setdefault(facts.step, []).append(sentence)
                return

    first(lambda f: "the first tokens" if f.tokens else None)
    first(lambda f: "prefill and decode in one step" if f.prefill_tokens and f.decode_tokens else None)
    first(lambda f: f"a prefix hit spares {counted(f.hit_tokens, 'token')}" if f.hit_tokens else None)
    first(lambda f: f"{counted(f.evictions, 'cached block')} evicted" if f.evictions else None)
    first(lambda f: counted(f.preemptions, "preemption") if f.preemptions else None)
    chunked = min((life.scheduled[1] for life in lives if _is_chunked(life)), default=None)
    first(lambda f: "a prompt goes on in chunks" if f.step == chunked else None)
    fullest = max(series, key=lambda facts: facts.tokens, default=None)
    if fullest is not None and fullest.tokens:
        told.setdefault(fullest.step, []).append(f"the fullest: {fullest.tokens:,} of {fullest.token_budget:,} tokens")
    first(lambda f: f"{counted(f.finishes, 'request')} finished" if f.finishes else None)
    return told


def _is_chunked(life: LifeLine) -> bool:
    return len(life.scheduled) > 1 and (life.first_token is None or life.scheduled[1] <= life.first_token)


def _event_types(summary: TraceSummary) -> str:
    common = summary.event_types.most_common()
    shown, left_out = common[:_MOST_EVENT_TYPES], len(common) - _MOST_EVENT_TYPES
    return listed(f"{name} {number:,}" for name, number in shown) + (
        f" · {counted(left_out, 'more type')}" if left_out > 0 else ""
    )
