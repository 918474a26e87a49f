"""Files that all runs share."""

from __future__ import annotations

import pytest

from tests.systems.verl.launch import Assets


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    """A tiny model, 36 rows for training and 4 for validation."""
    return Assets.write(tmp_path_factory.mktemp("assets"))
