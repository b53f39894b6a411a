"""The waiting queue, in the two orders in which it may be served."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from engine.config import Policy
from engine.core.request import Request


class RequestQueue(Protocol):
    """Requests that wait to be admitted."""

    def add(self, request: Request) -> None:
        """Let a new request join."""

    def prepend(self, request: Request) -> None:
        """Let a preempted request join: it is served before those that never ran, where the order allows it."""

    def peek(self) -> Request:
        """The request served next; the queue is not empty."""

    def pop(self) -> Request:
        """Take that request out."""

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""

    def first(self, count: int) -> list[Request]:
        """The first `count` requests in serving order."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...


class FCFSQueue:
    """First come, first served; a preempted request goes to the front."""

    def __init__(self) -> None:
        # An ordered dictionary: joining at either end, and leaving from the middle on an abort, are all O(1).
        self._requests: OrderedDict[int, Request] = OrderedDict()

    def add(self, request: Request) -> None:
        self._requests[request.serial] = request

    def prepend(self, request: Request) -> None:
        self._requests[request.serial] = request
        self._requests.move_to_end(request.serial, last=False)

    def peek(self) -> Request:
        return next(iter(self._requests.values()))

    def pop(self) -> Request:
        return self._requests.popitem(last=False)[1]

    def remove(self, request: Request) -> None:
        del self._requests[request.serial]

    def first(self, count: int) -> list[Request]:
        return list(islice(self._requests.values(), count))

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())


class PriorityQueue:
    """Lowest (priority, arrival) first; a preempted request finds its old place again."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []

    def add(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.priority, request.serial, request))

    def prepend(self, request: Request) -> None:
        self.add(request)

    def peek(self) -> Request:
        return self._heap[0][2]

    def pop(self) -> Request:
        return heapq.heappop(self._heap)[2]

    def remove(self, request: Request) -> None:
        self._heap.remove((request.priority, request.serial, request))
        heapq.heapify(self._heap)

    def first(self, count: int) -> list[Request]:
        return [request for _, _, request in heapq.nsmallest(count, self._heap)]

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, _, request in sorted(self._heap))


def create_request_queue(policy: Policy) -> RequestQueue:
    """The waiting queue for a scheduling policy."""
    return PriorityQueue() if policy == "priority" else FCFSQueue()
