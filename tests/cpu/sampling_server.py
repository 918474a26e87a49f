"""A small server that draws tokens from a model, in a thread of the tests, for frameworks that send an engine requests over HTTP.

A framework's own part is a subclass of `Service`: the requests that it sends, and how it hands new weights over.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


class Drawn(NamedTuple):
    """A completion."""

    tokens: list[int]
    log_probs: list[float]
    """Of each token, under the distribution that it was drawn from."""
    reason: str
    """"stop" where its last token ends it, else "length"."""


class Service:
    """The model that draws; one request at a time.

    Args:
        folder: The weights that it begins with.
        keeps: Whether it keeps these, whatever it is asked to load.
    """

    def __init__(self, folder: Path, *, keeps: bool = False) -> None:
        self._lock = threading.Lock()
        self.keeps = keeps
        self.model: Any = None
        self.load(folder)

    def load(self, folder: Path | str) -> None:
        """Draw from the weights of a folder."""
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def answer(self, path: str, request: dict[str, Any], headers: Any) -> dict[str, Any] | None:
        """The answer to a request, one after the other; None where there is none."""
        with self._lock, torch.no_grad():
            return self.respond(path, request, headers)

    def respond(self, path: str, request: dict[str, Any], headers: Any) -> dict[str, Any] | None:
        """What a framework asks."""
        raise NotImplementedError

    def draw(self, prompt: Sequence[int], seed: int, *, temperature: float, most: int, ends: Iterable[int]) -> Drawn:
        """A completion.

        Args:
            prompt: Its tokens.
            seed: What is drawn depends on nothing else, least of all on the order of requests.
            temperature: Divides the logits.
            most: The number of tokens after which it is cut off.
            ends: Tokens after which it ends.
        """
        tokens, drawn = list(prompt), list[int]()
        log_probs: list[float] = []
        chance = torch.Generator().manual_seed(seed)
        for _ in range(most):
            logits = self.model(torch.tensor([tokens + drawn])).logits[0, -1].double()
            of_all = torch.log_softmax(logits / temperature, -1)
            drawn.append(int(torch.multinomial(of_all.exp(), 1, generator=chance)))
            log_probs.append(float(of_all[drawn[-1]]))
            if drawn[-1] in ends:
                return Drawn(drawn, log_probs, "stop")
        return Drawn(drawn, log_probs, "length")


class Handler(BaseHTTPRequestHandler):
    """Requests over HTTP."""

    protocol_version = "HTTP/1.1"
    service: Service

    def log_message(self, *given: Any) -> None:
        """Say nothing of a request."""

    def do_GET(self) -> None:
        """Whether the server is there, and how large it is."""
        self._body()
        self._send({"world_size": 1})

    def do_POST(self) -> None:
        """Everything else."""
        answer = self.service.answer(self.path.partition("?")[0], json.loads(self._body() or b"{}"), self.headers)
        if answer is None:
            self.send_error(404)
        else:
            self._send(answer)

    def _body(self) -> bytes:
        """What was sent; unread, it would be taken for the beginning of the next request."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _send(self, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(BrokenPipeError):  # nobody waits for it any more: the run is over
            self.wfile.write(body)


@contextmanager
def served(service: Service) -> Iterator[str]:
    """The address of a server."""
    handler = type("Own", (Handler,), {"service": service})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
