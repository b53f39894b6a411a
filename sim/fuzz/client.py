"""What a client may believe of the answers it gets."""

from __future__ import annotations

from engine.core.messages import EngineCoreOutput
from sim.fuzz.episode import Arrival, Setting
from sim.fuzz.failure import broken
from sim.fuzz.toy_model import Continuation


class Client:
    """Waits for one request, and knows what the model says."""

    def __init__(self, serial: int, arrival: Arrival, setting: Setting) -> None:
        self.serial = serial
        self.arrival = arrival
        self.ended = False
        self._continuation = Continuation(setting, arrival.prompt)

    def hear(self, news: EngineCoreOutput, failed: bool) -> None:
        """Take in news of the request.

        Args:
            news: what the core says.
            failed: whether something failed that may end the request with an error.
        """
        name = f"r{self.serial}"
        if self.ended or news.request_id != self.arrival.request_id:
            raise broken("client: news of a living request", f"{name}, {self.arrival.request_id!r}, got {news}")
        for token_id in news.new_token_ids:
            right = self._continuation.next_token()
            if token_id != right:
                position = len(self._continuation.kv)
                raise broken("client: what the model says", f"token {position} of {name} is {token_id}, not {right}")
            self._continuation.append(token_id)
        self.ended = news.finish_reason is not None
        if news.finish_reason == "error" and not failed:
            raise broken("client: no error without a cause", f"{name} ended with {news.error!r}")

    def gives_up(self) -> None:
        """The request has been aborted, or refused."""
        self.ended = True
