"""A seed that is configured and never applied (RLS120)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy
import pytest
import torch
from stable_baselines3.common import utils
from stable_baselines3.common.base_class import BaseAlgorithm

from rlstep_hooks.observe.seeds import seed_facts
from tests.bugs.undo import rewritten
from tests.systems.classic.test_sb3 import audited, codes, ppo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlstep_hooks.judge.report import Finding


@pytest.fixture(autouse=True)
def _as_a_process_begins() -> Iterator[None]:
    """Both generators have seeds of their own choice."""
    torch.seed()
    numpy.random.set_bit_generator(numpy.random.MT19937())
    yield
    numpy.random.seed(1)
    torch.manual_seed(1)


def unseeded(seed: int | None) -> list[Finding]:
    report = audited(ppo(seed=seed), 64).report
    assert codes(report) <= {"RLS120"}
    return [finding for finding in report.findings if finding.code == "RLS120"]


def test_generators_that_nobody_or_somebody_seeded() -> None:
    assert seed_facts(3) == {"seeds": {"seed": 3, "compared": ["torch", "numpy"], "unseeded": ["torch", "numpy"]}}
    numpy.random.seed(3)
    torch.manual_seed(3)
    torch.rand(3)
    numpy.random.rand(3)
    assert seed_facts(3)["seeds"]["unseeded"] == []


@pytest.mark.parametrize("seed", [None, 2**32, -1])
def test_a_seed_that_nobody_configured_or_numpy_does_not_take(seed: int | None) -> None:
    assert seed_facts(seed) == {}


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_a_seed_that_is_applied_is_silent(seed: int | None) -> None:
    assert unseeded(seed) == []


@pytest.mark.parametrize(
    ("module", "name", "mended", "left"),
    [
        (BaseAlgorithm, "set_random_seed", "if seed is None:", {"torch", "numpy"}),
        (utils, "set_random_seed", "np.random.seed(seed)", {"numpy"}),
        (utils, "set_random_seed", "th.manual_seed(seed)", {"torch"}),
    ],
    ids=["nothing is seeded", "numpy is not", "torch is not"],
)
def test_a_seed_that_is_not_applied_is_found(
    module: type, name: str, mended: str, left: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = "if True:" if mended.startswith("if") else "pass"
    owner = module if isinstance(module, type) else None
    wrong: Callable[..., None] = rewritten(getattr(module, name), owner, mended, before)
    monkeypatch.setattr(module, name, wrong)
    if module is utils:
        monkeypatch.setattr("stable_baselines3.common.base_class.set_random_seed", wrong)
    (finding,) = unseeded(7)
    assert {one for one in ("torch", "numpy") if one in finding.observed} == left
