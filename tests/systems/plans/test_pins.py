"""A launch in a checkout that pins its framework is planned for that release."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

GRPO = """
from trl import GRPOConfig, GRPOTrainer
config = GRPOConfig(
    {more}output_dir="x", per_device_train_batch_size=6, num_generations=6, gradient_accumulation_steps=4, max_steps=500
)
GRPOTrainer(model="m", args=config, train_dataset=data, reward_funcs=[reward]).train()
"""
URL = "git+https://github.com/huggingface/trl.git"


def planned(folder: Path, pin: str, *, more: str = "", **options: object) -> Plan:
    """The plan of a launch of GRPO on 3 processes, where the checkout's requirements are these."""
    (folder / ".git").mkdir()
    (folder / "requirements.txt").write_text(f"{pin}\n")
    (folder / "train.py").write_text(GRPO.format(more=more))
    return plan_launch([str(folder / "train.py")], Options(rows=7000, world_size=3, **options))  # type: ignore[arg-type]


def sizes(plan: Plan) -> tuple[str, int, int | None, int | None]:
    assert plan.schedule is not None
    return plan.version, int(plan.schedule.prompts_per_rollout), plan.schedule.rollouts, plan.schedule.updates


# Until 0.16 each micro-batch is a rollout (grpo_trainer.py _prepare_inputs): 3 prompts of 6 samples, and 4 rollouts for each update.
# Later one rollout is generated for all micro-batches of an update: 12 prompts.
@pytest.mark.parametrize(
    ("pin", "found"),
    [
        ("", ("1.16.0", 12, 500, 500)),
        ("trl", ("1.16.0", 12, 500, 500)),
        ("trl>=0.14", ("1.16.0", 12, 500, 500)),
        ("trl==0.15.2", ("0.15.2", 3, 2000, 500)),
        ("trl<0.17", ("0.16.1", 3, 2000, 500)),
        ("trl==0.20.0", ("0.20.0", 12, 500, 500)),
        # open-rs: between 0.15.2 and 0.16.0, and like the latter.
        (f"trl @ {URL}@69ad852e5654a77f1695eb4c608906fe0c7e8624", ("0.16.0", 3, 2000, 500)),
        (f"{URL}@69ad852", ("0.16.0", 3, 2000, 500)),
        (f"{URL}@v0.16.1", ("0.16.1", 3, 2000, 500)),
        (f"{URL}@main", ("1.16.0", 12, 500, 500)),
    ],
)
def test_the_release_is_the_one_that_the_checkout_installs(
    tmp_path: Path, pin: str, found: tuple[str, int, int, int]
) -> None:
    assert sizes(planned(tmp_path, pin)) == found


def test_the_note_says_where_the_pin_is(tmp_path: Path) -> None:
    plan = planned(tmp_path, "trl==0.15.2")
    assert any("==0.15.2" in note.text and "requirements.txt:1" in note.text for note in plan.notes)


def test_a_release_that_the_user_names_comes_before_a_pin(tmp_path: Path) -> None:
    assert sizes(planned(tmp_path, "trl==0.15.2", version="0.20.0")) == ("0.20.0", 12, 500, 500)


@pytest.mark.parametrize(
    ("pin", "says"),
    [
        (f"{URL}@0123456789abcdef", "not known"),
        ("git+https://github.com/somebody/trl.git@main", "not known"),
        (f"{URL}@some-branch", "not known"),
        ("trl==0.7.1", "not known"),
        ("trl==7.0", "not known"),
        ("trl>=7.0", "not known"),  # no release that is known is in the range
        ("trl<0.5", "not known"),
        # Between 0.16.1 and 0.17.0 the rollout grew to all micro-batches of an update.
        (f"{URL}@1bca49515ecd5b85d16e68c42c76670e252e19f1", "plan this launch differently"),
        ("trl==0.15.2\ntrl==0.20.0", "plan this launch differently"),
    ],
)
def test_where_the_pin_does_not_say_how_long_the_run_is_the_user_is_asked(tmp_path: Path, pin: str, says: str) -> None:
    with pytest.raises(LaunchError, match=rf"{says}.*--version"):
        planned(tmp_path, pin)


def test_two_releases_that_plan_the_launch_alike_are_not_asked_about(tmp_path: Path) -> None:
    assert sizes(planned(tmp_path, "trl==1.2.0\ntrl==1.3.0")) == ("1.3.0", 12, 500, 500)


def test_a_pin_that_the_settings_contradict_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"installs TRL ==0.15.2 .* does not have the settings .*--version"):
        planned(tmp_path, "trl==0.15.2", more="steps_per_generation=4, ")


def test_settings_say_more_than_a_range(tmp_path: Path) -> None:
    assert planned(tmp_path, "trl<0.17", more="steps_per_generation=4, ").version == "1.16.0"


def test_verl_in_a_checkout_that_only_installs_it(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text("verl==0.4.1\n")
    launch = (
        "python3 -m verl.trainer.main_ppo data.train_batch_size=100 actor_rollout_ref.rollout.n=4 "
        "algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_mini_batch_size=100 "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=5 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=5 "
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=5 trainer.n_gpus_per_node=2 trainer.total_epochs=2"
    )
    (tmp_path / "train.sh").write_text(launch + "\n")
    assert plan_launch([str(tmp_path / "train.sh")], Options(rows=1050)).version == "0.4.1"


def test_a_system_without_a_list_of_settings_keeps_its_release_where_the_range_has_it(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text("trl>=1.0,<1.17\n")
    launch = "python -m trl.experimental.async_grpo --max_steps 5 --max_staleness 2 --per_device_train_batch_size 2"
    (tmp_path / "train.sh").write_text(launch + "\n")
    options = Options(rows=100, world_size=1, framework="trl_async")
    assert plan_launch([str(tmp_path / "train.sh")], options).version == "1.16.0"


def test_a_checkout_of_the_framework_itself_runs_itself_and_not_what_its_images_install(tmp_path: Path) -> None:
    (tmp_path / "src/trl/trainer").mkdir(parents=True)
    (tmp_path / "src/trl/__init__.py").write_text("")
    assert planned(tmp_path, "trl==0.15.2").version == "1.16.0"


def test_a_folder_of_the_frameworks_name_is_no_checkout_of_it(tmp_path: Path) -> None:
    (tmp_path / "mine/integrations/trl").mkdir(parents=True)
    (tmp_path / "mine/integrations/trl/__init__.py").write_text("")
    assert planned(tmp_path, "trl==0.15.2").version == "0.15.2"


def test_a_file_alone_may_have_settings_of_a_scripts_own(tmp_path: Path) -> None:
    """`reward_funcs` is one of open-r1's script, and of `trl grpo` since 0.18; the checkout installs 0.15.2 all the same."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text("trl==0.15.2\n")
    config = "per_device_train_batch_size: 6\nnum_generations: 6\nmax_steps: 500\nreward_funcs: [accuracy]\nvllm_device: auto\n"
    (tmp_path / "grpo.yaml").write_text(config)
    assert plan_launch([str(tmp_path / "grpo.yaml")], Options(rows=7000, world_size=3)).version == "0.15.2"
