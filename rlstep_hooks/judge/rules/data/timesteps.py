"""The timesteps of classic reinforcement learning: what policy and environment gave is what is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import LOSS, here
from rlstep_hooks.judge.rules.base import Rule

if TYPE_CHECKING:
    from rlstep_hooks.record.events import MicroBatch, MicroBatchValues, Rollout, RolloutValues


class TimestepsAltered(Rule):
    """A timestep in the buffer or in the loss is not the one that was made.

    What it checks:
        Of each timestep the observation, the action, the critic's value and whether an episode began with it: those of the
        environment's step against those of the complete buffer, before advantages are computed from it. Within a rollout the
        observation is the one that the environment returned at the step before, and the environment gets the policy's action within
        the bounds of its space. Then the observations and
        actions of each mini-batch against those of its samples when they were made. Bit for bit.

    Why it matters:
        Rewards and log-probs belong to one action in one state. Beside another state they teach something else, and counts, losses
        and the mean reward look as always. An end of an episode that is lost lets rewards of the next one flow back into it.

    Example:
        ERROR RLS521 Timesteps altered before use · data epoch 0, rollout 2, update
        4
          expected  timesteps that policy and environment gave, each handed on as it
                    is
          observed  other ends of episodes in 3 of 8 timesteps
          why       advantages, rewards and log-probs belong to other timesteps than
                    those that are trained
          fix       look for code that wraps the buffer, and for arrays that an
                    environment uses again

    What to do:
        Look for code that wraps the buffer or the policy, and for arrays that an environment writes to again after it returned them.

    Known limits:
        - Masks of actions and states of LSTMs are compared from the buffer on, and a difference is reported as one of
          observations or actions.
        - Of each observation up to 64 numbers are compared.
        - What wrappers of the environment make of an observation is not seen, nor whether the critic's value is right.

    Sources:
        - https://stable-baselines3.readthedocs.io/en/master/guide/vec_envs.html: what a vectorised environment returns
        - https://arxiv.org/abs/1506.02438: ends of episodes and values enter each advantage
    """

    code = "RLS521"
    title = "Timesteps altered before use"
    topics = ("timesteps",)
    nothing_seen = "nobody saw timesteps both when they were made and in the buffer or the loss"
    optional = True
    produces = (here("RLS301", "RLS516", "RLS517", "RLS521", *LOSS),)
    needs = ("rollout_values.timesteps_moved", "microbatch_values.timesteps_intact")

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Look at the comparison of the complete buffer."""
        if self.any_wrong(values.timesteps_moved):
            self.fail(
                expected="timesteps that policy and environment gave, each handed on as it is",
                observed=f"other {values.timesteps_part} in {values.timesteps_moved} of {event.samples} timesteps",
                why=_WHY,
                fix="look for code that wraps the buffer, and for arrays that an environment uses again",
                variant=values.timesteps_part,
            )

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Look at the comparison of a mini-batch."""
        if not self.holds(values.timesteps_intact):
            self.fail(
                expected="the loss of the observations and actions of its samples",
                observed="other observations or actions",
                why=_WHY,
                fix="look for code that writes into the buffer, wraps its `get` or the policy, or reorders part of a mini-batch",
                variant="in the loss",
            )


_WHY = "advantages, rewards and log-probs belong to other timesteps than those that are trained"
