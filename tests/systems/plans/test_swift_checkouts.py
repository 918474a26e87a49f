"""ms-swift beside a launch: its own code says which release it samples as, and a script of its own that installs it says nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine.pins import Commits
from rlstep_hooks.systems.swift.checkout import beside
from rlstep_hooks.systems.swift.checkout.deciding import FILES, ON_MEGATRON, mark_of
from tests.systems.plans.checkouts import in_checkout, schedule_of, write

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.launched import Plan

TRAINER = '''
class GRPOTrainer:
    def old_policy(self):
        """Whether log-probs are computed."""
        return self.num_iterations > {passes}

    def _prepare_batch_inputs(self, batch):
        old_per_token_logps = {local}
        batch['old_per_token_logps'] = {old}

    def compute_loss(self, inputs):
        return {loss}
'''
LAUNCH = (
    "NPROC_PER_NODE=2 swift rlhf --rlhf_type grpo --model m --dataset d --num_generations 8 "
    "--per_device_train_batch_size 4 --gradient_accumulation_steps 4"
)
ON_ITS_OWN = (
    "NPROC_PER_NODE=2 megatron rlhf --rlhf_type grpo --model m --dataset d --num_generations 8 --micro_batch_size 4 "
    "--global_batch_size 32 --max_epochs 1"
)
INSTALLS = 'pip install "ms-swift[all]@git+https://github.com/modelscope/ms-swift.git"\n'


def trainer(*, passes: str = "1", local: str = "None", old: str = "self.logps(batch)", loss: str = "0") -> str:
    return TRAINER.format(passes=passes, local=local, old=old, loss=loss)


def mark(text: str) -> str:
    own, on_megatron = (
        mark_of(text if name == "swift/rlhf_trainers/grpo_trainer.py" else "" for name in files)
        for files in (FILES, ON_MEGATRON)
    )
    return f"{own} {on_megatron}"


def in_swift(folder: Path, text: str, *, launch: str = LAUNCH, **options: object) -> Plan:
    """The plan of a launch in a checkout of ms-swift with this trainer, whose own script installs the original."""
    files = {
        "setup.py": "from setuptools import setup\nsetup(\n    name='ms_swift',\n)\n",
        "requirements/install_all.sh": INSTALLS,
        "swift/cli/rlhf.py": "rlhf_main()\n",
        "swift/rlhf_trainers/grpo_trainer.py": text,
    }
    return in_checkout(folder, files, launch, **options)


@pytest.fixture
def _marks(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {"4.1.3": "another one", "4.2.3": mark(trainer()), "4.3.0": "a third"}
    monkeypatch.setattr(beside, "commits_of", lambda _: Commits((), {}, {}, marks))


@pytest.mark.usefixtures("_marks")
def test_a_copy_of_the_framework_is_planned_as_the_release_that_samples_so(tmp_path: Path) -> None:
    plan = in_swift(tmp_path, trainer(loss="1  # another", local="self.saved"))
    assert (plan.version, schedule_of(plan).prompts_per_rollout, schedule_of(plan).rollouts) == ("4.2.3", 4, 750)
    assert any("samples as ms-swift 4.2.3 does" in note.text for note in plan.notes)


@pytest.mark.usefixtures("_marks")
@pytest.mark.parametrize(
    ("decorator", "on_megatron", "launch", "known"),
    [
        ("@profiling_decorator", "", LAUNCH, True),
        ("@twice", "", LAUNCH, False),
        ("", "def get_num_iters_per_step(self):\n    return 2\n", LAUNCH, True),
        ("", "def get_num_iters_per_step(self):\n    return 2\n", ON_ITS_OWN, False),
        ("", "", ON_ITS_OWN, True),
    ],
)
def test_what_measures_and_what_runs_on_megatron_alone_decides_nothing_for_others(
    tmp_path: Path, decorator: str, on_megatron: str, launch: str, known: bool
) -> None:
    write(tmp_path, {"swift/megatron/trainers/grpo_trainer.py": on_megatron})
    text = trainer().replace("    def old_policy", f"    {decorator}\n    def old_policy")
    if known:
        assert in_swift(tmp_path, text, launch=launch).version == "4.2.3"
        return
    with pytest.raises(LaunchError, match="none that is known"):
        in_swift(tmp_path, text, launch=launch)


@pytest.mark.usefixtures("_marks")
@pytest.mark.parametrize("text", [trainer(passes="2"), trainer(old="None"), "def"])
def test_a_copy_that_decides_otherwise_is_asked_about(tmp_path: Path, text: str) -> None:
    with pytest.raises(LaunchError, match=r"none that is known.*--version plans it as that release of ms-swift"):
        in_swift(tmp_path, text)


@pytest.mark.usefixtures("_marks")
def test_a_release_that_the_user_names_is_taken_at_his_word(tmp_path: Path) -> None:
    assert in_swift(tmp_path, trainer(old="None"), version="4.6.0").version == "4.6.0"


@pytest.mark.parametrize(
    ("pin", "version"),
    [
        ("git+https://github.com/modelscope/ms-swift.git", "4.6.0"),
        ("ms-swift>=3.9,<4", "3.12.6"),
        ("ms-swift==3.10.3", "3.10.3"),
    ],
)
def test_a_project_that_installs_it_is_planned_for_that_release(tmp_path: Path, pin: str, version: str) -> None:
    assert in_checkout(tmp_path, {"requirements.txt": f"{pin}\n"}, LAUNCH).version == version


def test_a_fork_that_a_project_installs_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"somebody/ms-swift.*a copy of ms-swift that is not known"):
        in_checkout(tmp_path, {"requirements.txt": "git+https://github.com/somebody/ms-swift.git\n"}, LAUNCH)


@pytest.mark.parametrize(
    ("more", "rollouts"),
    [
        ("--dataset 'a/b#600' 'c:all#200'", 100),
        ("--dataset 'a/b#600' c", None),
        ("--dataset 'a/b#600' --split_dataset_ratio 0.1", None),
        ("--dataset 'a/b#600' --split_dataset_ratio 0.1 --val_dataset v", 75),
        ("--dataset 'a/b#600' --streaming true --max_steps 9", 9),
        ("--dataset 'a/b#600' 'c#200' --interleave_prob 0.5 0.5", None),
    ],
)
def test_rows_that_are_drawn_by_number_need_no_counting(tmp_path: Path, more: str, rollouts: int | None) -> None:
    launch = (
        "swift rlhf --rlhf_type grpo --model m --num_generations 8 --per_device_train_batch_size 8 "
        "--gradient_accumulation_steps 8 --num_train_epochs 1 "
    )
    schedule = schedule_of(in_checkout(tmp_path, {}, launch + more, rows=None))
    assert schedule.rollouts == rollouts
    assert (schedule.rows is None) is (rollouts in (None, 9))


ARGUMENTS = "class RLHFArguments:\n    rlhf_type: str\n    dataset: str\n    model: str\n    tuner_type: str\n"


@pytest.mark.usefixtures("_marks")
@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        ("--tuner_type lora --learning_rate 1e-6 --tuner lora", ""),
        ("--reward_of_its_own x", ""),  # it stands in another file
        ("--train_type lora", "remaining_argv: ['--train_type', ...]"),
        ("--train_type lora --ignore_args_error true", ""),
    ],
)
def test_a_flag_that_nothing_in_the_copy_has_ends_the_run(tmp_path: Path, flags: str, refused: str) -> None:
    files = {"swift/arguments/rlhf_args.py": ARGUMENTS, "swift/rewards/names.py": "OPTIONS = ['reward_of_its_own']\n"}
    write(tmp_path, files)
    plan = in_swift(tmp_path, trainer(), launch=f"{LAUNCH} {flags}")
    said = [finding.observed for finding in plan.findings if finding.severity == "error"]
    assert [each for each in said if "remaining_argv" in each] == ([f"ValueError: {refused}"] if refused else [])


@pytest.mark.usefixtures("_marks")
def test_nothing_is_said_of_flags_where_the_copy_lacks_its_arguments(tmp_path: Path) -> None:
    plan = in_swift(tmp_path, trainer(), launch=f"{LAUNCH} --reward_of_its_own x")
    assert not [finding for finding in plan.findings if finding.severity == "error"]
