"""The documented advantages beside those of areal's own actor, on random rollouts without a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from areal.api.cli_args import NormConfig, PPOActorConfig
from areal.trainer.ppo.actor import PPOActor

from rlstep_hooks.systems.areal.observe.advantages import Apart, Documented, documented
from rlstep_hooks.systems.areal.observe.rows import before

SAMPLES, TOKENS, GROUP = 12, 9, 4
GROUPS = torch.arange(SAMPLES) // GROUP
OF_GROUPS = NormConfig(mean_level="group", std_level="group", group_size=GROUP)
SETTINGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "groups": {"reward_norm": OF_GROUPS},
    "groups, biased": {
        "reward_norm": NormConfig(mean_level="group", std_level="group", group_size=GROUP, std_unbiased=False)
    },
    "means of groups": {"reward_norm": NormConfig(mean_level="group", std_level=None, group_size=GROUP)},
    "whole rollouts": {"reward_norm": NormConfig()},
    "tokens of whole rollouts": {"adv_norm": NormConfig(), "gae_lambda": 0.8, "discount": 0.9},
    "tokens of groups": {
        "reward_norm": OF_GROUPS,
        "adv_norm": NormConfig(mean_level="group", std_level="group", group_size=GROUP),
        "gae_lambda": 0.8,
    },
    "limits": {"reward_bias": -0.5, "reward_scaling": 3.0, "reward_clip": 1.0},
}


def _batch() -> dict[str, torch.Tensor]:
    """Prompts of two tokens, completions of 1 to 7; the second half of some completions is a tool's."""
    torch.manual_seed(3)
    lengths = torch.randint(3, TOKENS + 1, (SAMPLES,))
    places = torch.arange(TOKENS)
    there = places < lengths[:, None]
    mask = there & (places >= 2)
    mask[::3, 3] = False
    mask[torch.arange(SAMPLES), lengths - 1] = True
    return {
        "input_ids": torch.zeros(SAMPLES, TOKENS, dtype=torch.int32),
        "attention_mask": there,
        "loss_mask": mask.int(),
        "logprobs": -torch.rand(SAMPLES, TOKENS),
        "rewards": torch.randint(0, 4, (SAMPLES,)).float(),
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_documented_advantages_are_those_of_the_actor(name: str) -> None:
    config = PPOActorConfig(experiment_name="a", trial_name="b", backend="fsdp:d1", kl_ctl=0.0, **SETTINGS[name])
    expected, batch = documented(config, GROUP), _batch()
    assert isinstance(expected, Documented)
    rewards, mask = batch["rewards"].clone(), before(batch["loss_mask"].double())
    made = PPOActor(config, engine=None)._compute_advantages(batch)["advantages"]
    assert float(expected.of(rewards, GROUPS, mask).off(made, mask)) <= 1
    assert float(expected.of(rewards.roll(1), GROUPS, mask).off(made, mask)) > 1
    assert expected.fit(rewards, GROUPS, mask, -made) == "of the opposite sign"


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("recomputed", [False, True])
def test_a_documented_penalty_is_that_of_the_actor(estimator: str, recomputed: bool) -> None:
    config = PPOActorConfig(
        experiment_name="a", trial_name="b", backend="fsdp:d1", kl_ctl=0.3, kl_estimator=estimator, gae_lambda=0.8,
        reward_norm=OF_GROUPS, recompute_logprob=recomputed,
    )  # fmt: skip
    expected, batch = documented(config, GROUP, reference=True), _batch()
    assert isinstance(expected, Documented)
    batch |= {name: -torch.rand(SAMPLES, TOKENS) * 3 for name in ("prox_logp", "ref_logp")}
    rewards, mask = batch["rewards"].clone(), before(batch["loss_mask"].double())
    old = batch["prox_logp"].clone() if recomputed else before(batch["logprobs"])
    apart = Apart(old.clone(), batch["ref_logp"].clone())
    made = PPOActor(config, engine=None)._compute_advantages(batch)["advantages"]
    given = rewards, GROUPS, mask
    assert float(expected.of(*given, apart).off(made, mask)) <= 1
    assert float(expected.of(*given, apart._replace(reference=apart.old)).off(made, mask)) > 1
    without = expected.of(*given).values
    assert expected.fit(*given, without, apart) == "those without the KL penalty"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kl_ctl": 0.1}, "kl_ctl"),
        ({"overlong_reward_penalty": True}, "overlong_reward_penalty"),
        ({"mask_no_eos_with_zero": True}, "mask_no_eos_with_zero"),
        ({"adv_norm": NormConfig(mean_level="group", std_level="batch", group_size=GROUP)}, "adv_norm"),
        ({"reward_norm": NormConfig(mean_level="group", std_level="group", group_size=2)}, "reward_norm"),
        ({"reward_norm": NormConfig(mean_leave1out=True)}, "reward_norm"),
    ],
)
def test_what_is_not_compared_is_said(settings: dict[str, Any], says: str) -> None:
    given = {"kl_ctl": 0.0} | settings
    reason = documented(PPOActorConfig(experiment_name="a", trial_name="b", backend="fsdp:d1", **given), GROUP)
    assert isinstance(reason, str)
    assert says in reason
