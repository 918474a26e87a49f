"""The command line's entry: one module per verb, imported when the verb runs.

It uses argparse because `rlstep plan` answers in 150 ms and importing a larger library would take most of that.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.cli.complain import complain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.planning.launched import Options

_DESCRIPTION = (
    "A flight recorder and a referee for RL post-training. Exit status: 0 pass, 1 findings, 2 the tool could not do it."
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with the verb's status.

    Args:
        arguments: The words after `rlstep`; None for those of this process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            status = _status(words)
        finally:
            sys.stdout.flush()  # a closed pipe must raise here, where it is caught
        sys.exit(status)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The output's reader is gone: exit silently, and keep Python from flushing again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _status(words: list[str]) -> int:
    """Run one verb and return its exit status."""
    cut = words.index("--") if "--" in words else len(words)
    given = parser().parse_args(words[:cut])
    given.command = words[cut + 1 :]
    status: int = given.verb(given)
    return status


def parser() -> argparse.ArgumentParser:
    """All verbs with their options. The launch command after `--` is not parsed here."""
    top = argparse.ArgumentParser(prog="rlstep", description=_DESCRIPTION, allow_abbrev=False)
    verbs = top.add_subparsers(metavar="VERB", required=True)
    _add_plan(verbs)
    _add_run(verbs)
    _add_rehearse(verbs)
    _add_report(verbs)
    _add_ingest(verbs)
    _add_why(verbs)
    _add_diff(verbs)
    _add_convert(verbs)
    _add_check(verbs)
    _add_ci(verbs)
    _add(verbs, "recipes", _recipes, "Published runs, with their sources.")
    rules = _add(verbs, "rules", _rules, "The catalogue of rules, the rules about something, or one rule's page.")
    rules.add_argument("code", nargs="?", metavar="CODE", help="a rule's code (RLS302, 302), or a word such as ratio")
    doctor = _add(
        verbs, "doctor", _doctor, "Which frameworks are here, which releases are supported, and what can be observed."
    )
    doctor.add_argument(
        "framework", nargs="?", metavar="FRAMEWORK", help="all that is known of one of them, such as trl"
    )
    mcp = _add(
        verbs,
        "mcp",
        _mcp,
        "The same answers for agents: a server of the Model Context Protocol on standard input and output.",
    )
    mcp.add_argument(
        "--root", type=Path, default=Path(), metavar="DIR", help="the folder that paths must lie in (default: this one)"
    )
    demo = _add(verbs, "demo", _demo, "A real TRL GRPO run on the CPU, audited.")
    demo.add_argument("--fault", metavar="NAME", help="break the run in a named way")
    demo.add_argument("--log-dir", type=Path, metavar="DIR", help="where to record; a temporary folder if left out")
    return top


if TYPE_CHECKING:
    from collections.abc import Callable

    _Verbs = argparse._SubParsersAction[argparse.ArgumentParser]
    _Verb = Callable[[argparse.Namespace], int]


def _add(verbs: _Verbs, name: str, verb: _Verb, words: str) -> argparse.ArgumentParser:
    one = verbs.add_parser(name, help=words, description=words, allow_abbrev=False)
    one.set_defaults(verb=verb)
    return one


def _add_launch_options(verb: argparse.ArgumentParser) -> None:
    """Options that complete a launch."""
    verb.add_argument("--framework", metavar="NAME", help="the framework, if the command does not show it")
    verb.add_argument(
        "--version", metavar="RELEASE", help="the framework's release (default: the newest supported one)"
    )
    verb.add_argument(
        "--rows", type=int, metavar="N", help="rows of the training set (default: counted if its file is here)"
    )
    verb.add_argument(
        "--world-size", type=int, metavar="N", help="number of data-parallel processes, if the command does not say"
    )
    verb.add_argument("--line", type=int, metavar="N", help="line of the command, in a script with several")
    verb.add_argument(
        "--set",
        action="append",
        dest="assignments",
        metavar="NAME=VALUE",
        help="a value for a variable that the script does not set",
    )


def _add_plan(verbs: _Verbs) -> None:
    plan = _add(verbs, "plan", _plan, "The schedule that a launch command means. Nothing is run or imported.")
    plan.usage = "rlstep plan [options] FILE [arguments] | rlstep plan [options] -- <launch command>"
    plan.add_argument(
        "words", nargs="*", metavar="FILE", help="a script, a configuration file, a Python file, or recipe:NAME"
    )
    _add_launch_options(plan)
    plan.add_argument("--steps", type=int, metavar="N", help="a number of steps to convert into every other unit")
    plan.add_argument(
        "--json", action="store_true", help="print JSON, in one shape whether the launch is accepted or not"
    )
    plan.add_argument("--json-schema", action="store_true", help="print the JSON Schema of what --json prints")
    plan.add_argument("--markdown", action="store_true", help="print Markdown")
    plan.add_argument("--explain", action="store_true", help="show every formula with its numbers and its source")
    plan.add_argument("--strict", action="store_true", help="warnings fail too")
    plan.add_argument("--fix", action="store_true", help="the smallest changes that mend each finding, planned again")
    plan.add_argument("--write", action="store_true", help="with --fix: apply the first fix of each error and warning")
    plan.add_argument(
        "--all-versions", action="store_true", help="plan it for every known release, and say where the numbers differ"
    )


def _add_run(verbs: _Verbs) -> None:
    words = "Run a launch command unchanged, with the audit attached in every process, and print the report."
    run = _add(verbs, "run", _run, words)
    run.usage = "rlstep run [options] -- <launch command>"
    run.add_argument("--dir", type=_folder, default=Path("rlstep"), metavar="DIR", help="where to record")
    run.add_argument(
        "--copy-to", metavar="URL", help="copy the records to this remote folder, such as s3://bucket/runs"
    )
    run.add_argument(
        "--stalled-after",
        type=_seconds,
        metavar="SECONDS",
        help="say once what each process did last where nothing is recorded for so long; nothing is ended",
    )
    _add_launch_options(run)
    run.add_argument(
        "--strict", action="store_true", help="exit with 1 if the audit found something, with 2 if it could not judge"
    )


def _add_rehearse(verbs: _Verbs) -> None:
    words = "Run a launch in small on this machine, with a tiny random model, and say what that proves."
    rehearse = _add(verbs, "rehearse", _rehearse, words)
    rehearse.usage = "rlstep rehearse [options] -- <launch command>"
    _add_launch_options(rehearse)
    rehearse.add_argument(
        "--budget",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="how long it may take; sizes shrink to fit (default: 120)",
    )
    rehearse.add_argument("--rollouts", type=int, metavar="N", help="rollouts of the rehearsed run")
    rehearse.add_argument("--no-resume", action="store_true", help="leave out the resume from a checkpoint")
    rehearse.add_argument(
        "--confirm", action="store_true", help="have the framework itself refuse what the plan says it refuses"
    )
    rehearse.add_argument(
        "--columns",
        metavar="A,B",
        help="columns of a data set that is not here and that the script does not show",
    )
    rehearse.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to train (default: cpu)")
    rehearse.add_argument("--online", action="store_true", help="ask hubs for configurations, tokenizers and rows")
    rehearse.add_argument("--strict", action="store_true", help="doubts fail too")
    rehearse.add_argument("--json", action="store_true", help="print JSON")
    rehearse.add_argument("--html", type=Path, metavar="FILE", help="write the report of the rehearsed run as a page")


def _folder(place: str) -> Path:
    """A folder to record in.

    Raises:
        argparse.ArgumentTypeError: It is a URL.
    """
    from rlstep_hooks.record.ledger import is_url

    if is_url(place):
        raise argparse.ArgumentTypeError("records are written to a local folder; --copy-to takes a URL")
    return Path(place)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"a number of seconds above 0, not {text!r}")
    return seconds


def _add_report(verbs: _Verbs) -> None:
    report = _add(verbs, "report", _report, "The report of a recorded run, even of one that was killed.")
    report.add_argument(
        "folder",
        nargs="?",
        default="rlstep",
        metavar="DIR",
        help="folder of the records, a trainer's output folder, or a URL such as s3://bucket/runs (default: rlstep)",
    )
    report.add_argument("--run", metavar="NAME", help="a run in the folder (default: the latest)")
    report.add_argument("--follow", action="store_true", help="show a run's progress until it ends, then report")
    _add_report_options(report)
    report.add_argument("--trace", type=Path, metavar="FILE", help="write the run as a Chrome trace, for Perfetto")


def _add_report_options(verb: argparse.ArgumentParser) -> None:
    """Options that say how a report is printed."""
    printed = verb.add_mutually_exclusive_group()
    printed.add_argument("--json", action="store_const", dest="form", const="json", help="print JSON")
    printed.add_argument(
        "--markdown", action="store_const", dest="form", const="markdown", help="print Markdown, for an issue"
    )
    verb.set_defaults(form="text")
    verb.add_argument("--strict", action="store_true", help="warnings fail too")
    verb.add_argument("--html", type=Path, metavar="FILE", help="write the report as a self-contained HTML page")


def _add_ingest(verbs: _Verbs) -> None:
    ingest = _add(verbs, "ingest", _ingest, "Judge a run that was exported: rollouts that a framework wrote to files.")
    ingest.usage = "rlstep ingest [options] PATH ... [-- <launch command>]"
    ingest.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files of an export, or their folder")
    ingest.add_argument("--format", metavar="NAME", help="the format, if the files do not show it")
    ingest.add_argument(
        "--estimator",
        metavar="NAME",
        help="how advantages are computed: grpo, grpo_batch_std, dr_grpo, rloo, none, nemo_grpo",
    )
    ingest.add_argument(
        "--reward",
        action="append",
        dest="rewards",
        metavar="COLUMN[=WEIGHT]",
        help="a column that is a reward, where several may be",
    )
    ingest.add_argument("--dir", type=_folder, default=Path("rlstep"), metavar="DIR", help="where to write the record")
    _add_launch_options(ingest)
    _add_report_options(ingest)


def _add_why(verbs: _Verbs) -> None:
    why = _add(
        verbs,
        "why",
        _why,
        "From what you notice in a run to a conclusion: what is excluded, measured, and left to change.",
    )
    why.usage = "rlstep why [-h] [--run NAME] [--json] [DIR] [SYMPTOM ...]"
    why.add_argument(
        "words",
        nargs="*",
        metavar="DIR SYMPTOM",
        help="folder of the records, or a trainer's output folder (default: rlstep); and what you notice, such as kl-explodes or "
        "reward-flat (default: what the record shows)",
    )
    why.add_argument("--run", metavar="NAME", help="a run in the folder (default: the latest)")
    why.add_argument("--json", action="store_true", help="print JSON")


def _add_diff(verbs: _Verbs) -> None:
    words = "The first difference between two plans, two recorded runs, or a run and a plan, and the settings that cause it."
    diff = _add(verbs, "diff", _diff, words)
    diff.usage = (
        "rlstep diff [options] A B | rlstep diff [options] A -- <launch command>"
        " | rlstep diff --version-a RELEASE --version-b RELEASE -- <launch command>"
    )
    diff.add_argument(
        "sides",
        nargs="*",
        metavar="A",
        help="a command in quotes, a file, recipe:NAME, or a recorded run: its folder or URL, or FOLDER/RUN",
    )
    _add_launch_options(diff)
    diff.add_argument("--version-a", metavar="RELEASE", help="the framework's release for A")
    diff.add_argument("--version-b", metavar="RELEASE", help="the framework's release for B; one launch is enough then")
    diff.add_argument("--json", action="store_true", help="print JSON")


def _add_convert(verbs: _Verbs) -> None:
    convert = _add(verbs, "convert", _convert, "The same schedule in another framework's settings.")
    convert.usage = (
        "rlstep convert --to FRAMEWORK [options] FILE | rlstep convert --to FRAMEWORK [options] -- <launch command>"
    )
    convert.add_argument(
        "words", nargs="*", metavar="FILE", help="a script, a configuration file, a Python file, or recipe:NAME"
    )
    convert.add_argument("--to", required=True, metavar="FRAMEWORK", help="the framework to convert to")
    _add_launch_options(convert)


def _add_check(verbs: _Verbs) -> None:
    check = _add(
        verbs, "check", _check, "Plan many launch files at once, for CI and commit hooks; other files are passed over."
    )
    check.add_argument(
        "paths", nargs="*", metavar="PATH", help="scripts, configurations, Python files, or folders of them"
    )
    check.add_argument(
        "--base",
        metavar="REVISION",
        help="compare with this revision of git; without PATH, all files that differ from it",
    )
    _add_launch_options(check)
    check.add_argument("--sarif", type=Path, metavar="FILE", help="write the findings as SARIF, at file and line")
    check.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    check.add_argument("--markdown", action="store_true", help="print Markdown, for a comment")
    check.add_argument("--strict", action="store_true", help="warnings fail too")


def _add_ci(verbs: _Verbs) -> None:
    ci = _add(verbs, "ci", _ci, "What the audited tests or runs of a folder found, as a gate: each new problem once.")
    ci.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("rlstep"),
        metavar="DIR",
        help="folder of the records (default: rlstep)",
    )
    ci.add_argument("--known", type=Path, metavar="FILE", help="a file with keys of known problems, which fail nothing")
    ci.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="CODE",
        help="a rule that must have compared something in some run, or the gate does not pass",
    )
    ci.add_argument("--markdown", action="store_true", help="print one report for an issue; its first line is a title")
    ci.add_argument("--strict", action="store_true", help="warnings fail too")


def _options(given: argparse.Namespace) -> Options:
    from rlstep_hooks.cli.launches import options_of

    return options_of(
        framework=given.framework,
        version=given.version,
        rows=given.rows,
        world_size=given.world_size,
        line=given.line,
        assignments=given.assignments,
    )


# The verbs. Each imports its module when it runs.


def _plan(given: argparse.Namespace) -> int:
    from rlstep_hooks.cli import launches, plan

    if given.json_schema:
        return plan.print_schema()
    if given.fix or given.write:
        from rlstep_hooks.cli import fix

        words = [*given.words, *given.command]
        return launches.run(lambda: fix.show(words, _options(given), as_json=given.json, write=given.write))
    if given.all_versions:
        from rlstep_hooks.cli import versions

        return launches.run(lambda: versions.show([*given.words, *given.command], _options(given), as_json=given.json))
    return launches.run(
        lambda: plan.show(
            [*given.words, *given.command],
            _options(given),
            as_json=given.json,
            as_markdown=given.markdown,
            explain=given.explain,
            steps=given.steps,
            strict=given.strict,
        )
    )


def _run(given: argparse.Namespace) -> int:
    from rlstep_hooks.cli import run

    if not given.command:
        complain("there is no command; write `rlstep run -- <launch command>`")
        return 2
    return run.run(
        given.command,
        lambda: _options(given),
        folder=given.dir,
        strict=given.strict,
        copy_to=given.copy_to,
        stalled_after=given.stalled_after,
    )


def _ingest(given: argparse.Namespace) -> int:
    from rlstep_hooks.cli import ingest, launches

    return launches.run(
        lambda: ingest.show(
            given.paths,
            given.command,
            _options(given),
            kind=given.format,
            estimator=given.estimator,
            rewards=ingest.weights_of(given.rewards or []),
            folder=given.dir,
            form=given.form,
            strict=given.strict,
            html=given.html,
        )
    )


def _rehearse(given: argparse.Namespace) -> int:
    from rlstep_hooks.cli import launches
    from rlstep_hooks.cli.rehearse.parts import Asked
    from rlstep_hooks.cli.rehearse.show import show

    if not given.command:
        complain("there is no command; write `rlstep rehearse -- <launch command>`")
        return 2
    asked = Asked(
        budget=given.budget,
        rollouts=given.rollouts,
        resume=not given.no_resume,
        rows=given.rows,
        columns=tuple(filter(None, (given.columns or "").split(","))),
        online=given.online,
        cuda=given.device == "cuda",
        html=given.html,
    )
    return launches.run(
        lambda: show(
            given.command,
            _options(given),
            asked,
            confirm=given.confirm,
            as_json=given.json,
            strict=given.strict,
        )
    )


def _report(given: argparse.Namespace) -> int:
    from rlstep_hooks.cli import report
    from rlstep_hooks.record.ledger import is_url

    def show(folder: Path) -> int:
        return report.show(
            folder, run=given.run, form=given.form, strict=given.strict, trace=given.trace, html=given.html
        )

    if is_url(given.folder):
        from rlstep_hooks.record.remote import RemoteError, fetched

        if given.follow:
            complain("only a folder of this machine can be followed")
            return 2
        try:
            with fetched(given.folder, given.run) as folder:
                return show(folder)
        except RemoteError as error:
            complain(error)
            return 2
    if given.follow:
        from rlstep_hooks.cli.follow import follow

        follow(Path(given.folder), given.run)
    return show(Path(given.folder))


def _why(given: argparse.Namespace) -> int:
    from rlstep_hooks.cli import why

    return why.show(given.words, run=given.run, as_json=given.json)


def _diff(given: argparse.Namespace) -> int:
    from rlstep_hooks.cli import diff, launches

    versions = (given.version_a, given.version_b)
    return launches.run(
        lambda: diff.show(given.sides, given.command, _options(given), versions=versions, as_json=given.json)
    )


def _convert(given: argparse.Namespace) -> int:
    from rlstep_hooks.cli import convert, launches

    return launches.run(lambda: convert.show([*given.words, *given.command], given.to, _options(given)))


def _check(given: argparse.Namespace) -> int:
    from rlstep_hooks.cli import check, launches

    return launches.run(
        lambda: check.show(
            given.paths,
            _options(given),
            base=given.base,
            sarif_file=given.sarif,
            junit_file=given.junit,
            as_markdown=given.markdown,
            strict=given.strict,
        )
    )


def _ci(given: argparse.Namespace) -> int:
    from rlstep_hooks.cli import ci

    return ci.show(
        given.folder,
        known=given.known,
        required=given.require,
        as_markdown=given.markdown,
        strict=given.strict,
    )


def _recipes(given: argparse.Namespace) -> int:
    from rlstep_hooks.cli import launches, recipes

    return launches.run(recipes.show)


def _rules(given: argparse.Namespace) -> int:
    from rlstep_hooks.cli import rules

    return rules.show(given.code)


def _doctor(given: argparse.Namespace) -> int:
    from rlstep_hooks.cli import doctor, launches

    return launches.run(lambda: doctor.show(given.framework))


def _mcp(given: argparse.Namespace) -> int:
    from rlstep_hooks.cli import mcp

    return mcp.show(given.root.resolve())


def _demo(given: argparse.Namespace) -> int:
    from rlstep_hooks.cli import demo

    return demo.show(given.fault, given.log_dir)
