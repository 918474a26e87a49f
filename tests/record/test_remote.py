"""Remote folders: reports of records in them, copies of a run's records, and the messages when these fail."""

from __future__ import annotations

import sys
import time
import uuid
from typing import TYPE_CHECKING

import fsspec
import pytest

from rlstep_hooks.cli import main
from rlstep_hooks.cli.copying import Copying
from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.record.ledger import MemoryLedger, open_ledger
from rlstep_hooks.record.remote import RemoteError, RemoteFolder, fetched
from rlstep_hooks.record.wire import encode
from tests.scripted_phases import PhaseCase, phase_plan, scripted_phases, write_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCRIPT = scripted_phases(PhaseCase(schedule=phase_plan(rollouts=2)))


@pytest.fixture
def url() -> str:
    """An empty folder in memory."""
    return f"memory://{uuid.uuid4().hex}/runs"


def put(url: str, folder: Path) -> None:
    RemoteFolder(url).copy(sorted(folder.iterdir()))


def status(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0)


def test_the_report_of_a_remote_folder_is_that_of_the_folder(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_records(tmp_path, SCRIPT)
    put(url, tmp_path)
    with fetched(url) as folder:
        assert report_of(folder) == report_of(tmp_path)
    assert not folder.exists()
    assert status("report", url, "--json") == 0
    there = capsys.readouterr().out
    assert status("report", str(tmp_path), "--json") == 0
    assert there == capsys.readouterr().out


def test_one_run_is_fetched_without_the_others(url: str, tmp_path: Path) -> None:
    for path in write_records(tmp_path, SCRIPT).values():
        path.with_name(path.name.replace("run.", "other.")).write_bytes(b"")
    (tmp_path / "notes.txt").write_text("none of ours")
    put(url, tmp_path)
    with fetched(url, "run") as folder:
        assert sorted(path.name for path in folder.iterdir()) == ["run.controller.jsonl", "run.rank0.jsonl"]


@pytest.mark.parametrize("named", ["", "/run"])
def test_a_remote_run_is_compared_with_another(
    named: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_records(tmp_path, SCRIPT)
    put(url, tmp_path)
    assert status("diff", url + named, str(tmp_path), "--json") == 0
    assert f'"folder": "{url}"' in capsys.readouterr().out
    shorter = tmp_path / "shorter"
    write_records(shorter, scripted_phases(PhaseCase(schedule=phase_plan(rollouts=1))))
    assert status("diff", str(shorter), url + named) == 1
    assert f"run in {url}" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["memory://nothing/here", "memory://", "nonsense://bucket/runs"])
def test_a_remote_run_that_is_not_there_is_named(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_records(tmp_path, SCRIPT)
    assert status("diff", str(tmp_path), place) == 2
    assert f"{place} " in capsys.readouterr().err


def test_a_file_is_copied_again_when_it_has_grown(url: str, tmp_path: Path) -> None:
    file = tmp_path / "run.rank0.jsonl"
    file.write_bytes(b"one\n")
    remote = RemoteFolder(url)
    remote.copy([file])
    there = f"{url}/run.rank0.jsonl"
    with fsspec.open(there, "wb") as other:
        other.write(b"changed there")
    remote.copy([file])
    with fsspec.open(there) as copy:
        assert copy.read() == b"changed there", "nothing new, so nothing is copied"
    with file.open("ab") as grown:
        grown.write(b"two\n")
    remote.copy([file])
    with fsspec.open(there) as copy:
        assert copy.read() == b"one\ntwo\n"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("memory://nothing/here", "memory://nothing/here cannot be read: FileNotFoundError"),
        ("nosuch://bucket/runs", "nosuch://bucket/runs cannot be opened: ValueError: Protocol not known: nosuch"),
    ],
)
def test_what_cannot_be_read_is_named(place: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("report", place) == 2
    assert said in capsys.readouterr().err


def test_a_remote_folder_without_records_is_named(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("none of ours")
    put(url, tmp_path)
    assert status("report", url) == 2
    assert f"{url} holds no record (files" in capsys.readouterr().err
    with pytest.raises(RemoteError, match="holds no record of run mine"), fetched(url, "mine"):
        pass


def test_a_remote_folder_is_not_followed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("report", url, "--follow") == 2
    assert "only a folder of this machine" in capsys.readouterr().err


def test_without_fsspec_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(RemoteError, match=r"s3://bucket cannot be opened: ModuleNotFoundError"):
        RemoteFolder("s3://bucket")


# Copies of a run's records


def test_records_are_copied_while_a_command_runs_and_when_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlstep_hooks.cli.copying.PERIOD", 0.02)
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (here / "earlier.rank0.jsonl").write_bytes(b"a run before\n")
    with Copying(here, {"earlier"}, there.as_uri()):
        first = here / "run.rank0.jsonl"
        first.write_bytes(encode(SCRIPT[0][1]))
        wait_for(lambda: (there / first.name).exists())
        monkeypatch.setattr("rlstep_hooks.cli.copying.PERIOD", 60)
        time.sleep(0.1)
        write_records(here, SCRIPT)
    assert sorted(path.name for path in there.iterdir()) == ["run.controller.jsonl", "run.rank0.jsonl"]
    assert report_of(there) == report_of(here, "run")


def test_a_copy_that_fails_is_told_once_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rlstep_hooks.cli.copying.PERIOD", 0.02)
    (tmp_path / "file").write_text("no folder")
    here = tmp_path / "here"
    write_records(here, SCRIPT)
    with Copying(here, set(), f"file://{tmp_path}/file"):
        time.sleep(0.2)
    said = capsys.readouterr().err
    assert said.count("rlstep: the records are not copied: file://") == 1


def test_run_copies_and_refuses_a_url_that_it_cannot_open(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = write_records(tmp_path / "made", SCRIPT)
    folder = tmp_path / "records"
    folder.mkdir()
    copies = "; ".join(f"shutil.copy({str(path)!r}, {str(folder)!r})" for path in made.values())
    command = [sys.executable, "-c", f"import shutil; {copies}"]
    assert status("run", "--dir", str(folder), "--copy-to", url, "--", *command) == 0
    with fetched(url) as there:
        assert report_of(there) == report_of(folder)
    assert status("run", "--dir", str(folder), "--copy-to", "nosuch://x", "--", "false") == 2
    assert "Protocol not known" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--dir", "--copy-to"])
def test_a_dead_store_is_found_before_the_command_starts(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    store = {"--dir": str(tmp_path / "records"), "--copy-to": (tmp_path / "copies").as_uri()}
    place = tmp_path / "file" / "below"
    store[option] = str(place) if option == "--dir" else place.as_uri()
    words = [word for pair in store.items() for word in pair]
    started = tmp_path / "started"
    assert status("run", *words, "--", sys.executable, "-c", f"open({str(started)!r}, 'w')") == 2
    assert "file/below" in capsys.readouterr().err
    assert not started.exists()


def test_looking_at_the_stores_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copies = tmp_path / "copies"
    assert status("run", "--dir", str(tmp_path / "a" / "b"), "--copy-to", copies.as_uri(), "--", "true") == 0
    assert "rlstep: copied 0 files to file://" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["copies"]
    assert not list(copies.iterdir())


def test_a_copy_that_is_not_complete_sets_the_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = write_records(tmp_path / "made", SCRIPT)
    folder, copies = tmp_path / "records", tmp_path / "copies"
    folder.mkdir()
    does = "; ".join(f"shutil.copy({str(path)!r}, {str(folder)!r})" for path in made.values())
    # The store goes away while the command runs.
    does = (
        f"import pathlib, shutil; {does}; shutil.rmtree({str(copies)!r}); pathlib.Path({str(copies)!r}).write_text('')"
    )
    command = [sys.executable, "-c", does]
    assert status("run", "--dir", str(folder), "--copy-to", copies.as_uri(), "--", *command) == 2
    said = capsys.readouterr().err
    assert "rlstep: the records are not copied" in said
    assert f"is not complete; copy the folder {folder} yourself" in said


# A URL is no folder to record in


def test_a_url_is_refused_as_the_place_of_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("run", "--dir", "s3://bucket/runs", "--", "true") == 2
    assert "--copy-to takes a URL" in capsys.readouterr().err
    opened = open_ledger("s3://bucket/runs", "run", "rank0")
    assert isinstance(opened.ledger, MemoryLedger)
    assert opened.trouble.startswith("nothing is recorded in s3://bucket/runs: records are written to a local folder")


def test_adapters_refuse_a_url(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from rlstep_hooks.systems.openrlhf.observe import ray_hooks as launch

    monkeypatch.setenv("RLSTEP_DIR", "s3://bucket/runs")
    monkeypatch.delenv("RLSTEP_RUN", raising=False)
    assert launch.runtime_env_hook({"a": 1}) == {"a": 1}
    from rlstep_hooks.systems.verl.observe import plugin

    plugin.activate()
    assert (
        capsys.readouterr().err.count(
            "not evaluated: RLSTEP_DIR=s3://bucket/runs: records are written to a local folder"
        )
        >= 2
    )


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
