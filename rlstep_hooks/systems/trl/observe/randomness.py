"""The state of the random generator before the first token of a rollout is drawn: never one that an earlier rollout had, or that
another process has."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch

NEW = -1
"""No earlier rollout began with this state."""

CHECKSUM = 6
"""Bytes of a checksum that is recorded: JSON's numbers are exact to 53 bits."""


@dataclass(frozen=True)
class Drawn:
    """The state that a rollout was drawn with."""

    earlier: int
    """The earlier rollout that began with it, or `NEW`."""
    checksum: int


class RandomWatch:
    """Compares the states of the generator that transformers samples with: that of the policy's device."""

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}
        self._state: bytes | None = None

    def begin(self) -> None:
        """A rollout begins."""
        self._state = None

    def draws(self, device: Any) -> None:
        """Tokens are about to be drawn. Reading the state waits for nothing: it is kept on the host, a seed and a place for a GPU."""
        self._state = self._state or _state(device)

    def ended(self, device: Any, index: int) -> Drawn | None:
        """The rollout came.

        Returns:
            With which state; None where nothing was drawn, or the state cannot be read.
        """
        state, self._state = self._state, None
        if state is None or state == _state(device):
            return None
        earlier = self._seen.setdefault(state, index)
        return Drawn(NEW if earlier == index else earlier, int.from_bytes(state[:CHECKSUM], "big"))


def _state(device: Any) -> bytes | None:
    kind = torch.device(device).type
    if kind == "cpu":
        return _digest(torch.get_rng_state())
    return _digest(torch.cuda.get_rng_state(device)) if kind == "cuda" else None


def _digest(state: Any) -> bytes:
    return hashlib.blake2b(state.numpy().tobytes(), digest_size=16).digest()
