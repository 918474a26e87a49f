"""What samplers drew, and from which weights of the policy.

A sample's future is looked at when its tokens are trained, by which time it is done: nothing here waits, and nothing runs in the
client's own thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import UNSENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    import numpy as np

NOT_THE_POLICY = UNSENT - 1
"""Version of a sampler that was made from a base model."""


@dataclass(frozen=True)
class Drawn:
    """One sequence that a sampler returned, as it arrived."""

    prompt: tuple[int, ...] | None
    """None where the prompt has more than tokens."""
    tokens: np.ndarray
    log_probs: np.ndarray | None
    version: int | None
    """The policy version of the sampler's weights; None if it is not known."""
    settings: dict[str, float]
    moment: int = 0
    """When it was asked for, as whoever asked counts."""


class Samplers:
    """The samplers of a run by the weights that they got, and what they drew."""

    def __init__(self) -> None:
        self._versions: dict[str, int | None] = {}
        """Sampling session -> policy version."""
        self._paths: dict[str, int] = {}
        """Path of saved weights -> policy version."""
        self._clients: list[tuple[Future[Any], int | None]] = []
        """Clients that are being made."""
        self._saves: list[tuple[Future[Any], int]] = []
        """Weights that are being saved."""
        self._asked: list[tuple[Future[Any], Callable[[Any], Drawn]]] = []
        """Samples that were asked for, and what makes a sequence of one of them."""
        self._drawn: dict[str, Drawn] = {}

    def client(self, future: Future[Any], version: int | None) -> None:
        """A sampling client is made from weights of this version."""
        self._clients.append((future, version))

    def saved(self, future: Future[Any], version: int) -> None:
        """Weights of this version are saved under a path."""
        self._saves.append((future, version))

    def version_at(self, path: str) -> int | None:
        """The policy version of the weights at a path; None if this run did not save them."""
        waiting = []
        for future, version in self._saves:
            if not future.done():
                waiting.append((future, version))
            elif future.exception() is None:
                self._paths[str(future.result().path)] = version
        self._saves = waiting
        return self._paths.get(path)

    def asked(self, client: Any, future: Future[Any], prompt: Any, settings: Any, moment: int = 0) -> None:
        """A client was asked for samples."""
        tokens, version, given = _tokens(prompt), self.version_of(client), _settings(settings)
        self._asked.append((future, lambda one: Drawn(tokens, one.tokens_np, one.logprobs_np, version, given, moment)))

    def version_of(self, client: Any) -> int | None:
        """The policy version of the weights that a client samples with; None if it is not known."""
        waiting = []
        for future, version in self._clients:
            if not future.done():
                waiting.append((future, version))
            elif future.exception() is None:
                self._versions[future.result()._sampling_session_id] = version
        self._clients = waiting
        return self._versions.get(client._sampling_session_id)

    def drawn(self, sequence: str) -> Drawn | None:
        """The sequence of this name; None if no sampler of this process drew it."""
        if sequence not in self._drawn:
            self.collect()
        return self._drawn.get(sequence)

    def collect(self) -> list[str]:
        """Take what has arrived; the names of the sequences that are new."""
        waiting, new = [], []
        for each in self._asked:
            future, made = each
            if not future.done():
                waiting.append(each)
            elif not future.cancelled() and future.exception() is None:
                for one in future.result().sequences:
                    self._drawn[one.sequence_id] = made(one)
                    new.append(one.sequence_id)
        self._asked = waiting
        return new

    def forget(self, older_than: int) -> None:
        """Forget what weights before this version drew, and what was not drawn from the policy."""
        self.collect()
        self._drawn = {
            name: one for name, one in self._drawn.items() if one.version is not None and one.version >= older_than
        }

    def forget_asked(self, before: int) -> set[str]:
        """Forget what was asked for before a moment; the names of these sequences."""
        gone = {name for name, one in self._drawn.items() if one.moment < before}
        for name in gone:
            del self._drawn[name]
        return gone


def _tokens(prompt: Any) -> tuple[int, ...] | None:
    try:
        return tuple(prompt.to_ints())
    except ValueError:  # images
        return None


def _settings(given: Any) -> dict[str, float]:
    return {"temperature": float(given.temperature), "top_p": float(given.top_p), "top_k": float(given.top_k)}
