"""Which samples a slice of TRL's buffer holds, and which weights sampled them: by identities that travel with the samples."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.record.events import SampleRows
from rlstep_hooks.systems.trl.observe.measure import ROWS, version_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PLACES = 1 << 32
"""A sample's identity is its rollout times this, plus its place in the rollout."""
_REMEMBERED_ROLLOUTS = 4096
_MOST_SLICES = 256


class Trained(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The samples of one slice of the buffer, which each pass trains again."""

    rows: Tensor | None
    """Identities of the samples, as TRL hands them on."""
    written: int
    """Writes to `rows` that torch had counted."""
    samples: tuple[SampleRows, ...] | None
    """The rows of the samples in their rollouts; None where they cannot be identified."""
    rollout: int
    """The rollout of the first sample; -1 where it is not known."""
    sampled: int | None
    """Oldest version that sampled them."""
    refreshed: int | None
    """Oldest version that computed their old log-probs when they were sampled."""


_UNKNOWN = Trained(rows=None, written=-1, samples=None, rollout=-1, sampled=None, refreshed=None)


class SampleIdentities:
    """Remembers the versions behind the latest rollouts, and recognises their samples in micro-batches.

    Args:
        slices: Micro-batches of a cycle of rollouts, after which the same slices of the buffer may be trained again.
    """

    def __init__(self, slices: int) -> None:
        self._slices = min(max(slices, 1), _MOST_SLICES)
        self._sampled: OrderedDict[int, int] = OrderedDict()
        self._refreshed: OrderedDict[int, int] = OrderedDict()
        self._known: dict[int, Trained] = {}

    def sampled(self, rollout: int, version: int) -> None:
        """The policy of this version sampled a rollout."""
        _remember(self._sampled, rollout, version)

    def refreshed(self, rollout: int, version: int) -> None:
        """The policy of this version gave a rollout its old log-probs."""
        _remember(self._refreshed, rollout, version)

    def trained(self, inputs: dict[str, Any]) -> Trained:
        """Which samples a micro-batch holds, and of which rollouts.

        Args:
            inputs: What its loss got.
        """
        rows = inputs.get(ROWS)
        if rows is None:
            return _UNKNOWN
        written, known = version_of(rows), self._known.get(id(rows))
        if known is not None and known.rows is rows and known.written == written >= 0:  # trained in an earlier pass
            return known
        found = self._read(rows, written)
        if len(self._known) >= self._slices:
            del self._known[next(iter(self._known))]
        self._known[id(rows)] = found
        return found

    def _read(self, rows: Tensor, written: int) -> Trained:
        held = rows.tolist()
        rollout = held[0] // _PLACES if held else -1
        if held and min(held) // _PLACES == max(held) // _PLACES:  # as almost always
            first = rollout * _PLACES
            return Trained(
                rows=rows,
                written=written,
                samples=(SampleRows(rollout, tuple([identity - first for identity in held])),),
                rollout=rollout,
                sampled=self._sampled.get(rollout),
                refreshed=self._refreshed.get(rollout),
            )
        by_rollout = _by_rollout(held)
        return Trained(
            rows=rows,
            written=written,
            samples=tuple([SampleRows(of, tuple(places)) for of, places in by_rollout.items()]),
            rollout=rollout,
            sampled=_oldest(self._sampled, by_rollout),
            refreshed=_oldest(self._refreshed, by_rollout),
        )


def identities(rollout: int, sizes: list[int]) -> Sequence[Tensor]:
    """int64: the identity of each sample of a rollout, for each of its parts."""
    first = rollout * _PLACES
    rows = torch.arange(first, first + sum(sizes))
    return (rows,) if len(sizes) == 1 else rows.split(sizes)


def _by_rollout(identities: list[int]) -> dict[int, list[int]]:
    """The places of samples by their rollouts."""
    found: dict[int, list[int]] = {}
    for identity in identities:
        found.setdefault(identity // _PLACES, []).append(identity % _PLACES)
    return found


def _oldest(table: OrderedDict[int, int], rollouts: Iterable[int]) -> int | None:
    """The lowest version among these rollouts."""
    return min([table[rollout] for rollout in rollouts if rollout in table], default=None)


def _remember(table: OrderedDict[int, int], rollout: int, version: int) -> None:
    table[rollout] = version
    if len(table) > _REMEMBERED_ROLLOUTS:
        table.popitem(last=False)
