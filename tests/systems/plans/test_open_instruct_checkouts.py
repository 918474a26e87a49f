"""Launches in a checkout of open-instruct or of a fork: its own defaults, weights and ages."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.systems.plans.checkouts import in_checkout, schedule_of

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.launched import Plan

SIZES = "num_unique_prompts_rollout: int = 16\nnum_samples_per_prompt_rollout: int = 4\nasync_steps: int = 1"
EXPERIMENT = "total_episodes: int = 1600\nnum_mini_batches: int = 1\nbeta: float = 0.05"
CAP = "truncated_importance_sampling_ratio_cap: float = 0.0"


def in_open_instruct(
    folder: Path, *, sizes: str = SIZES, experiment: str = f"{EXPERIMENT}\n{CAP}", loader: str = "", more: str = ""
) -> Plan:
    """The plan of a launch in a checkout of open-instruct."""
    files = {
        "open_instruct/grpo_fast.py": "",
        "open_instruct/data_loader.py": f"class StreamingDataLoaderConfig:\n{textwrap.indent(sizes, '    ')}\n{loader}\n",
        "open_instruct/grpo_utils.py": f"class ExperimentConfig:\n{textwrap.indent(experiment, '    ')}\n",
    }
    return in_checkout(folder, files, f"python open_instruct/grpo_fast.py --num_learners_per_node 1 {more}\n")


@pytest.mark.parametrize(
    ("experiment", "more", "correction", "codes"),
    [
        (f"{EXPERIMENT}\n{CAP}", "", "none", {"RLS117"}),
        (f"{EXPERIMENT}\n{CAP}", "--truncated_importance_sampling_ratio_cap 2.0", "token importance weights, at most 2.0", set()),
        (EXPERIMENT, "", "none", {"RLS117"}),
        (f"{EXPERIMENT}\nuse_rho_correction: bool = True", "", "token importance weights, at most 2.0", set()),
    ],
)  # fmt: skip
def test_the_defaults_and_weights_of_open_instructs_own_trainer_are_taken(
    tmp_path: Path, experiment: str, more: str, correction: str, codes: set[str]
) -> None:
    plan = in_open_instruct(tmp_path, experiment=experiment, more=more)
    schedule = schedule_of(plan)
    assert (schedule.rollouts, schedule.max_age, schedule.correction) == (25, None, correction)
    assert {finding.code for finding in plan.findings} & {"RLS117"} == codes
    said = " ".join(note.text for note in plan.notes if note.kind == "assumes")
    assert "async_steps = 1 (open_instruct/data_loader.py:4)" in said
    assert "total_episodes = 1600 (open_instruct/grpo_utils.py:2)" in said
    assert "beta" not in said


def test_a_trainer_of_open_instruct_that_drops_what_is_too_old_bounds_the_age(tmp_path: Path) -> None:
    plan = in_open_instruct(tmp_path, loader="def result_is_stale(result):\n    return True\n")
    assert schedule_of(plan).max_age == 1


def test_sizes_of_open_instruct_that_are_not_found_are_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no dataclass of its trainer has total_episodes, num_mini_batches"):
        in_open_instruct(tmp_path, experiment="seed: int = 1")


PARSER = """
def main():
    parser = ArgumentParserPlus((grpo_utils.ExperimentConfig, {more}data_loader_lib.StreamingDataLoaderConfig, Learners))
    parser.parse_args_into_dataclasses()

@dataclass
class Learners:
    num_learners_per_node: list[int] = field(default_factory=lambda: [1])
    save_traces: bool = True
"""


def with_flags(folder: Path, flags: str, more: str = "") -> Plan:
    """The plan of a launch with flags, in a checkout whose program makes a parser of its dataclasses."""
    in_open_instruct(folder)
    (folder / "open_instruct/grpo_fast.py").write_text(PARSER.format(more=more))
    (folder / "run.sh").write_text(f"python open_instruct/grpo_fast.py --num_learners_per_node 1 {flags}\n")
    return plan_launch([str(folder / "run.sh")], Options(rows=1000))


def test_flags_that_no_dataclass_has_end_the_run(tmp_path: Path) -> None:
    [finding] = with_flags(tmp_path, "--apply_arithmetic_reward --arithmetic_reward 10.0 --save_traces").findings[:1]
    assert "are not used by the HfArgumentParser: --apply_arithmetic_reward, --arithmetic_reward" in finding.observed


def test_dataclasses_whose_parents_stand_on_lines_of_their_own_are_found(tmp_path: Path) -> None:
    more = "Grouped, "
    with_flags(tmp_path, "", more=more)
    grouped = "\n@dataclass\nclass Grouped(\n    Learners,\n    grpo_utils.ExperimentConfig,\n):\n    group: int = 1\n"
    file = tmp_path / "open_instruct/grpo_fast.py"
    file.write_text(file.read_text() + grouped)
    (tmp_path / "run.sh").write_text("python open_instruct/grpo_fast.py --masked_mean_axis 1\n")
    [finding] = plan_launch([str(tmp_path / "run.sh")], Options(rows=1000)).findings[:1]
    assert "are not used by the HfArgumentParser: --masked_mean_axis" in finding.observed


@pytest.mark.parametrize(("flag", "drops"), [("", True), ("--no_filter_zero_std_samples", False)])
def test_a_flag_that_is_on_is_turned_off_by_its_no(tmp_path: Path, flag: str, drops: bool) -> None:
    plan = in_open_instruct(tmp_path, more=flag)
    assert ("drops" in [note.kind for note in plan.notes]) is drops


@pytest.mark.parametrize("flags", ["--save_traces", "--save-traces", "--save_tra", "--no_save_traces"])
def test_flags_of_its_dataclasses_are_taken(flags: str, tmp_path: Path) -> None:
    assert "RLS110" not in [finding.code for finding in with_flags(tmp_path, flags).findings]


def test_flags_of_a_dataclass_that_is_not_here_are_not_refused(tmp_path: Path) -> None:
    plan = with_flags(tmp_path, "--arithmetic_reward 10.0", more="ModelConfig, ")
    assert "RLS110" not in [finding.code for finding in plan.findings]
