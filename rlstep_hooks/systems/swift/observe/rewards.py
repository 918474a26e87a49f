"""The rewards of ms-swift's rollouts on their way to its advantages, which are recomputed by the formulas of its documentation.

Source: ms-swift 4.6.0 swift/rl_core/advantage.py `compute_advantages` and its documentation of GRPO ("advantage_estimator",
"scale_rewards", "kl_in_reward"); rlhf_trainers/grpo_trainer.py:343 `_compute_rewards_per_func` gives the rewards of all processes,
function by function, and :233 `_postprocess_batch` each token of a sample its advantage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rlstep_hooks.observe.advantages import Estimator
from rlstep_hooks.systems.swift.observe.scored_texts import answer_form, asked_of, other_prompts, others_scored
from rlstep_hooks.systems.trl.observe.advantages import STABILISER, Misplaced, RewardWatch, Scored
from rlstep_hooks.systems.trl.observe.reward_functions import RewardFunctions

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.observe.advantages import Scale
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.swift.observe.turns import SwiftTurns
    from rlstep_hooks.systems.trl.observe.tools_used import Spoken

STABILISER_OF_FUNCTIONS = 1e-8
"""Added to a standard deviation where each function is normalised by itself (`scale_rewards` "gdpo")."""
_SCALES: dict[str, Scale] = {"group": "group", "batch": "rollout", "none": "none"}


class SwiftRewardWatch(RewardWatch):
    """Keeps the rewards that ms-swift computes for a rollout, for the comparison of its advantages."""

    computes_rewards: ClassVar[str] = "_compute_rewards_per_func"

    def __init__(self, trainer: Any, schedule: Schedule, recorder: Recorder, turns: SwiftTurns) -> None:
        super().__init__(trainer, schedule.algorithm, recorder, schedule.version)
        self._functions = RewardFunctions(trainer, recorder, asked_of, awaits_objects=True)
        self._turns = turns

    def _uncovered(self) -> str:
        trainer = self._trainer
        if not hasattr(trainer, self.computes_rewards):
            return "this release computes rewards in another method than those that were read"
        if trainer.args.dynamic_sample:
            return "dynamic_sample picks the samples of a rollout by their rewards"
        if trainer.num_generations == 1:
            return "a group of one sample has no baseline"
        if trainer.kl_in_reward and trainer.beta != 0.0 and self._needs_others():
            return "the KL penalty is part of the rewards, and that of other processes is not known"
        return "" if estimator_of(trainer) is not None else "the estimator of the advantages is none that was read"

    def _needs_others(self) -> bool:
        """Whether advantages of this process depend on samples of others: where a group is on several, or all samples of the rollout
        are divided by one deviation."""
        trainer, estimator = self._trainer, estimator_of(self._trainer)
        processes = trainer.accelerator.num_processes
        own = trainer.args.generation_batch_size // processes
        together = estimator is None or estimator.scale == "rollout" or estimator.each_function
        return bool(processes > 1 and (together or own % trainer.num_generations))

    def misplaced(self, parts: list[dict[str, Any]], rows: Any, spoken: Spoken) -> Misplaced | None:
        """How many samples of a rollout have not the rewards that were given for them, or were given for what is not theirs; None where
        that was not seen.

        Args:
            parts: The entries of the rollout by TRL's names, those of this process.
            rows: What the loader gave for these samples.
            spoken: Nothing: what its schedulers say is read from the tokens.
        """
        given, self.given, rewards = self.given, None, self._rewards
        samples = sum(part["completion_mask"].shape[0] for part in parts)
        if given is None or rewards is None or rewards.shape[0] % samples:
            return None
        moved = given.moved(rewards, samples * self._trainer.accelerator.process_index)
        known = given.asked_otherwise()
        turns, texts = self._turns.last, given.texts
        form = answer_form(self._trainer.template)
        compared = form is not None and bool(turns) and len(turns) == len(texts)
        if form is not None and compared:
            turn, self._looked = self._looked, self._looked + 1
            known += others_scored(self._trainer.template.tokenizer, form, turns, texts, turn=turn)
        if isinstance(rows, list) and len(rows) == samples:
            known += given.of_other_rows(rows, prompts=False)
            if not self._turns.several:  # a scheduler may give a sample another conversation
                known += other_prompts(given.messages, rows)
        return Misplaced(
            None if moved is None else moved + known,
            given.uncompared() if compared else len(self._trainer.reward_funcs),
        )

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
