"""Each fault of a SkyRL run is found by its rule, with its cause."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from tests.systems.skyrl.faults import FAULTS
from tests.systems.skyrl.tiny import trained
from tests.systems.whole_trainers import Fault, find

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found(fault: Fault, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find(fault, "SkyRL", functools.partial(trained, home, tmp_path), monkeypatch)
