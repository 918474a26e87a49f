"""The advice of `rlstep run` on a `ray job submit`: the runtime environment that an audited job needs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from rlstep_hooks.cli.ray_job import advice, merged, needed
from rlstep_hooks.systems.injection import SITE
from rlstep_hooks.systems.openrlhf.observe.ray_hooks import HOOK

SUBMIT = ["ray", "job", "submit", "--address=http://127.0.0.1:8265"]
ENTRY = ["--", "python", "train.py"]
FOLDER = Path("/shared/rlstep")
PATHS = f"{SITE}:${{PYTHONPATH}}"


def said(*options: str, framework: str = "", **inherited: str) -> str:
    return advice([*SUBMIT, *options, *ENTRY], FOLDER, framework, inherited)


def as_given(text: str) -> dict[str, Any]:
    """The option that is printed, as Ray reads it after a shell."""
    (line,) = (line for line in text.splitlines() if "--runtime-env-json" in line and line.startswith("  "))
    (word,) = shlex.split(line)
    name, _, value = word.partition("=")
    assert name == "--runtime-env-json"
    read: dict[str, Any] = json.loads(value)
    return read


def test_a_submission_without_an_environment_is_told_all_of_it() -> None:
    text = said()
    assert "add this to `ray job submit`" in text
    assert as_given(text) == {"env_vars": {"RLSTEP_DIR": "/shared/rlstep", "PYTHONPATH": PATHS}}


@pytest.mark.parametrize(
    ("framework", "variables"),
    [
        ("verl", {"RLSTEP_DIR": "/shared/rlstep"}),
        ("openrlhf", {"RLSTEP_DIR": "/shared/rlstep", "RAY_RUNTIME_ENV_HOOK": HOOK}),
        ("trl", {"RLSTEP_DIR": "/shared/rlstep", "PYTHONPATH": PATHS}),
    ],
)
def test_each_framework_gets_what_it_needs(framework: str, variables: dict[str, str]) -> None:
    assert needed(FOLDER, framework, {}) == variables
    assert as_given(said(framework=framework, RLSTEP_ON_FAIL="stop"))["env_vars"] == variables | {
        "RLSTEP_ON_FAIL": "stop"
    }


@pytest.mark.parametrize("joined", [True, False])
def test_an_environment_that_is_there_is_shown_merged(joined: bool) -> None:
    given = json.dumps({"working_dir": "s3://code.zip", "env_vars": {"A": "1"}})
    text = said(*([f"--runtime-env-json={given}"] if joined else ["--runtime-env-json", given]), framework="verl")
    assert "in place of its --runtime-env-json" in text
    assert as_given(text) == {"working_dir": "s3://code.zip", "env_vars": {"RLSTEP_DIR": "/shared/rlstep", "A": "1"}}


def test_a_file_is_read_and_shown_merged(tmp_path: Path) -> None:
    (tmp_path / "env.yaml").write_text("env_vars:\n  NCCL_DEBUG: WARN\n  PYTHONPATH: /code\n")
    text = said("--runtime-env", str(tmp_path / "env.yaml"))
    assert "in place of its --runtime-env:" in text
    variables = as_given(text)["env_vars"]
    assert variables == {"RLSTEP_DIR": "/shared/rlstep", "NCCL_DEBUG": "WARN", "PYTHONPATH": f"{SITE}:/code"}


@pytest.mark.parametrize(
    "option", ["--runtime-env=/not/here.yaml", "--runtime-env-json={not json", "--runtime-env-json=[1]"]
)
def test_an_environment_that_cannot_be_read_is_not_guessed(option: str) -> None:
    text = said(option, framework="verl")
    assert f'add to env_vars in {option.partition("=")[0]}:\n  {{"RLSTEP_DIR": "/shared/rlstep"}}' in text


def test_what_the_user_set_stays() -> None:
    complete = merged({"env_vars": {"RLSTEP_DIR": "/mine"}}, needed(FOLDER, "verl", {}))
    assert complete == {"env_vars": {"RLSTEP_DIR": "/mine"}}


@pytest.mark.parametrize("framework", ["verl", "openrlhf", ""])
def test_words_that_were_added_as_told_are_not_told_again(framework: str) -> None:
    option = shlex.split(next(line for line in said(framework=framework).splitlines() if line.startswith("  ")))
    assert said(*option, framework=framework) == ""


def test_a_wrapped_submission_is_seen() -> None:
    assert advice(["env", "A=1", "/opt/bin/ray", "job", "submit", *ENTRY], FOLDER, "", {})


def test_a_script_that_submits_is_told_what_to_add(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text('set -x\nray job \\\n  submit --runtime-env-json="$ENV" -- python train.py\n')
    text = advice(["bash", str(tmp_path / "train.sh")], FOLDER, "verl", {})
    assert 'add to env_vars in the script\'s `ray job submit`:\n  {"RLSTEP_DIR": "/shared/rlstep"}' in text


@pytest.mark.parametrize(
    "command", [["python", "train.py"], ["ray", "start"], ["python", "ray.py", "--", "ray", "job", "submit"], ["no.sh"]]
)
def test_other_commands_are_told_nothing(command: list[str]) -> None:
    assert advice(command, FOLDER, "verl", {}) == ""


def test_where_records_go_through_ray_no_disk_is_asked_for() -> None:
    assert "share /shared/rlstep (or record through Ray: RLSTEP_SINK=ray)" in said(framework="verl")
    through = said(framework="verl", RLSTEP_SINK="ray")
    assert as_given(through)["env_vars"] == {"RLSTEP_DIR": "/shared/rlstep", "RLSTEP_SINK": "ray"}
    assert "share" not in through.splitlines()[-1].replace("/shared", "")
    assert "on the machine of the run's controller" in through
