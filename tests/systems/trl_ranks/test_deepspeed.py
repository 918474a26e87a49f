"""TRL's GRPO under a real DeepSpeed engine, two processes (gloo, CPU): updates and lags are counted, and a healthy run is silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from rlstep_hooks.systems.engine.links import Deployment
from tests.reports import unproved
from tests.systems.trl_ranks.launched import launch

SCRIPT = Path(__file__).with_name("train_deepspeed.py")

HEALTHY = ("zero0", "zero1", "zero2", "zero2-bf16", "zero2-offload", "zero3", "zero3-bf16", "zero3-offload")


def run(folder: Path, case: str, processes: int = 2) -> list[dict[str, Any]]:
    """Train; what each rank wrote at its end."""
    return launch(SCRIPT, folder, case, processes=processes)


def loud(result: dict[str, Any]) -> list[Any]:
    """Findings that are more than information."""
    return [finding for finding in result["findings"] if finding[1] != "info"]


@pytest.mark.parametrize("case", HEALTHY)
def test_a_healthy_run_is_silent(case: str, tmp_path: Path) -> None:
    first, second = run(tmp_path / "run", case)
    assert loud(first) == loud(second) == []
    assert first["updates"] == first["planned"] == first["global_step"] == 4
    assert first["verdict"] == second["verdict"] == "PASS"
    # Two rollouts' worth of lags: the ratio rules had something to compare, at lag 0 and above.
    passed = {code for code, (verdict, _) in first["rules"].items() if verdict == "PASS"}
    stage = next(stage for stage in get_args(Deployment) if stage.replace("-", "").lower() == case.partition("-")[0])
    assert unproved(passed, "trl", "offload" if "offload" in case else stage) == set()
    assert passed >= {"RLS203", "RLS210", "RLS301", "RLS307", "RLS602", "RLS801"}
    assert not {"weights", "optimizer", "gradient", "reduction"} & set(first["not_evaluated"])


def test_adam_that_begins_at_step_1_is_found(tmp_path: Path) -> None:
    first, _ = run(tmp_path / "run", "zero0-bf16")
    assert (first["verdict"], [finding[:3] for finding in loud(first)]) == ("FAIL", [["RLS807", "error", 0]])
    assert first["deviations"] == ["deepspeed-adam-begins-at-step-1"]


def test_one_process(tmp_path: Path) -> None:
    [only] = run(tmp_path / "run", "zero2", processes=1)
    assert (only["verdict"], loud(only), only["updates"]) == ("PASS", [], only["planned"])


def test_an_update_that_the_engine_leaves_out_is_found(tmp_path: Path) -> None:
    first, _ = run(tmp_path / "run", "zero2-swallowed")
    assert first["verdict"] == "FAIL"
    assert ["RLS210", "error", 2, "the loop went on without a step"] in first["findings"]


def test_old_log_probs_that_are_computed_anew_are_found(tmp_path: Path) -> None:
    first, _ = run(tmp_path / "run", "zero2-refreshed")
    assert first["verdict"] == "FAIL"
    assert {finding[0] for finding in loud(first)} & {"RLS302", "RLS303", "RLS307", "RLS310"}, first["findings"]
