"""`rlstep run`: a launch command, unchanged, with the audit attached in every process, and the report after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rlstep_hooks.injection import environment
from rlstep_hooks.ledger import records
from rlstep_hooks.render.console import verdict_block
from rlstep_hooks.replay import report_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rlstep_hooks.report import Report

FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT")
"""Signals that the command gets when this process gets them."""


def run(command: Sequence[str], *, folder: Path, strict: bool) -> int:
    """Run a command and report on what it recorded.

    Args:
        command: The command with its arguments; it keeps the streams and the terminal.
        folder: Where its processes record.
        strict: Whether a failed audit makes the exit status 1.

    Returns:
        The command's own exit status (128 + n after signal n), 1 with `strict` and an error found, 2 if it cannot be started.
    """
    before = set(records(folder)) if folder.is_dir() else set()
    try:
        status = _run(command, environment(folder, os.environ))
    except OSError as error:
        print(f"rlstep: {command[0]} cannot be started: {error.strerror or error}", file=sys.stderr)
        return 2
    failed = _report(folder, before)
    return 1 if strict and failed and status == 0 else status


def _run(command: Sequence[str], variables: dict[str, str]) -> int:
    process = subprocess.Popen(command, env=variables)

    def forward(number: int, frame: Any) -> None:
        process.send_signal(number)

    # A terminal sends SIGINT to the command too; sent to this process alone it has to be passed on.
    interrupt = signal.SIG_IGN if sys.stdin is not None and sys.stdin.isatty() else forward
    handlers = {signal.SIGINT: interrupt} | {
        getattr(signal, name): forward for name in FORWARDED if hasattr(signal, name)
    }
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        status = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _report(folder: Path, before: set[str]) -> bool:
    """Print the report of each new run; whether one has an error."""
    console = Console(stderr=True)
    new = [run for run in records(folder) if run not in before] if folder.is_dir() else []
    if not new:
        console.print(
            "rlstep: NOT EVALUATED: no process recorded anything. Is rlstep-hooks installed where the command runs, and is its "
            "framework one of those that `rlstep doctor` lists?",
            style="yellow",
        )
        return False
    failed = False
    for run in new:
        report = report_of(folder, run)
        console.print(verdict_block(report))
        failed = failed or _has_error(report)
    console.print(f"rlstep: recorded in {folder}", style="dim", highlight=False)
    return failed


def _has_error(report: Report) -> bool:
    return any(finding.severity == "error" for finding in report.findings)
