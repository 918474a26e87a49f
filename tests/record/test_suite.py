"""What tests of an audited suite note of their trainers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.record.suite import (
    Built,
    Ended,
    Refused,
    built,
    current_test,
    facts_of,
    note,
    read_suite,
    refused,
    suite_files,
)
from rlstep_hooks.record.variables import PARENT
from rlstep_hooks.systems.injection import environment

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.record.suite import Line


class Trainer:
    """Stands for any."""


class Unhashable:
    """Cannot be told from others."""

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PARENT, "1")
    monkeypatch.setenv("RLSTEP_DIR", str(tmp_path / "log"))
    return tmp_path / "log"


def lines(folder: Path) -> list[Line]:
    return [line for path in suite_files(folder) for line in read_suite(path)]


def test_a_trainer_is_noted_under_its_test_and_its_record_names_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/t.py::test_x[a (b)] (call)")
    first, second = Trainer(), Trainer()
    built(first)
    built(second)
    refused("why")
    note(Ended("tests/t.py::test_x[a (b)]", "passed"))
    one, two, third, fourth = lines(folder)
    assert isinstance(one, Built)
    assert isinstance(two, Built)
    assert (one.test, one.kind) == ("tests/t.py::test_x[a (b)]", "Trainer")
    assert one.number != two.number
    assert (facts_of(first), facts_of(Trainer())) == ({"trainer": one.number}, {})
    assert [third, fourth] == [Refused(one.test, "why"), Ended(one.test, "passed")]


def test_the_test_around_an_audited_command_is_none_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/test_outer.py::test_run (call)")
    for name, value in environment(tmp_path, os.environ).items():
        monkeypatch.setenv(name, value)
    assert current_test() == ""
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/test_inner.py::test_train (call)")
    assert current_test() == "tests/test_inner.py::test_train"


@pytest.mark.parametrize("missing", [PARENT, "RLSTEP_DIR", "PYTEST_CURRENT_TEST"])
def test_without_an_audit_from_outside_or_a_test_nothing_is_noted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delenv(missing)
    trainer = Trainer()
    built(trainer)
    refused("why")
    assert (current_test(), facts_of(trainer), lines(folder)) == ("", {}, [])


def test_what_cannot_be_noted_does_not_reach_the_test(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built(Unhashable())
    assert facts_of(Unhashable()) == {}
    folder.write_text("a file where the folder should be")
    built(Trainer())
    assert "the table of tests lacks a line" in capsys.readouterr().err
