"""The command line's entry: one module a verb, imported when the verb runs."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import Annotated

import typer

app = typer.Typer(
    name="rlstep",
    help="A flight recorder and a referee for RL post-training. Exit status: 0 pass, 1 findings, 2 the tool could not do it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a recorded run.")],
    run: Annotated[str | None, typer.Option(help="Which run of the folder; the latest if left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    strict: Annotated[bool, typer.Option(help="Warnings fail too.")] = False,
) -> None:
    """The report of a recorded run, also of one that was killed."""
    from rlstep_hooks.cli import report as verb

    raise typer.Exit(verb.show(folder, run=run, as_json=as_json, strict=strict))


@app.command()
def rules(code: Annotated[str | None, typer.Argument(help="A rule's code, such as RLS302.")] = None) -> None:
    """The catalogue of rules, or one rule's page."""
    from rlstep_hooks.cli import rules as verb

    raise typer.Exit(verb.show(code))


@app.command()
def doctor() -> None:
    """Which frameworks are here, which releases are supported, and what can be observed."""
    from rlstep_hooks.cli import doctor as verb

    raise typer.Exit(verb.show())


@app.command()
def demo(
    fault: Annotated[str | None, typer.Option(help="Break the run in a named way.")] = None,
    log_dir: Annotated[Path | None, typer.Option(help="Where to record; a temporary folder if left out.")] = None,
) -> None:
    """A real TRL GRPO run on the CPU, audited."""
    from rlstep_hooks.cli import demo as verb

    raise typer.Exit(verb.show(fault, log_dir))


def main() -> None:
    """Run the command line."""
    try:
        status = app(standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except Exception as error:
        # click's usage errors carry the message for people; their class moved between typer's releases, their method did not.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(2)
    sys.exit(status)
