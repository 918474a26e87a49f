"""`rlstep why`: from what people notice to a conclusion: what is excluded, what was measured, what is left to change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.cli.complain import complain
from rlstep_hooks.judge.measures import measures_of
from rlstep_hooks.judge.replay import NoRecordError, report_of
from rlstep_hooks.judge.settings import RunSettings
from rlstep_hooks.judge.symptoms import SYMPTOMS, why
from rlstep_hooks.record.ledger import BELOW
from rlstep_hooks.systems.engine import index

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.judge.symptoms import SymptomAnswer

MOST = 3
"""Symptoms that are shown where none was asked for: a screen has no room for more."""


def show(words: list[str], *, run: str | None, as_json: bool) -> int:
    """Print what a recorded run says about symptoms.

    Args:
        words: The folder of records, unless that is the default one, and symptoms; those that the record shows if there are none.
        run: Name of the run; None for the latest.
        as_json: Whether to print JSON.

    Returns:
        1 if a fault behind the symptoms was found, else 0; 2 if there is no such run or symptom.
    """
    known = [symptom.name for symptom in SYMPTOMS]
    here = not words or words[0] in known
    folder, names = (Path(BELOW), words) if here else (Path(words[0]), words[1:])
    unknown = [name for name in names if name not in known]
    if not unknown and not here and not folder.is_dir():
        unknown = [f"{words[0]} is no folder and"]
    if unknown:
        complain(f"{unknown[0]} is none of the symptoms {', '.join(known)}")
        return 2
    try:
        report = report_of(folder, run, deviations_of=index.deviations_of)
    except (NoRecordError, OSError) as error:
        complain(error)
        return 2
    knobs = index.knobs_of(report.schedule)
    answers = why(report, tuple(names), knobs=knobs)
    measures = measures_of(report, RunSettings(report.schedule, knobs))
    if as_json:
        from rlstep_hooks.record.wire import to_json

        found = {"run": report.run, "verdict": report.verdict, "health": report.health}
        found |= {"measured": measures.held, "not_in_the_record": measures.missing, "symptoms": answers}
        print(to_json(found, indent=2).decode())
    else:
        from rlstep_hooks.show.symptoms import health, symptoms
        from rlstep_hooks.show.terminal import Terminal

        console = Terminal(highlight=False)
        console.print(f"{report.run} · {report.verdict.replace('_', ' ')}", *health(report.health), "", sep="\n")
        shown = answers if names else [answer for answer in answers if answer.shown][:MOST]
        console.print(symptoms(shown, measures))
        if not names:
            console.print(_others(report, shown), style="dim")
    return int(any(answer.found for answer in answers))


def _others(report: Report, shown: list[SymptomAnswer]) -> str:
    names = ", ".join(symptom.name for symptom in SYMPTOMS if symptom.name not in {answer.name for answer in shown})
    none = "" if shown else "No symptom shows in this record. "
    return f"{none}Ask for what you notice: `rlstep why DIR SYMPTOM`, with {names}"
