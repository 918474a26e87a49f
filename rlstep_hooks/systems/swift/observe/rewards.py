"""The rewards of ms-swift's rollouts on their way to its advantages, which are recomputed by the formulas of its documentation.

Source: ms-swift 4.6.0 swift/rl_core/advantage.py `compute_advantages` and its documentation of GRPO ("advantage_estimator",
"scale_rewards", "kl_in_reward"); rlhf_trainers/grpo_trainer.py:343 `_compute_rewards_per_func` gives the rewards of all processes,
function by function, and :233 `_postprocess_batch` each token of a sample its advantage.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from rlstep_hooks.observe.advantages import Estimator
from rlstep_hooks.systems.trl.observe.advantages import STABILISER, RewardWatch, Scored

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor

    from rlstep_hooks.observe.advantages import Scale
    from rlstep_hooks.systems.trl.observe.given_rewards import GivenRewards

STABILISER_OF_FUNCTIONS = 1e-8
"""Added to a standard deviation where each function is normalised by itself (`scale_rewards` "gdpo")."""
_SCALES: dict[str, Scale] = {"group": "group", "batch": "rollout", "none": "none"}


class SwiftRewardWatch(RewardWatch):
    """Keeps the rewards that ms-swift computes for a rollout, for the comparison of its advantages."""

    computes_rewards: ClassVar[str] = "_compute_rewards_per_func"

    def _uncovered(self) -> str:
        trainer = self._trainer
        if not hasattr(trainer, self.computes_rewards):
            return "this release computes rewards in another method than those that were read"
        if trainer.args.dynamic_sample:
            return "dynamic_sample picks the samples of a rollout by their rewards"
        if trainer.num_generations == 1:
            return "a group of one sample has no baseline"
        if trainer.kl_in_reward and trainer.beta != 0.0 and trainer.accelerator.num_processes > 1:
            return "the KL penalty is part of the rewards, and that of other processes is not known"
        return "" if estimator_of(trainer) is not None else "the estimator of the advantages is none that was read"

    def _seen_functions(self) -> AbstractContextManager[GivenRewards | None]:
        return nullcontext()  # they get samples of ms-swift's own kind

    def _read(self, rewards: Tensor, penalty: Tensor | None) -> Scored | None:
        trainer, estimator = self._trainer, estimator_of(self._trainer)
        needs_penalty = trainer.kl_in_reward and trainer.beta != 0.0
        if estimator is None or trainer.dynamic_num_samples or needs_penalty != (penalty is not None):
            return None
        return Scored(
            rewards=rewards.clone(),
            weights=trainer.reward_weights.detach().clone(),
            estimator=estimator,
            group=trainer.num_generations,
            penalty=penalty,
        )


def estimator_of(trainer: Any) -> Estimator | None:
    """The documented estimator of a live GRPOTrainer of ms-swift; None where it was not read."""
    kind, scale = trainer.advantage_estimator, trainer.scale_rewards
    if scale == "gdpo" and kind != "reinforce_plus_plus":
        return Estimator(each_function=True, stabiliser=STABILISER_OF_FUNCTIONS)
    if scale not in _SCALES or kind not in ("grpo", "rloo", "reinforce_plus_plus"):
        return None
    return Estimator(
        baseline="others" if kind == "rloo" else "mean",
        scale=_SCALES[scale],
        # reinforce_plus_plus divides by the deviation of what is left once the baseline is taken off.
        of_differences=kind == "reinforce_plus_plus",
        stabiliser=STABILISER,
    )
