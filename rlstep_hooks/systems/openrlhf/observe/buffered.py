"""The samples that were put into OpenRLHF's buffer: what each came with, and numbers of their rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.identity import checksum_of
from rlstep_hooks.observe.token_distances import gap_fields
from rlstep_hooks.record.numbers import RolloutValues

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

    from rlstep_hooks.record.values import Role


class Came(msgspec.Struct, frozen=True, gc=False):
    """What one sample came to its trainer with."""

    key: int
    """Checksum of its tokens."""
    log_probs: int
    """Checksum of its old log-probs."""
    length: int
    """Numbers of each kind: one for each token but the first."""
    mask: int
    """Checksum of its mask as it is put into a micro-batch."""
    checksums: dict[str, set[int]]
    """Checksums of the sample's other numbers when they came, by the argument of the loss; of all samples that cannot be told
    apart from it."""


_FOLLOWED: dict[Role, dict[str, str]] = {
    "policy": {
        "advantages": "advantages",
        "rollout_log_probs": "rollout_log_probs",
        "reference": "base_action_log_probs",
    },
    "critic": {"returns": "returns", "old_values": "values"},
}
"""The field of OpenRLHF's `Experience` that an argument of the loss is taken from, by role and argument; the reference's log-probs are
in the loss beside these."""


class BufferedSamples:
    """Follows the samples of one trainer's buffer into its micro-batches.

    Args:
        role: The role of the trainer.
    """

    def __init__(self, role: Role) -> None:
        self._fields = _FOLLOWED[role]
        self._came: dict[tuple[int, int], dict[str, set[int]]] = {}
        self._collated: dict[int, list[Came]] = {}
        """The samples of each micro-batch that waits for its training, by the id of their `Experience`."""
        self._computed: dict[int, set[int]] = {}
        """Checksums of what the critic computed for each sample, by that of its tokens."""

    def computed(self, values: Mapping[int, set[int]]) -> None:
        """The critic computed the values of a rollout: checksums by those of the tokens."""
        self._computed = dict(values)

    def appended(self, items: Iterable[Any]) -> None:
        """Samples came."""
        for item in items:
            # The same prompt may stand in two groups, with equal completions of other advantages.
            came = self._came.setdefault(identity(item), {})
            for name, of in self._fields.items():
                held = getattr(item, of)
                if held is not None:
                    came.setdefault(name, set()).add(checksum_of(held))

    def collated(self, experience: Any, items: Iterable[Any]) -> None:
        """Look at a micro-batch that was put together from items of the buffer."""
        found = []
        for item in items:
            key, log_probs = identity(item)
            came = dict(self._came.get((key, log_probs), {}))
            if "old_values" in self._fields and key in self._computed:
                came["old_values"] = self._computed[key]
            mask = checksum_of(item.action_mask.bool())
            found.append(Came(key, log_probs, item.action_log_probs.numel(), mask, came))
        self._collated[id(experience)] = found

    def take(self, experience: Any) -> list[Came]:
        """The samples of a micro-batch whose training begins; empty if they are not known."""
        return self._collated.pop(id(experience), [])

    def trained(self) -> None:
        """All passes over a rollout are made: no micro-batch waits any more."""
        self._came.clear()
        self._collated.clear()


def identity(item: Any) -> tuple[int, int]:
    """The identity of one sample of the buffer, and its old log-probs."""
    return checksum_of(item.sequences), checksum_of(item.action_log_probs)


class BufferedNumbers:
    """Numbers of the samples that were put into the buffer since the last look."""

    def __init__(self) -> None:
        self._advantages: list[float] = []
        self._gaps: list[Tensor] = []

    def add(self, experience: Any) -> None:
        """Take one part of a rollout, on the CPU."""
        mask = experience.action_mask.bool()
        advantages = experience.advantages[mask]
        self._advantages.append(float(advantages.abs().max()) if advantages.numel() else 0.0)
        if experience.rollout_log_probs is not None and mask.any():
            self._gaps.append((experience.action_log_probs.float() - experience.rollout_log_probs.float())[mask])

    def take(self, refresh: int) -> RolloutValues | None:
        """The rollout's numbers; None if nothing was put into the buffer."""
        advantages, gaps = self._advantages, self._gaps
        self._advantages, self._gaps = [], []
        if not advantages:
            return None
        of_engine = gap_fields(torch.cat(gaps)) if gaps else {}
        return RolloutValues(index=refresh, max_abs_advantage=max(advantages), **of_engine)


def buffer_is_dynamic(buffer: Any) -> bool:
    """Whether token counts cut the micro-batches, which then come as lists (replay_buffer.py:84)."""
    return bool(buffer.dynamic_batch)
