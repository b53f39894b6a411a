"""llama.cpp, through its `llama-server`: a slot per request, so that all of them run at once."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .protocol import Request, Timing, serve

_HOST = "127.0.0.1"
_POLL_SECONDS = 0.02
_MS = 1e-3


class LlamaCpp:
    """`settings`: server (the program), model (a GGUF file), threads, slots, max_model_len."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._port = _free_port()
        self._slots = settings["slots"]
        context = settings["slots"] * settings["max_model_len"]
        command = [settings["server"], "--model", settings["model"], "--host", _HOST, "--port", str(self._port)]
        command += ["--threads", str(settings["threads"]), "--parallel", str(self._slots), "--ctx-size", str(context)]
        self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while not self._healthy():
            if self._server.poll() is not None:
                raise RuntimeError(f"llama-server ended with exit code {self._server.returncode}.")
            time.sleep(_POLL_SECONDS)

    def run(self, requests: Sequence[Request]) -> list[Timing]:
        with ThreadPoolExecutor(max_workers=self._slots) as clients:
            return list(clients.map(self._complete, requests))

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()

    def _complete(self, request: Request) -> Timing:
        """Not streamed: the clients share the cores with the server, and it tells its own times."""
        asked = {
            "prompt": request.prompt,
            "n_predict": request.out,
            "ignore_eos": True,
            "temperature": 0,
            "samplers": ["top_k"],
            "top_k": 1,
            "cache_prompt": False,
        }
        connection = http.client.HTTPConnection(_HOST, self._port)
        connection.request("POST", "/completion", json.dumps(asked), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = json.loads(answer.read())
        connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"llama-server answered {answer.status}: {said}")
        count, times = said["tokens_predicted"], said["timings"]
        # The first token comes with the prompt; its share of the time that follows belongs to the others.
        itl = times["predicted_ms"] * _MS / (count - 1) if count > 1 else None
        return Timing(count, times["prompt_ms"] * _MS, itl)

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection(_HOST, self._port)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    serve(LlamaCpp)
