"""The pytest plugin: the fixture `step_audit`, the marker `rlstep`, and the option `--rlstep-audit`.

pytest loads it in every session where this package is installed. Unless a test uses one of the first two, or a whole session is audited
(by the option, or by `rlstep run`), it imports only pytest and does not change what pytest does or prints. `-p no:rlstep` turns it off.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from rlstep_hooks.systems.trl.observe.callback import StepAuditCallback
    from rlstep_hooks.testing.audited_test import AuditedTest, Expectations

_AUDITED: pytest.StashKey[AuditedTest] = pytest.StashKey()

_MARKER = (
    "rlstep(expect_updates=N, expect_rollouts=N, ..., strict=False): what the report of the fixture step_audit must say when"
    " the test ends: any name of report.counts after expect_; with strict, warnings fail too."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of an audited session."""
    group = parser.getgroup("rlstep", "audit of RL training")
    group.addoption(
        "--rlstep-audit",
        action="store_true",
        help="audit every trainer that the tests build, and end with a table: test, verdict, findings, not evaluated and why",
    )
    group.addoption(
        "--rlstep-dir", default="rlstep", metavar="DIR", help="where --rlstep-audit records (default: rlstep)"
    )
    group.addoption(
        "--rlstep-strict", action="store_true", help="with --rlstep-audit: fail the session on an error or a warning"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and audit the session if that is asked for."""
    config.addinivalue_line("markers", _MARKER)
    # Both are set by `rlstep run`, and by this plugin for the workers of pytest-xdist (record/variables.py).
    if config.getoption("rlstep_audit") or ("RLSTEP_PARENT" in os.environ and os.environ.get("RLSTEP_DIR")):
        from rlstep_hooks.testing.audited_suite import asked

        config.pluginmanager.register(asked(config), "rlstep-suite")


@pytest.fixture
def step_audit(request: pytest.FixtureRequest) -> StepAuditCallback:
    """An audit for a TRL trainer: `GRPOTrainer(..., callbacks=[step_audit])`.

    An error that it finds ends training with `StepAuditError`. When the test ends, it fails if one of its training calls had an error,
    even if the exception was caught, or if nothing was recorded. The record is kept in memory.
    """
    from rlstep_hooks.testing.audited_test import AuditedTest

    try:
        audited = AuditedTest()
    except ImportError as error:
        problem = f"step_audit audits TRL, which cannot be imported here: {error}"
        raise pytest.fail.Exception(problem, pytrace=False) from None
    request.node.stash[_AUDITED] = audited
    return audited.callback


# The old kind of hook wrapper: the new one cannot be declared under pluggy 1.0 and 1.1, which pytest 7 allows, and loading this plugin
# must not fail a session that does not use it.
@pytest.hookimpl(hookwrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class) -> Generator[None, Any, None]:
    """Refuse a marker with unknown expectations as a collection error, which pytest-xdist shows too."""
    outcome = yield
    made = outcome.get_result() if outcome.excinfo is None else None
    for item in made if isinstance(made, list) else ():
        try:
            _expectations(item)
        except TypeError as error:
            outcome.force_exception(collector.CollectError(f"{item.nodeid}: {error}"))
            return


# Called last, so that pytest's own wrappers see a failed test.
@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Fail a test that passed while its audit failed. A test that failed by itself only gets the report added."""
    outcome = yield
    audited = item.stash.get(_AUDITED, None)
    expected = _expectations(item)
    if audited is None and expected is None:
        return
    if audited is None:
        complaint = "rlstep: the test has the marker rlstep but did not use step_audit, so nothing was audited"
    else:
        del item.stash[_AUDITED]  # free the audit's events: items live as long as the session
        complaint = audited.complaint(expected)
    if not complaint:
        return
    if outcome.excinfo is None:
        outcome.force_exception(pytest.fail.Exception(complaint, pytrace=False))
    elif not issubclass(outcome.excinfo[0], pytest.skip.Exception):
        item.add_report_section("call", "rlstep", complaint)


def _expectations(item: pytest.Item) -> Expectations | None:
    """The expectations of a test's markers, the nearest first; None if it has no marker.

    Raises:
        TypeError: A marker has unknown expectations.
    """
    marks = [(mark.args, dict(mark.kwargs)) for mark in item.iter_markers("rlstep")]
    if not marks:
        return None
    from rlstep_hooks.testing.audited_test import expectations

    return expectations(marks)
