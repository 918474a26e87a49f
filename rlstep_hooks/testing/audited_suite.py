"""A foreign test suite under audit: what `--rlstep-audit` and `rlstep run -- pytest ...` add to a pytest session."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from rlstep_hooks.observe.options import on_fail_asked, share_asked
from rlstep_hooks.record.ledger import record_files
from rlstep_hooks.record.logger import NAME
from rlstep_hooks.record.suite import Ended, note, suite_files
from rlstep_hooks.record.variables import OUTER_TEST, PARENT
from rlstep_hooks.systems.injection import environment
from rlstep_hooks.systems.injection.hooks import register

if TYPE_CHECKING:
    from collections.abc import Generator

    from rlstep_hooks.judge.suite import Suite

_ENDED = ("error", "failed", "xpassed", "xfailed", "skipped", "passed")
"""How a test ended, by what weighs most: a test that passed and failed to clean up has an error."""


class AuditedSuite:
    """Audits every trainer that the tests of a session build, and notes how each test ends.

    Args:
        config: The session's configuration.
        folder: Where to record; None under `rlstep run`, which says where and prints the table itself.
        strict: Whether the session fails where an audit found something.

    Raises:
        pytest.UsageError: RLSTEP_ON_FAIL or RLSTEP_COMPARE has no meaning.
    """

    def __init__(self, config: pytest.Config, folder: Path | None, *, strict: bool) -> None:
        try:
            on_fail_asked()
            share_asked()
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
        self._config = config
        self._folder = folder
        self._strict = strict
        self._before: set[str] = set()
        self._inherited = dict(os.environ)
        self._suite: Suite | None = None
        self._outcomes: dict[str, str] = {}
        if folder is not None:
            self._before = {*record_files(folder), *(path.name for path in suite_files(folder))}
            os.environ.update(environment(folder, os.environ))
        register()
        self._said = _Said()
        self._logger = logging.getLogger(NAME)
        self._handlers, self._logger.handlers = self._logger.handlers, [self._said]

    # Hook wrappers of the old kind, as in `pytest_plugin`.
    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, Any, None]:
        """Show with a failed test what the audit said while it ran; a passed one may look at its own output."""
        outcome = yield
        lines = self._said.take()
        if lines and outcome.excinfo is None:
            outcome.get_result().sections.append((f"Captured rlstep {call.when}", "\n".join(lines)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended. With pytest-xdist only the process that hears of all tests does."""
        if hasattr(self._config, "workerinput"):
            return
        category = self._config.hook.pytest_report_teststatus(report=report, config=self._config)[0]
        known = self._outcomes.get(report.nodeid, "passed")
        if category in _ENDED and _ENDED.index(category) <= _ENDED.index(known):
            self._outcomes[report.nodeid] = category
        if report.when == "teardown" or report.when not in ("setup", "call"):  # a worker that crashed has no teardown
            note(Ended(report.nodeid, self._outcomes.pop(report.nodeid, "passed")))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Judge what was recorded."""
        if self._folder is None or hasattr(self._config, "workerinput"):
            return
        from rlstep_hooks.judge.suite import recorded_suite
        from rlstep_hooks.systems.engine.index import deviations_of

        self._suite, _ = recorded_suite(self._folder, self._before, deviations_of=deviations_of)
        if self._strict and self._suite.fails(strict=True) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table."""
        if self._suite is None or self._folder is None:
            return
        from io import StringIO

        from rlstep_hooks.show.suite import suite_table, width
        from rlstep_hooks.show.terminal import Terminal

        file, screen = StringIO(), terminalreporter._tw
        colours: Literal["standard"] | None = "standard" if screen.hasmarkup else None
        columns = width(screen.fullwidth, terminal=screen.hasmarkup)
        Terminal(
            file=file, width=columns, force_terminal=screen.hasmarkup, color_system=colours, highlight=False
        ).print(suite_table(self._suite))
        terminalreporter.section("rlstep audit")
        terminalreporter.write_line("\n".join(line.rstrip() for line in file.getvalue().splitlines()))
        terminalreporter.write_line(f"recorded in {self._folder}")

    def pytest_unconfigure(self) -> None:
        """Leave the process as it was: without the variables, the hooks on the trainers do nothing."""
        self._logger.handlers = self._handlers
        for name in ("RLSTEP_DIR", PARENT, OUTER_TEST, "PYTHONPATH"):
            if name in self._inherited:
                os.environ[name] = self._inherited[name]
            else:
                os.environ.pop(name, None)


class _Said(logging.Handler):
    """Keeps what the audit says, so that a test that looks at standard error sees only its own."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self._lines.append(self.format(record))

    def take(self) -> list[str]:
        """The lines since the last call."""
        lines, self._lines = self._lines, []
        return lines


def asked(config: pytest.Config) -> AuditedSuite:
    """The audit of a session that was asked for it by an option, or runs under `rlstep run`."""
    folder = None
    if PARENT not in os.environ:
        folder = Path(config.invocation_params.dir, config.getoption("rlstep_dir")).absolute()
    return AuditedSuite(config, folder, strict=config.getoption("rlstep_strict"))
