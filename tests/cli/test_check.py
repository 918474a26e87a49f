"""`rlstep check` and what CI makes of it: the table, the comparison with a revision, SARIF, JUnit, the action's own steps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from rlstep_hooks.cli import main

ROOT = Path(__file__).parents[2]
SCRIPT = """\
#!/bin/bash
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo data.train_batch_size=1024 \\
    actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 trainer.n_gpus_per_node=8
"""
MISSPELT = SCRIPT.replace("ppo_mini_batch_size", "ppo_mini_batch_sizee")


def rlstep(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().out


def git(folder: Path, *words: str) -> None:
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a launch script, a file that is none, and a commit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "run.sh").write_text(SCRIPT)
    (tmp_path / "setup.sh").write_text("pip install verl\n")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_launches_are_planned_and_other_files_passed_over(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, output = rlstep(["check", "--rows", "8192", "run.sh", "setup.sh"], capsys)
    assert status == 0
    assert "8 192 samples" in output
    assert "setup.sh" not in output


def test_a_path_that_does_not_exist_is_an_error(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", "nosuch.sh", "also-not/"])
    assert ended.value.code == 2
    assert "nosuch.sh, also-not/: no such file or folder" in capsys.readouterr().err


def test_a_folder_means_the_files_below_it(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "a" / ".hidden").mkdir(parents=True)
    for file in ("a/one.sh", "a/.hidden/two.sh", "a/notes.txt"):
        (repository / file).write_text(SCRIPT)
    status, output = rlstep(["check", "--rows", "8192", "a"], capsys)
    assert status == 0
    assert "a/one.sh" in output
    assert "two.sh" not in output
    assert "notes" not in output


def test_a_narrow_terminal_shows_names_and_numbers_whole(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    name = "a_launch_whose_name_is_longer_than_the_first_column.sh"
    (repository / name).write_text(SCRIPT)
    _, output = rlstep(["check", "--rows", "8192", name], capsys)
    assert f"{name}\n  verl 0.9.1 · rollout: 8 192 samples · update: 2 048" in output


def test_a_refused_launch_fails_at_its_line(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "run.sh").write_text(MISSPELT)
    status, output = rlstep(["check", "--sarif", "o.sarif", "--junit", "o.xml", "run.sh", "setup.sh"], capsys)
    assert status == 1
    assert "RLS110" in output
    log = json.loads((repository / "o.sarif").read_text())
    (result,) = [each for each in log["runs"][0]["results"] if each["level"] == "error"]
    place = result["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "run.sh"}, "region": {"startLine": 5, "startColumn": 5}}
    suite = ElementTree.parse(repository / "o.xml").getroot()
    assert suite.attrib["failures"] == "1"
    assert [case.attrib["name"] for case in suite] == ["run.sh"]
    assert suite.find("testcase/failure") is not None


def test_sarif_is_valid(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sarif_pydantic = pytest.importorskip("sarif_pydantic", reason="the session installs it")
    (repository / "run.sh").write_text(MISSPELT)
    rlstep(["check", "--rows", "8532", "--sarif", "o.sarif", "run.sh"], capsys)
    log = sarif_pydantic.Sarif.model_validate_json((repository / "o.sarif").read_text())
    rules = [rule.id for rule in log.runs[0].tool.driver.rules]
    assert all(rules[result.rule_index] == result.rule_id for result in log.runs[0].results)


def test_a_change_is_compared_with_the_base(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "run.sh").write_text(SCRIPT.replace("size=256", "size=512"))
    (repository / "new.sh").write_text(SCRIPT)
    status, output = rlstep(["check", "--base", "HEAD", "--markdown"], capsys)
    assert status == 0
    assert "updates\\_per\\_rollout: 4 -\\&gt; 2" in output.replace("-&gt;", "-\\&gt;")
    assert "ppo\\_mini\\_batch\\_size" in output
    assert "new.sh" in output, "a file that git does not know yet"
    assert "setup.sh" not in output


def test_a_parent_that_changed_is_read_as_it_was(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script stays; the configuration that it names has another size now."""
    (repository / "c.yaml").write_text("num_generations: 8\nper_device_train_batch_size: 8\n")
    (repository / "grpo.sh").write_text("accelerate launch --num_processes 4 -m trl.scripts.grpo --config c.yaml\n")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "second")
    (repository / "c.yaml").write_text("num_generations: 8\nper_device_train_batch_size: 16\n")
    _, output = rlstep(["check", "--rows", "96", "--base", "HEAD", "grpo.sh"], capsys)
    assert "samples_per_rollout: 32 -> 64" in output


