"""What was computed for samples, remembered by checksums, and whether a micro-batch still gets it: bit for bit, sample by sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.identity import checksum_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.systems.verl.observe.samples import Key


class Carried:
    """Rows of one kind, of the samples of one rollout."""

    def __init__(self) -> None:
        self._checksums: dict[Key, int] = {}

    def forget(self) -> None:
        """Forget all rows: another rollout begins, or nothing is compared in this one."""
        self._checksums = {}

    def keep(self, keys: Sequence[Key] | None, *fields: Sequence[Any] | None) -> None:
        """Remember the rows of these fields, which belong to these samples; nothing where one is not at hand."""
        self._checksums = _checksums(keys, fields)

    def intact(self, keys: Sequence[Key] | None, *fields: Sequence[Any] | None) -> bool | None:
        """Whether the samples that are known have the rows that they had; None where none is known."""
        now = _checksums(keys, fields) if self._checksums else {}
        known = [self._checksums[key] == checksum for key, checksum in now.items() if key in self._checksums]
        return all(known) if known else None


def _checksums(keys: Sequence[Key] | None, fields: tuple[Sequence[Any] | None, ...]) -> dict[Key, int]:
    found: dict[Key, int] = {}
    if keys is None or any(field is None for field in fields):
        return found
    for place, key in enumerate(keys):
        checksum = 0
        for field in fields:
            assert field is not None
            checksum = checksum_of(field[place], checksum)
        found[key] = checksum
    return found
