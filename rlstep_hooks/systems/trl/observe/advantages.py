"""The documented advantages of GRPO and RLOO, recomputed from the rewards of a rollout.

Sources: TRL's documentation of GRPOTrainer ("Computing the advantage", `scale_rewards`, `multi_objective_aggregation`) and of
RLOOTrainer; `_generate_and_score_completions` of both in 0.24.0, 1.0.0 and 1.16.0. Shapes: N samples of all processes, F reward
functions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.advantages import Estimate, Estimator, Rewards
from rlstep_hooks.observe.alternative_advantages import fitting
from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.systems.trl.observe.limits import own_advantages, own_generation, writes_tokens
from rlstep_hooks.systems.trl.observe.reward_functions import RewardFunctions
from rlstep_hooks.systems.trl.releases import TrlRelease

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.advantages import Scale
    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.observe.given_rewards import GivenRewards
    from rlstep_hooks.systems.trl.observe.tools_used import Spoken

STABILISER = 1e-4
"""Added to each standard deviation (grpo_trainer.py 1.16.0:2787, rloo_trainer.py 1.16.0:1696)."""

_SCALES: dict[Any, Scale] = {True: "group", False: "none", "batch": "rollout"}
"""What `scale_rewards` means, where it is none of the kit's own words."""


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """The rewards of one rollout, or of several of one kind, and what turns them into advantages."""

    rewards: Tensor
    """(..., N, F), of all processes; NaN where a function gave none."""
    weights: Tensor
    """(..., F), of the reward functions."""
    estimator: Estimator
    group: int
    """Samples of one prompt, which stand in a row."""
    limits: tuple[float, float] | None = None
    """Bounds that rewards are clipped to (RLOO's `reward_clip_range`)."""
    penalty: Tensor | None = None
    """(..., N), taken off the rewards after that: the KL term of RLOO, and of others that have it in their rewards."""
    first: int = 0
    """Row of this process's first sample."""
    leaves_out: bool = False
    """Whether a completion that no function gave a reward is left out of means and deviations and has an advantage of 0, as in 1.16.0
    (grpo_trainer.py:2759, 2810, rloo_trainer.py:1650). Of another release it is not known."""
    earlier: Scored | None = None
    """The rollout before, if it has as many samples; it knows none before itself."""

    @property
    def groups(self) -> int:
        """Groups of one prompt among them."""
        return int(self.rewards.shape[-2]) // self.group

    def kind(self) -> tuple[Any, ...]:
        """Equal for rollouts that are compared together."""
        return self.rewards.shape, self.first, self.estimator, self.group, self.limits, self.penalty is None

    def there(self) -> Tensor:
        """(..., N), whether some function gave a reward."""
        return ~self.rewards.isnan().all(-1)

    def given(self) -> Rewards:
        """What the advantages are computed from."""
        weighted = self.rewards.double() * self.weights.to(self.rewards.device).double().unsqueeze(-2)
        total, sizes = weighted.nansum(-1), weighted.nan_to_num().abs().sum(-1).amax(-1, keepdim=True)
        if self.limits is not None:
            total = total.clamp(*self.limits)
        if self.penalty is not None:
            penalty = self.penalty.to(total)
            total, sizes = total - penalty, sizes + penalty.abs().amax(-1, keepdim=True)
        groups = torch.arange(total.shape[-1], device=total.device) // self.group
        return Rewards(
            scores=total,
            groups=groups,
            sizes=sizes,
            functions=self.rewards,
            weights=self.weights,
            there=self.there() if self.leaves_out else None,
        )

    def documented(self) -> Estimate:
        """The documented advantages, (..., N)."""
        return self.estimator.of(self.given())

    def off(self, advantages: Tensor) -> Tensor:
        """The largest distance of these advantages, (..., B), from the documented ones, in units of what rounding explains; NaN where
        a sample has no reward at all and it is not known what the release does then."""
        distances = self.documented().distances(self._among_all(advantages))
        off = distances[..., self.first : self.first + advantages.shape[-1]].amax(-1)
        return (off if self.leaves_out else torch.where(self.there().all(-1), off, torch.nan)).float()

    def _among_all(self, own: Tensor) -> Tensor:
        """(..., N), numbers of this process's samples, (..., B), at their places, and 0 at those of others."""
        return torch.nn.functional.pad(own, (self.first, self.rewards.shape[-2] - self.first - own.shape[-1]))

    def fits(self, advantages: Tensor) -> str:
        """Which other known calculation gives these advantages up to rounding; empty where none does. Waits for the device, so
        only for advantages that are wrong."""
        given = replace(self.given(), mask=self._among_all(torch.ones_like(advantages)))
        own = self._own_mistakes(float(advantages.abs().max()))
        return fitting(self.estimator, given, self._among_all(advantages), own)

    def _own_mistakes(self, largest: float) -> Iterator[tuple[str, Estimate]]:
        right = self.documented()
        yield "those above 0, and 0 for all others", replace(right, values=right.values.clamp(min=0))
        yield f"cut at {largest:.4g}", replace(right, values=right.values.clamp(-largest, largest))
        if self.earlier is not None:
            yield "those of the rollout before", self.earlier.documented()
        if self.penalty is not None:
            yield "without the KL penalty", msgspec.structs.replace(self, penalty=None).documented()
            added = msgspec.structs.replace(self, penalty=-self.penalty)
            yield "with the KL penalty added and not taken off", added.documented()
        total = msgspec.structs.replace(self, limits=None, penalty=None)
        yield "the rewards themselves", Estimator().of(total.given())


