"""How training ended, and what that makes of the verdict: PASS needs an end that somebody wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.cli.app import main
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.record.events import Rollout, RunEnded, Update
from rlstep_hooks.record.ledger import FolderLedger, rank_process
from rlstep_hooks.show.markdown import report_markdown
from rlstep_hooks.show.summary import sentence
from tests.scripted import make_plan, scripted_run

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.events import AnyEvent

PLAN = make_plan(iterations=2, max_steps=32)
"""16 rollouts of 2 updates."""
WHOLE = scripted_run(PLAN)
RAISED = RunEnded(status="raised", updates=10, error="IndexError: list index out of range")


def judge(events: list[AnyEvent]) -> Report:
    judged = Judge()
    for event in events:
        judged.observe(event)
    return judged.report()


def until(rollout: int) -> list[AnyEvent]:
    """The run up to a rollout, which is not in it."""
    return WHOLE[: next(i for i, event in enumerate(WHOLE) if isinstance(event, Rollout) and event.index == rollout)]


def recorded(folder: Path, events: list[AnyEvent]) -> Path:
    ledger = FolderLedger(folder / "log", "run", rank_process(0))
    ledger.write(*events)
    ledger.close()
    return folder / "log"


@pytest.mark.parametrize("rollouts", [0, 5])
def test_a_run_that_raised_is_not_evaluated_and_names_the_exception(rollouts: int) -> None:
    report = judge([*until(rollouts), RAISED])
    assert (report.verdict, report.complete, report.ending) == ("NOT_EVALUATED", False, "raised")
    assert "IndexError: list index out of range" in report.not_evaluated["end"]
    assert f"{rollouts} of 16 rollouts" in sentence(report)
    assert "IndexError: list index out of range" in sentence(report)


def test_an_error_that_was_found_before_the_exception_is_still_a_failure() -> None:
    spoiled = [event for event in until(5) if not (isinstance(event, Update) and event.index == 4)]
    report = judge([*spoiled, RAISED])
    assert report.verdict == "FAIL"
    assert report.error == RAISED.error


@pytest.mark.parametrize("error", ["KeyboardInterrupt: ", "KeyboardInterrupt"])
def test_what_the_user_interrupts_is_judged_as_far_as_it_came(error: str) -> None:
    report = judge([*until(5), RunEnded(status="raised", updates=10, error=error)])
    assert (report.verdict, report.ending) == ("PASS", "interrupted")
    assert "interrupted" in sentence(report)
    assert "5 of 16 rollouts and 10 of 32 updates" in sentence(report)


def test_an_interrupt_before_the_first_update_shows_nothing() -> None:
    report = judge([*until(0), RunEnded(status="raised", updates=0, error="KeyboardInterrupt: ")])
    assert report.verdict == "NOT_EVALUATED"
    assert "before its first update" in sentence(report)


def test_a_stop_that_was_asked_for_says_how_far_the_run_came() -> None:
    report = judge([*until(5), RunEnded(status="completed", updates=10, stopped=True)])
    assert (report.verdict, report.ending) == ("PASS", "stopped")
    assert "stopped early, after 5 of 16 rollouts and 10 of 32 updates" in sentence(report)


def test_counts_that_are_not_those_of_the_plan_stand_below_no_pass() -> None:
    """Whatever the cause, such as a beginning that comes twice, after which the rules know nothing of what was before."""
    report = judge([*WHOLE[:-1], *WHOLE])
    assert (report.verdict, report.findings) == ("NOT_EVALUATED", [])
    assert "32 rollouts where 16 are planned" in report.not_evaluated["counts"]
    assert "64 updates where 32 are planned" in sentence(report)


def test_a_run_under_way_is_judged_as_far_as_it_came() -> None:
    assert judge(until(5)).verdict == "PASS"


@pytest.mark.parametrize("strict", [[], ["--strict"]])
@pytest.mark.parametrize("ended", [[], [RAISED]], ids=["killed", "raised"])
def test_the_command_reports_a_run_that_broke_off_as_such(
    ended: list[AnyEvent], strict: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recorded(tmp_path, [*until(5), *ended])
    with pytest.raises(SystemExit) as left:
        main(["report", str(folder), *strict])
    out = " ".join(capsys.readouterr().out.split())
    assert left.value.code == 2
    assert "NOT EVALUATED" in out
    assert "5 of 16 rollouts and 10 of 32 updates" in out
    assert ("IndexError" in out) == bool(ended)
    assert "5 of 16 rollouts" in report_markdown(report_of(folder))


def test_a_run_that_came_to_nothing_says_so_and_blames_neither_plan_nor_observer() -> None:
    """What was never reached is no fault of the settings: "the plan does not say which weights sample" was said of every such run."""
    unknown = judge([*until(0), RAISED]).not_evaluated
    assert unknown["RLS402"] == unknown["RLS301"] == "the run made no rollout and trained nothing"


def test_a_run_that_was_asked_to_stop_before_its_first_update_did_nothing_wrong() -> None:
    """A callback of Stable-Baselines3 that returned False at the first step was told that the run "ended normally"."""
    stopped = judge([WHOLE[0], RunEnded(status="completed", updates=0, stopped=True)])
    assert not [finding for finding in stopped.findings if finding.code == "RLS209"]
    assert stopped.verdict != "FAIL"
    assert "RLS209" in {finding.code for finding in judge([WHOLE[0], RunEnded(status="completed", updates=0)]).findings}
