"""What AReaL's optimizer is and steps with, beside its configuration (areal 1.0.4, areal/api/cli_args.py `OptimizerConfig`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.settings import as_configured

if TYPE_CHECKING:
    from rlstep_hooks.observe.settings import SettingsWatch

_SECTION = "actor.optimizer"


def settings_of(optimizer: Any, given: Any) -> SettingsWatch | None:
    """Compare the optimizer with the one of torch that is configured; None where it is none of torch's.

    Args:
        optimizer: The engine's.
        given: An `OptimizerConfig`.
    """
    tensors = [torch.zeros(1, requires_grad=True)]
    if given.type == "adam":
        betas = given.beta1, given.beta2
        built = torch.optim.AdamW(tensors, lr=given.lr, betas=betas, eps=given.eps, weight_decay=given.weight_decay)
        return as_configured(optimizer, built, _SECTION, {"betas": "beta1 and beta2"})
    if given.type == "sgd":
        return as_configured(
            optimizer, torch.optim.SGD(tensors, lr=given.lr, weight_decay=given.weight_decay), _SECTION
        )
    return None
