"""`rlstep convert`: the same schedule in another framework's settings."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rlstep_hooks.cli.complain import complain
from rlstep_hooks.cli.launches import side
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.words import printable
from rlstep_hooks.systems.engine import index

if TYPE_CHECKING:
    from rlstep_hooks.planning.launched import Options


def show(words: list[str], to: str, options: Options) -> int:
    """Print another framework's launch command.

    Returns:
        0 if the schedule is kept, 1 if part of it is lost (named on stderr).

    Raises:
        LaunchError: The launch cannot be read, or the framework cannot express the schedule.
    """
    plan = side(words, options)
    if plan.schedule is None:
        raise LaunchError(f"{plan.title} refuses this launch: {plan.findings[0].observed}")
    conversion = index.system_of(to).write(plan.schedule)
    print(printable(shlex.join(conversion.arguments)))
    for lost in conversion.lost:
        complain(f"not kept: {lost}")
    return 1 if conversion.lost else 0