def together(scored: list[Scored]) -> Scored:
    """Several rollouts of one kind as one: (R, N, F)."""
    penalties = [of.penalty for of in scored if of.penalty is not None]
    return msgspec.structs.replace(
        scored[0],
        rewards=torch.stack([of.rewards for of in scored]),
        weights=torch.stack([of.weights for of in scored]),  # they may be set anew between rollouts
        penalty=torch.stack(penalties) if penalties else None,
    )


def spread(scored: Scored) -> dict[str, Tensor]:
    """The mean and the standard deviation of samples' rewards, and how many groups have only equal ones: each (...)."""
    weights = scored.weights.to(scored.rewards.device).float().unsqueeze(-2)
    total = (scored.rewards.float() * weights).nansum(-1)
    there = scored.there() if scored.leaves_out else torch.ones_like(total, dtype=torch.bool)
    groups, of_group = (of.unflatten(-1, (-1, scored.group)) for of in (total, there))
    largest, least = (torch.where(of_group, groups, fill) for fill in (-torch.inf, torch.inf))
    equal = (largest.amax(-1) <= least.amin(-1)).sum(-1, dtype=torch.float32)
    count = there.sum(-1)
    mean = torch.where(there, total, 0.0).sum(-1) / count
    squares = torch.where(there, total - mean.unsqueeze(-1), 0.0).square().sum(-1)
    return {"reward_mean": mean, "reward_deviation": (squares / (count - 1)).sqrt(), "equal_groups": equal}


def read_scored(
    trainer: Any, algorithm: str, rewards: Tensor, penalty: Tensor | None = None, *, leaves_out: bool = False
) -> Scored:
    """The rewards of a rollout with the settings of a live GRPOTrainer or RLOOTrainer."""
    # Somebody may write to rewards and weights before they are used.
    of_all = {
        "rewards": rewards.clone(),
        "weights": trainer.reward_weights.detach().clone(),
        "penalty": penalty,
        "leaves_out": leaves_out,
    }
    if algorithm == "RLOO":
        limits = trainer.reward_clip_range
        return Scored(
            **of_all,
            # RLOO normalises the advantages themselves (rloo_trainer.py 1.16.0:1695).
            estimator=Estimator(
                baseline="others",
                scale="rollout" if trainer.normalize_advantages else "none",
                of_differences=True,
                stabiliser=STABILISER,
            ),
            group=trainer.num_generations,
            limits=None if limits is None else (float(limits[0]), float(limits[1])),
        )
    scale = trainer.scale_rewards
    return Scored(
        **of_all,
        estimator=Estimator(
            baseline="mean",
            scale=_SCALES.get(scale, scale),
            each_function=getattr(trainer, "multi_objective_aggregation", "") == "normalize_then_sum",
            stabiliser=STABILISER,
        ),
        group=trainer.num_generations,
    )


class Misplaced(msgspec.Struct, frozen=True):
    """What was found of the rewards on their way from the functions to the advantages."""

    samples: Tensor | None
    """How many samples have not the rewards that were given for them; None where that was not seen."""
    uncompared: int
    """Of how many functions it was not compared what they got, or what they gave."""


