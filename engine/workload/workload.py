"""`open_workload`: the one way from a user's words to requests, whatever file or recipe they name."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import ConfigError, WorkloadError
from engine.workload.arrivals import arrival_times
from engine.workload.azure import read_azure
from engine.workload.burstgpt import read_burstgpt
from engine.workload.custom import read_custom
from engine.workload.detection import detected_format
from engine.workload.hash_ids import MOONCAKE, TIMED_TRACE, read_hash_ids, read_qwen_bailian
from engine.workload.request import WorkloadRequest
from engine.workload.sharegpt import read_sharegpt
from engine.workload.synthetic_spec import PREFIX, SyntheticSpec
from engine.workload.trace import read_trace_requests

if TYPE_CHECKING:
    from random import Random

Encode = Callable[[str], list[int]]
"""The token ids of a text."""

_NS_PER_S = 1e9


class Workload:
    """Requests in the order of their arrival; they are read as they are asked for, once.

    Args:
        name: the file, or the words of a synthetic one.
        assumed: its format, and what the numbers in it were taken to mean.
        requests: the requests.
        left_out: counts those that cannot be sent, by their reason, while the requests are read.
    """

    def __init__(self, name: str, assumed: str, requests: Iterable[WorkloadRequest], left_out: Counter[str]) -> None:
        self.name = name
        self.assumed = assumed
        self.left_out = left_out
        self.num_requests = 0
        self.span_ns = 0
        """From the first arrival to the last so far."""
        self._requests = iter(requests)
        self._first_ns: int | None = None

    def __iter__(self) -> Iterator[WorkloadRequest]:
        """The requests, of which the first comes at 0.

        Raises:
            WorkloadError: the file is not of its form; says where.
        """
        for request in self._requests:
            if self._first_ns is None:
                self._first_ns = request.arrival_ns
            self.num_requests += 1
            self.span_ns = request.arrival_ns - self._first_ns
            yield request._replace(arrival_ns=self.span_ns)
        if not self.num_requests:
            raise WorkloadError(f"{self.name}: it holds no request that can be sent{self._what_is_left_out()}.")

    def __str__(self) -> str:
        """What was read, and how it was understood: one line for the user."""
        span = f"over {self.span_ns / _NS_PER_S:,.3f} s" if self.span_ns else "all at once"
        return f"{self.name}: {self.assumed}; {self.num_requests:,} requests {span}{self._what_is_left_out()}"

    def _what_is_left_out(self) -> str:
        return "".join(f"; {count:,} {reason} left out" for reason, count in self.left_out.items())


class _Timed(NamedTuple):
    """A format whose requests have times, and shapes or ids for prompts."""

    assumed: str
    read: Callable[[Path, Counter[str]], Iterator[WorkloadRequest]]


_TIMED = {
    "azure": _Timed("times to 100 ns", read_azure),
    "burstgpt": _Timed("times in seconds", read_burstgpt),
    "mooncake": _Timed(
        "times in milliseconds, blocks of 512 tokens", lambda path, left_out: read_hash_ids(path, left_out, MOONCAKE)
    ),
    "timed-trace": _Timed(
        "times in seconds, blocks of 16 tokens", lambda path, left_out: read_hash_ids(path, left_out, TIMED_TRACE)
    ),
    "qwen-bailian": _Timed("times in seconds, blocks of 16 tokens", read_qwen_bailian),
    "trace": _Timed("times in nanoseconds", read_trace_requests),
}
_TEXTS = ("sharegpt", "custom")

#: The formats of files whose requests have times.
TIMED_FORMATS = tuple(_TIMED)
#: The formats of files.
FORMATS = (*TIMED_FORMATS, *_TEXTS)


def open_workload(
    text: str,
    rng: Random,
    *,
    format: str | None = None,
    encode: Encode | None = None,
    count: int | None = None,
    rate: float = math.inf,
    burstiness: float = 1.0,
) -> Workload:
    """Find out what a workload is, and read it.

    Args:
        text: a file, or `synthetic:key=value,…`, see `engine.workload.synthetic_spec`.
        rng: draws what is made up, and shuffles conversations and prompts.
        format: of the file, one of `FORMATS`; None: told by its first line, if that leaves no doubt.
        encode: the model's tokenizer, for the files that hold text.
        count: at most so many requests; None: all.
        rate: requests per second of a file without times.
        burstiness: of the same arrivals, see `engine.workload.arrivals`.

    Raises:
        ConfigError: an unknown format, or an argument that this workload has no use for.
        WorkloadError: the file is of no known form, or what is asked for cannot be made. While it is read: a line of
            it is wrong.
        OSError: the file cannot be read.
    """
    left_out: Counter[str] = Counter()
    if text.startswith(PREFIX):
        _require_no_rate(rate, burstiness)
        if format is not None:
            raise ConfigError(f"A synthetic workload is no file of format {format!r}.")
        spec = SyntheticSpec.parse(text)
        return Workload(text, "made up", islice(spec.requests(rng), count), left_out)
    path = Path(text)
    format = format or detected_format(path)
    if format in _TEXTS:
        requests = _with_times(_texts(path, format, rng, encode, count), rng, rate, burstiness)
        return Workload(text, f"{format}, without times", requests, left_out)
    if format not in _TIMED:
        raise ConfigError(f"The format of a workload must be one of {', '.join(FORMATS)}, got {format!r}.")
    _require_no_rate(rate, burstiness)
    timed = _TIMED[format]
    return Workload(text, f"{format}, {timed.assumed}", islice(timed.read(path, left_out), count), left_out)


def _require_no_rate(rate: float, burstiness: float) -> None:
    if rate != math.inf or burstiness != 1.0:
        raise ConfigError("This workload has arrival times of its own, which a request rate would contradict.")


def _texts(path: Path, format: str, rng: Random, encode: Encode | None, count: int | None) -> Iterator[WorkloadRequest]:
    if encode is None:
        raise ConfigError(f"{path} holds text, of which only a model's tokenizer makes tokens.")
    most = sys.maxsize if count is None else count
    if format == "sharegpt":
        chosen = read_sharegpt(path, most, rng, lambda text: len(encode(text)))
    else:
        chosen = read_custom(path, most, rng, as_prompt=str)
    for request in chosen:
        assert isinstance(request.prompt, str)
        yield request._replace(prompt=encode(request.prompt))


def _with_times(
    requests: Iterable[WorkloadRequest], rng: Random, rate: float, burstiness: float
) -> Iterator[WorkloadRequest]:
    times = arrival_times(rng, rate, burstiness)
    return (request._replace(arrival_ns=time) for request, time in zip(requests, times, strict=False))
