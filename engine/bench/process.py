"""A process that is measured: started, asked one workload at a time, watched, and taken down with all it started."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from engine.bench.peers.protocol import Request

_PEERS = Path(__file__).parent
_SECONDS_TO_LEAVE = 15
_KIB = 1024


class PeerError(Exception):
    """A peer did not start, fell over, answered wrongly or took too long; says which, in one sentence."""


class Answer(NamedTuple):
    """One workload, run once."""

    elapsed: float
    """Seconds from the requests to the last token."""
    output_tokens: int
    ttft: float | None
    """Mean seconds to the first token."""
    itl: float | None
    """Mean seconds between two tokens of a request."""

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second of the whole workload."""
        return self.output_tokens / self.elapsed


class PeerProcess:
    """A peer in its own process, ready when the constructor returns.

    Args:
        python: the interpreter that has the peer.
        driver: a module of `engine/bench/peers`, by its bare name.
        settings: for the driver, as JSON.
        environment: on top of this process's own.
        timeout: seconds within which it must be ready.

    Raises:
        PeerError: it is not.
    """

    def __init__(
        self,
        python: Path,
        driver: str,
        settings: Mapping[str, Any],
        environment: Mapping[str, str],
        timeout: float,
    ) -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._unread = b""
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [python, "-m", f"peers.{driver}", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env={**os.environ, **environment, "PYTHONPATH": str(_PEERS)},
            start_new_session=True,  # a group of its own, so that what it starts can be ended with it
        )
        try:
            self._answer(timeout)
        except BaseException:
            self.close()
            raise
        self.seconds_to_ready = time.perf_counter() - started

    def run(self, requests: Sequence[Request], timeout: float) -> Answer:
        """Have it generate some requests at once.

        Raises:
            PeerError: it failed, took longer than `timeout` seconds, or made another number of tokens than asked for.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([each._asdict() for each in requests]).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerError(self._last_words()) from error
        answer = Answer(**self._answer(timeout))
        asked = sum(each.out for each in requests)
        if answer.output_tokens != asked:
            raise PeerError(f"It made {answer.output_tokens} tokens where {asked} were asked for.")
        return answer

    def peak_memory_bytes(self) -> int:
        """The most that has been resident, of the process and all it started.

        Pages that they share count once for each.
        """
        return sum(_high_water_mark(pid) for pid in _family(self._process.pid))

    def close(self) -> None:
        """Let it leave; after a while, make it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(_SECONDS_TO_LEAVE)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._end(signal.SIGTERM)
        self._end(signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        self._complaints.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, timeout: float) -> dict[str, Any]:
        """The next line that it says."""
        assert self._process.stdout is not None
        deadline = time.perf_counter() + timeout
        while b"\n" not in self._unread:
            if not select.select([self._process.stdout], [], [], max(0.0, deadline - time.perf_counter()))[0]:
                self._end(signal.SIGKILL)  # it is too busy to be asked to leave
                raise PeerError(f"It did not answer within {timeout:.0f} s.")
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
            if not chunk:
                raise PeerError(self._last_words())
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def _last_words(self) -> str:
        """Why it has ended: the last line that it complained with, which of a traceback is the error."""
        code = self._process.wait()
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1] if said else f"It ended with exit code {code}."

    def _end(self, how: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, how)
        except ProcessLookupError:
            return  # all of the group have left


def _family(pid: int) -> Iterator[int]:
    """A process and all that descend from it."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from _family(int(child))


def _high_water_mark(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return 0  # it has just ended
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * _KIB
    return 0  # a process that has ended and waits for its parent holds none
