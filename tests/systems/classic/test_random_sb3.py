"""Random configurations of Stable-Baselines3 and sb3-contrib, trained for real: none is accused. RLSTEP_SOAK sets how many."""

from __future__ import annotations

import os
import random

import pytest

from tests.systems.classic.random_sb3 import CLASSES, drawers_of, drawn, parameters
from tests.systems.classic.test_sb3 import audited, codes

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("seed", range(int(os.environ.get("RLSTEP_SOAK", "12"))))
def test_a_legal_configuration_is_not_accused(seed: int) -> None:
    given = drawn(seed)
    report = audited(given.model(), given.timesteps).report
    said = [str(finding) for finding in report.findings if finding.severity != "info"]
    assert (report.verdict, codes(report)) == ("PASS", set()), (given, said, report.not_evaluated)
    assert report.counts.updates


@pytest.mark.parametrize("kind", CLASSES)
def test_each_parameter_is_drawn(kind: type) -> None:
    assert set(parameters(kind)) <= drawers_of(random.Random(0), kind, 8, 1, continuous=False).keys()
