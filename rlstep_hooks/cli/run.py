"""`rlstep run`: runs a launch command unchanged, with the audit attached in every process, and prints the report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.cli.ahead import LIMIT, PlanAhead
from rlstep_hooks.cli.complain import complain
from rlstep_hooks.cli.ray_job import advice
from rlstep_hooks.observe.options import on_fail_asked, share_asked
from rlstep_hooks.planning.words import printable
from rlstep_hooks.record.ledger import record_files
from rlstep_hooks.record.refusals import refusal_files, refusals
from rlstep_hooks.record.suite import suite_files
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.installed import runs_here
from rlstep_hooks.systems.injection import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from rlstep_hooks.cli.copying import Copying
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.judge.suite import Suite
    from rlstep_hooks.planning.launched import Options
    from rlstep_hooks.show.terminal import Terminal

FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT")
"""Signals that are passed on to the command."""


def run(
    command: Sequence[str],
    options: Callable[[], Options],
    *,
    folder: Path,
    strict: bool,
    copy_to: str | None = None,
    stalled_after: float | None = None,
) -> int:
    """Print a command's plan, run the command, show its progress, and report on its record.

    Args:
        command: The command with its arguments; it keeps the streams and the terminal.
        options: Gives the options for the command's plan, or raises LaunchError.
        folder: The folder that the command's processes record in.
        strict: Whether the audit decides the exit status of a command that ends with 0: 1 if it found an error or a warning,
            2 if it could not judge (nothing was recorded, or training broke off).
        copy_to: URL of a folder to copy the records to.
        stalled_after: Seconds without an event after which it is told once what each process did last; None for never.

    Returns:
        The command's own exit status (128 + n after signal n), 2 if it is not started, because it cannot be or because nothing could
        be recorded or copied; in place of 0, 1 where the audit ended training (RLSTEP_ON_FAIL), and 2 where the copy is not complete;
        see also `strict`.
    """
    before = {*record_files(folder), *(path.name for path in suite_files(folder)), *refusal_files(folder)}
    try:
        on_fail_asked()
        share_asked()
    except ValueError as error:
        complain(error)
        return 2
    try:
        _try_to_write(folder)
        copying = _copying(folder, before, copy_to)
    except OSError as error:
        complain(error)
        return 2
    plan = PlanAhead(command, lambda: msgspec.structs.replace(options(), here=runs_here(command)))
    ahead = plan.wait(LIMIT)
    if ahead is not None:
        print(ahead.text, end="\n\n", file=sys.stderr, flush=True)
    ray = advice(command, folder, ahead.framework if ahead is not None else "", os.environ)
    if ray:
        print(printable(ray), end="\n\n", file=sys.stderr, flush=True)
    watching = _Watching(folder, before, plan, stalled_after, told=ahead is not None)
    try:
        with copying or nullcontext():
            status = _run(command, environment(folder, os.environ), watching)
    except OSError as error:
        complain(f"{command[0]} cannot be started: {error.strerror or error}")
        return 2
    suite, reports = _report(folder, before, status)
    if copying is not None:
        complain(copying.told())
    if status:
        return status
    judged = _judged(suite, reports, strict=strict)
    return judged or (2 if copying is not None and not copying.complete else 0)


def _judged(suite: Suite, reports: list[Report], *, strict: bool) -> int:
    """The exit status that the reports of a command call for that ended with 0."""
    if strict:
        return _exit_status(suite, reports)
    # A run that the audit ended with `on_fail` is not one that came to its end, whatever the command says.
    every = [*reports, *(report for test in suite.tests for report in test.reports)]
    return 1 if any(report.stopped_by for report in every) else 0


def _try_to_write(folder: Path) -> None:
    """Look whether records can be written, before anything is trained. Leaves nothing behind.

    Raises:
        OSError: They cannot.
    """
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    try:
        probe = there / f".rlstep-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OSError(f"nothing can be recorded in {folder}: {type(error).__name__}: {error}") from error


def _copying(folder: Path, before: set[str], url: str | None) -> Copying | None:
    """Copies a command's records while it runs, if a URL is given.

    Raises:
        RemoteError: The URL cannot be opened, or nothing can be written there.
    """
    if url is None:
        return None
    from rlstep_hooks.cli.copying import Copying

    copying = Copying(folder, before, url)
    copying.probe()
    return copying


class _Watching:
    """The thread that shows a command's progress. It starts once the command has started; an error of its own ends only it."""

    def __init__(
        self, folder: Path, before: set[str], plan: PlanAhead, stalled_after: float | None, *, told: bool
    ) -> None:
        self._stalled_after = stalled_after
        self._folder = folder
        self._before = before
        self._plan = plan
        self._told = told
        """Whether the plan has been printed."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rlstep-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The command has ended: look once more, then stop."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001 - the command goes on, and its report is made from the records
            complain(f"the live line stopped: {type(error).__name__}: {error}")

    def _watch(self) -> None:
        from rlstep_hooks.cli.watch import Watch  # imported while the command starts, so that it does not wait
        from rlstep_hooks.judge.following import INTERVAL

        ahead = self._plan.wait(0) if self._told else None
        watch = Watch(self._folder, self._before, ahead.schedule if ahead is not None else None, self._stalled_after)
        ended = False
        while not ended:
            ended = self._ended.wait(INTERVAL)
            watch.look()
            late = None if self._told else self._plan.wait(LIMIT if ended else 0)
            if late is not None:
                watch.print_late(late)
                self._told = True


def _run(command: Sequence[str], variables: dict[str, str], watching: _Watching) -> int:
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, frame: Any) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    def interrupt(number: int, frame: Any) -> None:
        if not _in_front_of_a_terminal():
            forward(number, frame)

    # Set before the command starts, so that no signal ends only this process. The command does not inherit handlers but does inherit
    # ignored signals (nohup), so those stay ignored.
    handlers = {signal.SIGINT: interrupt} | {
        getattr(signal, name): forward for name in FORWARDED if hasattr(signal, name)
    }
    previous = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        process = subprocess.Popen(command, env=variables)
        for number in early:
            process.send_signal(number)
        watching.start()
        status = process.wait()
        watching.stop()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _in_front_of_a_terminal() -> bool:
    """Whether Ctrl-C in a terminal reaches both this process and the command without our help."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _report(folder: Path, before: set[str], status: int) -> tuple[Suite, list[Report]]:
    """Print the report of each new run, after the command ended with `status`; the runs of tests in one table.

    Returns:
        The tests, and the reports of all runs that no test made.
    """
    from rlstep_hooks.judge.suite import recorded_suite
    from rlstep_hooks.show.console import record_lines, verdict_block
    from rlstep_hooks.show.terminal import Terminal

    console = Terminal(stderr=True)
    console.print()  # the command's last output may be a progress bar without a newline
    suite, reports = recorded_suite(folder, before, deviations_of=index.deviations_of)
    if suite.tests or suite.others:
        _print_suite(suite, console)
    elif not reports:
        reasons = refusals(folder, before)
        ask = ". Is rlstep-hooks installed where the command runs, and is its framework one of those that `rlstep doctor` lists?"
        ask = f": {'; '.join(reasons)}." if reasons else ask
        failed_early = f" before the command ended with status {status}" + (ask if reasons else ".")
        console.print(
            f"rlstep: NOT EVALUATED: no process recorded anything{failed_early if status else ask}",
            style="yellow",
            highlight=False,
            markup=False,
        )
        return suite, []
    for number, report in enumerate(reports, 1):
        if len(reports) > 1:
            console.print(_whose(report, number, len(reports)), "")
        console.print(verdict_block(report))
    several = len(record_files(folder)) > 1
    where = record_lines(folder, reports[-1].run if reports and several else "")
    console.print(where, style="dim", highlight=False, soft_wrap=True, markup=False)
    return suite, reports


def _print_suite(suite: Suite, console: Terminal) -> None:
    """Print the table of an audited test suite."""
    from rlstep_hooks.show.suite import suite_table, width

    console.width = width(console.width, terminal=console.is_terminal)
    console.print(suite_table(suite), highlight=False)


def _exit_status(suite: Suite, reports: list[Report]) -> int:
    """The exit status that reports call for: 1 if one failed, 2 if one was not evaluated or there is none.

    A test may end its training as it likes, so what was not evaluated there does not count.
    """
    statuses = {report.exit_status(strict=True) for report in reports}
    if suite.tests:
        statuses.add(1 if suite.fails(strict=True) else 0)
    statuses = statuses or {2}
    return 1 if 1 in statuses else max(statuses)


def _whose(report: Report, number: int, count: int) -> RenderableType:
    """The heading of a report among several of one command: which training it is of, and its plan."""
    from rich.console import Group
    from rich.text import Text

    from rlstep_hooks.show.console import plan_table

    head = Text(f"training {number} of {count}: run {report.run}", style="bold underline")
    return Group(head, plan_table(report.schedule)) if report.schedule is not None else head
