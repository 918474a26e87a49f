"""Numbers of a loop that audits itself: |log ratio| of micro-batches, advantages, and what updates did to weights.

Shapes: B samples; T tokens of each, in loops over language models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.deferred import DeferredValues, finite
from rlstep_hooks.observe.gradient_watch import GradientSource, GradientWatch
from rlstep_hooks.observe.optimizer_replay import OptimizerReplay, ReplaySource
from rlstep_hooks.observe.weight_probe import UpdateSource, WeightProbe
from rlstep_hooks.record.events import Measured, MicroBatchValues, RolloutValues, UpdateValues
from rlstep_hooks.record.values import Learns, Role
from rlstep_hooks.systems.own_loop.left_over import LeftOver

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from rlstep_hooks.observe.contained import Contained


HELD = 1024
"""Most micro-batches and updates whose numbers wait, so that memory stays constant in a loop that makes no rollouts."""


FITS = 32
"""Roundings by which a documented loss may differ."""


class MicroBatchColumns(msgspec.Struct, frozen=True):
    """What a vector of one micro-batch means: a number for each name."""

    index: int
    names: tuple[str, ...]
    like: Callable[[], str] | None
    """A function that names its loss, if that is not the documented one."""
    replacing: str = ""
    """The first module whose backward hook replaced gradients."""

    def values(self, numbers: list[float]) -> list[MicroBatchValues]:
        """The vector's numbers."""
        of = dict(zip(self.names, numbers, strict=True))
        tokens, gap = of.get("tokens", 0.0), finite(of["loss_gap"]) if "loss_gap" in of else None
        return [
            MicroBatchValues(
                index=self.index,
                tokens=int(tokens),
                max_abs_log_ratio=finite(of["largest"]) if tokens else None,
                mean_abs_log_ratio=finite(of["sum"] / tokens) if tokens else None,
                max_abs_log_prob=finite(of["improbable"]) if tokens else None,
                mean_abs_log_prob=finite(of["improbability"] / tokens) if tokens and "improbability" in of else None,
                old_intact=of["differing"] == 0 if "differing" in of else None,
                max_abs_advantage=finite(of["signal"]) if "signal" in of else None,
                advantages_intact=of["advantages_differ"] == 0 if "advantages_differ" in of else None,
                learns=_learns(of),
                targets_intact=of["targets_differ"] == 0 if "targets_differ" in of else None,
                timesteps_intact=of["timesteps_differ"] == 0 if "timesteps_differ" in of else None,
                surprise=finite(of["surprise"]) if "surprise" in of else None,
                surprise_squares=finite(of["surprise_squares"]) if "surprise_squares" in of else None,
                surprise_largest=finite(of["surprise_largest"]) if "surprise_largest" in of else None,
                gradients_replaced=int(of["replaced"]) if "replaced" in of else None,
                replacing_module=self.replacing,
                loss_gap=gap,
                loss_ratio=finite(of["loss_ratio"]) if "loss_ratio" in of else None,
                divergence=finite(of["divergence"]) if "divergence" in of else None,
                log_prob_gradient=finite(of["log_prob_gradient"]) if "log_prob_gradient" in of else None,
                loss_like=self.like() if self.like is not None and gap is not None and gap > FITS else "",
            )
        ]


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

    index: int
    fit: Callable[[], str]
    """Names the calculation that gives them. It waits for the device, so it is called for wrong advantages only."""
    moved: Moved = Moved()
    """What it has otherwise than it was given."""

    def values(self, numbers: list[float]) -> RolloutValues:
        """The number, as values of the rollout."""
        (off,) = numbers
        return RolloutValues(
            index=self.index,
            advantages_off=finite(off),
            advantages_fit=self.fit() if off > 1 else "",
            rewards_moved=self.moved.rewards,
            timesteps_moved=self.moved.timesteps,
            timesteps_part=self.moved.part,
        )


class NormSource(msgspec.Struct, frozen=True):
    """The update whose gradient norm a number is."""

    update: int
    limit: float


class StepSource(msgspec.Struct, frozen=True):
    """The updates whose replayed steps a vector describes."""

    role: Role
    steps: ReplaySource


Source = MicroBatchColumns | RolloutColumns | UpdateSource | StepSource | NormSource | GradientSource


