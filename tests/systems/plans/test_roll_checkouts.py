"""Launches in a checkout of ROLL or of a fork: the pipeline that the program runs says how long it goes on."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.systems.plans.checkouts import in_checkout, schedule_of, write

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.launched import Plan

ROLL_CONFIG = """
max_steps: 500
rollout_batch_size: 64
num_return_sequences_in_group: 8
adv_estimator: "reinforce"
init_kl_coef: 0.0
actor_train:
  training_args: {per_device_train_batch_size: 1, gradient_accumulation_steps: 32, num_train_epochs: 3}
  strategy_args: {strategy_name: megatron_train}
  device_mapping: list(range(0,16))
"""
CONFIG = """
class RLVRConfig(PPOConfig):
    enough: float = field(default=0.0)
    save_steps: int = field(default=7)
    init_kl_coef: float = field(default=0.3)
"""
PROGRAM = "from roll.pipeline.rlvr.own_pipeline import OwnPipeline\nOwnPipeline(pipeline_config=config).run()\n"
BY_NAME = """
pipeline_cls = getattr(cfg, "pipeline_cls", "roll.pipeline.rlvr.own_pipeline.OwnPipeline")
safe_import_class(pipeline_cls)(pipeline_config=config).run()
"""
BY_STEPS = """
class OwnPipeline(BasePipeline):
    def __init__(self, pipeline_config):
        self.pipeline_config.set_max_steps(max_steps=self.pipeline_config.max_steps)

    def run(self):
        for global_step in range(self.pipeline_config.max_steps):
            if global_step <= self.state.step:
                global_step += 1
                continue
            with Timer(name="old") as timer:
{old}
            self.actor_train.train_step(batch, blocking=False)
{after}
"""
BY_EPOCHS = """
def get_dataloader(dataset, batch_size):
    return DataLoader(dataset=dataset, batch_size=batch_size, shuffle=True, drop_last=True)

class OwnPipeline(BasePipeline):
    def __init__(self, pipeline_config):
        self.dataloader = get_dataloader(dataset, self.pipeline_config.rollout_batch_size)
        max_steps = len(self.dataloader) * self.pipeline_config.actor_train.training_args.num_train_epochs
        self.pipeline_config.set_max_steps(max_steps=max_steps)

    def run(self):
        for epoch in range(int(self.pipeline_config.actor_train.training_args.num_train_epochs)):
            for batch_dict in tqdm(self.dataloader):
                batch.batch["old_log_probs"] = old_log_probs.batch["log_probs"]
                self.actor_train.train_step(batch, blocking=False)
