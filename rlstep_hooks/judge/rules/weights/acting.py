"""Actions that are not drawn from the policy's distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import here
from rlstep_hooks.judge.rules.base import Rule

if TYPE_CHECKING:
    from rlstep_hooks.record.events import Rollout, RolloutValues


class ActedOtherwise(Rule):
    """The actions of a rollout were not drawn from the policy's distribution as its settings document.

    What it checks:
        Of each step of a rollout the distribution that the policy acted with. With generalised state-dependent exploration (gSDE) each
        action is the mean plus the features times the noise, and the noise is drawn anew when a rollout begins and each
        `sde_sample_freq` steps. Of other distributions no stretch of actions may be the likeliest ones and nothing else, where chance
        gives so long a stretch less than once in 1e12.

    Why it matters:
        A policy that acts without its noise explores nothing, and its log-probs claim that it does: the ratio of the loss is then
        that of actions which were certain. Noise that is never drawn anew gives all steps of a rollout the same direction.

    Example:
        ERROR RLS421 Actions not drawn from the distribution · data epoch 0, rollout
        2, update 4
          expected  actions that are drawn from the policy's distribution
          observed  the likeliest ones and nothing else: 64 actions
          why       the policy explores less than its log-probs say
          fix       look for a deterministic forward in the rollout, and for code
                    that wraps the policy or its distribution

    What to do:
        Look for a deterministic forward in the rollout, and for code that wraps the policy or its distribution.

    Known limits:
        - Of other distributions than gSDE's only the likeliest actions are looked for; RLS413 tests their frequencies.

    Sources:
        - https://arxiv.org/abs/2005.05719: exploration whose noise depends on the state
        - https://stable-baselines3.readthedocs.io/en/master/modules/ppo.html: use_sde and sde_sample_freq
    """

    code = "RLS421"
    title = "Actions not drawn from the distribution"
    topics = ("timesteps",)
    optional = True
    nothing_seen = "nobody saw the distributions that the policy acted with"
    produces = (here("RLS413"),)
    needs = ("rollout_values.actions_off",)

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Look at what was seen of a rollout."""
        if self.any_wrong(values.actions_off):
            self.fail(
                expected="actions that are drawn from the policy's distribution",
                observed=f"{values.actions_like}: {values.actions_off} actions",
                why="the policy explores less than its log-probs say",
                fix="look for a deterministic forward in the rollout, and for code that wraps the policy or its distribution",
                variant=values.actions_like,
            )
