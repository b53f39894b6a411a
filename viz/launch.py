"""`orrery app`: the Streamlit app, started as a person would start it."""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from engine.errors import OrreryError

_APP = Path(__file__).parent / "app.py"


def app(
    trace: Annotated[Path | None, typer.Argument(help="A trace to open, .jsonl or .jsonl.zst.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the page.")] = 8501,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Open the app in a browser."""
    from engine.trace.open_file import open_trace

    if _in_use(port):
        raise OrreryError(f"port {port} is in use: choose another with --port.")
    command = [sys.executable, "-m", "streamlit", "run", str(_APP), "--server.port", str(port)]
    # It runs on a person's own machine: nobody else on the network is to read its files.
    command += ["--server.address", "localhost", "--server.headless", "false" if browser else "true"]
    if trace is not None:
        open_trace(trace)  # what is wrong with it is said here rather than on the page
        command += ["--", str(trace.resolve())]
    os.execv(sys.executable, command)


def _in_use(port: int) -> bool:
    """Whether another program listens on a port of this machine."""
    for family, kind, protocol, _, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
        try:
            with socket.socket(family, kind, protocol) as probe:
                # As the server itself asks for it: a port that was closed a moment ago is not in use.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
    return False
