"""The command line's entry: one module a verb, imported when the verb runs."""

from __future__ import annotations

import sys
from pathlib import Path
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


Framework = Annotated[str | None, typer.Option(help="The framework, if the command does not show it.")]
Version = Annotated[str | None, typer.Option(help="The framework's release; the newest one that was read if left out.")]
Rows = Annotated[int | None, typer.Option(help="Rows of the training set; counted if its file is here.")]
WorldSize = Annotated[int | None, typer.Option(help="Data-parallel processes, if the command does not say.")]
Line = Annotated[int | None, typer.Option(help="Line of the command, in a script with several.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="NAME=VALUE: a variable that the script takes from elsewhere.")
]
Words = Annotated[
    list[str] | None, typer.Argument(help="A launch command after --, a script, or a configuration file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def plan(
    words: Words = None,
    framework: Framework = None,
    version: Version = None,
    rows: Rows = None,
    world_size: WorldSize = None,
    line: Line = None,
    assignments: Assignments = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="A number of steps to convert into every other unit.")
    ] = None,
    as_json: AsJson = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    explain: Annotated[bool, typer.Option(help="Show every formula with its numbers and its source.")] = False,
    strict: Annotated[bool, typer.Option(help="Warnings fail too.")] = False,
) -> None:
    """What a launch command means: the schedule, without running or importing anything."""
    from rlstep_hooks.cli import launches
    from rlstep_hooks.cli import plan as verb

    def show() -> int:
        options = launches.options_of(
            framework=framework, version=version, rows=rows, world_size=world_size, line=line, assignments=assignments
        )
        return verb.show(
            words or [], options, as_json=as_json, as_markdown=as_markdown, explain=explain, steps=steps, strict=strict
        )

    raise typer.Exit(launches.run(show))


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
def run(
    command: Annotated[list[str], typer.Argument(help="The launch command, after --.", metavar="-- COMMAND...")],
    folder: Annotated[Path, typer.Option("--dir", help="Where to record.")] = Path("rlstep"),
    strict: Annotated[bool, typer.Option(help="Exit with 1 if the audit found an error.")] = False,
) -> None:
    """Run a launch command unchanged, with the audit attached in every process, and print the report."""
    from rlstep_hooks.cli import run as verb

    raise typer.Exit(verb.run(command, folder=folder, strict=strict))


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