def test_nothing_named_is_said(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rlstep(["check"], capsys)[0] == 2
    assert rlstep(["check", "--base", "no-such-revision"], capsys)[0] == 2
    assert rlstep(["check", "--base", "HEAD"], capsys) == (0, "none of 0 files is a launch that is known\n")


def action() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "action.yml").read_text())
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.skipif(shutil.which("bash") is None, reason="the action's steps are bash")
@pytest.mark.parametrize(("script", "expected"), [(SCRIPT.replace("size=256", "size=512"), 0), (MISSPELT, 1)])
def test_the_steps_of_the_action_run_as_they_stand(repository: Path, script: str, expected: int) -> None:
    """All steps but the installation and the comment, which need a network."""
    (repository / "run.sh").write_text(script)
    places = {name: repository / ".git" / name for name in ("summary", "output")}
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "RUNNER_TEMP": str(repository / ".git"),
        "GITHUB_STEP_SUMMARY": str(places["summary"]),
        "GITHUB_OUTPUT": str(places["output"]),
        "BASE": "HEAD",
        "FILES": "",
        "OPTIONS": "--rows 8192",
    }
    steps = {step["name"]: step["run"] for step in action()["runs"]["steps"]}
    # The shell of a composite action: https://docs.github.com/actions/reference/workflows-and-actions/workflow-syntax
    bash = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")
    subprocess.run([*bash, steps["Check"]], cwd=repository, env=environment, check=True, timeout=60)
    outputs = dict(line.split("=", 1) for line in places["output"].read_text().splitlines())
    assert "run.sh" in places["summary"].read_text()
    assert json.loads(Path(outputs["sarif"]).read_text())["version"] == "2.1.0"
    ended = subprocess.run([*bash, steps["Result"]], env={**environment, "STATUS": outputs["status"]}, check=False)
    assert ended.returncode == expected


def test_the_inputs_of_the_action_are_those_that_its_steps_read() -> None:
    text = (ROOT / "action.yml").read_text()
    assert all(f"inputs.{name}" in text for name in action()["inputs"])


def test_the_commit_hook_is_a_verb_that_takes_files() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["id"] == "rlstep-plan"
    assert hook["entry"].split() == ["rlstep", "check"]


REFUSED = SCRIPT.replace("size=256", "size=2048")


@pytest.mark.parametrize(
    ("was", "now", "said", "absent"),
    [
        (SCRIPT, REFUSED, ["before: accepted", "samples_per_update: 2 048 -> 16 384"], []),
        (REFUSED, SCRIPT, ["before: refused (ValueError: train_batch_size (1024) must be >=", "samples_per_update"], []),
        (MISSPELT, SCRIPT, ["before: refused (Could not override"], []),
        (REFUSED, REFUSED.replace("size=2048", "size=4096"), ["before: refused (ValueError", "(2048)", "(4096)"], []),
        (REFUSED, REFUSED + "\n", ["train_batch_size (1024) must be >="], ["before:"]),
        ("pip install verl\n", SCRIPT, ["before: not planned (", "known trainer"], []),
        (SCRIPT, SCRIPT.replace("=8\n", "=$N\n"), ["not planned: ", "before: accepted"], []),
    ],
)  # fmt: skip
def test_what_changed_in_a_launch_that_is_refused(
    was: str, now: str, said: list[str], absent: list[str], repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "run.sh").write_text(was)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "--allow-empty", "-m", "second")
    (repository / "run.sh").write_text(now)
    _, output = rlstep(["check", "--rows", "8192", "--base", "HEAD", "run.sh"], capsys)
    output = " ".join(output.split())
    assert all(words in output for words in said), output
    assert not any(words in output for words in absent), output


def example() -> str:
    """The tables that docs/ci.md shows."""
    return (ROOT / "docs" / "ci.md").read_text().partition("```toml\n")[2].partition("```")[0]


needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")


@needs_toml
def test_sizes_and_releases_of_each_path(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "pyproject.toml").write_text(example())
    for folder, text in (
        ("verl", SCRIPT.replace(" trainer.n_gpus_per_node=8", " trainer.n_gpus_per_node=$GPUS")),
        ("trl", "trl grpo --num_generations 8 --per_device_train_batch_size 8\n"),
        ("trl/old", "trl grpo --num_generations 8 --per_device_train_batch_size 8\n"),
    ):
        (repository / "launches" / folder).mkdir(parents=True, exist_ok=True)
        (repository / "launches" / folder / "run.sh").write_text(text)
    status, output = rlstep(["check", "launches"], capsys)
    assert status == 0, output
    lines = {line.split()[0]: line for line in output.splitlines() if ".sh" in line}
    assert "TRL 1.16.0" in lines["launches/trl/run.sh"]
    assert "64 samples" in lines["launches/trl/run.sh"]
    assert "TRL 0.24.0" in lines["launches/trl/old/run.sh"]
    assert "verl 0.9.1" in lines["launches/verl/run.sh"]
    assert "not planned" not in output
    _, output = rlstep(["check", "--world-size", "2", "launches/trl"], capsys)
    assert "16 samples" in output, "the command line goes before the table"


@needs_toml
@pytest.mark.parametrize("line", ["row = 3", "rows = '3'", "world-size = 0"])
def test_a_table_that_cannot_be_read_is_named(line: str, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "pyproject.toml").write_text(f'[tool.rlstep.check."launches/*"]\n{line}\n')
    with pytest.raises(SystemExit) as ended:
        main(["check", "run.sh"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert '[tool.rlstep.check."launches/*"]' in said
    assert line.partition(" ")[0] in said
