"""Whether completions of verl can be tested against the policy's distributions, and the sums of one process."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from rlstep_hooks.systems.verl.observe.sampled import numbers_of, why_not_sampled

PLAIN: dict[str, Any] = {
    "algorithm": {"filter_groups": {"enable": False}, "rollout_correction": {"bypass_mode": False}},
    "actor_rollout_ref": {
        "rollout": {
            "name": "vllm",
            "temperature": 0.7,
            "top_p": 1.0,
            "top_k": -1,
            "do_sample": True,
            "over_sample_rate": 0,
            "quantization": None,
            "qat": {"enable": False, "mode": "w4a16"},
            "full_determinism": False,
            "multi_turn": {"enable": False},
            "mtp": {"enable_rollout": False},
            "engine_kwargs": {"vllm": {"swap_space": 4}},
        }
    },
    "skip": {"_target_": "x", "rollout": {"enable": False}, "rollout_tq": {"enable": False}},
    "trainer": {"v1": {"trainer_mode": "sync"}},
}


def why(*changes: str, own_fit: bool = False, v1: bool = True) -> str:
    config = OmegaConf.merge(OmegaConf.create(PLAIN), OmegaConf.from_dotlist(list(changes)))
    return why_not_sampled(config, own_fit=own_fit, v1=v1)


ROLLOUT = "actor_rollout_ref.rollout"


def test_verls_defaults_are_tested_in_both_trainers() -> None:
    assert why() == why(v1=False) == ""
    assert why("trainer.v1.trainer_mode=colocate_async", v1=False) == "", "read by the newer trainers alone"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (f"{ROLLOUT}.top_p=0.9", "top_p"),
        (f"{ROLLOUT}.top_k=50", "top_k"),
        (f"{ROLLOUT}.temperature=0", "temperature"),
        (f"{ROLLOUT}.do_sample=False", "do_sample"),
        (f"{ROLLOUT}.quantization=fp8", "quantization"),
        (f"{ROLLOUT}.qat.enable=True", "qat"),
        (f"{ROLLOUT}.mtp.enable_rollout=True", "mtp"),
        (f"{ROLLOUT}.engine_kwargs.vllm.generation_config=auto", "generation_config"),
        (f"{ROLLOUT}.multi_turn.enable=True", "tools"),
        (f"{ROLLOUT}.over_sample_rate=0.1", "over_sample_rate"),
        (f"{ROLLOUT}.full_determinism=True", "full_determinism"),
        ("algorithm.filter_groups.enable=True", "filter_groups"),
        ("algorithm.rollout_correction.bypass_mode=True", "no entropies"),
        ("trainer.v1.trainer_mode=colocate_async", "colocate_async"),
        ("skip.rollout_tq.enable=True", "another run"),
    ],
)
def test_what_changes_the_draw_is_named(change: str, named: str) -> None:
    assert named in why(change)


def test_a_loop_of_ones_own_is_not_tested() -> None:
    assert "own" in why(own_fit=True)


def test_sums_leave_out_what_is_masked_and_padding_is_no_copy() -> None:
    log_probs = [torch.tensor([-1.0, -2.0]), torch.tensor([-3.0]), torch.tensor([-1.5, -2.5]), torch.tensor([-3.0])]
    entropies = [torch.tensor([1.5, 1.0]), torch.tensor([1.0]), torch.tensor([1.0, 1.0]), torch.tensor([1.0])]
    masks = [torch.tensor([1, 0]), torch.tensor([0]), torch.tensor([1, 1]), torch.tensor([0])]
    tokens = [torch.tensor([5, 6]), torch.tensor([2]), torch.tensor([5, 6]), torch.tensor([2])]
    found = numbers_of(log_probs, entropies, masks, tokens, math.inf)
    assert found == {
        "drawn_tokens": 3,
        "surprise": pytest.approx(-0.5 + 0.5 + 1.5),
        "surprise_squares": pytest.approx(0.25 + 0.25 + 2.25),
        "surprise_largest": 1.5,
        "copied": 1,
        "copied_nats": 4.0,
        "improbable": "",
    }


def test_improbable_completions_are_told_with_what_they_cost() -> None:
    log_probs = [torch.tensor([-20.0, -20.5]), torch.tensor([-40.0, -1.0]), torch.tensor([-1.0, -1.0])]
    masks = [torch.tensor([1, 1]), torch.tensor([0, 1]), torch.tensor([1, 1])]
    tokens = [torch.tensor([5, 6]), torch.tensor([7, 8]), torch.tensor([5, 6])]
    found = numbers_of(log_probs, [torch.ones(2)] * 3, masks, tokens, math.inf)["improbable"]
    assert [each.partition(":")[2] for each in found.split()] == ["40"]
