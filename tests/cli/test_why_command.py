"""`rlstep why`: where it finds the record, which symptoms it shows, and that its answer fits a screen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from rlstep_hooks.cli.app import main
from rlstep_hooks.judge.symptoms import SYMPTOMS
from rlstep_hooks.record.events import Measured, Update
from rlstep_hooks.record.ledger import FolderLedger, rank_process
from tests.scripted import make_plan, scripted_run

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.record.events import AnyEvent

PLAN = make_plan(iterations=2, max_steps=8)
SCREEN = 50
"""Lines of a terminal window that is not small."""


def exploding() -> list[AnyEvent]:
    """A run whose machinery is right, and whose log ratios are far off."""
    events: list[AnyEvent] = []
    for event in scripted_run(PLAN):
        if isinstance(event, Measured):
            values = tuple(
                msgspec.structs.replace(each, max_abs_log_ratio=25.0, mean_abs_log_ratio=1.9, clipped=0.35)
                if each.max_abs_log_ratio
                else each
                for each in event.microbatches
            )
            event = msgspec.structs.replace(event, microbatches=values)
        elif isinstance(event, Update):
            event = msgspec.structs.replace(event, learning_rate=0.3)
        events.append(event)
    return events


def recorded(folder: Path, events: list[AnyEvent]) -> Path:
    ledger = FolderLedger(folder, "run", rank_process(0))
    ledger.write(*events)
    ledger.close()
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def rlstep(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.parametrize("words", [(), ("kl-explodes",), (".",), (".", "kl-explodes"), ("rlstep", "kl-explodes")])
def test_the_record_is_found_where_it_is_by_default(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "rlstep", exploding())
    status, out, err = rlstep("why", *words, capsys=capsys)
    assert (status, err) == (0, "")
    said = " ".join(out.split())
    assert "the numbers show that updates are large at a learning rate of 0.3" in said
    assert "Change: lower learning_rate: try 0.03, a tenth" in said
    assert "35 % of tokens at lag 1" in said
    assert "far from published runs" in said
    assert "verl 0.9.1, verl/trainer/ppo/core_algos.py:1255" in said
    assert len(out.splitlines()) <= SCREEN


@pytest.mark.parametrize("words", [(), (".",)])
def test_the_report_finds_it_too(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "rlstep", exploding())
    status, out, _ = rlstep("report", *words, capsys=capsys)
    assert status == 0
    assert "far from published runs" in out


def test_a_folder_with_records_of_its_own_is_meant_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "rlstep", exploding())
    recorded(tmp_path, scripted_run(PLAN))
    _, out, _ = rlstep("why", ".", capsys=capsys)
    assert "far from published runs" not in out


def test_a_calm_run_shows_no_symptom(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "rlstep", scripted_run(PLAN))
    status, out, _ = rlstep("why", capsys=capsys)
    assert status == 0
    said = " ".join(out.split())
    assert "No symptom shows in this record" in said
    assert all(symptom.name in said for symptom in SYMPTOMS)


def test_every_symptom_fits_a_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "rlstep", exploding())
    for symptom in SYMPTOMS:
        _, out, _ = rlstep("why", symptom.name, capsys=capsys)
        assert len(out.splitlines()) <= SCREEN, symptom.name
        assert "->" in out


def test_json_has_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "rlstep", exploding())
    status, out, _ = rlstep("why", "--json", capsys=capsys)
    assert status == 0
    found = json.loads(out)
    assert {line["quantity"] for line in found["health"]} == {"log ratio", "KL from the old policy"}
    assert {each["name"] for each in found["symptoms"]} == {symptom.name for symptom in SYMPTOMS}
    first = found["symptoms"][0]
    assert first["name"] == "kl-explodes"
    assert first["left"][0]["change"].startswith("lower learning_rate")
    assert "entropy" in found["not_in_the_record"]
    measured = {each["name"]: each["words"] for each in found["measured"]}
    assert measured["learning rate"].startswith("0.3 throughout")
    assert measured["|log ratio|"] == "mean lag 0: 0 (max 0), lag 1: 1.9 (max 25)"


@pytest.mark.parametrize("words", [("gremlins",), (".", "gremlins"), ("kl-explodes", "gremlins")])
def test_what_is_neither_a_folder_nor_a_symptom_is_said(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = rlstep("why", *words, capsys=capsys)
    assert status == 2
    assert "gremlins" in err
    assert "kl-explodes" in err


def test_a_folder_without_a_record_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = rlstep("why", capsys=capsys)
    assert status == 2
    assert "holds no record" in err
