"""What sets the deployment of a run apart, from accelerate's own plugins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, OffloadPolicy

from rlstep_hooks.systems.trl.observe.deployment import deployment_of


@pytest.mark.parametrize(
    ("version", "policy", "deployment"),
    [
        (1, CPUOffload(offload_params=False), ("FSDP1",)),
        (1, CPUOffload(offload_params=True), ("FSDP1", "offload")),
        (2, OffloadPolicy(), ("FSDP2",)),
        (2, CPUOffloadPolicy(), ("FSDP2", "offload")),
        (2, None, ("FSDP2",)),
    ],
)
def test_parameters_on_the_host(version: int, policy: Any, deployment: tuple[str, ...]) -> None:
    state = SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=version, cpu_offload=policy))
    trainer = SimpleNamespace(accelerator=SimpleNamespace(state=state, num_processes=2), model=torch.nn.Linear(1, 1))
    assert deployment_of(trainer) == deployment
