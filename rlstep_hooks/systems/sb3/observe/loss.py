"""Compares the loss of PPO and A2C with the documented one by the gradients of its inputs. B: samples of a mini-batch.

`train` does not show its loss, but the gradients that arrive at log-probs, values and entropies in the backward depend on all of it:
clip, normalisation, signs, coefficients, divisor, and any factor of the loss on its way. MaskablePPO and RecurrentPPO have PPO's.
Sources: Stable-Baselines3 2.7.0 and 2.9.2, ppo/ppo.py `train` (216-275) and a2c/a2c.py `train` (138-180); sb3-contrib 2.9.2,
ppo_mask/ppo_mask.py and ppo_recurrent/ppo_recurrent.py `train`; arxiv.org/abs/1707.06347.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.hidden_loss import HiddenLoss, LossParts
from rlstep_hooks.observe.losses import clip_acts, clipped_surrogate, near
from rlstep_hooks.systems.sb3.observe.pure import is_own, is_pure, schedule_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlstep_hooks.systems.sb3.observe.padding import Padding

CERTAIN = 1e-6
"""|log-prob| below which an action may be certain."""


@dataclass(frozen=True)
class Settings:
    """The settings of a model that its loss uses when a rollout is trained."""

    clip: float | None
    """The clip range of the ratio; None for A2C, which has no ratio."""
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


@dataclass(kw_only=True)
class MiniBatch(HiddenLoss[Settings]):
    """The loss of a mini-batch, and the gradients that arrived in its backward; S is (B,)."""

    dimensions = 1

    stepped: bool = False
    """Whether its backward is over, and the gradients at the leaves are compared."""

    @classmethod
    def of(cls, log_probs: Tensor, values: Tensor, entropies: Tensor | None, **settings: Any) -> MiniBatch:
        """Make a mini-batch of the log-probs, values and entropies that the policy returned, whose samples are not known yet."""
        leaves = ("log_probs", "values") if entropies is None else ("log_probs", "values", "entropies")
        return cls(leaves=leaves, inputs={"log_probs": log_probs, "values": values.flatten()}, **settings)

    def follow(self, tensors: Mapping[str, Tensor], padding: Padding | None) -> None:
        """Place hooks that read the gradients at the leaves. Tensor hooks change nothing and are freed with the graph.

        Args:
            tensors: The leaves with their graph, as the policy returned them.
            padding: Padding of them, if any. It gets no gradient: the loss counts samples alone.
        """
        for name in self.leaves:
            if tensors[name].requires_grad:
                tensors[name].register_hook(partial(self._keep, name, padding))

    def _keep(self, name: str, padding: Padding | None, gradient: Tensor) -> None:
        arrived = gradient.detach()
        self.arrived[name] = (arrived.clone() if padding is None else padding.taken_off(arrived)).flatten()

    def add_samples(self, samples: Any) -> None:
        """Take what the buffer gave: Stable-Baselines3's `RolloutBufferSamples`, without padding."""
        names = ("old_log_prob", "advantages", *(("old_values", "returns") if self.leaves else ()))
        self.inputs = {**self.inputs, **{name: getattr(samples, name).flatten() for name in names}}

    def given(self) -> dict[str, Tensor]:
        """What the loss is computed from. Which entropies there are matters to no gradient."""
        precise = {name: self.inputs[name].double() for name in ("values", "old_values", "returns")}
        if "entropies" in self.leaves:
            precise["entropies"] = torch.zeros_like(precise["values"])
        return self._of_policy() | precise

    def _of_policy(self) -> dict[str, Tensor]:
        """What the policy's term is computed from."""
        log_probs = self.inputs["log_probs"]
        # The trainer subtracts log-probs in their own dtype.
        old = log_probs.double() - (log_probs - self.inputs["old_log_prob"]).double()
        return {"log_probs": log_probs.double(), "old": old, "advantages": self.inputs["advantages"].double()}

    def columns(self) -> dict[str, Tensor]:
        """The columns of the comparison, if the backward is over; and how many samples have a gradient of the policy's term that the
        clip leaves, and of how many that is not known."""
        given = self._of_policy()
        advantages, _ = _advantages(self.settings, given["advantages"])
        ratio, clip = _ratio(self.settings, given)
        left = (advantages * ratio != 0) & ~clip_acts(ratio, advantages, clip, clip)
        # An action that is certain, such as the only one that a mask allows, has no gradient.
        undecided = near((ratio - 1).abs(), clip) | (given["log_probs"].abs() < CERTAIN)
        found = {"learning": (left & ~undecided).sum(-1), "undecided": undecided.sum(-1)}
        return found | super().columns() if self.stepped else found

    def evaluate(self, settings: Settings, given: Mapping[str, Tensor]) -> LossParts:
        """The documented loss."""
        values, old_values, returns = given["values"], given["old_values"], given["returns"]
        advantages, deviation = _advantages(settings, given["advantages"])
        ratio, clip = _ratio(settings, given)
        kept, largest = values, values.detach().abs()
        nowhere = torch.zeros_like(returns, dtype=torch.bool)
        edges = [near((ratio.detach() - 1).abs(), clip), nowhere, nowhere]
        if settings.value_clip is not None:
            kept = old_values + (values - old_values).clamp(-settings.value_clip, settings.value_clip)
            largest = kept.detach().abs() + old_values.abs()
            edges[1] = near((values.detach() - old_values).abs(), settings.value_clip)
        # Without an entropy its estimate is -log_prob (ppo.py:259).
        entropies = given.get("entropies", -given["log_probs"])
        policy = clipped_surrogate(ratio, advantages, clip, clip)
        loss = policy + settings.value * (kept - returns).square() - settings.entropy * entropies
        acts = clip_acts(ratio.detach(), advantages, clip, clip)
        of_policy = torch.where(acts, 0.0, advantages * ratio.detach()).abs().amax(-1, keepdim=True)
        of_policy = of_policy + given["advantages"].abs().amax(-1, keepdim=True) / deviation
        of_entropies = torch.full_like(returns, abs(settings.entropy))
        sizes = [of_policy + of_entropies, 2 * abs(settings.value) * (largest + returns.abs()), of_entropies]
        rows = len(self.leaves)
        return LossParts(loss.mean(-1), torch.stack(edges[:rows]), torch.stack(sizes[:rows]) / returns.shape[-1])

    def mistakes(self, given: Mapping[str, Tensor]) -> Iterator[tuple[str, Settings, Mapping[str, Tensor]]]:
        """What the loss of Stable-Baselines3 is mistaken for."""
        settings, arrived = self.settings, self.arrived.get("entropies")
        yield "without its entropy bonus", replace(settings, entropy=0.0), given
        yield "that with the sign of the entropy bonus flipped", replace(settings, entropy=-settings.entropy), given
        if arrived is not None:
            bonus = -float(arrived.double().sum())
            yield f"that with an entropy coefficient of {bonus:.4g}", replace(settings, entropy=bonus), given
        words = "that are not normalised" if settings.normalises else "normalised over the mini-batch"
        yield f"that of advantages {words}", replace(settings, normalises=not settings.normalises), given
        if settings.clip is not None:
            yield "that without a ratio", replace(settings, clip=None), given


def _advantages(settings: Settings, given: Tensor) -> tuple[Tensor, Tensor | float]:
    """The advantages (..., B) that the surrogate has, and what they were divided by."""
    if not settings.normalises or (given.shape[-1] == 1 and settings.clip is not None):
        return given, 1.0
    deviation = given.std(-1, keepdim=True) + 1e-8
    return (given - given.mean(-1, keepdim=True)) / deviation, deviation


def _ratio(settings: Settings, given: Mapping[str, Tensor]) -> tuple[Tensor, float]:
    """(..., B), the ratio, and how far it may be from 1. That of A2C is 1, with the gradient of the log-prob."""
    log_probs = given["log_probs"]
    if settings.clip is None:
        return (log_probs - log_probs.detach()).exp(), torch.inf
    return (log_probs - given["old"]).exp(), settings.clip
