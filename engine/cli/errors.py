"""The one place where an error becomes a sentence and an exit code.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | it failed: a missing model or file, a damaged trace, a divergence, a defect of Orrery |
| 2 | it was asked for wrongly: an unknown option, an engine argument or a request that is not allowed |
| 130 | interrupted (128 + SIGINT) |
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

import typer

from engine.errors import ConfigError, OrreryError, QueryError, RequestError

FAILURE = 1
USAGE = 2
INTERRUPTED = 130

#: Packages of this repository: one of these missing is a defect, not something to install.
OURS = frozenset({"engine", "kernels", "sim", "viz"})


class Explained(NamedTuple):
    """What a user is told."""

    message: str  # one sentence for stderr; empty: nothing to say
    exit_code: int


def explain(error: BaseException, extra: str | None = None) -> Explained:
    """Say what went wrong.

    Args:
        error: whatever a command raised.
        extra: the extra of `llm-orrery` that holds the command's packages, named when one of them is missing.
    """
    match error:
        case ConfigError() | QueryError() | RequestError():
            return Explained(str(error), USAGE)
        case OrreryError():
            return Explained(str(error), FAILURE)
        case typer.TyperException():
            return Explained(f"{_clause(error.format_message())}; see --help.", error.exit_code)
        case typer.Abort() | KeyboardInterrupt():
            return Explained("interrupted.", INTERRUPTED)
        case SystemExit():
            return Explained("", error.code if isinstance(error.code, int) else FAILURE)
        case BrokenPipeError():
            # The reader (`| head`) has left; without this, the interpreter complains once more when it flushes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Explained("", FAILURE)
        case ModuleNotFoundError(name=str(name)) if name.partition(".")[0] not in OURS:
            install = f"pip install 'llm-orrery[{extra or 'all'}]'"
            return Explained(f"the package {name.partition('.')[0]} is not installed; {install} brings it.", FAILURE)
        case OSError(filename=filename, strerror=str(why)) if filename is not None:
            return Explained(f"{os.fsdecode(filename)}: {why.lower()}.", FAILURE)
        case _:
            return Explained(f"{_clause(f'{type(error).__name__}: {error}')}; --debug shows where.", FAILURE)


def _clause(text: str) -> str:
    return " ".join(text.split()).rstrip(".:")
