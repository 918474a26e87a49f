"""Compares the loss of PPO and A2C with the documented one by the gradients of its inputs. B: samples of a mini-batch.

`train` does not show its loss, but the gradients that arrive at log-probs, values and entropies in the backward depend on all of it:
clip, normalisation, signs, coefficients, divisor, and any factor of the loss on its way. MaskablePPO and RecurrentPPO have PPO's.
Sources: Stable-Baselines3 2.7.0 and 2.9.2, ppo/ppo.py `train` (216-275) and a2c/a2c.py `train` (138-180); sb3-contrib 2.9.2,
ppo_mask/ppo_mask.py and ppo_recurrent/ppo_recurrent.py `train`; arxiv.org/abs/1707.06347.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.alternative_losses import fitting_gradients
from rlstep_hooks.systems.sb3.observe.pure import is_own, is_pure, schedule_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.systems.sb3.observe.padding import Padding

EDGE = 1e-5
"""A ratio this near to its limit may be on either side of it."""
CERTAIN = 1e-6
"""|log-prob| below which an action may be certain."""


@dataclass(frozen=True)
class Settings:
    """The settings of a model that its loss uses when a rollout is trained."""

    clip: float | None
    """None for A2C, which has no ratio."""
    value_clip: float | None
    normalises: bool
    entropy: float
    value: float


def read_settings(model: Any, *, ratio: bool) -> Settings:
    """The settings of a live PPO or A2C model. The clip is read from its schedule, as `train` does."""
    left, value_clip = model._current_progress_remaining, getattr(model, "clip_range_vf", None)
    return Settings(
        clip=_number(model.clip_range, left) if ratio else None,
        value_clip=None if value_clip is None else _number(value_clip, left),
        normalises=bool(model.normalize_advantage),
        entropy=float(model.ent_coef),
        value=float(model.vf_coef),
    )


def _number(schedule: Any, left: float) -> float:
    """The value of a schedule.

    Raises:
        TypeError: It is a function of the user's, which an extra call could disturb.
    """
    inner = schedule_of(schedule)
    if not is_own(inner) and not is_pure(inner):
        raise TypeError("the clip range is a function of somebody's that does more than compute with numbers")
    return float(inner(left))


@dataclass
class MiniBatch:
    """The inputs of a mini-batch's loss, and the gradients that arrived at them."""

    settings: Settings
    log_probs: Tensor
    values: Tensor
    has_entropy: bool
    padding: Padding | None = None
    """Of the tensors whose gradients arrive; the numbers here have none."""
    samples: Any = None
    """Stable-Baselines3's `RolloutBufferSamples`."""
    to_log_probs: Tensor | None = None
    to_values: Tensor | None = None
    to_entropy: Tensor | None = None

    def follow(self, values: Tensor, log_probs: Tensor, entropy: Tensor | None) -> None:
        """Place hooks that read the gradients. Tensor hooks change nothing and are freed with the graph."""
        names = {"to_values": values, "to_log_probs": log_probs, "to_entropy": entropy}
        for name, tensor in names.items():
            if tensor is not None and tensor.requires_grad:
                tensor.register_hook(lambda gradient, name=name: setattr(self, name, gradient.detach().clone()))

    def observed(self) -> Tensor:
        """(3, B), float64; 0 where no gradient came."""
        none = torch.zeros_like(self.log_probs)
        arrived = (self.to_log_probs, self.to_values, self.to_entropy)
        # Padding gets none: the loss counts samples alone.
        rows = [row if row is None or self.padding is None else self.padding.taken_off(row) for row in arrived]
        return torch.stack([(none if row is None else row).flatten().double() for row in rows])

    def columns(self) -> dict[str, Tensor]:
        """The distance of the gradients from the documented ones, in roundings, and their ratio to them."""
        documented, rounding = self.documented(self.settings)
        observed = self.observed()
        gap = ((observed - documented).abs() / rounding).max()
        ratio = (observed * documented).sum() / documented.square().sum()
        return {"loss_gap": gap, "loss_ratio": ratio}

    def learning(self) -> dict[str, Tensor]:
        """How many samples have a gradient of the policy's term that the clip leaves, and of how many that is not known."""
        gradient, edge = self._policy(self.settings, self._advantages(self.settings))
        # An action that is certain, such as the only one that a mask allows, has no gradient.
        undecided = edge.bool() | (self.log_probs.abs() < CERTAIN)
        return {"learning": ((gradient != 0) & ~undecided).sum(), "undecided": undecided.sum()}

    def _advantages(self, settings: Settings) -> Tensor:
        """Those that the surrogate has, (B,)."""
        given = self.samples.advantages.flatten().double()
        if not settings.normalises or (len(given) == 1 and settings.clip is not None):
            return given
        return (given - given.mean()) / (given.std() + 1e-8)

    def documented(self, settings: Settings, advantages: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The gradients to log-probs, values and entropies, (3, B), and one rounding of each."""
        given = self.samples.advantages.flatten().double() if advantages is None else advantages
        size = given.abs().max()
        if settings.normalises and (len(given) > 1 or settings.clip is None):
            deviation = given.std() + 1e-8
            given, size = (given - given.mean()) / deviation, size / deviation
        policy, edge = self._policy(settings, given)
        count = len(given)
        to_log_probs, rounding = -policy / count, (policy.abs().max() + size) / count
        to_entropy = torch.full_like(to_log_probs, -settings.entropy / count)
        if not self.has_entropy:
            # Its estimate is -log_prob (ppo.py:259).
            to_log_probs, to_entropy = to_log_probs - to_entropy, torch.zeros_like(to_entropy)
        to_values, edge_of_values, size_of_values = self._values(settings)
        documented = torch.stack([to_log_probs, settings.value * to_values / count, to_entropy])
        epsilon, least = torch.finfo(self.log_probs.dtype).eps, 1e-12
        sizes = torch.stack(
            [
                rounding.expand_as(edge) + abs(settings.entropy) / count,
                abs(settings.value) * size_of_values / count,
                torch.full_like(edge, abs(settings.entropy) / count),
            ]
        )
        free = torch.stack([edge, edge_of_values, torch.zeros_like(edge)]).bool()
        return documented, torch.where(free, torch.inf, epsilon * sizes + least)

    def _policy(self, settings: Settings, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of the surrogate with respect to each log-prob, and where a rounding decides whether the clip acts."""
        if settings.clip is None:
            return advantages, torch.zeros_like(advantages)
        ratio = (self.log_probs - self.samples.old_log_prob.flatten()).double().exp()
        low, high = 1 - settings.clip, 1 + settings.clip
        clipped = ((advantages > 0) & (ratio > high)) | ((advantages < 0) & (ratio < low))
        edge = ((ratio - high).abs() < EDGE) | ((ratio - low).abs() < EDGE)
        return torch.where(clipped, 0.0, advantages * ratio), edge.double()

    def _values(self, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient of the squared distance with respect to each value, where a rounding decides, and the sizes of its terms."""
        values, targets = self.values.flatten().double(), self.samples.returns.flatten().double()
        edge = torch.zeros_like(values)
        if settings.value_clip is None:
            return 2 * (values - targets), edge, 2 * (values.abs() + targets.abs())
        old = self.samples.old_values.flatten().double()
        moved = values - old
        kept = old + moved.clamp(-settings.value_clip, settings.value_clip)
        edge = ((moved.abs() - settings.value_clip).abs() < EDGE).double()
        gradient = torch.where(moved.abs() > settings.value_clip, 0.0, 2 * (kept - targets))
        return gradient, edge, 2 * (kept.abs() + targets.abs() + old.abs())

    def like(self) -> str:
        """The known alternative that the loss is, in words that follow "the loss is"; empty if none fits. Only for a wrong loss."""
        return fitting_gradients(self.observed(), self._others())

    def _others(self) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
        settings, own = self.settings, self.documented
        right, rounding = own(settings)
        advantages = self.samples.advantages.flatten().double()
        only = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64, device=right.device)
        yield "the documented one with its sign flipped", (-right, rounding)
        yield "that with the sign of the policy's term flipped", own(settings, -advantages)
        yield "without the policy's term", own(replace(settings, normalises=False), torch.zeros_like(advantages))
        yield "without the value's term", own(replace(settings, value=0.0))
        yield "without its entropy bonus", own(replace(settings, entropy=0.0))
        yield "that with the sign of the entropy bonus flipped", own(replace(settings, entropy=-settings.entropy))
        bonus = self._entropy()
        if bonus is not None:
            yield f"that with an entropy coefficient of {bonus:.4g}", own(replace(settings, entropy=bonus))
        if settings.normalises:
            yield "that of advantages that are not normalised", own(replace(settings, normalises=False))
        else:
            yield "that of advantages normalised over the mini-batch", own(replace(settings, normalises=True))
        if settings.clip is not None:
            yield "that without a clip", own(replace(settings, clip=torch.inf))
            yield "that without a ratio", own(replace(settings, clip=None))
            yield "that of old log-probs equal to the current ones (ratio 1)", self._with_ratio_one()
        if settings.value_clip is not None:
            yield "that without a clip of the values", own(replace(settings, value_clip=None))
        for factor in (0.5, 2.0):
            if settings.value:
                yield (
                    f"that with a value's term {factor:g} times as large",
                    own(replace(settings, value=factor * settings.value)),
                )
        for number in range(2, 65):
            yield f"the documented one divided by {number}", (right / number, rounding)
            yield f"the documented one multiplied by {number}", (right * number, rounding * number)
        observed = self.observed()
        if bool((observed[1:] - right[1:]).abs().le(64 * rounding[1:]).all()):
            factor = float((observed * only * right).sum() / (only * right).square().sum())
            scaled = torch.where(only > 0, factor * right, right)
            yield f"that with a policy's term {factor:.4g} times as large", (scaled, rounding * max(abs(factor), 1.0))

    def _entropy(self) -> float | None:
        """The coefficient that the gradients of the entropies have; None where they have none of their own."""
        if not self.has_entropy or self.to_entropy is None:
            return None
        return -float(self.to_entropy.double().mean()) * len(self.log_probs)

    def _with_ratio_one(self) -> tuple[Tensor, Tensor]:
        same = replace(self, samples=self.samples._replace(old_log_prob=self.log_probs))
        return same.documented(self.settings)
