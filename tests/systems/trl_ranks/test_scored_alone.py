"""Rows that are scored again alone, and slopes of layers (RLS314, RLS315, RLS813), on two ranks.

With DDP they are those of forwards of each rank's own; with FSDP2 and ZeRO-3, where no rank can make any, they go beside training's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.systems.trl.test_scored_alone import FROM
from tests.systems.trl_ranks.launched import launch

SCRIPT = Path(__file__).with_name("train_scored_alone.py")
DEPLOYMENTS = "ddp", "fsdp2", "zero3"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks saw in all cases of all deployments, in one launch."""
    return launch(SCRIPT, tmp_path_factory.mktemp("alone"), *DEPLOYMENTS)


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_a_healthy_run_is_silent_and_unchanged(ranks: list[dict[str, Any]], deployment: str) -> None:
    for rank in ranks:
        audited, alone = rank[deployment]["audited"], rank[deployment]["alone"]
        assert audited["found"] == []
        for code in ("RLS314", "RLS315", "RLS813"):
            assert audited["rules"][code][0] == "PASS"
            assert audited["rules"][code][1] > 0
        for same in ("weights", "random", "collectives"):
            assert audited[same] == alone[same], same


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
@pytest.mark.parametrize(
    ("case", "code", "rollout", "cause"),
    [
        ("padding", "RLS314", FROM, "attention mask: the padding before the prompt is attended to"),
        ("reference", "RLS315", FROM, "each token has the log-prob of the one before it"),
        ("backward", "RLS813", 1, "the backward pass of "),
    ],
)
def test_a_mistake_is_named_by_each_rank(
    ranks: list[dict[str, Any]], deployment: str, case: str, code: str, rollout: int, cause: str
) -> None:
    for rank in ranks:
        [(_, at, why), *_] = [found for found in rank[deployment][case]["found"] if found[0] == code]
        assert at == rollout
        assert cause in why
