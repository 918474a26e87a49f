"""The documented advantages, recomputed from rewards: against TRL's own, and what is said of wrong ones."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from packaging.version import Version

pytest.importorskip("trl")

import torch

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.observe.advantages import Estimator
from rlstep_hooks.observe.compared import is_carried
from rlstep_hooks.record.cadence import PROBED_OF_FIRST
from rlstep_hooks.systems.trl.observe.advantages import STABILISER, Scored, together
from rlstep_hooks.testing.tiny_trl import tiny_trainer
from tests.systems.trl.conftest import RELEASE

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

GROUP = 4


def by_hand(rewards: list[float], scale: str) -> list[float]:
    """GRPO's advantages as its documentation writes them, in plain Python."""
    found: list[float] = []
    for start in range(0, len(rewards), GROUP):
        group = rewards[start : start + GROUP]
        deviation = {"group": statistics.stdev(group), "rollout": statistics.stdev(rewards), "none": 1 - 1e-4}[scale]
        found += [(reward - statistics.fmean(group)) / (deviation + 1e-4) for reward in group]
    return found


WEIGHTS = torch.tensor([1.0, 0.5])


def scored_as(rewards: torch.Tensor, *, weights: torch.Tensor = WEIGHTS, first: int = 0, **settings: Any) -> Scored:
    estimator = Estimator(**{"baseline": "mean", "scale": "group", "stabiliser": STABILISER} | settings)
    return Scored(rewards=rewards, weights=weights, estimator=estimator, group=GROUP, first=first)


def documented(rewards: torch.Tensor, **settings: Any) -> torch.Tensor:
    return scored_as(rewards, **settings).documented().values


def rewards_of(prompts: int, seed: int) -> torch.Tensor:
    return torch.rand(prompts * GROUP, 2, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", ["group", "rollout", "none"])
@pytest.mark.parametrize("seed", range(5))
def test_the_formula_is_that_of_the_documentation(scale: str, seed: int) -> None:
    rewards = rewards_of(3, seed)
    total = (rewards.double() @ WEIGHTS.double()).tolist()
    found = scored_as(rewards, scale=scale).documented()
    torch.testing.assert_close(found.values, torch.tensor(by_hand(total, scale)).double(), rtol=1e-6, atol=1e-6)
    assert float(found.error.max()) < 1e-3


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0, 1.0], [0.1, 0.1, 0.1, 0.3], [0.0, 1.0, 0.0, 0.0]])
def test_what_float32_gives_is_never_wrong(size: float, values: list[float]) -> None:
    """Equal rewards and nearly equal ones: a standard deviation of rounding alone is divided by, or a difference is rounding alone."""
    rewards = (torch.tensor(values * 5) * size).unsqueeze(1) + size * 1e3
    groups = rewards.squeeze(1).view(-1, GROUP)
    centred = groups - groups.mean(1, keepdim=True)
    others = groups - (groups.sum(1, keepdim=True) - groups) / (GROUP - 1)
    alone = torch.ones(1)
    plain = (centred / (groups.std(1, keepdim=True) + 1e-4)).flatten()
    assert float(scored_as(rewards, weights=alone).off(plain)) <= 1
    assert float(scored_as(rewards, weights=alone, scale="none").off(centred.flatten())) <= 1
    assert float(scored_as(rewards, weights=alone, baseline="others", scale="none").off(others.flatten())) <= 1


@pytest.mark.parametrize("process", [0, 1])
def test_each_process_compares_its_own_rows(process: int) -> None:
    rewards = rewards_of(4, 0)
    right = documented(rewards).float()
    own, scored = right[8 * process : 8 * process + 8], scored_as(rewards, first=8 * process)
    assert float(scored.off(own)) <= 1
    assert float(scored.off(right[:8])) > 1 or process == 0
    assert scored.fits(-own) == "of the opposite sign"
    assert scored.fits(right.roll(1)[8 * process : 8 * process + 8]) == "at each sample those of the sample before it"


def test_rollouts_of_one_kind_are_compared_at_once() -> None:
    scored = [scored_as(rewards_of(3, seed)) for seed in range(3)]
    right = torch.stack([documented(of.rewards).float() for of in scored])
    right[1, 4] += 1
    assert together(scored).off(right).tolist() == [float(of.off(one)) for of, one in zip(scored, right, strict=True)]
    assert (together(scored).off(right) > 1).tolist() == [False, True, False]


def by_biased_deviation(total: torch.Tensor) -> torch.Tensor:
    """By hand: the deviation that torch gives with `unbiased=False`."""
    groups = total.view(-1, GROUP)
    return (
        (groups - groups.mean(1, keepdim=True)) / (groups.std(1, unbiased=False, keepdim=True) + STABILISER)
    ).flatten()


