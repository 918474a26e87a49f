"""A number for the weights of a sync, the same where they are sent and where they arrive.

OpenRLHF gives a sync no name. Both sides see the same tensors in the same order, so a checksum of a few numbers of each says which
sync an engine took last, without a word between the processes.
"""

from __future__ import annotations

import zlib
from typing import Any

NUMBERS = 16
"""Numbers of each tensor, from its middle (the first row of an embedding may belong to padding, and never change)."""


class Fingerprint:
    """Collects numbers of one sync on their device, and fetches them at its end: both sides wait for the device then anyway."""

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def add(self, tensor: Any) -> None:
        """Look at one tensor of the sync."""
        flat = tensor.detach().reshape(-1)
        start = flat.numel() // 2
        # A copy: the tensor itself may be gone, or be another one, at the end of the sync. Nothing else is done between two tensors,
        # where caches are cold.
        self._parts.append(flat[start : start + NUMBERS].clone())

    def take(self) -> int | None:
        """The sync's number; None if it had no tensor. The next sync starts anew."""
        import torch

        parts, self._parts = self._parts, []
        if not parts:
            return None
        # 0 stands for the weights that an engine loads by itself.
        return zlib.crc32(torch.cat([part.float() for part in parts]).cpu().numpy().tobytes()) or 1
