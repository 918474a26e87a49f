"""A tiny model for all runs, and the variables with which AReaL trains in this process; without areal there are no tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from tests.cpu.verl_cpu.assets import write_model
from tests.systems.ports import free_port

# One process, without the launcher that would set these; nothing is compiled, which takes longer than these runs.
os.environ |= {
    "AREAL_SPMD_MODE": "1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": str(free_port()), "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip

pytest.importorskip("areal")
pytest.importorskip("areal.trainer.rl_trainer")

if TYPE_CHECKING:
    from pathlib import Path

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the model and its tokenizer."""
    folder = tmp_path_factory.mktemp("areal")
    write_model(folder / "model", sharpness=4.0)
    return folder
