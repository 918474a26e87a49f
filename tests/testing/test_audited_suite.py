"""`--rlstep-audit` in sessions of its own. The trainers are scripted: they record what a real one would."""

from __future__ import annotations

import logging
import os
import textwrap
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.record.logger import NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    Session = Callable[..., pytest.RunResult]

pytest_plugins = "pytester"

HEAD = """
import os
import pytest
from rlstep_hooks.judge.deviations import none_known
from rlstep_hooks.record import suite
from rlstep_hooks.record.logger import not_evaluated
from rlstep_hooks.session.session import Options, Run, Session
from tests.scripted import make_plan, scripted_run

class Trainer:
    def __init__(self):
        suite.built(self)

    def train(self, name, *, without=None):
        first, *events, _ = scripted_run(make_plan(max_steps=4))
        session = Session(Options.asked(listeners=()), none_known)
        facts = first.facts | suite.facts_of(self)
        recorder = session.begin(Run(name=name, schedule=first.schedule, versions={}, facts=facts))
        recorder.emit(*(event for number, event in enumerate(events) if number != without))
        session.end()
"""


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Runs pytest on a test module."""
    for name in ("CI", "BUILD_NUMBER", "RLSTEP_DIR", "RLSTEP_PARENT", "RLSTEP_ON_FAIL"):
        monkeypatch.delenv(name, raising=False)

    def run(body: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(HEAD + textwrap.dedent(body))
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)

    return run


HEALTHY = """
@pytest.mark.parametrize("number", [1, 2])
def test_trains(number, capsys):
    not_evaluated("something")
    Trainer().train(f"run{number}")
    assert capsys.readouterr() == ("", "")

def test_builds():
    Trainer()

def test_neither():
    pass
"""


def test_the_session_ends_with_a_table_and_its_tests_see_nothing_of_the_audit(
    session: Session, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # the inner session removes it
    before, handlers = dict(os.environ), list(logging.getLogger(NAME).handlers)
    result = session(HEALTHY, "--rlstep-audit")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(
        [
            "*= rlstep audit =*",
            "test *ended *audit *findings *not evaluated",
            "  test_trains[[]1[]] *passed *PASS *",
            "  test_trains[[]2[]] *passed *PASS *",
            "  test_builds *passed *not trained",
            "3 tests, 2 training calls: 2 PASS, 1 not trained; 1 test built no trainer that is audited",
            f"recorded in {pytester.path / 'rlstep'}",
        ]
    )
    assert dict(os.environ) == before
    assert logging.getLogger(NAME).handlers == handlers


def test_without_the_option_nothing_is_recorded(session: Session, pytester: pytest.Pytester) -> None:
    result = session("def test_builds():\n    Trainer()\n    assert 'RLSTEP_DIR' not in os.environ")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*rlstep audit*")
    assert not (pytester.path / "rlstep").exists()


FAULTY = """
def test_passes_over_a_fault():
    Trainer().train("faulty", without=0)
"""


@pytest.mark.parametrize(("options", "status"), [((), 0), (("--rlstep-strict",), 1)])
def test_a_fault_is_shown_and_fails_the_session_where_that_is_asked_for(
    session: Session, options: tuple[str, ...], status: int
) -> None:
    result = session(FAULTY, "--rlstep-audit", "--rlstep-dir", "log", *options)
    assert result.ret == status
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["  test_passes_over_a_fault *passed *FAIL *error RLS*", "ERROR RLS*", "*1 FAIL*"])


ENDS = """
class Tests:
    def test_fails(self):
        Trainer().train("a")
        not_evaluated("said while it ran")
        assert 1 == 2

    def test_is_refused(self):
        Trainer()
        suite.refused("TRL 9.9 is not supported")
        pytest.skip("no")

    @pytest.mark.xfail
    def test_is_expected_to_fail(self):
        Trainer()
        assert 1 == 2

    def test_fails_to_clean_up(self, request):
        Trainer()
        request.addfinalizer(lambda: 1 / 0)
"""


def test_every_end_is_told_and_a_failed_test_shows_what_the_audit_said(session: Session) -> None:
    result = session(ENDS, "--rlstep-audit")
    result.assert_outcomes(passed=1, failed=1, skipped=1, xfailed=1, errors=1)
    result.stdout.fnmatch_lines(["*Captured rlstep call*", "not evaluated: said while it ran"])
    result.stdout.fnmatch_lines(
        [
            "  Tests::test_fails *failed *PASS*",
            "  Tests::test_is_refused *skipped *NOT EVALUATED *[[]2[]]",
            "  Tests::test_is_expected_to_fail *xfailed *not trained",
            "  Tests::test_fails_to_clean_up *error *not trained",
            "[[]2[]] TRL 9.9 is not supported (1 test)",
        ]
    )


def test_under_rlstep_run_the_parent_prints_the_table(
    session: Session, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLSTEP_PARENT", "1")
    monkeypatch.setenv("RLSTEP_DIR", str(pytester.path / "log"))
    result = session(HEALTHY)
    result.assert_outcomes(passed=4)
    result.stdout.no_fnmatch_line("*rlstep audit*")
    assert len(list((pytester.path / "log").iterdir())) == 3, "two runs, and the tests"


def test_a_wish_that_is_not_known_is_refused_before_any_test(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSTEP_ON_FAIL", "explode")
    result = session(HEALTHY, "--rlstep-audit")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "not 'explode'" in result.stderr.str() + result.stdout.str()
