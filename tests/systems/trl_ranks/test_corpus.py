"""The corpus of faults can be handed to the ranks that train it."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from tests.faults.trl_faults import EXPRESSIBLE
from tests.systems.trl_ranks.cases import Case, Deployment
from tests.systems.trl_ranks.corpus import cases_of


@pytest.mark.parametrize("deployment", get_args(Deployment))
def test_each_case_is_written_and_read_again(deployment: Deployment) -> None:
    cases = [case for pair in cases_of(EXPRESSIBLE, deployment) for case in pair]
    assert msgspec.json.decode(msgspec.json.encode(cases), type=list[Case]) == cases


def test_a_setting_that_cannot_be_written_has_a_healthy_run_of_its_own() -> None:
    pairs = {case.fault: clean.name for case, clean in cases_of(EXPRESSIBLE, "ddp")}
    own = [fault for fault in EXPRESSIBLE if callable(fault.settings.get("reward"))]
    assert len(own) > 1
    assert len({pairs[fault.name] for fault in own}) == len({fault.settings["reward"] for fault in own})
