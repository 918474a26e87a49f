"""The documented advantages, reductions, rates and loss beside those of skyrl's own functions, on random rollouts without a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.train.config import AlgorithmConfig, OptimizerConfig
from transformers import get_scheduler

from rlstep_hooks.observe.advantages import Estimator, Rewards
from rlstep_hooks.observe.alternative_advantages import Documented
from rlstep_hooks.systems.own_loop.rows import token_batch
from rlstep_hooks.systems.skyrl.observe.advantages import documented
from rlstep_hooks.systems.skyrl.observe.loss import LossSettings, settings_of
from rlstep_hooks.systems.skyrl.observe.rate import Rates
from rlstep_hooks.systems.skyrl.observe.reduction import REDUCTIONS, Reduction

SAMPLES, TOKENS, GROUP, MINIBATCH, MICRO = 12, 7, 3, 6, 2
SETTINGS: dict[str, dict[str, Any]] = {
    "GRPO": {},
    "Dr. GRPO": {"grpo_norm_by_std": False},
    "RLOO": {"advantage_estimator": "rloo"},
    "REINFORCE++": {"advantage_estimator": "reinforce++", "gamma": 0.9},
}


def _mask() -> torch.Tensor:
    """(S, T), completions of several lengths, on the right."""
    lengths = torch.randint(1, TOKENS + 1, (SAMPLES, 1))
    return (torch.arange(TOKENS).flip(0) < lengths).float()


def _rewards(mask: torch.Tensor) -> torch.Tensor:
    rewards = torch.zeros(SAMPLES, TOKENS)
    rewards[:, -1] = torch.randint(0, 9, (SAMPLES,)) / 4
    return rewards * mask


@pytest.mark.parametrize("name", SETTINGS)
def test_documented_advantages_are_those_of_skyrl(name: str) -> None:
    torch.manual_seed(0)
    config = AlgorithmConfig(**SETTINGS[name])
    estimator = documented(config)
    assert isinstance(estimator, Estimator)
    mask = _mask()
    rewards = _rewards(mask)
    groups = torch.arange(SAMPLES) // GROUP
    made, _ = ppo_utils.compute_advantages_and_returns(
        token_level_rewards=rewards.clone(),
        response_mask=mask,
        index=[str(int(group)) for group in groups],
        adv_estimator=config.advantage_estimator,
        config=config,
        grpo_norm_by_std=config.grpo_norm_by_std,
        gamma=config.gamma,
    )
    given = Rewards(tokens=rewards, mask=mask, groups=groups)
    assert float(Documented((estimator,), given, made).off()) <= 1
    assert float(Documented((estimator,), given, -made).off()) > 1
    assert Documented((estimator,), given, -made).fit() == "of the opposite sign"


@pytest.mark.parametrize("name", REDUCTIONS)
def test_documented_reductions_are_those_of_skyrl(name: str) -> None:
    torch.manual_seed(1)
    mask, advantages = _mask(), torch.randn(SAMPLES, TOKENS)
    due = Reduction(name, MINIBATCH, GROUP, MICRO, 40).of_all(advantages, mask)
    for begin in range(0, SAMPLES, MINIBATCH):
        part = slice(begin, begin + MINIBATCH)
        made = ppo_utils.apply_loss_reduction_to_advantages_minibatch(
            advantages=advantages[part],
            loss_mask=mask[part],
            loss_reduction=name,
            micro_batch_size=MICRO,
            max_seq_len=40,
            prompt_boundaries=[(at, at + GROUP) for at in range(0, MINIBATCH, GROUP)],
        )
        torch.testing.assert_close(due[name][part], made, rtol=1e-6, atol=0)


LOSSES: dict[str, dict[str, Any]] = {
    "regular": {"use_kl_loss": False},
    "dual clip": {"use_kl_loss": False, "policy_loss_type": "dual_clip", "clip_ratio_c": 1.1},
    **{f"a KL term by {name}": {"kl_estimator_type": name, "kl_loss_coef": 0.3} for name in ("k1", "abs", "k2", "k3")},
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_documented_loss_and_its_gradient_are_those_of_skyrl(name: str) -> None:
    torch.manual_seed(2)
    config, mask, share = AlgorithmConfig(**LOSSES[name]), _mask(), 0.25
    settings = settings_of(config)
    assert isinstance(settings, LossSettings)
    new = (-torch.rand(SAMPLES, TOKENS) * 4).requires_grad_()
    old, reference, advantages = (
        new.detach() + torch.randn_like(new) / 5,
        new.detach() - 0.3,
        torch.randn(SAMPLES, TOKENS),
    )
    loss, _ = ppo_utils.PolicyLossRegistry.get(config.policy_loss_type)(
        new, old, advantages, config=config, loss_mask=mask
    )
    if config.use_kl_loss:
        of_tokens = ppo_utils.compute_approx_kl(new, reference, mask, config.kl_estimator_type)
        loss = loss + config.kl_loss_coef * share * ((of_tokens * mask).sum(1) / mask.sum(1)).mean()
    (gradient,) = torch.autograd.grad(loss, new)
    formula = replace(settings, share=share).formula()
    batch = token_batch(
        mask != 0, samples=SAMPLES, log_probs=new.detach(), old=old, advantages=advantages, reference=reference
    )
    columns, _ = formula.columns(batch, loss.detach())
    assert float(columns["loss_gap"]) < 32
    expected, rounding, edges = formula.gradient(batch)
    certain = (batch.mask > 0) & ~edges
    assert float(((gradient - expected).abs() / rounding)[certain].max()) < 32


@pytest.mark.parametrize("scheduler", ["constant_with_warmup", "linear", "cosine"])
def test_rates_are_those_of_the_configured_schedule(scheduler: str) -> None:
    config = OptimizerConfig(lr=0.5, scheduler=scheduler, num_warmup_steps=2)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=config.lr)
    schedule, rates = get_scheduler(scheduler, optimizer, 2, 8), Rates(config, 8)
    for update in range(8):
        assert rates(0, update) == pytest.approx(schedule.get_last_lr()[0], rel=1e-12, abs=1e-15)
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"advantage_estimator": "maxrl"}, "advantage_estimator=maxrl"),
        ({"use_entropy_loss": True}, "use_entropy_loss"),
        ({"advantage_batch_normalize": True}, "advantage_batch_normalize"),
    ],
)
def test_what_is_not_followed_is_said(changes: dict[str, Any], says: str) -> None:
    config = AlgorithmConfig(**changes)
    assert any(says in what for what in (documented(config), settings_of(config)) if isinstance(what, str))
