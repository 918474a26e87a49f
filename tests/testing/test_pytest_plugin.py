"""The pytest plugin in its own sessions: its cost, what it fails, and its messages. TRL is not needed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.report import Report, StepAuditError
from rlstep_hooks.record.events import ConfigChanged
from rlstep_hooks.record.ledger import MemoryLedger
from rlstep_hooks.session.recorder import Recorder
from rlstep_hooks.session.session import NEVER_CALLED
from rlstep_hooks.testing.audited_test import Expectations, complaint, expectations
from tests.scripted import make_plan, scripted_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.record.events import AnyEvent

    Session = Callable[..., pytest.RunResult]

pytest_plugins = "pytester"


class ScriptedAudit:
    """The callback's public side, fed with events instead of a trainer."""

    def __init__(self, on_fail: str, log_dir: None, listeners: tuple[Any, ...]) -> None:
        assert (on_fail, log_dir) == ("raise", None)
        self.listeners = listeners
        self.report = Report(verdict="NOT_EVALUATED", not_evaluated={"order": NEVER_CALLED})

    def train(self, *, without: int | None = None, told: bool = True) -> None:
        recorder = Recorder(MemoryLedger(), Judge())
        events = scripted_run(make_plan(max_steps=4))[: None if told else 1]
        recorder.emit(*(event for number, event in enumerate(events) if number != without))
        errors = [finding for finding in recorder.take_findings() if finding.severity == "error"]
        self.report = recorder.judge.report()
        for listener in self.listeners:
            listener.finished(self.report)
        if errors:
            raise StepAuditError(errors[0])


ROLLOUT = 1
"""Number of the first rollout among the events of a scripted run; without it the audit has an error."""


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Runs pytest on a test module, with an audit that is scripted."""
    scripted = SimpleNamespace(StepAuditCallback=ScriptedAudit)  # the real module needs TRL
    monkeypatch.setitem(sys.modules, "rlstep_hooks.systems.trl.observe.callback", scripted)
    for name in ("CI", "BUILD_NUMBER"):  # where pytest's summary has each message whole
        monkeypatch.delenv(name, raising=False)

    def run(body: str, *options: str) -> pytest.RunResult:
        head = f"import pytest\nfrom rlstep_hooks import StepAuditError\nROLLOUT = {ROLLOUT}\n"
        pytester.makepyfile(head + textwrap.dedent(body))
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)

    return run


def shown(result: pytest.RunResult) -> str:
    return result.stdout.str() + result.stderr.str()


# What it costs, and that it can be taken away


MEASURE = """
import json, sys, time
import pytest
before, times = set(sys.modules), []
for _ in range(5):
    begin = time.perf_counter()
    import rlstep_hooks.testing.pytest_plugin
    times.append(time.perf_counter() - begin)
    new = set(sys.modules) - before
    for name in new:
        del sys.modules[name]
print(json.dumps([min(times), sorted(new)]))
"""


def test_the_entry_point_is_the_plugin() -> None:
    (found,) = entry_points(group="pytest11", name="rlstep")
    assert found.value == "rlstep_hooks.testing.pytest_plugin"


def test_it_imports_nothing_and_costs_under_five_milliseconds() -> None:
    run = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, timeout=60, check=True)
    seconds, modules = json.loads(run.stdout)
    assert set(modules) == {"rlstep_hooks", "rlstep_hooks.testing", "rlstep_hooks.testing.pytest_plugin"}
    assert seconds < 0.005


LOADED = """
import sys
import textwrap

def test_nothing_of_it_is_loaded():
    print("LOADED", sorted(name for name in sys.modules if name.startswith("rlstep_hooks")))