class LoopNumbers:
    """Collects numbers on their device and hands them out as one `Measured`, without making the host wait for the device."""

    def __init__(self) -> None:
        self._probes: dict[Role, WeightProbe] = {}
        self._replays: dict[Role, OptimizerReplay] = {}
        self._fetched: DeferredValues[Source] = DeferredValues()
        self._columns: dict[int, dict[str, Tensor]] = {}
        """Numbers of micro-batches that wait: some come with the backward."""
        self._like: dict[int, Callable[[], str]] = {}
        self._replacing: dict[int, str] = {}
        self._moved: dict[int, Moved] = {}
        """Rollout -> what it has otherwise than it was given; that goes with the rollout's other numbers."""
        self._gradients: GradientWatch | None = None
        self._left_over: LeftOver | None = None
        self._frozen: dict[int, int] = {}
        """Update -> tensors that are no longer trained."""
        self._norms: list[tuple[NormSource, Tensor]] = []
        """They go after the other numbers of their updates."""
        self.held = 0
        """Micro-batches and updates since numbers were last worked up."""

    def probe(self, role: Role, parameters: Iterable[torch.nn.Parameter], apart: Collection[int] = ()) -> bool:
        """Look at some of these weights around each optimizer step; returns whether there are any to look at.

        Args:
            role: Whose optimizer it is.
            parameters: Its tensors.
            apart: Identities of those on which the policy's log-probs do not depend.
        """
        # The last tensor of the policy is always among those that are probed: layers before it may be dead, and have no gradient.
        given = list(parameters)
        given.reverse()
        given.sort(key=lambda parameter: id(parameter) in apart)
        probe = WeightProbe(given, apart=apart)
        if probe.size:
            self._probes[role] = probe
        return bool(probe.size)

    def replay(self, role: Role, optimizer: Any) -> str:
        """Also replay some steps on them. Returns why that is not possible; empty if it is."""
        if role not in self._probes:
            return ""
        replay = OptimizerReplay(self._probes[role].probed, optimizer)
        if not replay.uncovered:
            self._replays[role] = replay
        return replay.uncovered

    def follow(self, gradients: GradientWatch) -> None:
        """Also hand out what this finds of the policy's gradients."""
        self._gradients = gradients

    def look_for_left_over(self, guard: Contained) -> None:
        """Also look for gradients of the policy that are never cleared, where nobody says when they are."""
        if "policy" in self._probes:
            self._left_over = LeftOver(self._probes["policy"].probed, guard)

    def remove(self) -> None:
        """Take all hooks off."""
        for watch in (self._gradients, self._left_over):
            if watch is not None:
                watch.remove()

    def begin_window(self, role: Role, update: int, *, followed: bool) -> None:
        """Gradients have been cleared for the next update."""
        if role in self._probes:
            self._probes[role].begin_window()
        if role == "policy" and self._gradients is not None and followed:
            self._gradients.begin_window()
            self._frozen[update] = self._gradients.frozen

    def before_step(self, role: Role, update: int, *, replayed: bool) -> None:
        """The optimizer is about to step; gradients are final."""
        if role == "policy" and self._gradients is not None:
            self._gradients.before_step(update)
        if role == "policy" and self._left_over is not None:
            count = self._left_over.before_step()
            if count is not None:
                self._probes[role].found_left_over(count)
        if role in self._probes:
            self._probes[role].before_step()
        if role in self._replays:
            self._replays[role].before_step(compared=replayed)

    def after_step(self, role: Role, update: int, learning_rate: float | Tensor, *, followed: bool) -> None:
        """The optimizer has stepped.

        Args:
            role: Whose it is.
            update: The update.
            learning_rate: Of the first group.
            followed: Whether the gradients of the next one are followed.
        """
        if role in self._probes:
            self._probes[role].after_step(update, learning_rate)
            self.held += 1
        if role in self._replays:
            self._replays[role].after_step(update)
        if role == "policy" and self._left_over is not None and followed:
            self._left_over.begin()

    def add_norm(self, update: int, norm: Tensor, limit: float) -> None:
        """The norm of all gradients of a policy's update, as its optimizer steps, and the configured limit."""
        self._norms.append((NormSource(update, limit), norm.detach().float().reshape(1)))

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

    def measured(self, at: float, *, wait: bool = False) -> Measured | None:
        """Work up what is held, and give out what has arrived; None where nothing has.

        Args:
            at: The event's time.
            wait: Wait for the device; only once training is over.
        """
        self.held = 0
        with torch.no_grad():
            self._work_up()
        self._fetched.send()
        rollouts: list[RolloutValues] = []
        microbatches: list[MicroBatchValues] = []
        changes: dict[tuple[Role, int], UpdateValues] = {}
        for source, values in self._fetched.ready(wait=wait):
            if isinstance(source, MicroBatchColumns):
                microbatches += source.values(values)
            elif isinstance(source, RolloutColumns):
                rollouts.append(source.values(values))
            elif isinstance(source, UpdateSource):
                changes |= {(source.role, found.index): self._with_frozen(found) for found in source.values(values)}
            elif isinstance(source, GradientSource):
                for update, fields in source.values(values).items():
                    _add(changes, ("policy", update), fields)
            elif isinstance(source, StepSource):
                for update, fields in source.steps.values(values).items():
                    _add(changes, (source.role, update), fields)
            else:
                norm = {"gradient_norm": finite(values[0]), "gradient_limit": source.limit}
                _add(changes, ("policy", source.update), norm)
        if not rollouts and not microbatches and not changes:
            return None
        return Measured(
            at=at, rollouts=tuple(rollouts), microbatches=tuple(microbatches), updates=tuple(changes.values())
        )

    def _work_up(self) -> None:
        for index, columns in self._columns.items():
            source = MicroBatchColumns(
                index, tuple(columns), self._like.pop(index, None), self._replacing.pop(index, "")
            )
            self._fetched.add(source, torch.stack([number.float() for number in columns.values()]))
        self._columns.clear()
        for role, probe in self._probes.items():
            worked = probe.work_up()
            if worked is not None:
                updates, numbers = worked
                self._fetched.add(UpdateSource(updates, probe.size, role), numbers)
        for role, replay in self._replays.items():
            replayed = replay.work_up()
            if replayed is not None:
                self._fetched.add(StepSource(role, replayed[0]), replayed[1])
        for norm_of, norm in self._norms:
            self._fetched.add(norm_of, norm)
        self._norms.clear()
        for gradients_of, numbers in self._gradients.work_up() if self._gradients is not None else ():
            self._fetched.add(gradients_of, numbers)

    def _with_frozen(self, values: UpdateValues) -> UpdateValues:
        frozen = self._frozen.pop(values.index, None) if values.role == "policy" else None
        return values if frozen is None else msgspec.structs.replace(values, frozen=frozen)


def _add(changes: dict[tuple[Role, int], UpdateValues], key: tuple[Role, int], fields: dict[str, Any]) -> None:
    """Add fields to the values of an update that were added before."""
    if key in changes:
        changes[key] = msgspec.structs.replace(changes[key], **fields)


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
