"""One small Ray for all runs of a process, and a tiny model; without skyrl there are no tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from tests.cpu.verl_cpu.assets import write_model

_HERE = Path(__file__).resolve()
SITE = _HERE.parents[2] / "cpu" / "skyrl_cpu" / "site"
ROOT = _HERE.parents[3]

os.environ |= {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
if str(SITE) not in sys.path:
    sys.path.insert(0, str(SITE))
    # Ray's workers load it by themselves; this process has begun already, and may have loaded another one.
    exec(compile((SITE / "sitecustomize.py").read_text(), "sitecustomize", "exec"), {"__name__": "skyrl_cpu_site"})

pytest.importorskip("skyrl")
ray = pytest.importorskip("ray")

if TYPE_CHECKING:
    from collections.abc import Iterator

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[None]:
    """Cores and GPUs for the scheduler alone, little memory, no dashboard."""
    ray.init(
        num_cpus=8,
        num_gpus=4,
        include_dashboard=False,
        object_store_memory=100_000_000,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the model and its tokenizer."""
    folder = tmp_path_factory.mktemp("skyrl")
    write_model(folder / "model", sharpness=4.0)
    return folder
