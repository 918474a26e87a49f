"""`rlstep rehearse` with launches of OpenRLHF, as far as it needs no framework: sizes, and what is refused before anything starts."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.cli.rehearse.parts import Part
from rlstep_hooks.systems.openrlhf.rehearse.sizes import Sizes, rollouts_for, shrink
from tests.rehearsals.openrlhf import BROKEN

if TYPE_CHECKING:
    from pathlib import Path


def sizes(batch: int, group: int, update: int, microbatch: int, *, generated: int = 0, dynamic: bool = False) -> Sizes:
    return Sizes(
        batch=batch,
        generated=generated or batch,
        group=group,
        update=update,
        microbatch=microbatch,
        piece=microbatch,
        dynamic=dynamic,
    )


REAL = [
    sizes(1024, 1, 128, 64),
    sizes(128, 8, 128, 64),
    sizes(128, 8, 1024, 2, dynamic=True),
    sizes(512, 16, 1024, 8, dynamic=True),
    sizes(256, 8, 512, 8),
    sizes(100, 6, 48, 16),
    sizes(128, 8, 128, 64, generated=256),
]


@pytest.mark.parametrize("real", REAL)
def test_sizes_are_divided_so_that_ratios_and_remainders_stay(real: Sizes) -> None:
    found = shrink(real, seconds=5, rollouts=4)
    small = found.sizes
    assert found.factor > 1
    assert small.samples * found.factor == real.samples
    assert small.update * found.factor == real.update
    assert small.generated * real.batch == real.generated * small.batch
    assert small.group >= min(2, real.group)
    if found.exact and not real.dynamic:
        assert small.microbatch * found.factor == real.microbatch
    elif not real.dynamic:
        assert small.update % small.microbatch == 0
        assert small.samples % small.microbatch == 0


def test_sizes_that_fit_stay() -> None:
    real = sizes(8, 2, 8, 4)
    found = shrink(real, seconds=30, rollouts=rollouts_for(real))
    assert (found.factor, found.sizes) == (1, real)


def test_an_update_of_several_rollouts_is_seen_three_times() -> None:
    assert rollouts_for(sizes(8, 2, 64, 4)) == 12


def test_sizes_that_are_refused_start_nothing(tmp_path: Path) -> None:
    launch = BROKEN["sizes that DeepSpeed refuses"]
    command = [sys.executable, "-m", "rlstep_hooks", "rehearse", "--", *launch.write(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, launch.said in done.stdout) == (launch.status, True), done.stdout + done.stderr


def test_the_program_of_early_releases_says_why_it_cannot_be_rehearsed(tmp_path: Path) -> None:
    words = ["python", "-m", "openrlhf.cli.train_ppo", "--rollout_batch_size", "8", "--train_batch_size", "8"]
    command = [sys.executable, "-m", "rlstep_hooks", "rehearse", "--", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "it cannot be rehearsed: openrlhf.cli.train_ppo" in done.stderr


def test_the_last_line_is_the_scripts_own() -> None:
    worker = "\x1b[36m(PPOTrainer pid=4711)\x1b[0m it goes on"
    assert Part(status=1, said=[], output=["Traceback", "KeyError: 'answer'", worker]).last == "KeyError: 'answer'"
    assert Part(status=1, said=[], output=[worker]).last == worker
    assert Part(status=1, said=[], output=[]).last == ""
