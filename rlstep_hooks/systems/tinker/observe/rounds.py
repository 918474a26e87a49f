"""One rollout of a loop of one's own, and the updates on it, as the boundary to the service shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.record.events import Refresh
from rlstep_hooks.systems.tinker.observe.found import Found
from rlstep_hooks.systems.tinker.observe.rollout import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlstep_hooks.systems.tinker.observe.data import Sent
    from rlstep_hooks.systems.tinker.observe.drawn import Drawn


class Round(Step):
    """The data that were drawn together, and what is trained until others come.

    Args:
        index: Number of the rollout.
        version: Updates made before it.
        drawn: Gives a sequence by its name.
        made: Updates of the training client before it, whatever they trained.
    """

    def __init__(self, index: int, version: int, drawn: Callable[[str], Drawn | None], *, made: int) -> None:
        super().__init__(index, version, drawn)
        self.made = made
        self.updates = 0
        self.refreshed = False
        """Whether samplers got weights after an update of this round."""
        self.unknown = False
        """Whether it trains data that no sampler of this process drew."""

    def take(self, data: Iterable[Found]) -> None:
        """Data are trained: those that are new belong to this rollout."""
        for datum in data:
            if datum.name is None:
                self.unknown = True
            elif self.row_of(datum) is None:
                self.prepared_row(datum)

    def updated(self) -> None:
        """The optimizer steps."""
        self.updates += 1

    @property
    def ready(self) -> bool:
        """Whether all of its results have arrived."""
        return all(each.future.done() for each in self.passes)

    def refresh(self, now: float) -> Refresh | None:
        """The computation of its old log-probs after they were sampled; None where there was none."""
        rows = [row for row in self.rows if isinstance(row, Found) and row.old_source == "recompute"]
        if not rows or len(rows) < len(self.rows):
            return None
        versions = [row.computed for row in rows]
        known = [version for version in versions if version is not None]
        return Refresh(
            at=now,
            rollout=self.index,
            samples=len(rows),
            positions=sum(int(row.counted.sum()) for row in rows),
            policy_version=min(known) if len(known) == len(versions) else None,
        )

    def _masks(self, *, spreads: bool) -> tuple[int | None, str]:
        found = [row.counts_undrawn for row in self.rows if isinstance(row, Found)]
        known = [each for each in found if each is not None]
        wrong = sum(known)
        return (wrong, "tokens that no sampler drew have an advantage" if wrong else "") if known else (None, "")

    def _advantages_are(self, sent: Sent, row: int | None) -> bool | None:
        return None  # a loop may normalise them anew for each mini-batch
