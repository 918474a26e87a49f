"""Numbers of a loop that audits itself: |log ratio| of micro-batches, advantages, and what updates did to weights.

Shapes: B samples; T tokens of each, in loops over language models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.deferred import finite
from rlstep_hooks.observe.losses import FITS
from rlstep_hooks.observe.numbers import Numbers
from rlstep_hooks.observe.steps import StepFollower
from rlstep_hooks.record.events import MicroBatchValues, RolloutValues

if TYPE_CHECKING:
    from rlstep_hooks.observe.contained import GapRecorder
    from rlstep_hooks.record.events import Measured
    from rlstep_hooks.record.values import Learns, Role


HELD = 1024
"""Most micro-batches and updates whose numbers wait, so that memory stays constant in a loop that makes no rollouts."""


class MicroBatchColumns(msgspec.Struct, frozen=True):
    """What a vector of one micro-batch means: a number for each name."""

    of: ClassVar = MicroBatchValues
    index: int
    names: tuple[str, ...]
    like: Callable[[], str] | None
    """A function that names its loss, if that is not the documented one."""
    replacing: str = ""
    """The first module whose backward hook replaced gradients."""

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """The vector's numbers."""
        of = dict(zip(self.names, numbers, strict=True))
        tokens, gap = of.get("tokens", 0.0), finite(of["loss_gap"]) if "loss_gap" in of else None
        return {
            self.index: {
                "tokens": int(tokens),
                "max_abs_log_ratio": finite(of["largest"]) if tokens else None,
                "mean_abs_log_ratio": finite(of["sum"] / tokens) if tokens else None,
                "max_abs_log_prob": finite(of["improbable"]) if tokens else None,
                "mean_abs_log_prob": finite(of["improbability"] / tokens) if tokens and "improbability" in of else None,
                "old_intact": of["differing"] == 0 if "differing" in of else None,
                "max_abs_advantage": finite(of["signal"]) if "signal" in of else None,
                "advantages_intact": of["advantages_differ"] == 0 if "advantages_differ" in of else None,
                "learns": _learns(of),
                "targets_intact": of["targets_differ"] == 0 if "targets_differ" in of else None,
                "timesteps_intact": of["timesteps_differ"] == 0 if "timesteps_differ" in of else None,
                "surprise": finite(of["surprise"]) if "surprise" in of else None,
                "surprise_squares": finite(of["surprise_squares"]) if "surprise_squares" in of else None,
                "surprise_largest": finite(of["surprise_largest"]) if "surprise_largest" in of else None,
                "gradients_replaced": int(of["replaced"]) if "replaced" in of else None,
                "replacing_module": self.replacing,
                "loss_gap": gap,
                "loss_ratio": finite(of["loss_ratio"]) if "loss_ratio" in of else None,
                "divergence": finite(of["divergence"]) if "divergence" in of else None,
                "log_prob_gradient": finite(of["log_prob_gradient"]) if "log_prob_gradient" in of else None,
                "loss_like": self.like() if self.like is not None and gap is not None and gap > FITS else "",
            }
        }


def _learns(of: dict[str, float]) -> Learns:
    """Whether the loss leaves some sample a gradient, from how many it does and of how many a rounding decides it."""
    if "learning" not in of:
        return ""
    if of["learning"]:
        return "yes"
    return "unknown" if of["undecided"] else "no"


class Moved(msgspec.Struct, frozen=True):
    """What a rollout has otherwise than it was given; None where that is not known."""

    rewards: int | None = None
    """Rewards that are others."""
    timesteps: int | None = None
    """Timesteps of which something else is another."""
    part: str = ""
    """What it is, of the first kind that is another: "observations", "actions", "values" or "ends of episodes"."""


class RolloutColumns(msgspec.Struct, frozen=True):
    """The meaning of one rollout's number: how far its advantages are from the documented ones."""

    of: ClassVar = RolloutValues
    index: int
    fit: Callable[[], str]
    """Names the calculation that gives them. It waits for the device, so it is called for wrong advantages only."""
    moved: Moved = Moved()
    """What it has otherwise than it was given."""

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """The number, as fields of `RolloutValues`."""
        (off,) = numbers
        return {
            self.index: {
                "advantages_off": finite(off),
                "advantages_fit": self.fit() if off > 1 else "",
                "rewards_moved": self.moved.rewards,
                "timesteps_moved": self.moved.timesteps,
                "timesteps_part": self.moved.part,
            }
        }


