"""verl.experimental.fully_async_policy trains on the CPU with the engine of the tests, and the audit says that it saw nothing of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.systems.verl.audited import ROOT, tail
from tests.systems.verl.launch import FULLY_ASYNC, fully_async, grpo, launch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.systems.verl.launch import Assets


@pytest.mark.thorough
def test_it_trains_and_the_audit_says_that_it_does_not_observe_it(assets: Assets, tmp_path: Path) -> None:
    environment = {"RLSTEP_DIR": str(tmp_path / "log"), "PYTHONPATH": str(ROOT)}
    outcome = launch(grpo(assets) | fully_async(), tmp_path, environment=environment, program=FULLY_ASYNC)
    assert outcome.status == 0, tail(outcome)
    assert outcome.output.count("not evaluated: verl.experimental.fully_async_policy") == 1, "said once"
    norms = re.findall(r"actor/grad_norm:(?:np\.float64\()?([\d.]+)", outcome.output)
    assert len(norms) >= 2, tail(outcome)
    assert all(float(norm) > 0 for norm in norms), norms
