"""The prompts of an evaluation come in whole groups, as its sampler is documented to give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("trl")

from torch.utils.data import SequentialSampler
from trl import GRPOConfig, GRPOTrainer

from tests.systems.trl.helpers import problems
from tests.systems.trl.test_foreign_runs import audited

if TYPE_CHECKING:
    from pathlib import Path

EVALUATED: dict[str, Any] = {"rows": 8, "evaluation_rows": 5, "eval_strategy": "steps", "eval_steps": 2}


def test_an_evaluation_whose_rows_are_not_repeated_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A mutant of seed 52077: the loader of evaluations is given no sampler."""
    monkeypatch.setattr(GRPOTrainer, "_get_eval_sampler", lambda self, rows: SequentialSampler(rows))
    report = audited(tmp_path, **(EVALUATED | {"evaluation_rows": 8}))
    [warned] = [finding for finding in report.findings if finding.severity != "info"]
    assert (warned.code, warned.severity) == ("RLS501", "warning")
    assert report.verdict == "PASS"


@pytest.mark.parametrize("group", [None, 1, 4])
def test_whole_evaluations_are_silent(group: int | None, tmp_path: Path) -> None:
    """Five rows do not fill whole batches: the last one has fewer rows, and whole groups all the same."""
    given = {} if group is None else {"num_generations_eval": group}
    if given and "num_generations_eval" not in GRPOConfig.__dataclass_fields__:
        pytest.skip("the setting came with a later release")
    report = audited(tmp_path, **EVALUATED, **given)
    assert not problems(report)
    [rule] = [rule for rule in report.rules if rule.code == "RLS501"]
    assert rule.verdict == "PASS"
