"""Completions that are too improbable to be drawn twice, as checksums: those of several processes are joined by the judge (RLS519)."""

from __future__ import annotations

import hashlib

PROVED = 30.0
"""Nats beyond which a completion is kept: the least with which two equal ones prove anything (`judge/rules/data/copies.py`)."""
MOST_IMPROBABLE = 256
"""Completions of a process that are kept at most. They are those with the smallest checksums, so that a text which two processes
have is kept by both or by neither, as far as they have equally many."""
_BYTES = 7
"""Of a checksum: among 20 000 completions two others have the same one in 3e-9 of the rollouts."""


class Improbable:
    """The improbable completions of one process in one rollout."""

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}

    def add(self, text: str, nats: float) -> None:
        """Add a completion.

        Args:
            text: A checksum of its tokens, which is the same on every process.
            nats: -log p of it under the policy, in nats.
        """
        if nats > PROVED:
            self._kept[text] = int(nats)

    def __str__(self) -> str:
        """As `RolloutValues.improbable` and `MicroBatchValues.improbable` have them."""
        return " ".join(f"{text}:{nats}" for text, nats in sorted(self._kept.items())[:MOST_IMPROBABLE])


def text_of(tokens: bytes) -> str:
    """A checksum of the tokens of a completion.

    Args:
        tokens: Each with as many bytes on every process.
    """
    return hashlib.blake2b(tokens, digest_size=_BYTES).hexdigest()
