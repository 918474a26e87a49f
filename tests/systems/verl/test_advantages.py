"""verl's estimators on random rollouts, by verl's own functions and by the documented formulas; and what is said where they differ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

pytest.importorskip("verl")

from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.core_algos import AdvantageEstimator
from verl.trainer.ppo.ray_trainer import apply_kl_penalty, compute_advantage

from rlstep_hooks.systems.verl.observe.advantages import AdvantageWatch

ESTIMATORS = (
    "gae", "grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo", "gpg", "remax", "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
)  # fmt: skip


def algorithm(name: str, **more: Any) -> Any:
    return OmegaConf.create(
        {"adv_estimator": name, "gamma": 0.95, "lam": 0.8, "use_kl_in_reward": False, "kl_penalty": "kl"} | more
    )


def rollout(*, prompts: int = 4, samples: int = 3, tokens: int = 7, turns: bool = False) -> DataProto:
    """Completions of several lengths with a reward at the end; with turns, a tool's tokens stand in the middle."""
    count = prompts * samples
    lengths = torch.randint(4, tokens + 1, (count,))
    mask = (torch.arange(tokens) < lengths[:, None]).long()
    if turns:
        mask[:, 1:3] = 0
    rewards = torch.zeros(count, tokens)
    rewards[torch.arange(count), lengths - 1] = torch.randint(0, 4, (count,)).float() * 0.5
    batch = {
        "response_mask": mask,
        "token_level_scores": rewards,
        "token_level_rewards": rewards.clone(),
        "values": torch.randn(count, tokens),
        "old_log_probs": torch.randn(count, tokens),
        "ref_log_prob": torch.randn(count, tokens),
        "reward_baselines": torch.rand(count),
    }
    names = numpy.array([f"p{number}" for number in range(prompts) for _ in range(samples)], dtype=object)
    order = torch.randperm(count)
    return DataProto.from_dict({k: v[order] for k, v in batch.items()}, non_tensors={"uid": names[order.numpy()]})


def computed(data: DataProto, settings: Any) -> DataProto:
    if settings.adv_estimator != "remax":
        data.batch.pop("reward_baselines", None)
    return compute_advantage(
        data,
        adv_estimator=AdvantageEstimator(settings.adv_estimator),
        gamma=settings.gamma,
        lam=settings.lam,
        norm_adv_by_std_in_grpo=settings.get("norm_adv_by_std_in_grpo", True),
        config=settings,
    )


def found(data: DataProto, settings: Any, coefficient: float = 0.0) -> tuple[float, str]:
    watch = AdvantageWatch(SimpleNamespace(algorithm=settings), [])
    assert not watch.reason
    watch.compared(data, None, coefficient)
    seen = watch.take([str(row) for row in range(len(data))], list(data.batch["advantages"]), None, [])
    assert seen.altered == 0
    assert seen.advantages_off is not None
    return seen.advantages_off, seen.advantages_fit


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("deviation", [True, False])
def test_verls_own_advantages_are_the_documented_ones(name: str, turns: bool, deviation: bool) -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        settings = algorithm(name, norm_adv_by_std_in_grpo=deviation)
        data = computed(rollout(turns=turns), settings)
        off, fit = found(data, settings)
        if name == "grpo_vectorized" and not deviation:
            # verl 0.9.1 does not hand the setting on (ray_trainer.py:187-280), so it does nothing: rightly found.
            assert (off > 100, fit) == (True, "divided by the standard deviation of the group")
        else:
            assert off <= 1, (seed, fit)


