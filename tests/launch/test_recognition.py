"""Bare configurations: whose they are, and what is said of those that are not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launch_search import find_launch
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "text", "system"),
    [
        ("ppo.yaml", "stage: ppo\nper_device_train_batch_size: 1\n", "llamafactory"),
        ("grpo.yaml", "num_generations: 8\nper_device_train_batch_size: 1\n", "trl"),
        ("grpo.yaml", "rlhf_type: grpo\nnum_generations: 8\n", "swift"),
        ("grpo.yaml", "external_plugins: [reward.py]\nnum_generations: 8\n", "swift"),
        ("async.yaml", "orchestration: {num_training_workers: 2, num_steps: 250}\n", "torchtune"),
        ("grpo.yaml", "grpo_samples: 16\nbatch_size: 1\n", "torchtune"),
        ("grpo.yaml", "grpo: {num_prompts_per_step: 8}\n", "nemo_rl"),
        ("rlvr.yaml", "rollout_batch_size: 64\nnum_return_sequences_in_group: 8\n", "roll"),
        ("gsm8k.yaml", "gconfig: {n_samples: 4}\n", "areal"),
        ("ppo.yml", "method: {num_rollouts: 128}\n", "trlx"),
        ("rl.toml", "[orchestrator]\nbatch_size = 128\n", "prime_rl"),
        ("ppo.yaml", "actor_rollout_ref: {actor: {ppo_mini_batch_size: 256}}\n", "verl"),
    ],
)
def test_a_bare_configuration_is_recognised(name: str, text: str, system: str, tmp_path: Path) -> None:
    if name.endswith(".toml"):
        pytest.importorskip("tomllib", reason="Python 3.10 has no reader of TOML")
    (tmp_path / name).write_text(text)
    assert find_launch([str(tmp_path / name)], Options()).framework == system


@pytest.mark.parametrize("stage", ["sft", "dpo", "rm", "pt"])
def test_other_stages_are_no_reinforcement_learning(stage: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"stage: {stage}\nper_device_train_batch_size: 1\n")
    with pytest.raises(LaunchError, match="no framework is known"):
        find_launch([str(tmp_path / "c.yaml")], Options())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("orchestration: {num_training_workers: 2}\n", "another recipe"),
        ("rlhf_type: grpo\nglobal_batch_size: 16\nmicro_batch_size: 2\ntrain: {gpus: 4}\n", "for Ray"),
        ("external_plugins: [reward.py]\nnum_generations: 8\n", "does not say rlhf_type"),
        (
            "num_generations: 4\nbatch_size: 2\nnum_epochs: 1\n",
            "batch_size and num_epochs in this file are none of TRL's",
        ),
        ("num_generations: 4\ntraining: {batch_size: 2}\n", r"training\.batch_size in this file are none of TRL's"),
        ("rlhf_type: gkd\nnum_generations: 8\n", "only grpo is read"),
        ("num_generations: 8\n", "how many processes train; give --world-size"),
    ],
)
def test_what_is_not_read_is_said(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(LaunchError, match=reason):
        plan_launch([str(tmp_path / "c.yaml")], Options())


def test_the_names_of_megatron_are_those_of_megatron(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "rlhf_type: grpo\nnum_generations: 8\nmicro_batch_size: 2\nglobal_batch_size: 16\nsteps_per_generation: 4\ntrain_iters: 100\n"
    )
    schedule = plan_launch([str(tmp_path / "c.yaml")], Options(world_size=4)).schedule
    assert schedule is not None
    assert (schedule.samples_per_rollout, schedule.samples_per_update, schedule.updates_per_rollout) == (64, 16, 4)


def test_a_parent_that_only_comments_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "envs.yaml").write_text("# nothing yet\n")
    (tmp_path / "c.yaml").write_text("defaults: [envs@_here_, _self_]\nrollout_batch_size: 64\n")
    assert set(find_launch([str(tmp_path / "c.yaml")], Options(framework="roll")).given) == {"rollout_batch_size"}


def test_a_file_with_sizes_of_its_own_is_read_as_the_framework_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("num_generations: 4\nper_device_train_batch_size: 4\nbatch_size: 2\n")
    plan = plan_launch([str(path)], Options(framework="trl", world_size=1))
    assert plan.schedule is not None
    assert plan.schedule.samples_per_rollout == 4
    path.write_text("num_generations: 4\nper_device_train_batch_size: 4\neval_batch_size: 2\nsystem_prompt: x\n")
    assert plan_launch([str(path)], Options(world_size=1)).schedule is not None


@pytest.mark.parametrize("words", ["{path}", "trl grpo --config {path}"])
def test_pyyaml_keeps_the_last_of_a_key_that_occurs_twice(words: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("num_generations: 8\nper_device_train_batch_size: 8\nnum_generations: 4\n")
    plan = plan_launch(words.format(path=path).split(), Options(world_size=1))
    assert plan.schedule is not None
    assert plan.schedule.samples_per_prompt == 4
    assert any("num_generations occurs twice: 8 and 4" in note.text for note in plan.notes)


def test_a_key_that_occurs_twice_is_refused_where_omegaconf_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("gconfig:\n  n_samples: 8\n  n_samples: 4\nactor: {ppo_n_minibatches: 1}\n")
    with pytest.raises(LaunchError, match=r"gconfig\.n_samples occurs twice: 8 and 4"):
        plan_launch([str(path)], Options(world_size=1))


def test_a_setting_may_name_a_file_that_is_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("- name: search\n  _target_: mine.Agent\n")
    (tmp_path / "run.sh").write_text(
        "python3 -m mine.main_train actor_rollout_ref.rollout.agent.agent_loop_config_path=agent.yaml own.size=1\n"
    )
    with pytest.raises(LaunchError, match="none of these starts a known trainer"):
        plan_launch([str(tmp_path / "run.sh")], Options())


HEAD_ALONE = """HEAD=0
if [ "${RANK:-}" = "0" ]; then HEAD=1; fi
# python3 -m verl.trainer.main_ppo trains on the first node
echo "python -m verl.trainer.main_ppo"
if [ "$HEAD" = "1" ]; then
  PYTHONUNBUFFERED=1 python3 -u -m verl.trainer.main_ppo data.train_batch_size=8
fi
sleep 1
"""


def test_a_program_that_a_script_does_not_come_to_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(HEAD_ALONE)
    with pytest.raises(LaunchError, match=r"line 6 starts verl\.trainer\.main_ppo, but .* --set NAME=VALUE"):
        plan_launch([str(tmp_path / "run.sh")], Options())
    found = find_launch([str(tmp_path / "run.sh")], Options(variables={"RANK": "0"}))
    assert (found.framework, found.command.place.line) == ("verl", 6)
