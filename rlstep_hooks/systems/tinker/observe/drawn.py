"""What samplers drew, and from which weights of the policy.

A sample's future is looked at when its tokens are trained, by which time it is done: nothing here waits, and nothing runs in the
client's own thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import UNSENT

if TYPE_CHECKING:
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
        self._asked: list[tuple[Future[Any], tuple[int, ...] | None, int | None, dict[str, float]]] = []
        """Samples that were asked for."""
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

    def asked(self, client: Any, future: Future[Any], prompt: Any, settings: Any) -> None:
        """A client was asked for samples."""
        self._asked.append((future, _tokens(prompt), self._version_of(client), _settings(settings)))

    def _version_of(self, client: Any) -> int | None:
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
            self._collect()
        return self._drawn.get(sequence)

    def _collect(self) -> None:
        waiting = []
        for each in self._asked:
            future, prompt, version, settings = each
            if not future.done():
                waiting.append(each)
            elif not future.cancelled() and future.exception() is None:
                for one in future.result().sequences:
                    self._drawn[one.sequence_id] = Drawn(prompt, one.tokens_np, one.logprobs_np, version, settings)
        self._asked = waiting

    def forget(self, older_than: int) -> None:
        """Forget what weights before this version drew, and what was not drawn from the policy."""
        self._collect()
        self._drawn = {
            name: one for name, one in self._drawn.items() if one.version is not None and one.version >= older_than
        }


def _tokens(prompt: Any) -> tuple[int, ...] | None:
    try:
        return tuple(prompt.to_ints())
    except ValueError:  # images
        return None


def _settings(given: Any) -> dict[str, float]:
    return {"temperature": float(given.temperature), "top_p": float(given.top_p), "top_k": float(given.top_k)}
