"""Which decay each tensor of a DeepSpeed engine must have, by the names that OpenRLHF spares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlstep_hooks.systems.openrlhf.observe.settings import of_optimizer

USUAL = (("layers.0.mlp.weight", "lm_head.weight"), ("layers.0.input_layernorm.weight", "norm.weight"))
SETTINGS = SimpleNamespace(
    optim="adam", adam=SimpleNamespace(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1), max_norm=1.0
)


def engine(*groups: tuple[str, ...]) -> Any:
    """An engine with these groups, the first of which is decayed."""
    named = {name: torch.nn.Parameter(torch.zeros(1)) for names in groups for name in names}
    usual = {"betas": (0.9, 0.95), "eps": 1e-8}
    settings = [{"params": [], "weight_decay": 0.0 if place else 0.1, **usual} for place in range(len(groups))]
    return SimpleNamespace(
        module=SimpleNamespace(named_parameters=named.items),
        optimizer=SimpleNamespace(bit16_groups=[[named[name] for name in names] for names in groups], clip_grad=1.0),
        basic_optimizer=SimpleNamespace(param_groups=settings),
        zero_optimization_stage=lambda: 2,
    )


@pytest.mark.parametrize(
    ("groups", "wrong"),
    [
        (USUAL, []),
        (((*USUAL[0], "norm.weight"), USUAL[1][:1]), [("policy optimizer weight_decay of norm.weight", 0.0, 0.1)]),
        (
            (USUAL[0][:1], (*USUAL[1], "lm_head.weight")),
            [("policy optimizer weight_decay of lm_head.weight", 0.1, 0.0)],
        ),
    ],
)
def test_norms_and_biases_alone_are_not_decayed(groups: Any, wrong: list[Any]) -> None:
    of = engine(*groups)
    watch = of_optimizer(of, SETTINGS, "policy")
    all_groups = of.basic_optimizer.param_groups
    for group in all_groups:  # ZeRO narrows the groups to the one that it steps
        of.basic_optimizer.param_groups = [group]
        found = watch.changes()
        assert found == (wrong if group is all_groups[0] else []), "each once"
