"""`rlstep rehearse` of OpenRLHF: a broken launch is caught, nothing is left. One that is proved takes minutes: tests/rehearsals."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.rehearsals.openrlhf import BROKEN, Launch

if TYPE_CHECKING:
    from pathlib import Path


def rehearse(folder: Path, launch: Launch) -> subprocess.CompletedProcess[str]:
    temporary, here = folder / "t", folder / "here"
    temporary.mkdir()
    here.mkdir()
    words = launch.write(here)
    before = sorted(here.iterdir())
    command = [sys.executable, "-m", "rlstep_hooks", "rehearse", "--json", *launch.options, "--", *words]
    variables = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run(command, cwd=here, env=variables, capture_output=True, text=True, timeout=900)
    assert sorted(here.iterdir()) == before
    assert not list(temporary.iterdir())
    return done


def test_a_reward_file_that_is_not_here_ends_it_before_ray_starts(tmp_path: Path) -> None:
    launch = BROKEN["no such reward file"]
    done = rehearse(tmp_path, launch)
    assert (done.returncode, launch.said in done.stdout) == (launch.status, True), done.stdout + done.stderr
