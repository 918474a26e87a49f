"""All rollouts of a run in a bounded number of cells, however many rollouts come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.show.page.model import Cell

if TYPE_CHECKING:
    from rlstep_hooks.record.events import Rollout

CELLS = 240
"""Largest number of cells in an overview; in a long run, each has several rollouts."""
_FINE = 4 * CELLS
"""Largest number of cells while rollouts come: more than are shown, so that the cells shown are nearly as many as they may be."""


class Overview:
    """Collects the cells of a run, rollout by rollout."""

    def __init__(self) -> None:
        self._cells: list[_Totals] = []
        self._each = 1

    def add(self, number: int, rollout: Rollout, *, updates: int, differs: bool, compared: bool) -> None:
        """Add the next rollout.

        Args:
            number: Counts training rollouts from 0, including those before a resume.
            rollout: The rollout.
            updates: Updates that were applied to the policy on it.
            differs: Whether something in it was not as planned.
            compared: Whether the order of its events was compared with the plan to its end.
        """
        if not self._cells or self._cells[-1].rollouts == self._each:
            if len(self._cells) == _FINE:
                self._cells = _joined(self._cells, 2)
                self._each *= 2
            self._cells.append(_Totals(number, rollout))
        cell = self._cells[-1]
        cell.last = number
        cell.rollouts += 1
        cell.updates += updates
        cell.differing += differs
        cell.uncompared += not compared
        cell.keep_older(rollout)

    def result(self) -> tuple[tuple[Cell, ...], int]:
        """The cells, and the rollouts that each of them has (the last one may have fewer)."""
        together = max(-(-len(self._cells) // CELLS), 1)
        return tuple(cell.result() for cell in _joined(self._cells, together)), together * self._each


def _joined(cells: list[_Totals], together: int) -> list[_Totals]:
    """Cells that each have the rollouts of `together` neighbouring ones. The given cells are used up."""
    joined = cells[::together]
    for position, cell in enumerate(cells):
        if position % together:
            joined[position // together].join(cell)
    return joined


class _Totals:
    """Neighbouring rollouts, added up."""

    def __init__(self, first: int, rollout: Rollout) -> None:
        self.first = self.last = first
        self.rollouts = self.updates = self.differing = self.uncompared = 0
        self.oldest = rollout
        """The rollout whose sampler was furthest behind."""

    def join(self, later: _Totals) -> None:
        """Add the rollouts of the next cell."""
        self.last = later.last
        self.rollouts += later.rollouts
        self.updates += later.updates
        self.differing += later.differing
        self.uncompared += later.uncompared
        self.keep_older(later.oldest)

    def keep_older(self, rollout: Rollout) -> None:
        """Keep this rollout if its sampler was further behind."""
        if _age(rollout) > _age(self.oldest):
            self.oldest = rollout

    def result(self) -> Cell:
        """The cell."""
        return Cell(
            first=self.first,
            last=self.last,
            updates=self.updates / self.rollouts,
            differing=self.differing,
            uncompared=self.uncompared,
            policy_version=self.oldest.policy_version,
            sampler_version=self.oldest.sampler_version,
        )


def _age(rollout: Rollout) -> int:
    """Updates that the sampler's weights were behind; -1 if they were not observed."""
    return -1 if rollout.sampler_version is None else rollout.policy_version - rollout.sampler_version
