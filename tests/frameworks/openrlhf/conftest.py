"""What the runs of a session share: a tiny model with its rows, and what DeepSpeed compiles once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.frameworks.openrlhf.launch import Assets


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    return Assets.write(tmp_path_factory.mktemp("assets"), rows=128)


@pytest.fixture(scope="session")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where DeepSpeed keeps its C++ operations: a minute to compile, so a folder that outlives the session saves one."""
    kept = os.environ.get("TORCH_EXTENSIONS_DIR")
    return Path(kept) if kept else tmp_path_factory.mktemp("extensions")
