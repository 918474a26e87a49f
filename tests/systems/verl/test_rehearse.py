"""`rlstep rehearse` of verl: a broken launch is caught, nothing is left. One that is proved takes minutes: tests/rehearsals."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.rehearse.messages import VARIABLE
from tests.rehearsals.verl import BROKEN, Broken
from tests.systems.processes import inheriting

if TYPE_CHECKING:
    from pathlib import Path


def rehearse(folder: Path, launch: Broken) -> subprocess.CompletedProcess[str]:
    temporary, here = folder / "tmp", folder / "here"
    temporary.mkdir()
    here.mkdir()
    words = [sys.executable, *launch.write(here)[1:]]
    before = sorted(here.iterdir())
    command = [sys.executable, "-m", "rlstep_hooks", "rehearse", "--json", *launch.options, "--", *words]
    variables = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run(command, cwd=here, env=variables, capture_output=True, text=True, timeout=600)
    assert sorted(here.iterdir()) == before
    assert not list(temporary.iterdir())
    assert not inheriting(VARIABLE, str(temporary))
    return done


@pytest.mark.parametrize("name", ["a file without the reward function"])
def test_a_broken_launch_is_caught(tmp_path: Path, name: str) -> None:
    done = rehearse(tmp_path, BROKEN[name])
    assert done.returncode == BROKEN[name].status, done.stdout + done.stderr
    assert BROKEN[name].said in done.stdout
