"""The gradient that arrives at the entropies of verl's policy loss, against the loss's formula; without a launch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rlstep_hooks.observe.losses import Aggregation, LossBatch
from rlstep_hooks.systems.verl.observe.loss import LossSettings, entropy_gap

SETTINGS = LossSettings(
    mode="vanilla",
    aggregation="token-mean",
    clip=0.2,
    clip_low=0.2,
    clip_high=0.2,
    clip_c=3.0,
    scale_factor=None,
    entropy_coeff=0.05,
    kl_coef=0.0,
    kl_type="k3",
    kl_gradient="k3",
    tau_positive=1.0,
    tau_negative=1.0,
    dro_beta=None,
)
MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)


def batch() -> LossBatch:
    tensors = {"log_probs": torch.zeros(2, 3).double(), "entropies": torch.rand(2, 3).double()}
    return LossBatch(tensors=tensors, mask=MASK, ranks=1, tokens=10.0, samples=4.0, epsilons={"entropy": 1e-7})


@pytest.mark.parametrize(
    ("aggregation", "right"),
    [
        ("token-mean", -0.05 * MASK / 10),
        ("seq-mean-token-sum", -0.05 * MASK / 4),
        ("seq-mean-token-mean", -0.05 * MASK / MASK.sum(-1, keepdim=True) / 4),
    ],
)
def test_the_gradient_is_that_of_the_bonus(aggregation: Aggregation, right: torch.Tensor) -> None:
    settings = replace(SETTINGS, aggregation=aggregation)
    assert (entropy_gap(settings, batch(), right) or 0) < 1
    for wrong in (-right, 0 * right, 0.5 * right, right * torch.tensor([1.0, 0.0, 1.0])):
        assert (entropy_gap(settings, batch(), wrong) or 0) > 1000


def test_a_loss_without_a_bonus_teaches_no_entropy() -> None:
    assert entropy_gap(replace(SETTINGS, entropy_coeff=0.0), batch(), 0 * MASK) is None
