"""`rlstep ingest` of the tables that TRL itself writes while it trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.testing.tiny_trl import tiny_trainer
from tests.ingest.runs import found, ingested, verdict_of

if TYPE_CHECKING:
    from pathlib import Path


def tables(folder: Path, **settings: Any) -> Any:
    """A trainer that logs its completions, and the folder of its tables."""
    wanted = {"log_completions": True, "logging_steps": 1, "max_steps": 6, "gradient_accumulation_steps": 2}
    return tiny_trainer(folder / "out", **(wanted | settings)), folder / "out" / "completions"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_iterations": 2},
        {"scale_rewards": "batch"},
        {"scale_rewards": "none"},
        {"eval_strategy": "steps", "eval_steps": 2, "evaluation_rows": 3},
    ],
    ids=str,
)
def test_a_healthy_run_is_silent(tmp_path: Path, settings: dict[str, Any]) -> None:
    trainer, folder = tables(tmp_path, **settings)
    trainer.train()
    report = ingested(folder)
    assert found(report) == {}
    assert report.counts.rollouts >= 3
    assert {verdict_of(report, code) for code in ("RLS516", "RLS508", "RLS522")} == {"PASS"}


def test_groups_of_another_size_than_those_of_prompts_are_found(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    class Halved(TrainerCallback):  # type: ignore[misc]
        """Once the loader stands, advantages are taken over half a prompt's samples."""

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            trainer.num_generations = 2

    trainer, folder = tables(tmp_path, callbacks=[Halved()])
    trainer.train()
    report = ingested(folder)
    assert {"RLS516", "RLS508"} & set(found(report))
    assert report.verdict == "FAIL"
