"""`rlstep run` on a recipe of the cookbook, unchanged; and what is refused trains all the same."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tinker_cookbook.rl import train

from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.systems.engine import index
from tests.systems.tinker.tiny import config, served

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[3]


def test_a_recipe_in_a_process_of_its_own(home: Path, tmp_path: Path) -> None:
    """The command that a user types."""
    record = tmp_path / "record"
    recipe = (
        "tinker_cookbook.recipes.math_rl.train env=arithmetic model_name=tiny/model renderer_name=role_colon groups_per_batch=4 "
        f"group_size=4 max_steps=2 loss_fn=importance_sampling learning_rate=1e-3 save_every=0 log_path={tmp_path / 'log'}"
    )
    with served(home) as address:
        own = [sys.executable, "-c", "import sys; from rlstep_hooks.cli import main; sys.exit(main())"]
        command = [*own, "run", "--dir", str(record), "--", sys.executable, "-m", *recipe.split()]
        environment = os.environ | {"TINKER_BASE_URL": address, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=home, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = report_of(record, None, deviations_of=index.deviations_of)
    assert (report.verdict, report.counts.rollouts, report.counts.updates, report.counts.weight_syncs) == (
        "PASS",
        2,
        2,
        3,
    )


def test_asynchronous_training_is_refused_by_name(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It trains, nothing is recorded, and the reason is said."""
    record = tmp_path / "record"
    monkeypatch.setenv("RLSTEP_DIR", str(record))
    with served(home) as address:
        asynchronous = train.AsyncConfig(max_steps_off_policy=1, groups_per_batch=4, loss_fn="ppo")
        asyncio.run(train.main(config(address, tmp_path / "log", async_config=asynchronous, max_steps=2)))
    assert (tmp_path / "log" / "checkpoints.jsonl").exists()
    assert "do_async_training" in capfd.readouterr().err
    assert not record.exists()
