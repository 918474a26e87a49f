"""Importance weights against verl's own function, for random log-probs and settings; and what else they may be is named."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch

from rlstep_hooks.systems.verl.observe.correction import (
    NOT_WEIGHED,
    Weighed,
    compared,
    read_correction,
    why_not_compared,
)
from rlstep_hooks.systems.verl.observe.rejection import Rejected, RejectionWatch, left_by, read_rejection


def settings(**section: Any) -> Any:
    given = {"rollout_is": "token", "rollout_is_threshold": 2.0, "rollout_rs": None, "rollout_rs_threshold": None}
    return OmegaConf.create({"rollout_correction": given | section})


def samples(distance: float, *, count: int = 6, tokens: int = 9) -> DataProto:
    lengths = torch.randint(2, tokens + 1, (count,))
    old = -3 * torch.rand(count, tokens)
    batch = {
        "response_mask": (torch.arange(tokens) < lengths[:, None]).long(),
        "old_log_probs": old,
        "rollout_log_probs": old + distance * torch.randn(count, tokens),
    }
    return DataProto.from_dict(batch)


def weighed(given: Any, data: DataProto) -> Weighed:
    correction = read_correction(given)
    assert correction is not None
    return compared(correction, data.batch)


@pytest.mark.parametrize("seed", range(40))
def test_weights_of_verl_are_the_documented_ones(seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    given = settings(
        rollout_is=draw.choice(["token", "sequence"]),
        rollout_is_threshold=draw.choice([2.0, 1.2, "0.5_2.0", "0.9_1.1"]),
        rollout_is_batch_normalize=draw.choice([True, False]),
    )
    # verl 0.9.1 divides by zero for its metrics where every weight is 0 (rollout_corr_helper.py:758).
    bounded = "_" in str(given.rollout_correction.rollout_is_threshold)
    data = samples(draw.choice([0.0, 1e-4, 0.02] if bounded else [0.0, 1e-4, 0.1, 1.0, 5.0]))
    data, _ = compute_rollout_correction_and_add_to_batch(data, given.rollout_correction)
    found = weighed(given, data)
    assert found.weights_off is None or found.weights_off <= 1
    assert not found.weights_like


OTHERS: dict[str, Any] = {
    "all of them 1": lambda log_ratio, mask: mask.float(),
    "the inverse of each": lambda log_ratio, mask: ((-log_ratio).exp() * mask).clamp(max=2.0),
    "without their bounds": lambda log_ratio, mask: log_ratio.exp() * mask,
    "those of a sequence": lambda log_ratio, mask: (log_ratio * mask).sum(-1, keepdim=True).exp().clamp(max=2.0) * mask,
}


@pytest.mark.parametrize("words", OTHERS)
def test_other_weights_are_named(words: str) -> None:
    torch.manual_seed(3)
    data = samples(0.6)
    log_ratio = data.batch["old_log_probs"] - data.batch["rollout_log_probs"]
    data.batch["rollout_is_weights"] = OTHERS[words](log_ratio, data.batch["response_mask"])
    found = weighed(settings(), data)
    assert found.weights_off is not None
    assert found.weights_off > 100
    assert found.weights_like == words
    assert found.weights_cut is not None
    assert 0 < found.weights_cut < 1


def test_missing_weights_are_found_with_their_reason() -> None:
    data = samples(0.1)
    found = weighed(settings(), data)
    assert (found.weights_off, found.weights_like) == (NOT_WEIGHED, "no weights at all: none were computed")
    data.batch.pop("rollout_log_probs")
    assert weighed(settings(), data).weights_like == "no weights at all: the engine gave no log-probs"


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"rollout_is": None}, ""),
        ({"rollout_is": None, "rollout_rs": "token_k1"}, ""),
        ({"bypass_mode": True}, "in bypass mode"),
        ({"rollout_is": "sequence", "rollout_rs": "token_k1"}, "a rejection takes tokens out"),
        ({"rollout_is_batch_normalize": True, "rollout_rs": "token_k1"}, "a rejection takes tokens out"),
    ],
)
def test_what_is_not_compared_has_its_reason(section: dict[str, Any], why: str) -> None:
    assert read_correction(settings(**section)) is None
    assert why_not_compared(settings(**section)).startswith(why)
    assert bool(why_not_compared(settings(**section))) == bool(why)


def test_what_is_compared_needs_no_reason() -> None:
    assert not why_not_compared(settings())
    assert not why_not_compared(settings(rollout_rs="token_k1"))


REJECTIONS = [
    ("token_k1", "0.9_1.1"),
    ("token_k1", 1.05),
    ("token_k2", 0.01),
    ("token_k3", "0.02"),
    ("seq_sum_k1", "0.8_1.2"),
    ("seq_sum_k2", 0.05),
    ("seq_sum_k3", 0.05),
    ("seq_mean_k1", "0.95_1.05"),
    ("seq_mean_k2", 0.01),
    ("seq_mean_k3", 0.01),
    ("seq_max_k2", 0.02),
    ("seq_max_k3", 0.02),
    ("token_k1,seq_mean_k3", "0.8_1.25,0.01"),
    ("token_k2, seq_sum_k2", "0.05"),
]
"""Criteria of verl with bounds that some of the tokens below pass."""


def rejected(options: str, bounds: Any, change: Any = None, *, bypass: bool = False) -> Rejected:
    """What is found of verl's own rejection, and of what is made of its masks."""
    algorithm = settings(rollout_is=None, rollout_rs=options, rollout_rs_threshold=bounds, bypass_mode=bypass)
    watch, data = RejectionWatch(SimpleNamespace(algorithm=algorithm)), samples(0.15, count=24)
    before = data.batch["response_mask"].clone()
    watch.begins(data)
    data, _ = compute_rollout_correction_and_add_to_batch(data, algorithm.rollout_correction)
    if change is not None:
        data.batch["response_mask"] = change(data.batch["response_mask"], before)
    watch.compared(data)
    return watch.take()


@pytest.mark.parametrize(("options", "bounds"), REJECTIONS)
def test_what_verl_rejects_is_what_is_documented(options: str, bounds: Any) -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        assert rejected(options, bounds) == Rejected(24, 0, "")


@pytest.mark.parametrize(("options", "bounds"), REJECTIONS)
def test_masks_of_another_rejection_are_found(options: str, bounds: Any) -> None:
    torch.manual_seed(1)
    found = rejected(options, bounds, lambda mask, before: before)
    assert found.masks_wrong
    assert found.masks_like == "nothing is taken out of them"
    torch.manual_seed(1)
    found = rejected(options, bounds, lambda mask, before: mask.roll(1, 0) & before)
    assert found.masks_wrong
    assert found.masks_like == "other tokens are taken out of them"


def test_a_rejection_within_the_loss_is_not_looked_for() -> None:
    assert read_rejection(settings(rollout_rs="token_k1", rollout_rs_threshold=2.0, bypass_mode=True)) == ()
    assert read_rejection(settings()) == ()


def test_a_number_at_its_bound_is_no_difference() -> None:
    old, mask = torch.tensor([[0.5, 0.2]]), torch.ones(1, 2, dtype=torch.bool)
    for option, bounds in (("token_k2", 0.125), ("seq_max_k2", 0.125)):
        _, unsure = left_by(
            read_rejection(settings(rollout_rs=option, rollout_rs_threshold=bounds)), old, old * 0, mask
        )
        assert bool(unsure[0, 0])
        assert bool(unsure[0, 1]) == option.startswith("seq")
