"""The gates before the running queue: each answers for one request whether it may go on, or what it waits for."""

from __future__ import annotations

from typing import Literal

from engine.core.kv_transfer import KVTransferManager
from engine.core.messages import RequestStatus
from engine.core.request import Request
from engine.core.structured_output import StructuredOutputManager

WaitingFor = Literal["waiting_for_grammar", "waiting_for_remote_kvs"]


class AdmissionGates:
    """Asked when a request's turn has come.

    A request that must wait is skipped, not moved: the next step meets it again at the place it had.
    """

    def __init__(self, structured_output: StructuredOutputManager, kv_transfer: KVTransferManager) -> None:
        self._structured_output = structured_output
        self._kv_transfer = kv_transfer

    def why_wait(self, request: Request) -> WaitingFor | None:
        """What the request waits for; None if it may be admitted."""
        if self._structured_output.must_wait(request):
            return "waiting_for_grammar"
        if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS and not self._kv_transfer.has_arrived(request):
            return "waiting_for_remote_kvs"
        return None
