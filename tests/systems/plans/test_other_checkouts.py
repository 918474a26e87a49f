"""Launches in a checkout of SkyRL, of slime or of a fork of them: the loop of its own trainer is read."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

SKYRL = """
class RayPPOTrainer:
    {asynchronous}def train(self):
        for epoch in range(start_epoch, self.cfg.trainer.epochs):
            for _, rand_prompts in enumerate(self.train_dataloader):
                with Timer("step"):
                    if self.cfg.trainer.algorithm.dynamic_sampling.type is not None:
                        output, uids, keep_sampling = self.handle_dynamic_sampling(output, uids)
                        if keep_sampling:
                            continue
{before}
                    status = self.train_critic_and_policy(training_input)
                self.global_step += 1
                if self.cfg.trainer.{limit} is not None and self.global_step > self.cfg.trainer.{limit}:
                    stop_training = True
                    break
            if stop_training:
                break
"""
LAUNCH = (
    "python -m {package}.entrypoints.main_base trainer.train_batch_size=64 trainer.policy_mini_batch_size=64 trainer.epochs=2 "
    "generator.n_samples_per_prompt=4 trainer.placement.policy_num_gpus_per_node=4 {more}"
)


def in_skyrl(
    folder: Path,
    *,
    package: str = "skyrl.train",
    before: str = "pass",
    limit: str = "max_training_steps",
    asynchronous: str = "async ",
    more: str = "",
    **options: object,
) -> Plan:
    """The plan of a script in a checkout of SkyRL, for 1 000 rows: 15 rollouts in each of two passes."""
    (folder / ".git").mkdir()
    source = folder / "skyrl-train" / package.replace(".", "/")
    source.mkdir(parents=True)
    inner = textwrap.indent(before, " " * 20)
    (source / "trainer.py").write_text(SKYRL.format(before=inner, limit=limit, asynchronous=asynchronous))
    (folder / "train.sh").write_text(LAUNCH.format(package=package, more=more) + "\n")
    return plan_launch([str(folder / "train.sh")], Options(rows=1000, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(("package", "asynchronous"), [("skyrl.train", "async "), ("skyrl_train", "")])
def test_skyrls_own_trainer_is_planned(tmp_path: Path, package: str, asynchronous: str) -> None:
    plan = in_skyrl(tmp_path, package=package, asynchronous=asynchronous)
    assert plan.schedule is not None
    assert plan.schedule.rollouts == 30
    assert any("was read" in note.text and "trainer.py:3" in note.text for note in plan.notes)


def test_a_line_that_may_leave_rollouts_of_skyrl_out_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"continue within a rollout, if stale .*--version"):
        in_skyrl(tmp_path, before="if stale:\n    continue")


def test_a_limit_that_the_trainer_beside_the_launch_does_not_read_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"nothing reads trainer.max_training_steps"):
        in_skyrl(
            tmp_path, limit="limit_of_its_own", before="pass  # stop_training", more="trainer.max_training_steps=5"
        )


def test_a_commit_that_the_user_names_is_taken_at_his_word(tmp_path: Path) -> None:
    plan = in_skyrl(tmp_path, before="if stale:\n    continue", version="a956457")
    assert plan.schedule is not None
    assert plan.schedule.rollouts == 30


SLIME = """
def train(args):
    actor_model.update_weights()
    for rollout_id in range({over}):
        data = ray.get(rollout_manager.generate.remote(rollout_id))
        if args.use_critic:
            values = critic_model.async_train(rollout_id, data)
            if rollout_id >= args.num_critic_only_steps:
                ray.get(actor_model.async_train(rollout_id, data))
        else:
            ray.get(actor_model.async_train(rollout_id, data))
        if args.debug_exit_after_rollout is not None and rollout_id > args.debug_exit_after_rollout:
            break
{after}
"""
OF_SLIME = (
    "python3 {program} --rollout-batch-size 32 --n-samples-per-prompt 8 --num-rollout 100 --global-batch-size 256 "
)


def in_slime(
    folder: Path,
    *,
    over: str = "args.start_rollout_id, args.num_rollout",
    after: str = "",
    more: str = "",
    name: str = "train.py",
) -> Plan:
    """The plan of a script in a checkout of slime."""
    (folder / ".git").mkdir()
    (folder / "scripts").mkdir()
    (folder / name).write_text(SLIME.format(over=over, after=textwrap.indent(after, " " * 8)))
    (folder / "scripts/run.sh").write_text(OF_SLIME.format(program=name) + f"--actor-num-gpus-per-node 8 {more}\n")
    return plan_launch([str(folder / "scripts/run.sh")], Options(rows=1000))


@pytest.mark.parametrize("name", ["train.py", "train_async.py"])
def test_slimes_own_program_is_planned(tmp_path: Path, name: str) -> None:
    plan = in_slime(tmp_path, name=name)
    assert plan.schedule is not None
    assert plan.schedule.rollouts == 100
    assert any("was read" in note.text and f"{name}:2" in note.text for note in plan.notes)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"over": "args.num_steps"}, "the loop over rollouts is another one"),
        ({"after": "if reward > args.enough:\n    break"}, "break within a rollout, if reward > args.enough"),
        ({"more": "--debug-exit-after-rollout 5"}, "break within a rollout"),
    ],
)
def test_a_line_that_may_end_a_run_of_slime_is_asked_about(tmp_path: Path, changed: dict[str, str], says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        in_slime(tmp_path, **changed)
