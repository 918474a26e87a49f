"""What the runs of a session share: a tiny model with its rows, and what DeepSpeed compiles once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.systems.openrlhf.launch import ENVIRONMENT, Assets

COMPILE = """
from deepspeed.accelerator import get_accelerator
for builder in ("ShareMemCommBuilder", "FusedAdamBuilder"):
    get_accelerator().create_op_builder(builder).load()
"""


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    return Assets.write(tmp_path_factory.mktemp("assets"), rows=8 * 64)


@pytest.fixture(scope="session")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where DeepSpeed keeps its C++ operations: a minute to compile, so a folder that outlives the session saves one.

    They are compiled here, because trainers that wait for a compiler in mid-start lose the ports that were chosen for them.
    """
    kept = os.environ.get("TORCH_EXTENSIONS_DIR")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("extensions")
    environment = os.environ | ENVIRONMENT | {"TORCH_EXTENSIONS_DIR": str(folder)}
    # DeepSpeed looks for the `ninja` of its environment.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    # Two workers may do so at once: torch locks the folder, and the second waits.
    subprocess.run([sys.executable, "-c", COMPILE], env=environment, check=True, timeout=600)
    return folder
