"""The options of each verb of the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.cli.verbs import (
    run_check,
    run_ci,
    run_convert,
    run_demo,
    run_diff,
    run_doctor,
    run_ingest,
    run_mcp,
    run_plan,
    run_recipes,
    run_rehearse,
    run_report,
    run_rules,
    run_run,
    run_why,
)

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
    plan = _add(verbs, "plan", run_plan, "The schedule that a launch command means. Nothing is run or imported.")
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
    run = _add(verbs, "run", run_run, words)
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
    rehearse = _add(verbs, "rehearse", run_rehearse, words)
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
    report = _add(verbs, "report", run_report, "The report of a recorded run, even of one that was killed.")
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
    ingest = _add(
        verbs, "ingest", run_ingest, "Judge a run that was exported: rollouts that a framework wrote to files."
    )
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
        run_why,
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
    diff = _add(verbs, "diff", run_diff, words)
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
    convert = _add(verbs, "convert", run_convert, "The same schedule in another framework's settings.")
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
        verbs,
        "check",
        run_check,
        "Plan many launch files at once, for CI and commit hooks; other files are passed over.",
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
    ci = _add(
        verbs, "ci", run_ci, "What the audited tests or runs of a folder found, as a gate: each new problem once."
    )
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


def _add_recipes(verbs: _Verbs) -> None:
    _add(verbs, "recipes", run_recipes, "Published runs, with their sources.")


def _add_rules(verbs: _Verbs) -> None:
    rules = _add(verbs, "rules", run_rules, "The catalogue of rules, the rules about something, or one rule's page.")
    rules.add_argument("code", nargs="?", metavar="CODE", help="a rule's code (RLS302, 302), or a word such as ratio")


def _add_doctor(verbs: _Verbs) -> None:
    doctor = _add(
        verbs,
        "doctor",
        run_doctor,
        "Which frameworks are here, which releases are supported, and what can be observed.",
    )
    doctor.add_argument(
        "framework", nargs="?", metavar="FRAMEWORK", help="all that is known of one of them, such as trl"
    )


def _add_mcp(verbs: _Verbs) -> None:
    mcp = _add(
        verbs,
        "mcp",
        run_mcp,
        "The same answers for agents: a server of the Model Context Protocol on standard input and output.",
    )
    mcp.add_argument(
        "--root", type=Path, default=Path(), metavar="DIR", help="the folder that paths must lie in (default: this one)"
    )


def _add_demo(verbs: _Verbs) -> None:
    demo = _add(verbs, "demo", run_demo, "A real TRL GRPO run on the CPU, audited.")
    demo.add_argument("--fault", metavar="NAME", help="break the run in a named way")
    demo.add_argument("--log-dir", type=Path, metavar="DIR", help="where to record; a temporary folder if left out")


_ADD: dict[str, Callable[[_Verbs], None]] = {
    "plan": _add_plan,
    "run": _add_run,
    "rehearse": _add_rehearse,
    "report": _add_report,
    "ingest": _add_ingest,
    "why": _add_why,
    "diff": _add_diff,
    "convert": _add_convert,
    "check": _add_check,
    "ci": _add_ci,
    "recipes": _add_recipes,
    "rules": _add_rules,
    "doctor": _add_doctor,
    "mcp": _add_mcp,
    "demo": _add_demo,
}


def add_verb(name: str, verbs: _Verbs) -> None:
    """Add one verb with its options.

    Raises:
        KeyError: There is no verb of this name.
    """
    _ADD[name](verbs)


VERBS = tuple(_ADD)
"""The names of all verbs, in the order in which they are listed."""
