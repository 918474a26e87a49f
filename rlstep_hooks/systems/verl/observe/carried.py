"""What was computed for samples, remembered by checksums, and whether a micro-batch still gets it: bit for bit, sample by sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.identity import checksum_of
from rlstep_hooks.systems.verl.observe.samples import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.observe.trainer_record import TrainerRecord
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

    def knows(self, keys: Sequence[Key] | None) -> bool:
        """Whether the rows of one of these samples are remembered."""
        return any(key in self._checksums for key in keys or ())

    def intact(self, keys: Sequence[Key] | None, *fields: Sequence[Any] | None) -> bool | None:
        """Whether the samples that are known have the rows that they had; None where none is known."""
        now = _checksums(keys, fields) if self._checksums else {}
        known = [self._checksums[key] == checksum for key, checksum in now.items() if key in self._checksums]
        return all(known) if known else None


class PolicyRows:
    """What was computed for the samples of a rollout before the policy is trained on them."""

    def __init__(self) -> None:
        self.masks = Carried()
        """The masks of the refresh."""
        self.advantages = Carried()
        """The advantages as they came to this process."""
        self.weights = Carried()
        """The importance weights as they came to this process."""
        self.reference = Carried()
        """The reference's log-probs as it computed them."""

    def compare(self, data: Any, keys: Sequence[Key] | None, record: TrainerRecord, *, fresh: bool) -> None:
        """Compare what a micro-batch of the policy gets with what was computed for its samples, where they are known.

        Args:
            data: verl's micro-batch.
            keys: The samples of its rows; None where they are not known.
            record: Takes what is found.
            fresh: Whether old log-probs of this rollout were computed in this process, and with them the masks.
        """
        masks = rows_of(data, "response_mask") if fresh else None
        intact = self.masks.intact(keys, None if masks is None else [row.bool() for row in masks])
        if intact is not None:
            record.see_mask(intact=intact)
        intact = self.advantages.intact(keys, rows_of(data, "advantages"))
        if intact is not None:
            record.see_advantages(intact=intact)
        intact = self.weights.intact(keys, rows_of(data, "rollout_is_weights"))
        if "rollout_is_weights" not in data.keys() and self.weights.knows(keys):  # noqa: SIM118 - a TensorDict iterates over rows
            intact = False  # a loss without weights looks like one for which none are configured
        if intact is not None:
            record.see_weights(intact=intact)
        intact = self.reference.intact(keys, rows_of(data, "ref_log_prob"))
        if intact is not None:
            record.see_reference_log_probs(intact=intact)


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
