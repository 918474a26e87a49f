"""Real bugs in runs of TRL: named at their first event, and silence without them."""

from __future__ import annotations

import gc
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("trl")

from tests.bugs.bug import bugs_of
from tests.bugs.outcomes import check_after, check_before
from tests.bugs.trl.mistakes import MISTAKES, Mistake
from tests.faults.fault import Apply, Fault, unchanged
from tests.faults.test_trl_faults import alarms, train
from tests.faults.trl_faults import FAULTS as CORPUS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.judge.report import Report

BUGS = {name: bug for name, bug in bugs_of("trl").items() if bug.way != "published releases"}
MADE: dict[str, Fault | Mistake] = {made.apply.__name__: made for made in (*CORPUS, *MISTAKES)}


@pytest.fixture(scope="module", autouse=True)
def frozen_imports() -> Iterator[None]:
    """Spare each training call's full garbage collection the objects of all imported modules: a third of the time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def numbers_with_each_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a run whose rollouts take longer than the interval, which is a second; these take milliseconds."""
    monkeypatch.setattr("rlstep_hooks.session.session.INTERVAL", 0.0)


@pytest.fixture(scope="module")
def without_bug(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Reports of runs without a bug, one for each setting."""

    @cache
    def trained(settings: tuple[tuple[str, Any], ...], prepare: Apply) -> Report:
        return train(tmp_path_factory.mktemp("after"), dict(settings), prepare, unchanged)[0]

    return lambda fault: trained(tuple(sorted(fault.settings.items())), fault.prepare)


@pytest.mark.parametrize("name", BUGS)
def test_after_is_silent(name: str, without_bug: Any) -> None:
    report = without_bug(MADE[BUGS[name].fault])
    check_after(name, report.verdict, alarms(report))


@pytest.mark.parametrize("name", BUGS)
def test_before_is_found(name: str, tmp_path: Any) -> None:
    fault = MADE[BUGS[name].fault]
    report, _ = train(tmp_path, dict(fault.settings), fault.prepare, fault.apply)
    check_before(name, BUGS[name], report.verdict, alarms(report))
