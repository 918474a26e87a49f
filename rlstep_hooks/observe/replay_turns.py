"""All trained tensors by turns in the replay of an optimizer: at each replayed step a few, so that a step costs no more for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.optimizer_replay import OptimizerReplay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from rlstep_hooks.observe.optimizer_replay import ReplaySource


class ReplayTurns:
    """Replays the steps of one optimizer, each on the tensors whose turn it is.

    Args:
        turns: The tensors of each turn, with the number and distance of their probed weights (`WeightProbe.turns`).
        optimizer: The torch optimizer.
    """

    def __init__(self, turns: Sequence[Sequence[tuple[Any, int, int]]], optimizer: Optimizer) -> None:
        replays = [OptimizerReplay(turn, optimizer) for turn in turns]
        self._replays = [replay for replay in replays if not replay.uncovered]
        self.uncovered = "" if self._replays else replays[0].uncovered
        """Why steps cannot be replayed; empty where they can."""
        self._turn = -1
        self._latest: OptimizerReplay | None = None
        """The turn that replayed the latest step, and looks at what it left."""
        self._looking: list[OptimizerReplay] = []
        """The turns that look at the step that is being made."""

    def before_step(self, *, compared: bool) -> None:
        """Read what the step is computed from, just before the optimizer makes it.

        Args:
            compared: Whether to replay it.
        """
        former, now = self._latest, None
        if compared:
            self._turn = (self._turn + 1) % len(self._replays)
            now = self._replays[self._turn]
        if former is not None and former is not now:
            former.before_step(compared=False)
        if now is not None:
            now.before_step(compared=True)
        self._looking = [replay for replay in (former, now) if replay is not None]
        self._latest = now

    def after_step(self, update: int) -> None:
        """Read weights and moments after the step; `work_up` compares them later."""
        for replay in dict.fromkeys(self._looking):
            replay.after_step(update)
        self._looking = []

    def work_up(self) -> Iterator[tuple[ReplaySource, Tensor]]:
        """Give the numbers of all steps since the last call, as `ReplaySource` says."""
        for replay in self._replays:
            worked_up = replay.work_up()
            if worked_up is not None:
                yield worked_up