class RewardWatch:
    """Keeps the rewards that a trainer computes for a rollout, for the comparison of its advantages.

    A trainer that is built on TRL's and computes rewards and advantages in ways of its own has a watch of its own
    (`rlstep_hooks.systems.swift.observe.rewards`).

    Args:
        trainer: A GRPOTrainer or RLOOTrainer.
        algorithm: The algorithm of the trainer, as the plan names it.
        version: The release of TRL.
    """

    computes_rewards: ClassVar[str] = "_calculate_rewards"
    """The method that gives the rewards of all processes, function by function, from which advantages are computed next (0.20 to
    1.16.0)."""

    def __init__(self, trainer: Any, algorithm: str, recorder: Recorder, version: str) -> None:
        self._trainer = trainer
        self._algorithm = algorithm
        self._recorder = recorder
        self._leaves_out = TrlRelease(version, "").since("1.16")
        self._rewards: Tensor | None = None
        self._functions = RewardFunctions(trainer, recorder)
        self._decoded = not own_generation(trainer)
        """Whether completions are made of tokens as TRL does it; looked at before hooks are placed."""
        self._rollouts = 0
        self._looked = 0
        """Rollouts whose texts were looked at."""
        self.scoring = False
        """Whether the reward functions of a rollout are being called."""
        self.given: GivenRewards | None = None
        """What the reward functions got and gave for the latest rollout, if it is compared."""
        self._earlier: Scored | None = None
        """Rewards of the compared rollout before; where some are left out it is an older one, and then seldom fits."""
        self._compares = False

    def attach(self, hooks: Hooks) -> None:
        """Place the hook, or say why advantages cannot be compared."""
        why = self._uncovered()
        if why:
            self._recorder.cannot("advantages", why)
            return
        self._compares = True
        hooks.wrap(self._trainer, self.computes_rewards, around=self._scores, topics=("rewards", "advantages"))

    def _uncovered(self) -> str:
        if not hasattr(self._trainer, self.computes_rewards):
            return "this release computes rewards and advantages in one method, so rewards are not seen"
        if self._algorithm == "RLOO" and self._trainer.beta != 0.0 and self._needs_others():
            return "RLOO's KL penalty is part of the rewards, and that of other processes is not known"
        return own_advantages(self._trainer)

    def _needs_others(self) -> bool:
        """Whether advantages of this process depend on samples of others: where a group is on several (each has an equal part of the
        generation batch, whose groups stand in a row), or all samples of the rollout are normalised together."""
        processes, args = self._trainer.accelerator.num_processes, self._trainer.args
        # The batch is of all processes since 0.18; RLOOTrainer with this loop is of 0.24 and later.
        own = args.generation_batch_size // processes
        return bool(processes > 1 and (self._trainer.normalize_advantages or own % self._trainer.num_generations))

    def _scores(self, call: Call) -> Iterator[None]:
        self.scoring, self.given, self._rewards = True, None, None
        try:
            if is_compared(self._rollouts):
                with self._functions.seen() as given:
                    yield
                self.given = given
            else:
                yield
        finally:
            self.scoring = False
        self._rewards = call.result if isinstance(call.result, Tensor) and call.result.dim() == 2 else None

    def _read(self, rewards: Tensor, penalty: Tensor | None) -> Scored | None:
        """The rewards of a rollout with the trainer's settings; None where its advantages are not compared."""
        if penalty is None and self._algorithm == "RLOO" and self._trainer.beta != 0.0:
            return None
        return read_scored(self._trainer, self._algorithm, rewards, penalty, leaves_out=self._leaves_out)

    def misplaced(self, parts: list[dict[str, Any]], rows: Any, spoken: Spoken) -> Misplaced | None:
        """How many samples of a rollout have not the rewards that were given for them; None where that was not seen.

        Args:
            parts: The tensors of the rollout by TRL's names, those of this process.
            rows: What the loader gave for these samples.
            spoken: What was said in each of them, in several turns.
        """
        if len(parts) != 1:
            return None
        completion_ids = parts[0]["completion_ids"]
        given, self.given, rewards = self.given, None, self._rewards
        if given is None or rewards is None or rewards.shape[0] % completion_ids.shape[0]:
            return None
        said = [] if writes_tokens(self._trainer) else spoken.conversations
        uncompared, turn = given.uncompared(conversations=bool(said)), self._looked
        self._looked += 1
        others = given.of_other_kind() if self._decoded else 0
        if others:
            return Misplaced(torch.tensor(others, device=completion_ids.device), uncompared)
        first = completion_ids.shape[0] * self._trainer.accelerator.process_index
        found = [given.moved(rewards, first), given.others(completion_ids)]
        known = given.misplaced(self._trainer.processing_class, decoded=self._decoded, turn=turn)
        known += given.asked_otherwise()
        known += given.of_other_conversations(said)
        known += given.of_other_environments(spoken.environments)
        if isinstance(rows, list) and len(rows) == completion_ids.shape[0]:
            known += given.of_other_rows(rows, prompts=self._decoded and not any("image" in name for name in rows[0]))
        numbers = [number for number in found if number is not None]
        return Misplaced(torch.stack(numbers).sum() + known if numbers else None, uncompared)

    def take(self, rollout: int, samples: int, penalty: Tensor | None) -> Scored | None:
        """The rewards of a training rollout, where it is compared; None where it is not or they are not known.

        Args:
            rollout: The number of the rollout among those of training, from 0.
            samples: Samples of this process.
            penalty: The KL term of each of them; None where there is none.
        """
        rewards, self._rewards = self._rewards, None
        self._rollouts = rollout + 1
        if rewards is None or not self._compares or not is_compared(rollout):
            return None
        earlier, scored = self._earlier, self._read(rewards, penalty)
        if scored is None or rewards.shape[0] % scored.group or rewards.shape[0] % samples:
            return None
        first = samples * self._trainer.accelerator.process_index
        if penalty is not None:  # those of other processes do not enter the advantages of this one (`_needs_others`)
            after = rewards.shape[0] - first - samples
            penalty = torch.nn.functional.pad(penalty, (first, after))
        self._earlier = scored = msgspec.structs.replace(scored, first=first, penalty=penalty)
        same_size = earlier is not None and earlier.rewards.shape == rewards.shape
        return msgspec.structs.replace(scored, earlier=earlier) if same_size else scored
