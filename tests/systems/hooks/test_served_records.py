"""The record of a vLLM server as the trainer that uses it reads it; no framework."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.record.events import Attached, Probe, Unobserved, WeightsHeld
from rlstep_hooks.record.ledger import FolderLedger
from rlstep_hooks.systems.vllm_engine.environment import ENGINES, FOLDER, RUN, place
from rlstep_hooks.systems.vllm_engine.records import ServedRecords
from rlstep_hooks.systems.vllm_engine.served import engines_folder

if TYPE_CHECKING:
    from pathlib import Path


class Engine:
    """Writes as an engine does."""

    def __init__(self, folder: Path, *, name: str = "vllm7", host: str = "", pid: int = 0) -> None:
        self._ledger = FolderLedger(folder, "served-1", name)
        self._attached = Attached(
            run="served-1",
            process=name,
            host=host or os.uname().nodename,
            pid=pid or os.getpid(),
            started=0.0,
            versions={},
        )
        self.connected()

    def connected(self) -> None:
        self._ledger.write(self._attached)
        self._number = -1

    def synced(self) -> None:
        self._number += 1
        probe = Probe("weight", "float32", (self._number,))
        self._ledger.write(
            WeightsHeld(number=self._number, engine="engine vllm7", arrived=26, before=(), after=(probe,))
        )

    def write(self, event: Any) -> None:
        self._ledger.write(event)


def numbers(events: list[Any]) -> list[tuple[int, int]]:
    return [(event.number, event.arrived) for event in events]


def test_syncs_are_those_of_this_run(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    for _ in range(5):
        engine.synced()  # of the run before
    engine.connected()
    records = ServedRecords(tmp_path)
    assert len(records) == 1
    assert records.take(-1) == []
    engine.synced()
    assert numbers(records.take(0)) == [(0, 26)]
    engine.synced()
    engine.synced()
    assert numbers(records.take(2)) == [(1, 26), (2, 26)]


@pytest.mark.parametrize("connects", [True, False])
def test_the_first_sync_of_this_run_is_0_whatever_the_engine_calls_it(tmp_path: Path, connects: bool) -> None:
    engine = Engine(tmp_path)
    for _ in range(5):
        engine.synced()
    records = ServedRecords(tmp_path)
    if connects:
        engine.connected()
    engine.synced()
    assert numbers(records.take(0)) == [(0, 26)]


def test_a_sync_that_never_came_is_told_and_shifts_the_later_ones(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    records = ServedRecords(tmp_path)
    engine.synced()
    assert numbers(records.take(0)) == [(0, 26)]
    (lost,) = records.take(1)
    assert isinstance(lost, WeightsHeld)
    assert (lost.number, lost.arrived, lost.engine) == (1, 0, "engine vllm7")
    engine.synced()
    assert numbers(records.take(2)) == [(2, 26)]
    assert records.take(2) == []


@pytest.mark.parametrize("where", [{"host": "elsewhere"}, {"pid": 2**22 - 3}], ids=["another machine", "ended"])
def test_what_may_still_come_is_not_called_lost(tmp_path: Path, where: dict[str, Any]) -> None:
    """A network disk shows writes late; an engine that has ended has other findings."""
    engine = Engine(tmp_path, **where)
    records = ServedRecords(tmp_path)
    assert records.take(3) == []
    engine.synced()
    assert numbers(records.take(3)) == [(0, 26)]


def test_an_engine_that_is_no_more_tells_nothing(tmp_path: Path) -> None:
    Engine(tmp_path, pid=2**22 - 3)
    assert len(ServedRecords(tmp_path)) == 0
    assert len(ServedRecords(tmp_path / "nothing")) == 0


def test_what_an_engine_cannot_observe_is_passed_on(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    records = ServedRecords(tmp_path)
    engine.write(Unobserved(what="delivery", why="a hook failed"))
    (event,) = records.take(-1)
    assert isinstance(event, Unobserved)


def test_the_folder_of_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENGINES, raising=False)
    assert engines_folder(None) is None
    assert engines_folder(tmp_path / "run.rank0.jsonl") == tmp_path / "engines"
    monkeypatch.setenv(ENGINES, str(tmp_path / "other"))
    assert engines_folder(None) == tmp_path / "other"


def test_where_an_engine_records(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (FOLDER, RUN, ENGINES):
        monkeypatch.delenv(name, raising=False)
    assert place() is None
    monkeypatch.setenv(FOLDER, "rlstep")
    assert place() is None, "a folder alone asks for nothing: a trainer with its engine in the same process has it too"
    monkeypatch.setenv(ENGINES, "engines")
    found = place()
    assert found is not None
    assert (found.folder, found.served) == ("engines", True)
    monkeypatch.setenv(RUN, "a-run")
    found = place()
    assert found == ("rlstep", "a-run", False)