@pytest.mark.parametrize("kind", ["kl", "abs", "mse", "low_var_kl"])
def test_the_kl_penalty_of_the_rewards(kind: str) -> None:
    torch.manual_seed(0)
    settings = algorithm("gae", use_kl_in_reward=True, kl_penalty=kind)
    control = SimpleNamespace(value=0.1, update=lambda **_: None)
    data, _ = apply_kl_penalty(rollout(), control, kl_penalty=kind)
    data = computed(data, settings)
    assert found(data, settings, 0.1)[0] <= 1
    assert found(data, settings, -0.1)[0] > 100, "a penalty of the opposite sign"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ref_log_prob": torch.zeros_like}, "those with a KL penalty of reference log-probs that are all 0"),
        ({"ref_log_prob": lambda of: of.roll(1, 1)}, "those with a KL penalty of the reference log-probs of the token before"),
        ({"old_log_probs": lambda of: of.clamp(min=-1)}, "those with a KL penalty of old log-probs cut from below at -1"),
        ({"ref_log_prob": lambda of: of * (1 + 0.1 * torch.rand_like(of))}, ""),
    ],
)  # fmt: skip
def test_a_penalty_of_log_probs_that_were_changed_on_their_way_is_named(changed: Any, words: str) -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        settings = algorithm("gae", use_kl_in_reward=True, kl_penalty="kl")
        right = rollout()
        wrong = DataProto.from_dict({**right.batch.clone()}, {**right.non_tensor_batch})
        for name, change in changed.items():
            wrong.batch[name] = change(wrong.batch[name])
        control = SimpleNamespace(value=0.1, update=lambda **_: None)
        wrong, _ = apply_kl_penalty(wrong, control, kl_penalty="kl")
        right.batch["token_level_rewards"] = wrong.batch["token_level_rewards"]
        off, fit = found(computed(right, settings), settings, 0.1)
        assert (off > 100, fit) == (True, words), seed


def test_a_penalty_that_several_changes_give_is_called_by_all_of_them() -> None:
    """Before the policy moves, its log-probs are those of the reference."""
    torch.manual_seed(0)
    settings = algorithm("gae", use_kl_in_reward=True, kl_penalty="kl")
    data = rollout()
    data.batch["ref_log_prob"] = data.batch["old_log_probs"].clone()
    mask = data.batch["response_mask"]
    data.batch["token_level_rewards"] = data.batch["token_level_scores"] - 0.1 * data.batch["old_log_probs"] * mask
    off, fit = found(computed(data, settings), settings, 0.1)
    assert off > 100
    assert fit == (
        "those with a KL penalty of old log-probs 2 times as large, "
        "or those with a KL penalty of reference log-probs that are all 0"
    )


@pytest.mark.parametrize("kind", ["kl", "abs", "mse", "low_var_kl"])
def test_the_divergence_that_a_coefficient_adapts_to_is_verls_own(kind: str) -> None:
    torch.manual_seed(3)
    settings = algorithm("gae", use_kl_in_reward=True, kl_penalty=kind)
    control = SimpleNamespace(value=0.1, update=lambda **_: None)
    data, metrics = apply_kl_penalty(rollout(), control, kl_penalty=kind)
    watch = AdvantageWatch(SimpleNamespace(algorithm=settings), [])
    assert watch.divergence(data) == pytest.approx(metrics["actor/reward_kl_penalty"], rel=1e-5)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_sign_is_found(name: str) -> None:
    torch.manual_seed(1)
    settings = algorithm(name)
    data = computed(rollout(), settings)
    data.batch["advantages"] = -data.batch["advantages"]
    off, fit = found(data, settings)
    assert off > 100
    assert fit == "of the opposite sign"


def test_what_has_no_formula_is_said() -> None:
    for name in ("gdpo", "optimal_token_baseline", "mine"):
        assert name in AdvantageWatch(SimpleNamespace(algorithm=algorithm(name)), []).reason
    assert "use_pf_ppo" in AdvantageWatch(SimpleNamespace(algorithm=algorithm("gae", use_pf_ppo=True)), []).reason


def test_masks_through_the_first_end_and_advantages_that_change() -> None:
    torch.manual_seed(2)
    settings = algorithm("grpo")
    data = computed(rollout(prompts=1, samples=2), settings)
    watch = AdvantageWatch(SimpleNamespace(algorithm=settings), [9])
    watch.compared(data, None, 0.0)
    tokens = [torch.tensor([1, 2, 9]), torch.tensor([3, 4, 5])]
    masks = [torch.tensor([1, 1, 0]), torch.tensor([1, 1, 1])]
    trained = [row.clone() for row in data.batch["advantages"]]
    trained[1][0] += 1
    seen = watch.take(["0", "1"], trained, tokens, masks)
    assert (seen.masks_wrong, seen.samples, seen.altered) == (1, 2, 1)
