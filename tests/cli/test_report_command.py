"""`rlstep report`: the forms that it prints and the files that it writes; and any verb whose output is closed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.cli.app import main
from rlstep_hooks.record.events import Update
from rlstep_hooks.record.ledger import FolderLedger, rank_process
from tests.scripted import make_plan, scripted_run

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.record.events import AnyEvent

PLAN = make_plan(iterations=2, max_steps=8)


def recorded(folder: Path, events: list[AnyEvent]) -> Path:
    ledger = FolderLedger(folder / "log", "run", rank_process(0))
    ledger.write(*events)
    ledger.close()
    return folder / "log"


@pytest.fixture
def passing(tmp_path: Path) -> Path:
    return recorded(tmp_path, scripted_run(PLAN))


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    return recorded(tmp_path, [e for e in scripted_run(PLAN) if not (isinstance(e, Update) and e.index == 4)])


def rlstep(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_page_is_written_beside_what_is_printed(
    failing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.html"
    status, out, _ = rlstep("report", failing, "--html", file, capsys=capsys)
    assert status == 1
    assert "FAIL" in out
    assert file.read_text().startswith("<!doctype html>")
    assert "RLS204" in file.read_text()


def test_a_page_that_cannot_be_written_is_status_2(
    passing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = rlstep("report", passing, "--html", tmp_path / "no" / "folder.html", capsys=capsys)
    assert status == 2
    assert err.startswith("rlstep: ")


def test_markdown_and_json_take_the_place_of_the_text(failing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = rlstep("report", failing, "--markdown", capsys=capsys)
    assert (status, out.splitlines()[0]) == (1, "### ❌ FAIL: TRL 1.16.0 · GRPO")
    _, out, _ = rlstep("report", failing, "--json", capsys=capsys)
    assert json.loads(out)["verdict"] == "FAIL"


def test_markdown_and_json_at_once_are_refused(passing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = rlstep("report", passing, "--markdown", "--json", capsys=capsys)
    assert status == 2
    assert "not allowed with argument" in err


def test_the_page_needs_no_jinja_until_it_is_asked_for(passing: Path) -> None:
    code = f"""
import sys
from rlstep_hooks.cli.app import main
try:
    main(["report", {str(passing)!r}])
finally:
    assert not {{"jinja2", "markupsafe"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["rules"],
        ["rules", "RLS204"],
        ["recipes"],
        ["plan", "recipe:r1-zero"],
        ["plan", "--json", "recipe:r1-zero"],
        ["report"],
        ["report", "--json"],
        ["report", "--markdown"],
    ],
    ids=" ".join,
)
def test_a_pipe_that_nobody_reads_ends_the_command_without_a_word(words: list[str], passing: Path) -> None:
    words = [*words, str(passing)] if words[0] == "report" else words
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "rlstep_hooks", *words]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert ended.stderr == ""


def test_a_file_of_noise_hides_no_run_and_other_runs_are_named(
    passing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (passing / "zzz.rank0.jsonl").write_bytes(b"noise\n")
    status, out, err = rlstep("report", passing, capsys=capsys)
    assert status == 0
    assert "PASS" in out
    assert "this is run run" in err
    assert "zzz (no record of a run)" in err
