"""Recognises the samples of a refresh in the micro-batches that train on them."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.record.events import SampleRows

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence


class RefreshedSample(msgspec.Struct, frozen=True):
    """What is known of one sample of a refresh."""

    number: int
    log_probs: int | None
    """Checksum of its old log-probs over the completion; None if they could not be read."""


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
        self._rows: dict[Hashable, list[RefreshedSample]] = {}
        self._of_owner: dict[Hashable, list[RefreshedSample]] = {}
        self._trained: Counter[int] = Counter()

    def add(self, key: Hashable, log_probs: int | None, owner: Hashable | None = None) -> None:
        """Add one sample.

        Args:
            key: What identifies it, including its tokens.
            log_probs: Checksum of its old log-probs.
            owner: The framework's name for the sample, if it has names; it does not depend on the tokens.
        """
        row = RefreshedSample(self.size, log_probs)
        self._rows.setdefault(key, []).append(row)
        if owner is not None:
            self._of_owner.setdefault(owner, []).append(row)
        self.size += 1

    def dealt(self, samples: Iterable[tuple[Hashable, int | None]]) -> RefreshedSamples:
        """The samples that this trainer trains on, if they are redistributed to trainers after their refresh.

        Args:
            samples: For each sample what identifies it, and the checksum of its old log-probs as it was handed over. Where it was
                refreshed here, the checksum of that moment counts.
        """
        dealt = RefreshedSamples(self.number, self.version)
        for key, log_probs in samples:
            row = self.find(key, log_probs)
            dealt.add(key, log_probs if row is None else row.log_probs)
        return dealt

    def find(self, key: Hashable, log_probs: int | None) -> RefreshedSample | None:
        """The sample's row. Samples with equal keys (equal completions of a prompt) are told apart by old log-probs; if those are
        equal too, rows are taken in turn."""
        return self._among(self._rows.get(key), log_probs)

    def find_owner(self, owner: Hashable, log_probs: int | None) -> RefreshedSample | None:
        """The row of a named sample whose tokens have changed."""
        return self._among(self._of_owner.get(owner), log_probs)

    def _among(self, rows: list[RefreshedSample] | None, log_probs: int | None) -> RefreshedSample | None:
        if rows is None:
            return None
        same = [row for row in rows if log_probs in (None, row.log_probs)]
        row = min(same or rows, key=lambda candidate: self._trained[candidate.number])
        self._trained[row.number] += 1
        return row


class Recognised(msgspec.Struct, frozen=True):
    """What was recognised in a micro-batch."""

    trained: tuple[SampleRows, ...] | None = None
    old_version: int | None = None
    """Version that computed the old log-probs of all its samples; None if it is unknown or not the same for all."""
    old_intact: bool | None = None
    tokens_intact: bool | None = None
    """Whether all samples have the tokens that their old log-probs were computed for; None if samples have no names."""
    unknown: int = 0
    """Samples whose name is in none of these refreshes."""


def recognise(
    keys: Sequence[Hashable] | None,
    old: Sequence[int | None],
    refreshes: Sequence[RefreshedSamples],
    owners: Sequence[Hashable] | None = None,
) -> Recognised:
    """Find a micro-batch's samples in the latest refreshes, newest first.

    Args:
        keys: What identifies each sample, including its tokens; None if the data do not say.
        old: Checksum of each sample's old log-probs.
        refreshes: The latest refreshes, newest first.
        owners: The framework's names for the samples, if it has names. A sample with altered tokens is then still known.
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


def _found(
    pairs: Iterable[tuple[RefreshedSamples, RefreshedSample | None]],
) -> Iterator[tuple[RefreshedSamples, RefreshedSample]]:
    return ((refresh, row) for refresh, row in pairs if row is not None)


def checksum_of(row: Any, before: int = 0) -> int:
    """A checksum of a row of numbers on the CPU, bit for bit (floating-point numbers as float32).

    Args:
        row: The numbers.
        before: Checksum of the preceding numbers.
    """
    plain = row.detach().float() if row.is_floating_point() else row.detach()
    return zlib.crc32(plain.contiguous().numpy().tobytes(), before)
