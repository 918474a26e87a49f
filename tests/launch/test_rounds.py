"""Commands that a script runs several times: all runs have one schedule, or the user says which one is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch, reading_of

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = (
    "python3 -m verl.trainer.main_ppo data.train_batch_size=$size trainer.experiment_name=$name data.train_files=$name.parquet "
    "actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 actor_rollout_ref.rollout.n=8 "
    "algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8 trainer.total_epochs=1"
)
NAMES = "size=8\nfor name in one two three; do\n{command}\ndone\n"
SIZES = "name=one\nfor size in 8 16 32; do\n{command}\ndone\n"
NESTED = "run() {{\n{command}\n}}\nfor name in one two; do\nfor size in 8 16; do\nrun\ndone\ndone\n"
CALLS = "run() {{\nsize=$1 name=one\n{command}\n}}\nrun 8\nrun 16\n"


def planned(folder: Path, script: str, **variables: str) -> Plan:
    (folder / "run.sh").write_text(script.format(command=COMMAND))
    return plan_launch([str(folder / "run.sh")], Options(rows=100, variables=variables))


def prompts(plan: Plan) -> object:
    assert plan.schedule is not None
    return plan.schedule.prompts_per_rollout


def test_runs_of_one_schedule_are_one_plan(tmp_path: Path) -> None:
    plan = planned(tmp_path, NAMES)
    assert prompts(plan) == 8
    said = "the command runs 3 times, each with as many rows as --rows says; each of these runs has this schedule"
    assert said in [note.text for note in plan.notes]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (SIZES, r"runs 3 times in a loop, with different settings \(data.train_batch_size\); --set size=8 plans the first"),
        (NESTED, r"runs 4 times in a loop, with different settings .*; --set name=one --set size=8 plans the first"),
        (CALLS, r"runs 2 times, with different settings .*; give the command of one of these runs as it is run"),
    ],
)  # fmt: skip
def test_runs_of_several_schedules_are_asked_about(tmp_path: Path, script: str, says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, script)
    with pytest.raises(LaunchError, match=says):
        reading_of([str(tmp_path / "run.sh")], Options(rows=100))


@pytest.mark.parametrize(("script", "more"), [(SIZES, {}), (NESTED, {"name": "two"})])
def test_the_word_that_the_user_gives_is_the_round_that_is_planned(
    tmp_path: Path, script: str, more: dict[str, str]
) -> None:
    plan = planned(tmp_path, script, size="16", **more)
    assert prompts(plan) == 16
    assert not any("times" in note.text for note in plan.notes)


def test_a_word_that_a_loop_does_not_have_chooses_none_of_its_rounds(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="runs 3 times in a loop"):
        planned(tmp_path, SIZES, size="64")
