"""A script that changes a configuration before it runs a launch: the launch is read with the file as it is then, or asked about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.systems.plans.checkouts import schedule_of

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """per_device_train_batch_size: 8
num_generations: 8
learning_rate: 1e-6
max_steps: 100
"""
LAUNCH = "trl grpo --config configs/grpo.yaml --model_name_or_path m --dataset_name d\n"
NOT_KNOWN = "is written anew before it runs"


def sizes(folder: Path, script: str, launch: str = LAUNCH, **given: str) -> tuple[int | None, int | None]:
    """Samples of a prompt, and rollouts."""
    (folder / ".git").mkdir(exist_ok=True)
    (folder / "configs").mkdir(exist_ok=True)
    (folder / "configs/grpo.yaml").write_text(CONFIG)
    (folder / "run.sh").write_text(f"{script}\n{launch}")
    plan = plan_launch([str(folder / "run.sh")], Options(rows=1000, world_size=1, variables=given))
    assert (folder / "configs/grpo.yaml").read_text() == CONFIG  # it is read, and nothing is written
    schedule = schedule_of(plan)
    return schedule.samples_per_prompt, schedule.rollouts


@pytest.mark.parametrize(
    "script",
    [
        "sed -i 's/num_generations: 8/num_generations: 4/' configs/grpo.yaml",
        'N=4\nsed -i "s|num_generations: .*|num_generations: ${N}|" configs/grpo.yaml',
        "sed -i -e 's/generations: [0-9]*/generations: 2/' -e 's/generations: 2/generations: 4/g' configs/grpo.yaml",
        "sed -i.bak 's/num_generations: 8/num_generations: 4/' \"configs/grpo.yaml\"",
        "cd configs\nsed -i 's/num_generations: 8/num_generations: 4/' grpo.yaml\ncd ..",
        "yq -i '.num_generations = 4' configs/grpo.yaml",
        'N=4\nyq eval -i ".num_generations = ${N} | .max_grad_norm = 0.2" configs/grpo.yaml',
        "if true; then sed -i 's/num_generations: 8/num_generations: 4/' configs/grpo.yaml; fi",
    ],
)
def test_a_configuration_that_is_changed_in_place_is_read_as_it_is_then(tmp_path: Path, script: str) -> None:
    assert sizes(tmp_path, script) == (4, 100)


def test_what_is_changed_behind_the_launch_or_in_another_file_changes_nothing(tmp_path: Path) -> None:
    behind = LAUNCH + "sed -i 's/num_generations: 8/num_generations: 4/' configs/grpo.yaml\n"
    assert sizes(tmp_path, "true", behind) == (8, 100)
    (tmp_path / "configs").mkdir(exist_ok=True)
    (tmp_path / "configs/other.yaml").write_text(CONFIG)
    assert sizes(tmp_path, 'sed -i "s/num_generations: 8/num_generations: $M/" configs/other.yaml') == (8, 100)


@pytest.mark.parametrize(
    "script",
    [
        "sed -i 's/num_generations: 8/num_generations: 4/w out' configs/grpo.yaml",
        "sed -i '/num_generations/d' configs/grpo.yaml",
        'sed -i "s/num_generations: 8/num_generations: $M/" configs/grpo.yaml',
        "yq -i 'del(.num_generations)' configs/grpo.yaml",
        "yq -i '.[\"num_generations\"] = 4' configs/grpo.yaml",
        "python make.py > configs/grpo.yaml",
        'echo "num_generations: 4" >> configs/grpo.yaml',
        'if [ "$FAST" = 1 ]; then sed -i "s/num_generations: 8/num_generations: 4/" configs/grpo.yaml; fi',
        "cp $(find_it) configs/grpo.yaml",
    ],
)
def test_a_change_that_is_not_known_is_asked_about(tmp_path: Path, script: str) -> None:
    with pytest.raises(LaunchError, match=rf"configs/grpo\.yaml, which the launch reads, {NOT_KNOWN}"):
        sizes(tmp_path, script)


def test_a_branch_that_the_user_decides_decides(tmp_path: Path) -> None:
    script = 'if [ "$FAST" = 1 ]; then sed -i "s/num_generations: 8/num_generations: 4/" configs/grpo.yaml; fi'
    assert sizes(tmp_path, script, FAST="1") == (4, 100)
    assert sizes(tmp_path, script, FAST="0") == (8, 100)


COPY = LAUNCH.replace("configs/grpo.yaml", "{name}")


@pytest.mark.parametrize("name", ["configs/run.yaml", "/tmp/rlstep-run-of-a-test.yaml"])
def test_a_copy_that_is_changed_is_read(tmp_path: Path, name: str) -> None:
    script = f"cp configs/grpo.yaml {name}\nsed -i 's/num_generations: 8/num_generations: 4/' {name}"
    assert sizes(tmp_path, script, COPY.format(name=name)) == (4, 100)


def test_a_configuration_that_the_script_writes_is_read(tmp_path: Path) -> None:
    made = "cat > configs/made.yaml <<EOF\nper_device_train_batch_size: 8\nnum_generations: 2\nmax_steps: 7\nEOF"
    assert sizes(tmp_path, made, COPY.format(name="configs/made.yaml")) == (2, 7)
    more = "cat >> configs/grpo.yaml <<EOF\nsteps_per_generation: 2\nEOF"
    assert sizes(tmp_path, more) == (8, 50)  # 100 updates, two of a rollout
    over = made.replace("configs/made.yaml", "configs/grpo.yaml")
    assert sizes(tmp_path, over) == (2, 7)


def test_numbers_that_pyyaml_takes_for_texts_stay_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "c.yaml").write_text("data:\n  train_batch_size: 8\nactor:\n  lr: 1e-6  # kept\n  name: 'on'\n")
    from rlstep_hooks.launch.shell.rewrites import _given

    text = _given(".data.train_batch_size = 16", (tmp_path / "c.yaml").read_text())
    assert text == "data:\n  train_batch_size: 16\nactor:\n  lr: 1e-6\n  name: 'on'\n"
    assert _given(".data = 3", (tmp_path / "c.yaml").read_text()) is None


@pytest.mark.parametrize(
    ("change", "rollouts"), [("s/total_epochs: 2/total_epochs: 3/", 30), ("s/total_epochs: 2//p", 0)]
)
def test_the_configuration_of_a_checkout_is_read_as_it_is_then(tmp_path: Path, change: str, rollouts: int) -> None:
    config = """data:
  train_batch_size: 100
trainer:
  total_epochs: 2
  n_gpus_per_node: 2
algorithm:
  adv_estimator: grpo
actor_rollout_ref:
  actor:
    ppo_mini_batch_size: 100
    ppo_micro_batch_size_per_gpu: 5
  rollout:
    n: 4
    log_prob_micro_batch_size_per_gpu: 5
  ref:
    log_prob_micro_batch_size_per_gpu: 5
"""
    (tmp_path / ".git").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/own.yaml").write_text(config)
    launch = 'python3 -m verl.trainer.main_ppo --config-path="$PWD/configs" --config-name=own\n'
    (tmp_path / "run.sh").write_text(f"sed -i '{change}' configs/own.yaml\n{launch}")
    if not rollouts:
        with pytest.raises(LaunchError, match=NOT_KNOWN):
            plan_launch([str(tmp_path / "run.sh")], Options(rows=1000))
        return
    assert schedule_of(plan_launch([str(tmp_path / "run.sh")], Options(rows=1000))).rollouts == rollouts