class LoopNumbers:
    """Collects numbers on their device and hands them out as one `Measured`, without making the host wait for the device."""

    def __init__(self, recorder: GapRecorder) -> None:
        self.steps: dict[Role, StepFollower] = {
            "policy": StepFollower(recorder),
            "critic": StepFollower(recorder, "critic"),
        }
        """What is looked at around the steps of each optimizer."""
        self._fetched = Numbers()
        self._columns: dict[int, dict[str, Tensor]] = {}
        """Numbers of micro-batches that wait: some come with the backward."""
        self._like: dict[int, Callable[[], str]] = {}
        self._replacing: dict[int, str] = {}
        self._moved: dict[int, Moved] = {}
        """Rollout -> what it has otherwise than it was given; that goes with the rollout's other numbers."""
        self.held = 0
        """Micro-batches and updates since numbers were last worked up."""

    def add_moved(self, rollout: int, moved: Moved) -> None:
        """What a rollout has otherwise than it was given."""
        self._moved = {rollout: moved}

    def add_advantages(self, rollout: int, off: Tensor, fit: Callable[[], str]) -> None:
        """The distance of a rollout's advantages from the documented ones."""
        source = RolloutColumns(rollout, fit, self._moved.pop(rollout, Moved()))
        self._fetched.add(source, off.detach().float().reshape(1))

    def add_microbatch(
        self, index: int, *, new: Tensor | None, old: Tensor, mask: Tensor | None, refreshed: Tensor | None
    ) -> None:
        """Measure one micro-batch.

        Args:
            index: The micro-batch.
            new: (B,) or (B, T), log-probs of the current policy; None where they cannot be seen.
            old: The same shape, the denominator of the ratio.
            mask: The same shape, not 0 where a token counts; None where all do.
            refreshed: What the refresh computed for these samples; None where that is not known.
        """
        columns: dict[str, Tensor] = {}
        with torch.no_grad():
            if new is not None:
                columns |= _log_ratio(new, old, mask)
            if refreshed is not None:
                differing = refreshed.to(old.device).float() != old.float()
                columns["differing"] = differing.sum(dtype=torch.float32)
            self.add_columns(index, columns)

    def add_replaced(self, index: int, replaced: list[tuple[str, Tensor]]) -> None:
        """Modules whose backward hooks replaced gradients of a micro-batch, with the number of values."""
        if replaced:
            self._replacing[index] = replaced[0][0]
            self.add_columns(index, {"replaced": torch.stack([count for _, count in replaced]).sum()})

    def add_columns(self, index: int, columns: dict[str, Tensor], like: Callable[[], str] | None = None) -> None:
        """Add numbers of a micro-batch, each a tensor of one on the same device; those of its backward come later than the others."""
        if not columns:
            return
        if index not in self._columns:
            self.held += 1
        self._columns.setdefault(index, {}).update(columns)
        if like is not None:
            self._like[index] = like

    def measured(self, now: Callable[[], float], *, wait: bool = False) -> Measured | None:
        """Work up what is held, and give out what has arrived; None where nothing has.

        Args:
            now: Gives the event's time.
            wait: Wait for the device; only once training is over.
        """
        self.held = 0
        with torch.no_grad():
            self._work_up()
        self._fetched.send()
        return self._fetched.measured(now, wait=wait)

    def _work_up(self) -> None:
        for index, columns in self._columns.items():
            source = MicroBatchColumns(
                index, tuple(columns), self._like.pop(index, None), self._replacing.pop(index, "")
            )
            self._fetched.add(source, torch.stack([number.float() for number in columns.values()]))
        self._columns.clear()
        for role, steps in self.steps.items():
            for meaning, numbers in steps.work_up():
                self._fetched.add(meaning, numbers, role)


def _log_ratio(new: Tensor, old: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """How many samples (tokens) count, the largest |log ratio| among them, the sum, the largest |log-prob|, and their sum."""
    distance = (new.detach().float() - old.to(new.device).float()).abs()
    improbable = new.detach().float().abs()
    if mask is None:
        tokens = torch.full((), distance.numel(), dtype=torch.float32, device=distance.device)
    else:
        real = mask.bool()
        distance, improbable = torch.where(real, distance, 0.0), torch.where(real, improbable, 0.0)
        tokens = real.sum(dtype=torch.float32)
    sums = {"sum": distance.sum(), "improbability": improbable.sum()}
    return {"tokens": tokens, "largest": distance.amax(), "improbable": improbable.amax(), **sums}