"""
ALWAYS = 'batch.batch["old_log_probs"] = old_log_probs.batch["log_probs"]'
IF_ASKED = f"if self.pipeline_config.enable_old_logprobs_recompute:\n    {ALWAYS}"
EARLY_STOP = "threshold = self.pipeline_config.{name}\nif threshold > 0 and deviation < threshold:\n    break"


def in_roll(
    folder: Path,
    *,
    pipeline: str = BY_STEPS,
    program: str = PROGRAM,
    name: str = "start_rlvr_pipeline.py",
    old: str = ALWAYS,
    after: str = "pass",
    config: str = "",
    **options: object,
) -> Plan:
    """The plan of a launch in a checkout of ROLL with a pipeline of its own."""
    lines = textwrap.indent(old, " " * 16), textwrap.indent(after, " " * 12)
    source = pipeline.format(old=lines[0], after=lines[1]) if pipeline is BY_STEPS else pipeline
    files = {
        "roll/pipeline/base_pipeline.py": "",
        "roll/pipeline/rlvr/own_pipeline.py": source,
        "roll/pipeline/rlvr/rlvr_config.py": CONFIG,
        f"examples/{name}": program,
        "examples/rlvr/config.yaml": ROLL_CONFIG + config,
    }
    launch = f"python examples/{name} --config_path rlvr --config_name config\n"
    return in_checkout(folder, files, launch, **options)


def test_a_pipeline_of_roll_that_goes_over_epochs_is_planned_by_its_epochs(tmp_path: Path) -> None:
    plan = in_roll(tmp_path, pipeline=BY_EPOCHS, name="start_rlvr_vlmath_pipeline.py")
    schedule = schedule_of(plan)
    assert (schedule.rollouts_per_epoch, schedule.rollouts, schedule.updates) == (15, 45, 45)
    assert (schedule.rows_dropped_per_epoch, schedule.old_logprob_source) == (40, "recompute")
    assert any("whatever max_steps says" in note.text and "own_pipeline.py:" in note.text for note in plan.notes)


@pytest.mark.parametrize(
    ("scripts", "rollouts"),
    [
        ({"run.sh": "python examples/start_rlvr_vlmath_pipeline.py --config_path rlvr --config_name config"}, 45),
        ({"run.sh": "python examples/start_rlvr_vlmath_pipeline.py --config_path rlvr --config_name other"}, 45),
        ({"run.sh": "python examples/nothing_here.py --config_name config"}, 500),
        (
            {
                "own.sh": "python examples/start_rlvr_vlmath_pipeline.py --config_name=config",
                "others.sh": "python examples/by_steps.py --config_name other",
            },
            45,
        ),
        (
            {
                "one.sh": "python examples/start_rlvr_vlmath_pipeline.py --config_name other",
                "another.sh": "python examples/by_steps.py --config_name other",
            },
            500,
        ),
    ],
)
def test_a_configuration_of_roll_alone_runs_with_the_program_that_scripts_beside_it_start(
    tmp_path: Path, scripts: dict[str, str], rollouts: int
) -> None:
    files = {
        ".git/HEAD": "",
        "roll/pipeline/base_pipeline.py": "",
        "roll/pipeline/rlvr/own_pipeline.py": BY_EPOCHS,
        "roll/pipeline/rlvr/rlvr_config.py": CONFIG,
        "examples/start_rlvr_vlmath_pipeline.py": PROGRAM,
        "examples/by_steps.py": "",
        "examples/rlvr/config.yaml": ROLL_CONFIG,
        "examples/rlvr/other.yaml": "",
        **{f"examples/rlvr/{name}": text for name, text in scripts.items()},
    }
    write(tmp_path, files)
    plan = plan_launch([str(tmp_path / "examples/rlvr/config.yaml")], Options(rows=1000))
    assert schedule_of(plan).rollouts == rollouts
    assert any("starts start_rlvr_vlmath_pipeline.py" in note.text for note in plan.notes) is (rollouts == 45)


def test_another_program_of_roll_that_is_not_here_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(ROLL_CONFIG)
    launch = f"python start_rlvr_vlmath_pipeline.py --config_path {tmp_path} --config_name config"
    with pytest.raises(LaunchError, match=r"start_rlvr_vlmath_pipeline\.py is another pipeline"):
        plan_launch(launch.split(), Options(rows=1000))


@pytest.mark.parametrize(("old", "source"), [(ALWAYS, "recompute"), (IF_ASKED, "detach")])
def test_where_roll_takes_old_log_probs_from_is_read(tmp_path: Path, old: str, source: str) -> None:
    assert schedule_of(in_roll(tmp_path, old=old)).old_logprob_source == source


def test_the_pipeline_says_what_it_samples_and_not_the_name_of_the_program(tmp_path: Path) -> None:
    assert schedule_of(in_roll(tmp_path, name="start_agentic_pipeline.py")).samples_per_prompt == 8


@pytest.mark.parametrize("program", [PROGRAM, BY_NAME])
def test_a_program_may_name_its_pipeline_in_a_text(tmp_path: Path, program: str) -> None:
    plan = in_roll(tmp_path, program=program)
    assert schedule_of(plan).rollouts == 500
    assert any("OwnPipeline beside the launch was read" in note.text for note in plan.notes)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"program": PROGRAM + "from roll.pipeline.rlvr.own_pipeline import AnyPipeline\n"}, "names 2 pipelines"),
        ({"config": "pipeline_cls: mine.OtherPipeline\n"}, r"the pipeline mine\.OtherPipeline is not in it"),
        ({"pipeline": "class OwnPipeline(RLVRPipeline):\n    x = 1\n"}, "OwnPipeline has no run of its own"),
        ({"pipeline": BY_EPOCHS.replace("drop_last=True", "x=1")}, "its run goes over range"),
        (
            {"pipeline": BY_EPOCHS + "            if enough:\n                break\n"},
            "break within a rollout, if enough",
        ),
        ({"old": "pass"}, "where its old log-probs come from was not found"),
        ({"old": IF_ASKED.replace("enable_old_logprobs_recompute", "mine")}, "old log-probs are computed if"),
        (
            {"after": "if reward > enough:\n    break"},
            "break within a rollout, if reward > enough .*own_pipeline.py:15",
        ),
        ({"after": EARLY_STOP.format(name="other")}, r"break within a rollout, if self\.pipeline_config\.other > 0"),
        ({"after": EARLY_STOP.format(name="enough"), "config": "enough: 0.1\n"}, "break within a rollout"),
    ],
)
def test_a_line_that_may_decide_a_run_of_roll_is_asked_about(
    tmp_path: Path, changed: dict[str, str], says: str
) -> None:
    with pytest.raises(LaunchError, match=f"{says}.*--version 8eb27cc"):
        in_roll(tmp_path, **changed)


def test_a_rollout_of_which_the_masks_leave_nothing_is_said_to_be_left_out(tmp_path: Path) -> None:
    skips = "if batch.batch['final_response_mask'].sum() == 0:\n    self.do_checkpoint(step)\n    continue"
    plan = in_roll(tmp_path, after=skips)
    assert schedule_of(plan).rollouts == 500
    assert any(note.kind == "drops" and "own_pipeline.py:16" in note.text for note in plan.notes)


def test_an_end_that_the_defaults_of_the_checkout_turn_off_is_none(tmp_path: Path) -> None:
    assert schedule_of(in_roll(tmp_path, after=EARLY_STOP.format(name="enough"))).rollouts == 500


def test_the_defaults_of_rolls_own_configuration_are_taken(tmp_path: Path) -> None:
    said = [note.text for note in in_roll(tmp_path).notes if "defaults of the source" in note.text]
    # The launch itself gives the other one.
    assert said == [
        "the defaults of the source beside the launch: save_steps = 7 (roll/pipeline/rlvr/rlvr_config.py:4)"
    ]


def test_a_commit_of_roll_that_the_user_names_is_taken_at_his_word(tmp_path: Path) -> None:
    assert schedule_of(in_roll(tmp_path, pipeline=BY_EPOCHS, version="8eb27cc")).rollouts == 500
