"""Rows beside the forwards of a model that FSDP1 shares out among two processes, as verl's engines with its default strategy do."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.systems.torchrun import torchrun

if TYPE_CHECKING:
    from collections.abc import Mapping

SCRIPT = Path(__file__).with_name("score_flat_rows.py")
ROOT = Path(__file__).parents[3]
TOLERANCE = {"float32": 1e-5, "bf16": 0.1}
"""In nats, of the token that is farthest away."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Mapping[str, Any]]:
    folder = tmp_path_factory.mktemp("flat")
    done = subprocess.run(
        torchrun(2, str(SCRIPT), str(folder)),
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    files = [folder / f"rank{rank}.json" for rank in range(2)]
    assert all(file.is_file() for file in files), done.stdout[-3000:]
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", ["flat", "orig"])
def test_rows_get_what_the_whole_model_gives_them(form: str, dtype: str, ranks: list[Mapping[str, Any]]) -> None:
    for of_rank in ranks:
        beside, alone = (of_rank[f"{form}-{dtype}-{kind}"] for kind in ("beside", "alone"))
        assert (beside["why"], beside["flat"], beside["refusals"], beside["scored"]) == ("", True, [], 2)
        assert beside["first"] < TOLERANCE[dtype]
        assert beside["moved"] > 1e-3, "the second forward has other weights"
        assert beside["losses"] == alone["losses"], "nothing of training is another"


@pytest.mark.parametrize("form", ["flat", "orig"])
def test_the_slope_of_the_layers_is_that_of_the_backward_pass(form: str, ranks: list[Mapping[str, Any]]) -> None:
    for of_rank in ranks:
        healthy, faulty = (of_rank[f"{form}-{kind}-slope"] for kind in ("healthy", "faulty"))
        assert healthy["refusals"] == faulty["refusals"] == []
        assert healthy["gap"] < 1e-3
        assert faulty["gap"] > 0.02
