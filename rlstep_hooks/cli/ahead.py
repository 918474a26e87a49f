"""The plan of a launch command that is about to run, read on a thread so that the command does not wait."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.planning.words import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlstep_hooks.planning.launched import Options

LIMIT = 0.15
"""Seconds that a command waits for its plan. A plan that takes longer (rows of a large file) is printed later."""


class Ahead(msgspec.Struct, frozen=True):
    """What is known about a command before it runs."""

    text: str
    """The plan as text for the terminal, or why there is none."""
    schedule: Schedule | None = None
    framework: str = ""
    """Name of the system; empty if none knows the command."""


class PlanAhead:
    """Reads a command's plan on a thread. Nothing is executed, and nothing is refused."""

    def __init__(self, command: Sequence[str], options: Callable[[], Options]) -> None:
        self._command = list(command)
        self._options = options
        self._read: Ahead | None = None
        self._thread = threading.Thread(target=self._run, name="rlstep-plan", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> Ahead | None:
        """The plan; None if it is not ready in time."""
        self._thread.join(seconds)
        return self._read

    def _run(self) -> None:
        self._read = read_ahead(self._command, self._options)


def read_ahead(command: list[str], options: Callable[[], Options]) -> Ahead:
    """The plan of a command, or why there is none."""
    from rlstep_hooks.cli.plan import text_for
    from rlstep_hooks.launch.text import LaunchError
    from rlstep_hooks.systems.engine.launches import plan_launch

    try:
        plan = plan_launch(command, options())
        text = text_for(sys.stderr, plan)
    except LaunchError as error:
        return Ahead(_no_plan(error.reason.removeprefix("the launch command: ")))
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the reading, the command runs
        return Ahead(_no_plan(f"{type(error).__name__}: {error}"))
    if plan.schedule is None:
        text += f"\n\nrlstep: warning: {plan.title} would refuse this configuration. The command runs anyway."
    return Ahead(text, plan.schedule, plan.framework)


def _no_plan(reason: str) -> str:
    return printable(f"rlstep: no plan from the command: {' '.join(reason.split())}")
