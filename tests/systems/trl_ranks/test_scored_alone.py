"""Rows that are scored again alone where each rank holds the whole model (RLS314, RLS315), on two ranks with DDP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.systems.trl.test_scored_alone import FROM
from tests.systems.trl_ranks.launched import launch

SCRIPT = Path(__file__).with_name("train_scored_alone.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks saw in all cases, in one launch."""
    return launch(SCRIPT, tmp_path_factory.mktemp("alone"))


def test_a_healthy_run_is_silent_and_unchanged(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        audited, alone = rank["audited"], rank["alone"]
        assert audited["found"] == []
        assert audited["rules"]["RLS314"][0] == audited["rules"]["RLS315"][0] == "PASS"
        assert audited["rules"]["RLS314"][1] > 0
        assert (audited["weights"], audited["random"]) == (alone["weights"], alone["random"])


@pytest.mark.parametrize(
    ("case", "code", "cause"),
    [
        ("padding", "RLS314", "attention mask: the padding before the prompt is attended to"),
        ("reference", "RLS315", "each token has the log-prob of the one before it"),
    ],
)
def test_a_mistake_is_named_by_each_rank(ranks: list[dict[str, Any]], case: str, code: str, cause: str) -> None:
    for rank in ranks:
        [(_, rollout, why), *_] = [found for found in rank[case]["found"] if found[0] == code]
        assert rollout == FROM
        assert cause in why
