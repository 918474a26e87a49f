"""One thread, since these models are smaller than what a second costs; and a folder for each test, where default records go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from pathlib import Path

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(place)
    return place
