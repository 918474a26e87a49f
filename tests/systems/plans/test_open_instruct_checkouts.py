"""Launches in a checkout of open-instruct or of a fork: its own defaults, weights and ages."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
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