WRONG = {
    "of the opposite sign": lambda rewards, right: -right,
    "those above 0, and 0 for all others": lambda rewards, right: right.clamp(min=0),
    "cut at 0.7": lambda rewards, right: right.clamp(-0.7, 0.7),
    "those of the rollout before": lambda rewards, right: documented(rewards_of(3, 2)),
    "at each sample those of the sample after it": lambda rewards, right: right.roll(-1),
    "at each sample those of the sample before it": lambda rewards, right: right.roll(1),
    "divided by the standard deviation of the whole rollout": lambda rewards, right: documented(
        rewards, scale="rollout"
    ),
    "divided by a standard deviation of the group whose variance is divided by its size": lambda rewards, right: (
        by_biased_deviation(rewards.double() @ WEIGHTS.double())
    ),
    "divided by no standard deviation": lambda rewards, right: documented(rewards, scale="none"),
    "around the mean of the group's other samples": lambda rewards, right: documented(
        rewards, baseline="others", scale="none"
    ),
    "all 0": lambda rewards, right: 0 * right,
    "the rewards themselves": lambda rewards, right: rewards.double() @ WEIGHTS.double(),
    "": lambda rewards, right: right.roll(3) * 1.7,
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_advantages_are_named_after_what_gives_them(name: str) -> None:
    rewards = rewards_of(3, 1)
    wrong = WRONG[name](rewards, documented(rewards)).float()
    scored = msgspec.structs.replace(scored_as(rewards), earlier=scored_as(rewards_of(3, 2)))
    assert float(scored.off(wrong)) > 1
    assert scored.fits(wrong) == name


def test_a_sample_without_any_reward_is_not_compared_where_nobody_knows_what_the_release_does() -> None:
    rewards = rewards_of(2, 0)
    rewards[3] = torch.nan
    assert torch.isnan(scored_as(rewards).off(torch.zeros(8)))


def left_out(rewards: torch.Tensor, scale: str) -> torch.Tensor:
    """TRL 1.16's documented advantages where some rows have no reward, written out row by row in double precision."""
    total = [None if row.isnan().all() else float((row.double() * WEIGHTS).nansum()) for row in rewards]
    found = []
    for place, own in enumerate(total):
        start = place // GROUP * GROUP
        group = [one for one in total[start : start + GROUP] if one is not None]
        among = [one for one in total if one is not None] if scale == "rollout" else group
        if own is None or len(group) < 2:
            found.append(0.0)
            continue
        divisor = 1.0 if scale == "none" else statistics.stdev(among) + 1e-4
        found.append((own - statistics.mean(group)) / divisor)
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("scale", ["group", "rollout", "none"])
@pytest.mark.parametrize("rows", [[3], [0, 4, 5], [0, 1, 2], [4, 5, 6, 7]])
def test_samples_without_any_reward_are_left_out_as_documented(scale: Any, rows: list[int]) -> None:
    rewards = rewards_of(2, 0)
    rewards[rows] = torch.nan
    scored = msgspec.structs.replace(scored_as(rewards, scale=scale), leaves_out=True)
    right = left_out(rewards, scale)
    assert float(scored.off(right.float())) <= 1
    assert float(scored.off(-right.float())) > 1
    assert scored.fits(-right.float()) == "of the opposite sign"
    assert float(scored.off((right + (torch.arange(8) == rows[0]) * 0.1).float())) > 1


def trained(folder: Path, **settings: Any) -> Report:
    audit = StepAuditCallback(log_dir=None)
    tiny_trainer(folder, callbacks=[audit], **settings).train()
    return audit.report


def compared(report: Report) -> tuple[str, int]:
    (outcome,) = [rule for rule in report.rules if rule.code == "RLS516"]
    return outcome.verdict, outcome.checks


has_reward_method = hasattr(__import__("trl").GRPOTrainer, "_calculate_rewards")


@pytest.mark.skipif(not has_reward_method, reason="this release computes rewards and advantages in one method")
@pytest.mark.parametrize("scale", ["group", "batch", "none", True, False])
def test_the_advantages_of_healthy_runs_are_the_documented_ones(tmp_path: Path, scale: Any) -> None:
    report = trained(tmp_path, scale_rewards=scale)
    assert compared(report)[0] == "PASS"
    assert compared(report)[1] > 0


def test_the_losses_of_the_first_cycles_and_of_some_later_ones_get_the_advantages_of_their_rollouts(
    tmp_path: Path,
) -> None:
    report = trained(tmp_path)
    (outcome,) = [rule for rule in report.rules if rule.code == "RLS517"]
    cycles = report.counts.rollouts  # one rollout each
    followed = sum(map(is_carried, range(cycles))) * report.counts.microbatches // cycles
    assert (outcome.verdict, outcome.checks) == ("PASS", followed)


@pytest.mark.skipif(
    Version("0.17") > RELEASE, reason="0.16 has a rollout for each micro-batch, and plans one update on each"
)
def test_every_loss_of_several_updates_on_a_rollout_gets_its_advantages(tmp_path: Path) -> None:
    report = trained(tmp_path, gradient_accumulation_steps=2, num_iterations=2, max_steps=80)
    (outcome,) = [rule for rule in report.rules if rule.code == "RLS517"]
    assert report.counts.rollouts > PROBED_OF_FIRST, "later cycles too"
    assert (outcome.verdict, outcome.checks) == ("PASS", report.counts.microbatches)
