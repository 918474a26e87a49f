"""`rlstep rehearse` of verl, as far as it needs no framework: its sizes, what it refuses, and what only a shell would know."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlstep_hooks.cli.rehearse.command import runnable
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.verl.rehearse.sizes import Sizes, pieces, shrink


def sizes(prompts: int, group: int, minibatch: int, critic: int | None = None) -> Sizes:
    return Sizes(prompts=prompts, group=group, minibatch=minibatch, critic=critic)


def test_a_rollout_in_parts_is_filled_up_part_by_part() -> None:
    real = Sizes(prompts=64, group=4, minibatch=16, critic=12, parts=4)
    assert (real.part, real.filled) == (192, 768)
    small = shrink(real, seconds=5, passes=1).sizes
    assert (small.parts, small.prompts // small.minibatch) == (4, 4)


@pytest.mark.parametrize(
    "real",
    [sizes(1024, 8, 256), sizes(512, 16, 32), sizes(1024, 1, 256, 256), sizes(96, 5, 24, 48), sizes(64, 5, 64)],
)
def test_sizes_are_divided_so_that_ratios_stay(real: Sizes) -> None:
    small = shrink(real, seconds=5, passes=1).sizes
    assert small.samples < real.samples
    assert small.prompts * real.minibatch == real.prompts * small.minibatch
    assert small.filled * real.minibatch * real.group == real.filled * small.minibatch * small.group
    if real.critic:
        assert small.critic
        assert small.prompts * real.critic == real.prompts * small.critic
    assert small.group >= min(2, real.group)


def test_sizes_that_are_filled_up_stay_filled_up() -> None:
    real = sizes(8, 2, 3)
    assert real.filled == 18
    assert shrink(real, seconds=1, passes=1).sizes.minibatch == 3


def test_micro_batches_come_out_even() -> None:
    assert pieces(32, 4) == 8
    assert pieces(32, 5) == 8
    assert pieces(6, 64) == 1


def test_a_name_that_only_a_shell_knows_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text(
        "python3 -m verl.trainer.main_ppo data.train_batch_size=8 trainer.experiment_name=$(date) actor_rollout_ref.rollout.n=2\n"
    )
    command = runnable(["bash", "train.sh"], Options())
    assert command.arguments[1:] == (
        "-m",
        "verl.trainer.main_ppo",
        "data.train_batch_size=8",
        "actor_rollout_ref.rollout.n=2",
    )


def test_a_program_with_engines_elsewhere_is_said() -> None:
    words = ["python3", "-m", "verl.experimental.one_step_off_policy.main_ppo", "data.train_batch_size=8"]
    with pytest.raises(LaunchError, match=r"only verl.trainer.main_ppo runs in one process"):
        runnable(words, Options())
