"""Recognises samples that a trainer sees again: those of a refresh, in the micro-batches that train on them."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.record.events import SampleRows

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence


class Row(msgspec.Struct, frozen=True):
    """What is known of one sample of a refresh."""

    number: int
    log_probs: int | None
    """Checksum of its old log-probs, over the completion; None where they could not be read."""


class RefreshedSamples:
    """The samples of one refresh on this trainer.

    Args:
        number: Counts refreshes from 0.
        version: Policy version that computed the old log-probs.
    """

    def __init__(self, number: int, version: int) -> None:
        self.number = number
        self.version = version
        self.size = 0
        self._rows: dict[Hashable, list[Row]] = {}
        self._of_owner: dict[Hashable, list[Row]] = {}
        self._trained: Counter[int] = Counter()

    def add(self, key: Hashable, log_probs: int | None, owner: Hashable | None = None) -> None:
        """One more sample.

        Args:
            key: Whatever identifies it, its tokens included.
            log_probs: Checksum of its old log-probs.
            owner: Who it is whatever its tokens are, where the framework names its samples.
        """
        row = Row(self.size, log_probs)
        self._rows.setdefault(key, []).append(row)
        if owner is not None:
            self._of_owner.setdefault(owner, []).append(row)
        self.size += 1

    def find(self, key: Hashable, log_probs: int | None) -> Row | None:
        """The sample's row. Where only old log-probs tell samples apart (equal completions of a prompt), these do; what nothing
        tells apart is taken in turn."""
        return self._among(self._rows.get(key), log_probs)

    def find_owner(self, owner: Hashable, log_probs: int | None) -> Row | None:
        """The row of a sample whose tokens are other ones by now."""
        return self._among(self._of_owner.get(owner), log_probs)

    def _among(self, rows: list[Row] | None, log_probs: int | None) -> Row | None:
        if rows is None:
            return None
        same = [row for row in rows if log_probs in (None, row.log_probs)]
        row = min(same or rows, key=lambda candidate: self._trained[candidate.number])
        self._trained[row.number] += 1
        return row


class Recognised(msgspec.Struct, frozen=True):
    """What of a micro-batch could be recognised."""

    trained: tuple[SampleRows, ...] | None = None
    old_version: int | None = None
    """Version that computed the old log-probs of all its samples; None where it is not known, or not one."""
    old_intact: bool | None = None
    tokens_intact: bool | None = None
    """Whether all samples hold the tokens that old log-probs were computed for; None where samples have no names of their own."""
    unknown: int = 0
    """Samples under a name that none of these refreshes has."""


def recognise(
    keys: Sequence[Hashable] | None,
    old: Sequence[int | None],
    refreshes: Sequence[RefreshedSamples],
    owners: Sequence[Hashable] | None = None,
) -> Recognised:
    """Find a micro-batch's samples among those of the latest refreshes, newest first.

    Args:
        keys: Its samples, by all that identifies them, tokens included; None where the data do not say.
        old: Checksum of the old log-probs of each.
        refreshes: The latest refreshes, newest first.
        owners: The names of the samples, whatever their tokens are, where the framework gives them names. A sample whose tokens
            were altered is then known all the same.
    """
    if keys is None or not refreshes:
        return Recognised()
    parts: dict[int, list[int]] = {}
    versions = set()
    intact: list[bool] = []
    altered = unknown = 0
    for place, (key, checksum) in enumerate(zip(keys, old, strict=True)):
        found = next(_found((r, r.find(key, checksum)) for r in refreshes), None)
        if found is None and owners is not None:
            found = next(_found((r, r.find_owner(owners[place], checksum)) for r in refreshes), None)
            altered += found is not None
        if found is None:
            unknown += 1
            continue
        refresh, row = found
        parts.setdefault(refresh.number, []).append(row.number)
        versions.add(refresh.version)
        if checksum is not None and row.log_probs is not None:
            intact.append(checksum == row.log_probs)
    if unknown:
        return Recognised(unknown=0 if owners is None else unknown)
    rows = tuple(SampleRows(number, tuple(found)) for number, found in sorted(parts.items()))
    return Recognised(
        rows,
        versions.pop() if len(versions) == 1 else None,
        all(intact) if intact else None,
        None if owners is None else not altered,
    )


def _found(pairs: Iterable[tuple[RefreshedSamples, Row | None]]) -> Iterator[tuple[RefreshedSamples, Row]]:
    return ((refresh, row) for refresh, row in pairs if row is not None)


def checksum_of(row: Any, before: int = 0) -> int:
    """A checksum of a row of numbers on the CPU, bit for bit (of a floating-point type: as float32).

    Args:
        row: The numbers.
        before: The checksum of what stands before them.
    """
    plain = row.detach().float() if row.is_floating_point() else row.detach()
    return zlib.crc32(plain.contiguous().numpy().tobytes(), before)
