"""The line above everything: where you are, what you may look at, and whether the trace proves itself."""

from __future__ import annotations

from engine.trace.events import Header
from viz.figures.html import Child, Html, el
from viz.figures.parts import count
from viz.views import GROUPS, VIEWS, View


def masthead(
    name: str,
    header: Header | None,
    verdict: Html | None,
    *actions: Html,
    view: str | None,
    notices: tuple[Html, ...] = (),
) -> Html:
    """Draw the line.

    Args:
        name: what the trace is called.
        header: its header; None if there is no trace to show.
        verdict: what `verdict` drew.
        actions: what can be done here; without any, starting a live run.
        view: name of the view that is shown; None if there is none to choose.
        notices: sentences below the line.
    """
    line = el(
        "div",
        "masthead",
        el("h1", "", "Orrery"),
        el("button", "trace", name, el("em", "", "▾"), data_act="page:gallery", data_tip="open another trace"),
        el("span", "facts", _facts(header)) if header else None,
        el("span", "space"),
        verdict,
        *(actions or _ways_on(header)),
        _corner(),
    )
    tabs = _tabs(view) if view else Html("")
    return Html(line + tabs + "".join(notices))


def _corner() -> Html:
    theme = el(
        "button", "question", "◐", data_theme=True, data_key="t", data_tip="light or dark (t)", aria_label="theme"
    )
    words = el("button", "question", "?", data_help=True, data_tip="words and keys (?)", aria_label="help")
    return el("span", "corner", theme, words)


def _ways_on(header: Header | None) -> list[Html]:
    """What can be done wherever one is."""
    live = action("Run live", "page:live", "run the engine and watch it")
    if header is None:
        return [live]
    quiz = action("Quiz", "page:quiz", "predict what the steps decide, then see it")
    return [quiz, action("What if?", "page:what-if", "change something and run it again"), live]


def _facts(header: Header) -> str:
    kv_cache = header.kv_cache
    return f"{header.model.name} · {count(kv_cache.num_gpu_blocks, 'block')} × {count(kv_cache.block_size, 'token')}"


def _tabs(shown: str) -> Html:
    """The views, in groups; the first nine have number keys."""
    numbered = list(enumerate(VIEWS.values(), 1))
    groups = [
        el(
            "div",
            "tabs",
            el("em", "", title),
            *(_tab(view, number, shown) for number, view in numbered if view.group == group),
            role="group",
            aria_label=title,
        )
        for group, title in GROUPS.items()
    ]
    return el("nav", "views", *groups, aria_label="view")


def _tab(view: View, number: int, shown: str) -> Html:
    key = number if number <= 9 else None
    tip = f"{view.question} ({key})" if key else view.question
    pressed = "true" if view.name == shown else "false"
    return el("button", "", view.title, data_act=f"view:{view.name}", data_key=key, data_tip=tip, aria_pressed=pressed)


def verdict(num_decisions: int, num_divergences: int, *, cut_short: bool = False) -> Html:
    """Whether the scheduler, run again on the trace's inputs alone, decided the same; of a trace that was cut short
    this is known up to its end only, so no tick says that all is well."""
    css, sign = ("verdict bad", "✗ ") if num_divergences else ("verdict", "") if cut_short else ("verdict good", "✓ ")
    words = f"{sign}replay: {count(num_decisions, 'decision')}, {count(num_divergences, 'divergence')}"
    words += "; the trace was cut short" if cut_short else ""
    tip = "The scheduler ran again on the recorded inputs alone, and its decisions were compared with the recorded ones"
    return el("span", css, words, data_tip=tip, data_decisions=num_decisions, data_divergences=num_divergences)


def action(words: str, act: str, tip: str) -> Html:
    """A button at the end of the line."""
    return el("button", "action", words, data_act=act, data_tip=tip)


def recording() -> Html:
    """In place of a verdict: there will be one when the run has ended."""
    return el("span", "verdict recording", "● recording", data_tip="the engine runs; its trace grows as you look")


def story(title: str, words: str) -> Html:
    """What a trace of the gallery is there to show."""
    hint = el("span", "hint", "step with ← →, ? explains words and keys, the name above opens other runs")
    return el("p", "story", el("b", "", title), " – ", words, " ", hint)


def notice(text: Child, *, error: bool = False) -> Html:
    """A sentence across the page."""
    return el("p", "notice error" if error else "notice", text, role="alert" if error else "status")