"""


OTHERS = [word for name in ("hydra_pytest", "hypothesispytest", "xdist", "anyio") for word in ("-p", f"no:{name}")]
"""No plugins of other packages, which take longer to import than all the rest of such a session."""


def loaded(pytester: pytest.Pytester, *options: str) -> str:
    pytester.makepyfile(LOADED)
    result = pytester.runpytest_subprocess("-s", *OTHERS, *options)
    result.assert_outcomes(passed=1)
    return next(line for line in result.stdout.lines if "LOADED" in line).partition("LOADED ")[2].removesuffix(".")


def test_a_session_that_does_not_use_it_loads_the_plugin_alone(pytester: pytest.Pytester) -> None:
    assert loaded(pytester) == "['rlstep_hooks', 'rlstep_hooks.testing', 'rlstep_hooks.testing.pytest_plugin']"


def test_it_can_be_taken_away_without_a_trace(pytester: pytest.Pytester) -> None:
    assert loaded(pytester, "-p", "no:rlstep") == "[]"
    listed = pytester.runpytest_inprocess("-p", "no:rlstep", "--markers", "--fixtures")
    assert "rlstep" not in listed.stdout.str()
    assert "rlstep(" in pytester.runpytest_inprocess("--markers").stdout.str()


def test_pytest_does_not_warn_of_a_package_that_was_imported_before_it(pytester: pytest.Pytester) -> None:
    """What pytest does for an installed plugin's package, here by hand: in a checkout it does not know the package's files."""
    pytester.makeconftest("import pytest, rlstep_hooks\npytest.register_assert_rewrite('rlstep_hooks')")
    pytester.makepyfile("def test_passes():\n    pass")
    pytester.runpytest_subprocess(*OTHERS, "-W", "error::pytest.PytestAssertRewriteWarning").assert_outcomes(passed=1)


# What it fails


def test_a_healthy_run_passes_and_its_counts_are_asserted(session: Session) -> None:
    result = session(
        """
        def test_plain(step_audit):
            step_audit.train()

        @pytest.mark.rlstep(expect_updates=4, expect_rollouts=4, strict=True)
        def test_right_counts(step_audit):
            step_audit.train()

        @pytest.mark.rlstep(expect_updates=5, expect_samples=1)
        def test_wrong_counts(step_audit):
            step_audit.train()
        """,
        "--strict-markers",
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_wrong_counts*",
            "rlstep: the run's counts are not those that the test expects",
            "*updates: expected 5, observed 4",
            "*samples: expected 1, observed 32",
            "PASS*",
            "*planned*observed*",
        ]
    )


def test_an_error_fails_the_test_however_it_ends(session: Session) -> None:
    result = session(
        """
        def test_raised(step_audit):
            step_audit.train(without=ROLLOUT)

        def test_swallowed(step_audit):
            with pytest.raises(RuntimeError):  # about something else
                step_audit.train(without=ROLLOUT)

        def test_swallowed_before_a_healthy_run(step_audit):
            try:
                step_audit.train(without=ROLLOUT)
            except Exception:
                pass
            step_audit.train()

        def test_failed_for_a_reason_of_its_own(step_audit):
            step_audit.train()
            assert 1 == 2
        """
    )
    result.assert_outcomes(failed=4)  # no errors: nothing is added at teardown
    text = shown(result)
    assert text.count("rlstep: the audit of this run failed") == 3
    assert text.count("Captured rlstep call") == 1, (
        "beside the exception of the first test; the others have it as their failure"
    )
    assert text.count("ERROR RLS") >= 3
    assert "StepAuditError: RLS" in text
    assert "assert 1 == 2" in text


def test_a_test_that_audited_nothing_fails(session: Session) -> None:
    result = session(
        """
        def test_asked_and_never_trained(step_audit):
            pass

        def test_trained_and_saw_nothing(step_audit):
            step_audit.train(told=False)

        @pytest.mark.rlstep(expect_updates=4)
        def test_marked_and_never_asked():
            pass

        def test_skipped(step_audit):
            pytest.skip("no reason")
        """
    )
    result.assert_outcomes(failed=3, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "rlstep: step_audit recorded nothing: no training has called this audit*",
            "rlstep: this run was not evaluated",
            "rlstep: the test has the marker rlstep but did not use step_audit*",
        ]
    )


def test_expected_failures_stay_expected(session: Session) -> None:
    result = session(
        """
        @pytest.mark.xfail(strict=True)
        def test_known_fault(step_audit):
            try:
                step_audit.train(without=ROLLOUT)
            except StepAuditError:
                pass
        """
    )
    result.assert_outcomes(xfailed=1)


def test_a_marker_that_asks_for_what_is_not_there_is_an_error_of_collection(session: Session) -> None:
    result = session("@pytest.mark.rlstep(expect_update=4)\ndef test_marked(step_audit):\n    step_audit.train()")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=1)
    assert "test_marked: the marker rlstep has no keyword expect_update; did you mean expect_updates" in shown(result)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"nonsense": 4}, "the marker rlstep has no keyword nonsense; there are expect_rollouts, "),
        ({"expect_updates": "four"}, "expect_updates of the marker rlstep is a whole number, not 'four'"),
        ({"expect_updates": -1}, "expect_updates of the marker rlstep is a whole number, not -1"),
        ({"expect_updates": True}, "expect_updates of the marker rlstep is a whole number, not True"),
        ({"strict": 1}, "strict of the marker rlstep is True or False, not 1"),
    ],
)
def test_keywords_of_the_marker_are_checked(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        expectations([((), keywords)])
    with pytest.raises(TypeError, match="takes keywords only, not 8"):
        expectations([((8,), {})])


def test_the_nearest_marker_counts() -> None:
    class_mark = ((), {"strict": True, "expect_updates": 1})
    assert expectations([((), {"expect_updates": 2}), class_mark]) == Expectations({"updates": 2}, strict=True)
    assert expectations([]) == Expectations()


# What is said of reports


def judged(*events: AnyEvent) -> Report:
    judge = Judge()
    for event in events:
        judge.observe(event)
    return judge.report()


def test_warnings_fail_only_a_strict_test() -> None:
    changed = ConfigChanged(name="num_iterations", before=1, after=2, since="construction")
    started, *rest = scripted_run(make_plan(max_steps=4))
    report = judged(started, changed, *rest)
    assert (report.verdict, [f.severity for f in report.findings if f.code == "RLS101"]) == ("PASS", ["warning"])
    assert complaint([report], Expectations()) == ""
    assert "WARNING RLS101" in complaint([report], Expectations(strict=True))


def test_counts_are_those_of_the_last_call() -> None:
    short, long = (judged(*scripted_run(make_plan(max_steps=updates))) for updates in (2, 4))
    assert complaint([short, long], Expectations({"updates": 4})) == ""
    assert "updates: expected 2, observed 4" in complaint([short, long], Expectations({"updates": 2}))
    unseen = Report(run="b", verdict="NOT_EVALUATED")
    assert "not evaluated" in complaint([short, unseen], Expectations())
    assert "not evaluated" in complaint([unseen, long], Expectations())
