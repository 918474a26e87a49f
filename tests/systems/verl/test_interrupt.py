"""Ray ends the process that controls a run: with SIGTERM, which it can answer, or at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.record.events import RunEnded
from rlstep_hooks.show.summary import ending, sentence
from tests.systems.verl.audited import audited, problems
from tests.systems.verl.interrupting import MODULE, ROLLOUTS, SIGNAL
from tests.systems.verl.launch import grpo

if TYPE_CHECKING:
    from pathlib import Path

    from tests.systems.audited import Audited
    from tests.systems.verl.launch import Assets


@pytest.fixture
def ended(request: pytest.FixtureRequest, assets: Assets, tmp_path: Path) -> Audited:
    """A run whose controller got a signal."""
    # Nothing here depends on time; the limit is for a machine that does much else.
    variables = {SIGNAL: request.param}
    run = audited(grpo(assets), tmp_path / "run", modules=[MODULE], environment=variables, limit=1200)
    assert run.outcome.status not in (0, None)
    assert problems(run.report) == []
    assert run.report.counts.updates == 2 * ROLLOUTS
    return run


def ends(run: Audited) -> list[str]:
    """What the controller recorded of the run's end."""
    return [event.error.partition(":")[0] for event in run.record("controller") if isinstance(event, RunEnded)]


@pytest.mark.thorough
@pytest.mark.parametrize("ended", ["SIGTERM"], indirect=True)
def test_a_run_that_is_told_to_end_is_judged_up_to_there(ended: Audited) -> None:
    assert ends(ended) == ["KeyboardInterrupt"]
    assert (ended.report.verdict, ended.report.ending) == ("PASS", "interrupted")
    assert ended.live is not None
    assert ended.live.verdict == "PASS"
    assert "interrupted" in ending(ended.report)


@pytest.mark.thorough
@pytest.mark.parametrize("ended", ["SIGKILL"], indirect=True)
def test_a_run_that_is_killed_is_not_evaluated(ended: Audited) -> None:
    assert ends(ended) == []
    assert (ended.report.verdict, ended.report.ending) == ("NOT_EVALUATED", "cut")
    assert "its process was interrupted or killed" in ended.report.not_evaluated["record"]
    assert "interrupted, killed or still under way" in sentence(ended.report)
