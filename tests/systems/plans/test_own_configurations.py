"""The configuration of the program beside a launch, wherever the program says that it lies: Hydra refuses what it does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.systems.plans.checkouts import in_checkout, schedule_of, write
from tests.systems.plans.test_verl_checkouts import COMPARED_THEN_COUNTED, trainer

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.launched import Plan

CONFIG = {
    "train/skyrl_train/config/base.yaml": (
        "defaults:\n  - _self_\n  - parallel@trainer.policy.parallel: policy\n  - gym: default\n"
        "trainer:\n  epochs: 1\n  train_batch_size: 64\n  policy_mini_batch_size: 64\n  extra: {}\n"
        "  placement: {policy_num_gpus_per_node: 4}\ngenerator:\n  n_samples_per_prompt: 4\n"
    ),
    "train/skyrl_train/config/parallel/policy.yaml": "# @package parallel.policy\nsize: 1\n",
    "train/skyrl_train/config/parallel/wide.yaml": "size: 4\n",
    "train/skyrl_train/config/gym/default.yaml": "turns: 1\n",
}
FOLDERS = [
    'config_dir = str(Path(__file__).parent.parent / "config")',
    'config_dir = str(pathlib.Path(__file__).resolve().parent.parent / "config")',
    'config_dir = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "config")',
    "from skyrl_train.folders import config_dir",
]
MAIN = (
    "{folder}\n@hydra.main(config_path=config_dir, config_name='base', version_base=None)\ndef main(cfg):\n    pass\n"
)


def planned(folder: Path, more: str, where: str = FOLDERS[0]) -> Plan:
    """The plan of a launch of SkyRL whose program names the folder of its configuration so."""
    files = {
        **CONFIG,
        "train/skyrl_train/folders.py": 'config_dir = str(Path(__file__).parent / "config")\n',
        "train/skyrl_train/entrypoints/main_base.py": MAIN.format(folder=where),
    }
    return in_checkout(folder, files, f"python -m skyrl_train.entrypoints.main_base {more}\n")


def refused(plan: Plan) -> list[str]:
    """The settings that Hydra refuses in a launch."""
    return [finding.observed for finding in plan.findings if "Could not override" in finding.observed]


@pytest.mark.parametrize("where", FOLDERS)
def test_a_folder_that_is_a_constant_of_the_program_is_read(tmp_path: Path, where: str) -> None:
    plan = planned(tmp_path, "trainer.epochs=2 trainer.own=1", where)
    assert [said.partition(".")[2].partition("'")[0] for said in refused(plan)] == ["own"]


@pytest.mark.parametrize(
    "where", ["config_dir = find()", "config_dir = 'a'\nconfig_dir = 'b'", "config_dir = config_dir"]
)
def test_a_folder_that_nobody_can_tell_refuses_nothing(tmp_path: Path, where: str) -> None:
    assert refused(planned(tmp_path, "trainer.own=1", where)) == []


@pytest.mark.parametrize(
    ("given", "is_refused"),
    [
        ("trainer.policy.parallel.size=2", False),
        ("parallel@trainer.policy.parallel=wide", False),
        ("gym.turns=2", False),
        ("trainer.extra.own=2", False),
        # The package in the list goes before that of the file, so nothing has the group's own name.
        ("parallel.policy.size=2", True),
        ("gym.own=2", True),
    ],
)
def test_a_group_in_another_section_has_no_settings_below_its_own_name(
    tmp_path: Path, given: str, is_refused: bool
) -> None:
    assert bool(refused(planned(tmp_path, given))) is is_refused


VERL = {
    "verl/trainer/main_ppo.py": "from verl.trainer.ppo.ray_trainer import RayPPOTrainer\n"
    "@hydra.main(config_path='config', config_name='ppo_trainer', version_base=None)\n"
    "def main(config):\n    RayPPOTrainer(config=config).fit()\n",
    "verl/trainer/config/ppo_trainer.yaml": "defaults:\n  - data: rows\n  - _self_\nmax_turns: 8\nretriever: {url: null}\n"
    "trainer: {total_epochs: 30}\n",
    "verl/trainer/ppo/ray_trainer.py": trainer(COMPARED_THEN_COUNTED),
}
ROWS = {
    "verl/trainer/config/data/rows.yaml": "train_batch_size: 8\ntrain_files: null\nval_files: null\n"
    "max_prompt_length: 512\nshuffle: true\n"
}
TURNS = "python3 -m verl.trainer.main_ppo {flags} data.train_batch_size=16 max_turns=4 retriever.url=here {more}\n"


@pytest.mark.parametrize(
    ("flags", "more", "said"),
    [
        ("", "", []),
        ("--config-path=config", "", []),
        ("--config-path=./config --config-name=ppo_trainer.yaml", "", []),
        ("--config-path=config", "own.turns=1", ["own.turns"]),
        ("--config-path=elsewhere", "", ["data.train_batch_size", "max_turns", "retriever.url"]),
    ],
)
def test_a_folder_that_the_launch_names_itself_counts_from_the_program(
    tmp_path: Path, flags: str, more: str, said: list[str]
) -> None:
    elsewhere = {"verl/trainer/elsewhere/ppo_trainer.yaml": "trainer: {total_epochs: 30}\n"}
    plan = in_checkout(tmp_path, {**VERL, **ROWS, **elsewhere}, TURNS.format(flags=flags, more=more))
    assert [each.partition("'")[2].partition("'")[0] for each in refused(plan)] == said


def test_what_is_here_of_a_configuration_says_which_settings_a_fork_has(tmp_path: Path) -> None:
    plan = in_checkout(tmp_path, VERL, TURNS.format(flags="", more=""))
    assert "RLS116" not in {finding.code for finding in plan.findings}
    assert any("data/rows (verl/trainer/config/ppo_trainer.yaml:1) is not here" in note.text for note in plan.notes)
    other = in_checkout(tmp_path, VERL, TURNS.format(flags="", more="own.turns=1"))
    assert [finding.observed for finding in other.findings if finding.code == "RLS116"] == ["own.turns"]


OVER_RELEASE = (
    "hydra: {searchpath: ['pkg://verl.trainer.config']}\ndefaults:\n  - ppo_trainer\n{more}  - _self_\n"
    "data: {train_batch_size: 100}\nalgorithm: {adv_estimator: grpo}\n"
    "actor_rollout_ref:\n  actor: {ppo_mini_batch_size: 50, ppo_micro_batch_size_per_gpu: 5}\n"
    "  rollout: {n: 4, log_prob_micro_batch_size_per_gpu: 5}\n  ref: {log_prob_micro_batch_size_per_gpu: 5}\n"
    "trainer: {n_gpus_per_node: 2, total_epochs: 2}\n"
)
RUNNER = (
    "import hydra\nimport ray\nfrom verl.trainer.main_ppo import TaskRunner, run_ppo\n"
    "class Runner(TaskRunner):\n    def run(self, config):\n        import more\n        return super().run(config)\n"
    "@hydra.main(config_path='../configs', config_name='own', version_base=None)\n"
    "def main(config):\n    run_ppo(config, task_runner_class=ray.remote(num_cpus=1)(Runner))\n"
)


def over_release(folder: Path, *, launch: str = "", more: str = "") -> Plan:
    """The plan of a program over a verl that is installed, whose configuration takes over that of the release."""
    files = {"configs/own.yaml": OVER_RELEASE.replace("{more}", more), "scripts/entry.py": RUNNER}
    return in_checkout(folder, files, f"python3 scripts/entry.py {launch}\n", rows=1050)


@pytest.mark.parametrize("launch", ["data.seed=1", "actor_rollout_ref.actor.ppo_mini_batch_size=50"])
def test_a_configuration_over_that_of_the_release_says_what_a_program_trains(tmp_path: Path, launch: str) -> None:
    plan = over_release(tmp_path, launch=launch)
    assert plan.framework == "verl"
    assert {finding.severity for finding in plan.findings} <= {"info"}
    assert plan.schedule is not None
    assert (plan.schedule.prompts_per_rollout, plan.schedule.samples_per_prompt) == (100, 4)
    assert (plan.schedule.samples_per_update, plan.schedule.rollouts) == (200, 20)


def test_a_configuration_beside_the_folder_of_the_program_is_read_in_an_archive(tmp_path: Path) -> None:
    write(tmp_path, {
        "configs/own.yaml": OVER_RELEASE.replace("{more}", ""),
        "scripts/entry.py": RUNNER,
        "scripts/run.sh": "python3 scripts/entry.py actor_rollout_ref.actor.ppo_mini_batch_size=50\n",
        "LICENSE": "",
    })  # fmt: skip
    schedule = schedule_of(plan_launch([str(tmp_path / "scripts/run.sh")], Options(rows=1050)))
    assert (schedule.prompts_per_rollout, schedule.samples_per_prompt, schedule.rollouts) == (100, 4, 20)


@pytest.mark.parametrize("name", ["own", "ppo_trainer"])
def test_a_configuration_of_a_programs_own_that_is_not_here_is_asked_for(tmp_path: Path, name: str) -> None:
    files = {"scripts/entry.py": RUNNER.replace("'own'", f"'{name}'")}
    launch = (
        "python3 scripts/entry.py data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64 "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 "
        "algorithm.adv_estimator=grpo\n"
    )
    if name == "ppo_trainer":  # the framework's own is that of the release
        assert schedule_of(in_checkout(tmp_path, files, launch)).rollouts == 15 * 30
        return
    with pytest.raises(LaunchError, match=r"configs/own\.yaml is not here, and what it sets decides the plan"):
        in_checkout(tmp_path, files, launch)


def test_a_launch_overrides_a_configuration_over_that_of_the_release(tmp_path: Path) -> None:
    plan = over_release(tmp_path, launch="actor_rollout_ref.rollout.n=8 data.train_batch_size=50")
    assert plan.schedule is not None
    assert (plan.schedule.prompts_per_rollout, plan.schedule.samples_per_prompt) == (50, 8)


def test_what_else_a_configuration_over_that_of_the_release_takes_over_is_said(tmp_path: Path) -> None:
    plan = over_release(tmp_path, launch="data.seed=1", more="  - data: rows\n")
    said = [note.text for note in plan.notes if "was read in part" in note.text]
    assert len(said) == 1
    assert "data/rows (configs/own.yaml:2) is not here" in said[0]


def test_a_program_with_such_a_configuration_may_train_nothing(tmp_path: Path) -> None:
    collects = RUNNER.replace(
        "from verl.trainer.main_ppo import TaskRunner, run_ppo", "from verl.workers import run_ppo"
    )
    files = {
        "configs/own.yaml": OVER_RELEASE.replace("{more}", ""),
        "scripts/collect.py": collects.replace("run_ppo", "collect"),
    }
    with pytest.raises(LaunchError, match="uses nothing that trains with it"):
        in_checkout(tmp_path, files, "python3 scripts/collect.py data.seed=1\n")
