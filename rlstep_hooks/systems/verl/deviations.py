"""verl's known deviations, as data: where a run that does what its schedule says still is not what documents or settings promise.

What verl counts otherwise than its documents is in the schedule itself, with its source: mini-batches count prompts where
docs/algo/ppo.md and grpo.md say trajectories, and critic_warmup=K keeps the policy from K-1 rollouts.
"""

from __future__ import annotations

from rlstep_hooks.judge.deviations import Deviation

DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        name="verl-total-steps-only-shorten",
        title="total_training_steps can only shorten training",
        since="0.6.1",
        document="trainer.total_training_steps is the length of training, set explicitly or derived from the epochs (ppo_trainer.yaml)",
        code=(
            "training also ends after total_epochs; a larger total_training_steps only makes the learning-rate schedule longer, which "
            "then does not reach its end"
        ),
        evidence="trainer_base.py 0.9.1:467 and :768-777, ray_trainer.py 0.9.1:435-452; measured: 100 asked for, 4 made (0.9.1)",
        workaround="raise trainer.total_epochs as well, so that the rows last for total_training_steps rollouts",
        codes=frozenset({"RLS206", "RLS601"}),
        when="trainer.total_training_steps is not None and rollouts is not None and rollouts < trainer.total_training_steps",
    ),
    Deviation(
        name="verl-warmup-in-horizon",
        title="the policy's learning-rate schedule counts rollouts of critic warm-up",
        since="0.6.1",
        document="the learning-rate schedule spans the updates of the policy",
        code=(
            "it is built for all rollouts and ticks only when the policy is updated: with critic_warmup=K it ends K-1 ticks before its "
            "end"
        ),
        evidence="trainer_base.py 0.9.1:608 and :777, engine_workers.py 0.9.1:308; ray_trainer.py 0.9.1:448-452 and :1684",
        workaround="accept it, or use a constant learning rate for the policy",
        codes=frozenset({"RLS601"}),
        when="frozen_rollouts > 0",
    ),
    Deviation(
        name="verl-ray-trainer-ignores-filter-groups",
        title="RayPPOTrainer ignores filter_groups",
        since="0.6.1",
        document="algorithm.filter_groups.enable drops groups whose rewards are all the same and samples others",
        code="only the trainers of trainer/ppo/v1 and DAPO's own recipe read it; RayPPOTrainer trains every group",
        evidence="ray_trainer.py 0.6.1 to 0.9.1 does not name filter_groups; replay_buffer.py 0.9.1 does",
        workaround="use trainer.use_v1=True of verl 0.9, or DAPO's recipe",
        codes=frozenset({"RLS505"}),
        when="algorithm.filter_groups.enable and rows_bound == 'exact'",
    ),
)
