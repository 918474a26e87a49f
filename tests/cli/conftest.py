"""What the tests of commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from rlstep_hooks.rehearse.messages import VARIABLE, Rehearsal, say_once, settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rehearsal]:
    """This process as a child of a rehearsal."""
    made = Rehearsal(rehearsed_by="", folder=str(tmp_path), user_folder=str(tmp_path))
    file = tmp_path / "rehearsal.json"
    file.write_bytes(msgspec.json.encode(made))
    monkeypatch.setenv(VARIABLE, str(file))
    caches = (settings, say_once)
    for each in caches:
        each.cache_clear()
    yield made
    for each in caches:
        each.cache_clear()
