"""`rlstep plan`: the plan of a launch, without running it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from rlstep_hooks.cli.complain import complain
from rlstep_hooks.cli.launches import said, side
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.steps import logged_steps

if TYPE_CHECKING:
    from rlstep_hooks.planning.launched import Options, Plan

OPTIONS = frozenset(
    f"--{name}"
    for name in (
        "all-versions", "explain", "fix", "framework", "json", "json-schema", "line", "markdown", "rows", "set", "steps", "strict",
        "version", "world-size", "write",
    )
)  # fmt: skip
"""Options of `rlstep plan`, which people also write behind the launch command."""


def show(
    words: list[str],
    options: Options,
    *,
    as_json: bool = False,
    as_markdown: bool = False,
    explain: bool = False,
    steps: int | None = None,
    strict: bool = False,
) -> int:
    """Print the plan of a launch.

    Returns:
        The exit status: 1 if a finding is an error (with `strict`, a warning too).

    Raises:
        LaunchError: The launch cannot be read.
        OSError: A file cannot be read.
    """
    try:
        plan = side(words, options)
    except (LaunchError, OSError) as error:
        if as_json:
            print(failure_json(error))
        raise
    if as_json:
        print(to_json(plan, steps))
    elif as_markdown:
        from rlstep_hooks.show.markdown import plan_markdown

        print(plan_markdown(plan, steps or (logged_steps(plan.shown) if plan.shown is not None else None)))
    else:
        print(text_for(sys.stdout, plan, steps, explain=explain))
    misplaced = [str(setting) for setting in plan.unused if str(setting) in OPTIONS]
    if misplaced:
        complain(f"{', '.join(misplaced)} behind the command goes to the command; write it in front of `--`")
    failing = ("error", "warning") if strict else ("error",)
    return 1 if any(finding.severity in failing for finding in plan.findings) else 0


def to_json(plan: Plan, steps: int | None) -> str:
    """The plan as JSON, in the shape of `show/plan.schema.json`."""
    from rlstep_hooks.record.wire import to_json as encode
    from rlstep_hooks.show.plan_json import answer_of

    shown = steps or (logged_steps(plan.shown) if plan.shown is not None else None)
    return encode(answer_of(plan, shown), indent=2).decode()


def failure_json(error: LaunchError | OSError) -> str:
    """The JSON of an answer where a launch cannot be read."""
    from rlstep_hooks.record.wire import to_json as encode
    from rlstep_hooks.show.plan_json import Answer, Failure

    place = str(error.place) if isinstance(error, LaunchError) and error.place is not None else ""
    return encode(Answer(accepted=False, error=Failure(message=said(error), place=place)), indent=2).decode()


def print_schema() -> int:
    """Print the JSON Schema of what `--json` prints. Returns the exit status."""
    from rlstep_hooks.show.plan_json import SCHEMA

    print(SCHEMA.read_text(encoding="utf-8"), end="")
    return 0


def text_for(stream: TextIO, plan: Plan, steps: int | None = None, *, explain: bool = False) -> str:
    """The plan as text for a stream: as wide as the terminal, with colours if the stream is one."""
    import os
    import shutil

    from rlstep_hooks.show.plan import plan_text

    shown = steps or (logged_steps(plan.shown) if plan.shown is not None else None)
    width = shutil.get_terminal_size((100, 40)).columns
    coloured = stream.isatty() and "NO_COLOR" not in os.environ
    return plan_text(plan, shown, explain=explain, width=width, coloured=coloured)
