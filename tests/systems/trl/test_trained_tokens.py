"""Which tokens get a gradient: the answer, against what autograd says of each documented loss, and what the rules make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from packaging.version import Version

from rlstep_hooks.systems.trl.observe.loss import documented, token_losses
from rlstep_hooks.systems.trl.observe.loss_inputs import LossSettings, TokenWeights, loss_batch
from rlstep_hooks.systems.trl.observe.trained_tokens import trained_tokens
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import codes, problems

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.observe.losses import LossBatch

SETTINGS: dict[str, dict[str, Any]] = {
    "clip": {"loss_type": "grpo"},
    "two-sided clip": {"loss_type": "bnpo", "delta": 1.5},
    "two-sided clip that is narrower": {"loss_type": "bnpo", "delta": 1.1},
    "two-sided clip below 1": {"loss_type": "grpo", "delta": 0.7},
    "ratios of sequences": {"loss_type": "dr_grpo", "level": "sequence"},
    "ratios of sequences with high entropy": {"loss_type": "luspo", "level": "sequence", "high_entropy": 0.123},
    "cispo of sequences": {"loss_type": "cispo", "level": "sequence"},
    "rloo": {"loss_type": "rloo"},
    "cispo": {"loss_type": "cispo"},
    "sapo": {"loss_type": "sapo"},
    "vespo": {"loss_type": "vespo"},
    "high entropy": {"loss_type": "dapo", "high_entropy": 0.317},
    "off-policy mask": {"loss_type": "grpo", "off_policy": 0.05},
    "all masks": {"loss_type": "grpo", "off_policy": 0.05, "high_entropy": 0.317, "delta": 1.2},
}


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_tokens_are_those_whose_log_probs_get_a_gradient(name: str, corrected: bool) -> None:
    sizes = {"max_completion_length": 12, "processes": 1, "steps_per_generation": 1, "includes_accumulation": True}
    settings = LossSettings(**{"epsilon_low": 0.2, "epsilon_high": 0.2} | sizes | SETTINGS[name])
    generator = torch.Generator().manual_seed(3)
    shape = (4, 3, 12)
    old = -2 - 2 * torch.rand(shape, generator=generator)
    new = (old + 0.3 * torch.randn(shape, generator=generator)).requires_grad_()
    mask = (torch.rand(shape, generator=generator) < 0.8).int()
    advantages = torch.randn((4, 3, 1), generator=generator)
    advantages[0, 0] = 0.0
    weights = (torch.rand(shape, generator=generator) < 0.7).float()  # as an engine's correction that masks tokens
    difference = (new - old) * mask
    entropies = torch.rand(shape, generator=generator)
    corrected = corrected and name not in ("rloo", "vespo")
    of_tokens = [
        TokenWeights(entropies=of, correction=weight if corrected else None)
        for of, weight in zip(entropies, weights, strict=True)
    ]
    log_ratio = (difference.sum(-1) if name == "rloo" else difference).detach()

    def batch_of(places: slice, new: torch.Tensor) -> LossBatch:
        return loss_batch(new[places], log_ratio[places], mask[places], advantages[places], of_tokens[places], [])

    batch = batch_of(slice(4), new)
    losses = token_losses(settings, batch)
    if settings.loss_type != "rloo":  # whose loss has one number for each sequence
        losses = losses * mask
    losses.sum().backward()
    assert new.grad is not None
    trained, _ = trained_tokens(settings, batch.with_tensors(log_probs=new.detach()))
    assert torch.equal(trained.expand(shape), new.grad != 0)
    assert 0 < int(trained.sum()) < trained.numel()

    formula = documented(settings)
    together = [*formula.value(batch_of(slice(4), new.detach())), *formula.gradient(batch)[:2]]
    for place in range(4):
        one = batch_of(slice(place, place + 1), new.detach())
        for of_all, of_one in zip(together, [*formula.value(one), *formula.gradient(one)[:2]], strict=True):
            torch.testing.assert_close(of_all[place], of_one[0])


@pytest.mark.parametrize("name", ["clip", "sapo", "cispo", "vespo", "rloo", "ratios of sequences"])
def test_a_token_without_a_weight_or_without_a_doubt_is_not_said_to_be_trained(name: str) -> None:
    """Ratios that vanish beside tokens of which the policy is certain, as at a learning rate of 1 to 10: each token of the loss has an
    advantage, and no logit gets a gradient."""
    sizes = {"max_completion_length": 3, "processes": 1, "steps_per_generation": 1, "includes_accumulation": True}
    settings = LossSettings(**{"epsilon_low": 0.2, "epsilon_high": 0.2} | sizes | SETTINGS[name])
    new = torch.tensor([[[-405.0, 0.0, -1e-6]], [[0.0, 0.0, 0.0]]])
    log_ratio = torch.tensor([[[-405.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]]])
    mask, advantages = torch.ones(2, 1, 3, dtype=torch.int), torch.ones(2, 1, 1)
    of = log_ratio.sum(-1) if name == "rloo" else log_ratio
    trained, _ = trained_tokens(settings, loss_batch(new, of, mask, advantages, [TokenWeights()] * 2, []))
    assert not trained.any()

    unsure = loss_batch(new - 0.5, torch.zeros_like(of), mask, advantages, [TokenWeights()] * 2, [])
    assert trained_tokens(settings, unsure)[0].all()


FIERCE: dict[str, dict[str, Any]] = {
    "grpo at a rate of 2": {"learning_rate": 2.0},
    "grpo at a rate of 10": {"learning_rate": 10.0},
    "sapo at a rate of 1": {"learning_rate": 1.0, "loss_type": "sapo"},
    "rloo at a rate of 10": {"learning_rate": 10.0, "algorithm": "RLOO"},
}


@pytest.mark.skipif(Version("1.16") > RELEASE, reason="the masks of earlier releases were not read")
@pytest.mark.parametrize("name", FIERCE)
def test_a_policy_that_a_large_rate_breaks_is_not_said_to_lose_its_gradients(
    name: str, build: Callable[..., Any]
) -> None:
    """The loss asks for a gradient of exactly 0 there, or no log-prob can move: see `log_share`."""
    torch.manual_seed(0)
    trainer, audit = build(rows=24, gradient_accumulation_steps=2, beta=0.0, num_iterations=2, **FIERCE[name])
    trainer.train()
    assert problems(audit.report) == []


SINCE_1_16 = pytest.mark.skipif(Version("1.16") > RELEASE, reason="the masks of earlier releases were not read")
MASKED: dict[str, dict[str, Any]] = {
    "off-policy mask": {"off_policy_mask_threshold": 1e-9, "num_iterations": 3, "learning_rate": 0.05},
    "entropy mask": {"top_entropy_quantile": 0.05, "num_iterations": 2},
    "narrow clip": {"epsilon": 1e-3, "num_iterations": 3, "learning_rate": 0.05},
}
RULES = ("RLS310", "RLS505", "RLS801", "RLS809")


@SINCE_1_16
@pytest.mark.parametrize("name", MASKED)
def test_masks_and_clips_are_followed(name: str, build: Callable[..., Any]) -> None:
    trainer, audit = build(rows=16, **MASKED[name])
    trainer.train()
    assert problems(audit.report) == []
    assert verdicts(audit.report) == dict.fromkeys(RULES, "PASS"), audit.report.not_evaluated


def verdicts(report: Report) -> dict[str, str]:
    """Of the rules that ask which tokens get a gradient."""
    return {rule.code: rule.verdict for rule in report.rules if rule.code in RULES}


@SINCE_1_16
@pytest.mark.parametrize("name", MASKED)
def test_gradients_that_a_guard_drops_are_found_beside_masks(name: str, build: Callable[..., Any]) -> None:
    trainer, audit = build(rows=16, **MASKED[name])
    step = trainer.create_optimizer

    def create(*args: Any, **kwargs: Any) -> Any:
        optimizer = step(*args, **kwargs)
        optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: drop(optimizer))
        return optimizer

    def drop(optimizer: Any) -> None:
        if trainer.state.global_step % 3 == 0 and trainer.state.global_step:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.zero_()

    trainer.create_optimizer = create
    trainer.train()
    assert "RLS809" in codes(audit.report), problems(audit.report)


def test_a_token_at_the_edge_of_a_mask_is_not_counted() -> None:
    settings = LossSettings(
        loss_type="grpo",
        epsilon_low=0.2,
        epsilon_high=0.2,
        max_completion_length=4,
        processes=1,
        steps_per_generation=1,
        includes_accumulation=True,
        off_policy=0.1,
    )
    log_ratio = torch.log(torch.tensor([[[1.2, 1.1, 1.3, 0.9]], [[0.9, 0.9, 0.9, 0.9]]]))
    mask, advantages = torch.ones(2, 1, 4, dtype=torch.int), torch.tensor([[[1.0]], [[-1.0]]])
    trained, undecided = trained_tokens(settings, loss_batch(log_ratio - 1, log_ratio, mask, advantages, [], []))
    assert trained.tolist() == [
        [[False, True, False, True]],
        [[False] * 4],
    ]  # -log 0.9 is above 0.1
    assert undecided.tolist() == [[[True, False, False, False]], [[False] * 4]]


@SINCE_1_16
@pytest.mark.parametrize(
    "settings", [{"epsilon": 0.0, "epsilon_high": 0.0}, {"top_entropy_quantile": 0.0}], ids=["clip", "entropy"]
)
def test_where_rounding_decides_for_all_tokens_nothing_is_said(
    settings: dict[str, Any], build: Callable[..., Any]
) -> None:
    """A clip at the ratio of all tokens, and the quantile that is the entropy of the one token that it leaves: gradients flow."""
    trainer, audit = build(rows=16, max_steps=2, **settings)
    trainer.train()
    assert all(row["grad_norm"] > 0 for row in trainer.state.log_history if "grad_norm" in row)
    assert problems(audit.report) == []
    assert verdicts(audit.report)["RLS505"] == "NOT_EVALUATED"


@SINCE_1_16
def test_masks_that_leave_nothing_in_a_whole_run_are_no_signal(build: Callable[..., Any]) -> None:
    # Below 1, delta ends the gradients of positive advantages, and such a threshold leaves out the negative ones.
    trainer, audit = build(rows=8, off_policy_mask_threshold=-1.0, delta=0.5, beta=0.0)
    trainer.train()
    found = [finding for finding in audit.report.findings if finding.code == "RLS505"]
    assert codes(audit.report) == {"RLS505"}, problems(audit.report)
    assert found[0].severity == "warning"
    assert "leave out every token" in found[0].why
