"""`rlstep ci`: records of a folder as a gate, its keys, and what cannot be judged."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.record.events import Update
from rlstep_hooks.record.ledger import FolderLedger, rank_process
from rlstep_hooks.record.variables import AS_RELEASE, judged_as
from tests.cli.test_report_command import rlstep
from tests.scripted import make_plan, scripted_run

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.record.events import AnyEvent

PLAN = make_plan(iterations=2, max_steps=8)


def record(folder: Path, name: str, events: list[AnyEvent]) -> None:
    ledger = FolderLedger(folder, name, rank_process(0))
    ledger.write(*events)
    ledger.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that is right, and two that lack an update."""
    broken = [event for event in scripted_run(PLAN) if not (isinstance(event, Update) and event.index == 4)]
    for name, events in (("right", scripted_run(PLAN)), ("one", broken), ("two", broken)):
        record(tmp_path / "log", name, events)
    return tmp_path / "log"


def test_what_was_reported_is_known_the_next_time(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, issue, _ = rlstep("ci", folder, "--markdown", capsys=capsys)
    assert status == 1
    assert issue.startswith("# RLS204 ")
    assert issue.count("rlstep-problem:") == len(re.findall(r"^## ", issue, re.MULTILINE)) >= 1
    known = tmp_path / "known.txt"
    known.write_text(issue)  # as the bodies of the issues that are open
    status, said, _ = rlstep("ci", folder, "--known", known, capsys=capsys)
    assert status == 0
    assert said.splitlines()[-1].startswith("PASS: no new problem, 1 known in 3 training calls")


def test_a_required_rule_that_compared_nothing_does_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "log", "right", scripted_run(PLAN))
    assert rlstep("ci", tmp_path / "log", capsys=capsys)[0] == 0
    assert rlstep("ci", tmp_path / "log", "--require", "RLS201", capsys=capsys)[0] == 0
    status, said, _ = rlstep("ci", tmp_path / "log", "--require", "RLS313", capsys=capsys)
    assert (status, "RLS313 compared nothing" in said) == (2, True)


@pytest.mark.parametrize(
    ("options", "text"),
    [(["--require", "RLS000"], "there is no rule RLS000"), (["--known", "nowhere.txt"], "nowhere.txt")],
)
def test_what_it_cannot_use_is_said(
    folder: Path, options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, error = rlstep("ci", folder, *options, capsys=capsys)
    assert (status, text in error) == (2, True)


def test_a_folder_without_records_does_not_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said, _ = rlstep("ci", tmp_path, capsys=capsys)
    assert (status, said) == (2, "NOT EVALUATED: no training call was recorded\n")


@pytest.mark.parametrize(
    ("wish", "release"),
    [("trl=1.16.0", "1.16.0"), ("verl=0.9.1 trl=1.16", "1.16"), ("verl=0.9.1", ""), ("trl=main", ""), ("", "")],
)
def test_a_checkout_is_judged_as_the_release_that_is_named(
    wish: str, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(AS_RELEASE, wish)
    assert judged_as("trl") == release
