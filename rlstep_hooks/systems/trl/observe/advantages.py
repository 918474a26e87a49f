"""The documented advantages of GRPO and RLOO, recomputed from the rewards of a rollout.

Sources: TRL's documentation of GRPOTrainer ("Computing the advantage", `scale_rewards`, `multi_objective_aggregation`) and of
RLOOTrainer; `_generate_and_score_completions` of both in 0.24.0, 1.0.0 and 1.16.0. Shapes: N samples of all processes, F reward
functions.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.systems.trl.observe.given_rewards import GivenRewards, RewardFunctions
from rlstep_hooks.systems.trl.observe.limits import own_advantages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.session.recorder import Recorder

Scale = Literal["group", "batch", "none"]
"""The standard deviation that advantages are divided by."""

STABILISER = 1e-4
"""Added to each standard deviation (grpo_trainer.py 1.16.0:2787, rloo_trainer.py 1.16.0:1696)."""

ROUNDINGS = 32 * torch.finfo(torch.float32).eps
"""Relative error of a mean and a difference of float32 rewards: the framework sums up to some thousand of them."""
RELATIVE = 1e-4
"""Relative error of the division and of the standard deviation itself."""


class AdvantageFormula(msgspec.Struct, frozen=True, kw_only=True):
    """What turns rewards into advantages."""

    group: int
    """Samples of one prompt, which stand in a row."""
    weights: Tensor
    """(F,), of the reward functions."""
    baseline: Literal["mean", "others"]
    """What is subtracted: the group's mean (GRPO), or the mean of the group's other samples (RLOO)."""
    scale: Scale
    each_function: bool = False
    """Whether each function's rewards are normalised before they are summed, and the sum over the whole batch after that
    (`multi_objective_aggregation="normalize_then_sum"`)."""
    limits: tuple[float, float] | None = None
    """Bounds that rewards are clipped to (RLOO's `reward_clip_range`)."""
    penalty: Tensor | None = None
    """(N,), taken off the rewards after that: RLOO's KL term."""

    def of(self, rewards: Tensor) -> tuple[Tensor, Tensor]:
        """The documented advantages.

        Args:
            rewards: (..., N, F), NaN where a function gave none. The dimensions before are those of several rollouts.

        Returns:
            Advantages, and how far from them rounding may bring those of the framework: each (..., N) float64.
        """
        given = rewards.double()
        weights = self.weights.to(given)
        if self.each_function:
            return self._of_each_function(given, weights)
        weighted = given * weights
        total = weighted.nansum(-1)
        if self.limits is not None:
            total = total.clamp(*self.limits)
        if self.penalty is not None:
            total = total - self.penalty.to(total)
        groups = total.unflatten(-1, (-1, self.group))
        if self.baseline == "others":
            centred = groups - (groups.sum(-1, keepdim=True) - groups) / (self.group - 1)
        else:
            centred = groups - groups.mean(-1, keepdim=True)
        size = ROUNDINGS * weighted.nan_to_num().abs().sum(-1).amax(-1, keepdim=True)
        if self.penalty is not None:
            size = size + ROUNDINGS * self.penalty.to(total).abs().amax(-1, keepdim=True)
        advantages, divisor = centred.flatten(-2), torch.ones_like(total)
        if self.baseline == "others" and self.scale == "batch":
            # RLOO normalises the advantages themselves (rloo_trainer.py 1.16.0:1695).
            divisor = (advantages.std(-1, keepdim=True) + STABILISER).expand_as(total)
            advantages = advantages - advantages.mean(-1, keepdim=True)
        elif self.scale == "group":
            divisor = groups.std(-1).repeat_interleave(self.group, -1) + STABILISER
        elif self.scale == "batch":
            divisor = (total.std(-1, keepdim=True) + STABILISER).expand_as(total)
        advantages = advantages / divisor
        return advantages, (size / divisor) * (1 + advantages.abs()) + RELATIVE * advantages.abs() + 1e-6

    def _of_each_function(self, given: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        groups = given.unflatten(-2, (-1, self.group))
        deviation = _nanstd(groups) + STABILISER
        each = (groups - groups.nanmean(-2, keepdim=True)) / deviation
        largest = groups.nan_to_num().abs().amax((-3, -2, -1), keepdim=True)
        parts = (largest * weights.abs().unsqueeze(-2) / deviation).nan_to_num()
        size = ROUNDINGS * parts.sum(-1).amax((-2, -1)).unsqueeze(-1)
        total = (each.flatten(-3, -2) * weights).nansum(-1)
        divisor = total.std(-1, keepdim=True) + STABILISER
        advantages = (total - total.mean(-1, keepdim=True)) / divisor
        return advantages, (size / divisor) * (1 + advantages.abs()) + RELATIVE * advantages.abs() + 1e-6


def _nanstd(groups: Tensor) -> Tensor:
    """The standard deviation within groups, (..., group, F) -> (..., 1, F), of what is there."""
    squares = (groups - groups.nanmean(-2, keepdim=True)) ** 2
    count = (~groups.isnan()).sum(-2, keepdim=True)
    return (squares.nansum(-2, keepdim=True) / (count - 1)).sqrt()


class Scored(msgspec.Struct, frozen=True):
    """The rewards of one rollout, and what turns them into advantages."""

    rewards: Tensor
    """(N, F), of all processes."""
    formula: AdvantageFormula
    first: int
    """Row of this process's first sample."""
    earlier: Scored | None = None
    """The rollout before, if it has as many samples; it knows none before itself."""

    def off(self, advantages: Tensor) -> Tensor:
        """The largest distance of these advantages, (B,), from the documented ones, in units of what rounding explains; NaN where
        a sample has no reward at all, since releases differ in what they do then."""
        return advantages_off([self], advantages.unsqueeze(0))[0]

    @property
    def groups(self) -> int:
        """Groups of one prompt among them."""
        return int(self.rewards.shape[0]) // self.formula.group

    def kind(self) -> tuple[Any, ...]:
        """Equal for rollouts that are compared together."""
        of = self.formula
        settings = of.group, of.baseline, of.scale, of.each_function, of.limits, of.penalty is None
        return self.rewards.shape, self.first, *settings

    def fits(self, advantages: Tensor) -> str:
        """Which other known calculation gives these advantages up to rounding; empty where none does. Waits for the device, so
        only for advantages that are wrong."""
        for name, (others, tolerance) in self._others(float(advantages.abs().max())):
            documented, allowed = self._own(others, tolerance, advantages)
            if bool(((advantages.double() - documented).abs() <= allowed).all()):
                return name
        return ""

    def _own(self, documented: Tensor, tolerance: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        rows = slice(self.first, self.first + advantages.shape[0])
        return documented[rows], tolerance[rows]

    def _others(self, largest: float) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
        right, tolerance = self.formula.of(self.rewards)
        yield "all 0", (torch.zeros_like(right), tolerance)
        yield "of the opposite sign", (-right, tolerance)
        yield "those above 0, and 0 for all others", (right.clamp(min=0), tolerance)
        yield f"cut at {largest:.4g}", (right.clamp(-largest, largest), tolerance)
        if self.earlier is not None:
            yield "those of the rollout before", self.earlier.formula.of(self.earlier.rewards)
        yield "at each sample those of the sample after it", (right.roll(-1), tolerance.roll(-1))
        yield "at each sample those of the sample before it", (right.roll(1), tolerance.roll(1))
        for scale, words in _DIVISORS.items():
            if scale != self.formula.scale and not self.formula.each_function:
                yield words, msgspec.structs.replace(self.formula, scale=scale).of(self.rewards)
        if self.formula.penalty is not None:
            yield "without the KL penalty", msgspec.structs.replace(self.formula, penalty=None).of(self.rewards)
            added = msgspec.structs.replace(self.formula, penalty=-self.formula.penalty)
            yield "with the KL penalty added and not taken off", added.of(self.rewards)
        if self.formula.baseline == "mean" and not self.formula.each_function:
            other = msgspec.structs.replace(self.formula, baseline="others", scale="none")
            yield "around the mean of the group's other samples", other.of(self.rewards)
        whole = msgspec.structs.replace(self.formula, group=self.rewards.shape[0])
        yield "around the mean of the whole rollout", whole.of(self.rewards)
        across = self.rewards.view(self.formula.group, -1, self.rewards.shape[1]).transpose(0, 1)
        advantages, allowed = self.formula.of(across.reshape(self.rewards.shape))
        back = (-1, self.formula.group)
        yield (
            "those of groups taken across prompts",
            (advantages.view(back).T.flatten(), allowed.view(back).T.flatten()),
        )
        total = (self.rewards.double() * self.formula.weights.to(self.rewards.device).double()).nansum(1)
        yield "the rewards themselves", (total, tolerance)


def advantages_off(scored: list[Scored], advantages: Tensor) -> Tensor:
    """`Scored.off` of several rollouts of one kind at once: (R, B) -> (R,)."""
    rewards = torch.stack([of.rewards for of in scored])
    weights = torch.stack([of.formula.weights for of in scored]).unsqueeze(1)  # they may be set anew between rollouts
    penalties = [of.formula.penalty for of in scored if of.formula.penalty is not None]
    formula = msgspec.structs.replace(
        scored[0].formula, weights=weights, penalty=torch.stack(penalties) if penalties else None
    )
    documented, tolerance = formula.of(rewards)
    rows = slice(scored[0].first, scored[0].first + advantages.shape[1])
    off = ((advantages.double() - documented[:, rows]).abs() / tolerance[:, rows]).amax(1)
    return torch.where(rewards.isnan().all(2).any(1), torch.nan, off).float()


def spread(scored: list[Scored]) -> dict[str, Tensor]:
    """Of several rollouts of one kind: the mean and the standard deviation of their samples' rewards, and how many groups have only
    equal ones: each (R,)."""
    weights = torch.stack([of.formula.weights for of in scored]).unsqueeze(1)
    rewards = torch.stack([of.rewards for of in scored])
    total = (rewards.float() * weights.to(rewards.device).float()).nansum(2)
    groups = total.unflatten(1, (-1, scored[0].formula.group))
    equal = (groups == groups[..., :1]).all(2).sum(1, dtype=torch.float32)
    return {"reward_mean": total.mean(1), "reward_deviation": total.std(1), "equal_groups": equal}


_DIVISORS: dict[Scale, str] = {
    "group": "divided by the standard deviation of the group",
    "batch": "divided by the standard deviation of the whole rollout",
    "none": "divided by no standard deviation",
}


def read_formula(trainer: Any, algorithm: str) -> AdvantageFormula:
    """The formula of a live GRPOTrainer or RLOOTrainer."""
    weights = trainer.reward_weights.detach().clone()  # somebody may write to them before they are used
    if algorithm == "RLOO":
        limits = trainer.reward_clip_range
        return AdvantageFormula(
            group=trainer.num_generations,
            weights=weights,
            baseline="others",
            scale="batch" if trainer.normalize_advantages else "none",
            limits=None if limits is None else (float(limits[0]), float(limits[1])),
        )
    scale = trainer.scale_rewards
    return AdvantageFormula(
        group=trainer.num_generations,
        weights=weights,
        baseline="mean",
        scale={True: "group", False: "none"}.get(scale, scale),
        each_function=getattr(trainer, "multi_objective_aggregation", "") == "normalize_then_sum",
    )


class RewardWatch:
    """Keeps the rewards that a trainer computes for a rollout, for the comparison of its advantages.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer.
        algorithm: Which of them, as the plan names it.
    """

    def __init__(self, trainer: Any, algorithm: str, recorder: Recorder) -> None:
        self._trainer = trainer
        self._algorithm = algorithm
        self._recorder = recorder
        self._rewards: Tensor | None = None
        self._functions = RewardFunctions(trainer)
        self._rollouts = 0
        self.scoring = False
        """Whether the reward functions of a rollout are being called."""
        self.given: GivenRewards | None = None
        """What the reward functions got and gave for the latest rollout, if it is compared."""
        self._earlier: Scored | None = None
        """Of the compared rollout before; where some are left out it is an older one, and then seldom fits."""
        self._compares = False

    def attach(self, hooks: Hooks) -> None:
        """Place the hook, or say why advantages cannot be compared."""
        why = self._uncovered()
        if why:
            self._recorder.cannot("advantages", why)
            return
        self._compares = True
        # The rewards of all processes, function by function, from which advantages are computed next (0.20 to 1.16.0).
        hooks.wrap(self._trainer, "_calculate_rewards", around=self._scores, topics=("rewards", "advantages"))

    def _uncovered(self) -> str:
        if not hasattr(self._trainer, "_calculate_rewards"):
            return "this release computes rewards and advantages in one method, so rewards are not seen"
        if self._algorithm == "RLOO" and self._trainer.beta != 0.0 and self._trainer.accelerator.num_processes > 1:
            return "RLOO's KL penalty is part of the rewards, and that of other processes is not known"
        return own_advantages(self._trainer)

    def _scores(self, call: Call) -> Iterator[None]:
        self.scoring, self.given, self._rewards = True, None, None
        try:
            with self._functions.seen() if is_compared(self._rollouts) else nullcontext() as given:
                yield
        finally:
            self.scoring = False
        self.given = given
        self._rewards = call.result if isinstance(call.result, Tensor) and call.result.dim() == 2 else None

    def misplaced(self, completion_ids: Tensor) -> Tensor | None:
        """How many samples of a rollout have not the rewards that were given for them; None where that was not seen.

        Args:
            completion_ids: (B, T), of this process.
        """
        given, self.given, rewards = self.given, None, self._rewards
        if given is None or rewards is None or rewards.shape[0] % completion_ids.shape[0]:
            return None
        first = completion_ids.shape[0] * self._trainer.accelerator.process_index
        found = [given.moved(rewards, first), given.others(completion_ids)]
        texts = given.misplaced(self._trainer.processing_class)
        numbers = [number for number in found if number is not None]
        return torch.stack(numbers).sum() + texts if numbers else None

    def take(self, rollout: int, samples: int, penalty: Tensor | None) -> Scored | None:
        """The rewards of a training rollout, where it is compared; None where it is not or they are not known.

        Args:
            rollout: Its number among those of training, from 0.
            samples: Samples of this process.
            penalty: RLOO's KL term of each of them; None where there is none.
        """
        rewards, self._rewards = self._rewards, None
        self._rollouts = rollout + 1
        if rewards is None or not self._compares or not is_compared(rollout):
            return None
        if penalty is None and self._algorithm == "RLOO" and self._trainer.beta != 0.0:
            return None
        formula = msgspec.structs.replace(read_formula(self._trainer, self._algorithm), penalty=penalty)
        if rewards.shape[0] % formula.group or rewards.shape[0] % samples:
            return None
        earlier, first = self._earlier, samples * self._trainer.accelerator.process_index
        self._earlier = Scored(rewards.clone(), formula, first)
        same_size = earlier is not None and earlier.rewards.shape == rewards.shape
        return Scored(self._earlier.rewards, formula, first, earlier if same_size else None)
