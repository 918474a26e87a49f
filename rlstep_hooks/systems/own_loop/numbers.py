"""Numbers of a loop that audits itself: of its micro-batches and rollouts, and of what its optimizers did.

Shapes: B samples; T tokens of each, in loops over language models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.hidden_loss import HiddenLosses
from rlstep_hooks.observe.log_ratio import log_ratio
from rlstep_hooks.observe.numbers import Columns, Numbers
from rlstep_hooks.observe.steps import Followers
from rlstep_hooks.record.events import RolloutValues

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rlstep_hooks.observe.guard import GapRecorder
    from rlstep_hooks.record.events import Measured

HELD = 1024
"""Most micro-batches and updates whose numbers wait, so that memory stays constant in a loop that makes no rollouts."""


class LoopNumbers(Numbers):
    """The numbers of one loop."""

    def __init__(self, recorder: GapRecorder) -> None:
        super().__init__()
        self.steps = Followers(recorder)
        """What is looked at around the steps of each optimizer."""
        self.losses = HiddenLosses(Guard(recorder, ("formula",)))
        """Losses that a trainer keeps to itself."""
        self.steps_held = 0
        """Updates since numbers were last worked up."""
        self.moved: tuple[int, dict[str, Any]] = -1, {}
        """A rollout, and what it has otherwise than it was given, as fields of RolloutValues: that goes with its other numbers."""

    @property
    def are_many(self) -> bool:
        """Whether so many wait that they should be worked up."""
        return self.held + self.steps_held >= HELD or self.losses.are_many

    def add_advantages(self, rollout: int, off: Tensor, fit: Callable[[], str]) -> None:
        """The distance of a rollout's advantages from the documented ones, and a function that names them otherwise."""
        moved = self.moved[1] if self.moved[0] == rollout else {}
        meaning = Columns(RolloutValues, (rollout,), ("advantages_off",), (moved | {"advantages_fit": fit},))
        self.add(meaning, off.detach().float().reshape(1))

    def add_moved(self, rollout: int) -> None:
        """What a rollout has otherwise than it was given, where its advantages are compared with nothing."""
        if self.moved[0] == rollout:
            self.add(Columns(RolloutValues, (rollout,), (), (self.moved[1],)), torch.zeros(0))

    def add_microbatch(
        self, index: int, *, new: Tensor | None, old: Tensor, mask: Tensor | None, refreshed: Tensor | None
    ) -> None:
        """Measure one micro-batch.

        Args:
            index: The micro-batch.
            new: (B,) or (B, T), log-probs of the current policy; None where they cannot be seen.
            old: Old log-probs of the same shape, the denominator of the ratio.
            mask: A mask of the same shape, not 0 where a token counts; None where all do.
            refreshed: What the refresh computed for these samples; None where that is not known.
        """
        with torch.no_grad():
            if new is not None:
                self.see(index, log_ratio(new, old, mask))
            if refreshed is not None:
                differing = refreshed.to(old.device).float() != old.float()
                self.see(index, {"old_intact": differing.sum(dtype=torch.float32)})

    def add_replaced(self, index: int, replaced: list[tuple[str, Tensor]]) -> None:
        """Modules whose backward hooks replaced gradients of a micro-batch, with the number of values."""
        if replaced:
            self.know(index, replacing_module=replaced[0][0])
            self.see(index, {"gradients_replaced": torch.stack([count for _, count in replaced]).sum()})

    def measured(self, now: Callable[[], float], *, wait: bool = False) -> Measured | None:
        """Work up what is held, and give out what has arrived; None where nothing has."""
        self.steps_held = 0
        for steps in self.steps.values():
            steps.add_to(self)
        self.complete()
        for columns, numbers in self.losses.work_up():
            self.add(columns, numbers)
        self.send()
        return super().measured(now, wait=wait)
