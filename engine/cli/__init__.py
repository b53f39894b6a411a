"""The command line, `orrery …`: a table of commands, each imported only when it is run.

A command is a plain typed function whose parameters are `typer` arguments and options; it returns nothing, or raises
`typer.Exit(code)` for an answer that is "no" (a replay that diverges). Its module is named here as a string, so that
`orrery --help` imports no command, and so that the commands of `sim` and `viz` can stand in the table without the
engine importing either. Nothing but the standard library is imported at the top of this file.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Command(NamedTuple):
    """One line of the table."""

    target: str  # "module:function"
    summary: str
    extra: str | None = None  # the extra of llm-orrery whose packages it imports; None: the base has them all


COMMANDS: dict[str, Command] = {
    "generate": Command(
        "engine.cli.generate:generate", "Generate text, and record every decision on the way", "engine"
    ),
    "bench latency": Command(
        "engine.cli.bench:latency", "Measure the seconds that one batch takes, with vLLM's flags", "engine"
    ),
    "bench throughput": Command(
        "engine.cli.bench:throughput", "Measure the tokens per second of many requests, with vLLM's flags", "engine"
    ),
    "replay": Command("sim.cli:replay", "Run a trace's inputs again and compare every decision"),
    "check": Command("sim.cli:check", "Check the invariants that every trace must keep"),
    "export": Command(
        "sim.export.cli:export", "Write a trace for Perfetto, a table, OpenTelemetry or a KV cache router", "export"
    ),
    "simulate": Command(
        "sim.simulate_cli:simulate", "Run the engine's control plane on a virtual clock: what if?", "engine"
    ),
    "calibrate": Command("sim.calibrate_cli:calibrate", "Learn from recorded runs how long steps take on a machine"),
    "trace": Command("viz.terminal.cli:trace", "Summarise a trace, or draw one step of it in the terminal"),
    "query": Command("sim.query.cli:query", "Find steps of a trace, or what happened to a block or a request"),
    "diff": Command("sim.diff.cli:diff", "Compare two runs: the first decision that differs; or two steps"),
    "fork": Command("sim.fork.cli:fork", "Let a recorded run go on otherwise from some step: what if?"),
    "app": Command("viz.launch:app", "Open the app in a browser", "app"),
    "model list": Command("engine.cli.model:list_models", "List the models that Orrery knows by name"),
    "model fetch": Command("engine.cli.model:fetch", "Fetch a model into the cache directory", "engine"),
}

_OPTIONS = {
    "--help, -h": "Show this help, or that of a command",
    "--version": "Show the version",
    "--debug": "Show the traceback of an error",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `orrery` with the arguments `argv` (default: those of the process) and return its exit code.

    0: done. 1: the command failed, or its answer is no. 2: what was asked for cannot be asked for.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = _take_debug_flag(arguments)
    name, rest = _split(arguments)
    if name in COMMANDS:
        return _run(name, rest, debug=debug)
    if rest[:1] == ["--version"]:
        return _print_version()
    if not rest or rest[0] in ("--help", "-h"):
        return _print_help(name)
    return _refuse(name, rest[0])


def _take_debug_flag(arguments: list[str]) -> bool:
    """Remove `--debug` wherever it stands before a `--`: people add it at the end of the line that failed."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--debug" not in options:
        return False
    arguments.remove("--debug")
    return True


def _split(arguments: list[str]) -> tuple[str, list[str]]:
    """Split into the name of a command, or of a group like `model`, and the arguments after it."""
    for words in (2, 1):
        name = " ".join(arguments[:words])
        if name in COMMANDS or any(known.startswith(f"{name} ") for known in COMMANDS):
            return name, arguments[words:]
    return "", arguments


def _run(name: str, arguments: list[str], *, debug: bool) -> int:
    from engine.cli.errors import explain

    command = COMMANDS[name]
    try:
        return _invoke(name, _load(command), arguments)
    except BaseException as error:  # noqa: BLE001 - the outermost frame: whatever it is, the user is told
        if debug:
            traceback.print_exc()
        explained = explain(error, command.extra)
    if explained.message:
        print(f"orrery {name}: {explained.message}", file=sys.stderr)
    return explained.exit_code


def _load(command: Command) -> Callable[..., Any]:
    module, function = command.target.split(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return loaded


def _invoke(name: str, function: Callable[..., Any], arguments: list[str]) -> int:
    import typer

    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, context_settings={"help_option_names": ["--help", "-h"]}
    )
    app.command(help=function.__doc__ or COMMANDS[name].summary)(function)
    # Outside standalone mode typer raises its usage errors, and returns the code of a typer.Exit.
    code = app(args=arguments, prog_name=f"orrery {name}", standalone_mode=False)
    return code if isinstance(code, int) else 0


def _print_version() -> int:
    from engine import __version__

    print(f"orrery {__version__}")
    return 0


def _print_help(group: str) -> int:
    prefix = f"{group} " if group else ""
    commands = {
        name.removeprefix(prefix): command.summary for name, command in COMMANDS.items() if name.startswith(prefix)
    }
    width = max(map(len, [*commands, *_OPTIONS]))
    print(f"Usage: orrery {prefix}COMMAND [OPTIONS]\n")
    if not group:
        print("  An LLM inference engine that you can watch, replay and question.\n")
    for title, rows in (("Commands", commands), ("Options", _OPTIONS)):
        print(f"{title}:")
        for left, right in rows.items():
            print(f"  {left:{width}}  {right}")
        print()
    print("`orrery COMMAND --help` explains a command.")
    return 0


def _refuse(group: str, word: str) -> int:
    name = f"{group} {word}".strip()
    kind = "an option" if word.startswith("-") else "a command"
    near = difflib.get_close_matches(name, [*COMMANDS, "--help", "--version"], n=1)
    hint = f"did you mean `orrery {near[0]}`?" if near else "see `orrery --help`."
    print(f"orrery: `{name}` is not {kind} of orrery; {hint}", file=sys.stderr)
    return 2
