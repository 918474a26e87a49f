"""The nightly workflow: its own steps, run over records, with a program in the place of GitHub's that keeps what it is given."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from rlstep_hooks.record.events import Update
from rlstep_hooks.record.variables import judged_as
from tests.cli.test_ci_command import PLAN, record
from tests.contributions.ready import DRAFTS
from tests.scripted import scripted_run

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW: dict[Any, Any] = yaml.safe_load((DRAFTS / "nightly" / "audit-main.yml").read_text())
STEPS = {step["name"]: step for step in WORKFLOW["jobs"]["audit"]["steps"] if "name" in step}

GH = """#!{python}
# In the place of GitHub's program: `issue create` keeps the body as an open issue, `issue list` prints those of all.
import pathlib, sys
issues, words = pathlib.Path({issues!r}), sys.argv[1:]
value = lambda name: words[words.index(name) + 1]
if words[:2] == ["issue", "list"]:
    print("\\n".join(path.read_text() for path in sorted(issues.iterdir())))
elif words[:2] == ["issue", "create"]:
    title, body = value("--title"), pathlib.Path(value("--body-file")).read_text()
    (issues / str(len(list(issues.iterdir())))).write_text(title + "\\n" + body)
elif words[:2] != ["label", "create"]:
    sys.exit("not known: " + " ".join(words))
"""


class Night:
    """A machine of GitHub's, as far as these steps see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.issues = folder / "issues"
        programs = folder / "bin"
        for each in (self.issues, programs):
            each.mkdir()
        (programs / "gh").write_text(GH.format(python=sys.executable, issues=str(self.issues)))
        (programs / "rlstep").write_text(f'#!/bin/sh\nexec {sys.executable} -m rlstep_hooks "$@"\n')
        for program in programs.iterdir():
            program.chmod(0o755)
        (folder / "framework").mkdir()
        git = ("git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(folder / "framework"))
        for command in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "main")):
            subprocess.run([*git, *command], check=True, capture_output=True)
        self.environment = os.environ | {
            **{name: value for name, value in WORKFLOW["env"].items() if name != "GH_TOKEN"},
            "PATH": f"{programs}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(folder),
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary"),
            "GITHUB_REPOSITORY": "someone/fork",
        }

    def passes(self) -> int:
        """Run the steps after training as GitHub does; the exit status of the judging step."""
        self.run("Find what is known").check_returncode()
        (self.folder / "output").write_text("")
        judged = self.run("Judge")
        said = dict(line.split("=") for line in (self.folder / "output").read_text().splitlines())
        assert STEPS["File what is new"]["if"] == "steps.judge.outputs.status == '1'"
        if said["status"] == "1":
            self.run("File what is new").check_returncode()
        return judged.returncode

    def run(self, step: str) -> subprocess.CompletedProcess[str]:
        # GitHub runs a step without a shell of its own so.
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[step]["run"]]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(tmp_path)


BROKEN = [event for event in scripted_run(PLAN) if not (isinstance(event, Update) and event.index == 4)]


def without_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted records hold no losses, so that RLS801 compares nothing in them."""
    judging = dict(STEPS["Judge"])
    assert "--require RLS801 " in judging["run"]
    judging["run"] = judging["run"].replace("--require RLS801 ", "")
    monkeypatch.setitem(STEPS, "Judge", judging)


def test_a_problem_is_filed_once(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    without_requirements(monkeypatch)
    record(night.folder / "records", "one", BROKEN)
    assert [night.passes(), night.passes(), night.passes()] == [0, 0, 0]
    (issue,) = night.issues.iterdir()
    title, *body = issue.read_text().splitlines()
    assert title.startswith("RLS204 ")
    assert "rlstep-problem: RLS204:" in issue.read_text()
    assert body[-1].startswith("Found in huggingface/trl@")
    assert "#" not in title


def test_a_healthy_night_files_nothing(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    without_requirements(monkeypatch)
    record(night.folder / "records", "right", scripted_run(PLAN))
    assert night.passes() == 0
    assert not list(night.issues.iterdir())


def test_a_night_that_compared_too_little_is_red_and_files_nothing(night: Night) -> None:
    record(night.folder / "records", "right", scripted_run(PLAN))
    assert night.passes() != 0
    assert not list(night.issues.iterdir())
    assert "RLS801" in (night.folder / "summary").read_text()


def test_it_may_write_issues_and_nothing_else() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read", "issues": "write"}


def test_every_step_is_a_script_of_bash() -> None:
    for step in STEPS.values():
        if "run" in step:
            subprocess.run(["bash", "-n", "-c", step["run"]], check=True, timeout=10)


def test_the_release_that_it_names_is_one_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlstep_hooks.systems.trl.releases import TrlRelease

    monkeypatch.setenv("RLSTEP_AS_RELEASE", WORKFLOW["env"]["RLSTEP_AS_RELEASE"])
    assert TrlRelease(judged_as("trl"), "5.0").supported
