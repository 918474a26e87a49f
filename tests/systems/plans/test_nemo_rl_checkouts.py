"""Launches in a checkout of NeMo-RL or of a fork: its own loss says what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from tests.systems.plans.checkouts import in_checkout, schedule_of

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.launched import Plan

NEMO_LOSS = """
class ClippedPGLossFn:
    def __init__(self, cfg):
        self.use_importance_sampling_correction = cfg["use_importance_sampling_correction"]
        self.truncated_importance_sampling_ratio = cfg["truncated_importance_sampling_ratio"]
        self.truncated_importance_sampling_type = cfg.get("truncated_importance_sampling_type")
        if {condition}:
            assert self.use_importance_sampling_correction, (
                "a bound is only supported with the correction"
            )
"""
BOUND = "self.truncated_importance_sampling_ratio is not None"
KIND = "self.truncated_importance_sampling_type is not None"


def in_nemo(folder: Path, *, condition: str = BOUND, more: str = "", loss: str = NEMO_LOSS) -> Plan:
    """The plan of a launch in a checkout of NeMo-RL."""
    files = {
        "nemo_rl/algorithms/grpo.py": "",
        "nemo_rl/algorithms/loss/loss_functions.py": loss.format(condition=condition),
    }
    return in_checkout(folder, files, f"uv run python examples/run_grpo.py {more}\n")


@pytest.mark.parametrize(
    ("condition", "more", "refused"),
    [
        (BOUND, "loss_fn.truncated_importance_sampling_type=tis", False),
        (BOUND, "loss_fn.truncated_importance_sampling_ratio=2", True),
        (KIND, "loss_fn.truncated_importance_sampling_type=tis", True),
        (KIND, "loss_fn.truncated_importance_sampling_ratio=2", False),
        (
            f"{BOUND} and {KIND}".replace(" and ", ":\n            if "),
            "loss_fn.truncated_importance_sampling_type=tis",
            False,
        ),
    ],
)
def test_the_loss_of_nemo_rl_refuses_what_its_own_lines_refuse(
    tmp_path: Path, condition: str, more: str, refused: bool
) -> None:
    loss = NEMO_LOSS.replace("            assert", "                assert") if ":\n" in condition else NEMO_LOSS
    plan = in_nemo(tmp_path, condition=condition, more=more, loss=loss)
    own = [finding for finding in plan.findings if "only supported with the correction" in finding.observed]
    assert bool(own) is refused
    assert (plan.schedule is None) is refused


def test_a_refusal_of_nemo_rl_that_is_not_known_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"it refuses .* if cfg\['strict'\] .*loss_functions.py:8.*--version 7ea279a"):
        in_nemo(tmp_path, condition="cfg['strict']")


def test_a_condition_that_is_not_known_does_not_matter_with_the_correction(tmp_path: Path) -> None:
    more = "loss_fn.use_importance_sampling_correction=true"
    assert schedule_of(in_nemo(tmp_path, condition="cfg['strict']", more=more)).updates_per_rollout == 1


def test_a_loss_of_nemo_rl_that_is_not_found_is_asked_about_where_it_may_refuse(tmp_path: Path) -> None:
    assert schedule_of(in_nemo(tmp_path, loss="")).updates_per_rollout == 1
    with pytest.raises(LaunchError, match="ClippedPGLossFn, the loss of its trainer, was not found"):
        in_nemo(tmp_path, loss="", more="loss_fn.truncated_importance_sampling_ratio=2")


def test_a_bound_of_an_older_loss_of_nemo_rl_truncates(tmp_path: Path) -> None:
    loss = NEMO_LOSS.replace(
        '        self.truncated_importance_sampling_type = cfg.get("truncated_importance_sampling_type")\n', ""
    )
    more = "loss_fn.use_importance_sampling_correction=true loss_fn.truncated_importance_sampling_ratio=2"
    assert (
        schedule_of(in_nemo(tmp_path, more=more, loss=loss)).correction
        == "token importance weights, tis from 0.0 to 2.0"
    )
    assert schedule_of(in_nemo(tmp_path, more=more)).correction == "token importance weights, without a bound"
