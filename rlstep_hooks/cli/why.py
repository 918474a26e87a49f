"""`rlstep why`: from what people notice to what a record says about each possible cause."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rlstep_hooks.judge.replay import NoRecordError, report_of
from rlstep_hooks.judge.symptoms import SYMPTOMS, why
from rlstep_hooks.systems import index

if TYPE_CHECKING:
    from pathlib import Path


def show(folder: Path, names: list[str], *, run: str | None, as_json: bool) -> int:
    """Print what a recorded run says about symptoms.

    Args:
        folder: The folder of records.
        names: Which symptoms; all if empty.
        run: Name of the run; None for the latest.
        as_json: Whether to print JSON.

    Returns:
        1 if a cause of the symptoms was found, else 0; 2 if there is no such run or symptom.
    """
    known = {symptom.name for symptom in SYMPTOMS}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"rlstep: {unknown[0]} is none of the symptoms {', '.join(sorted(known))}", file=sys.stderr)
        return 2
    try:
        report = report_of(folder, run, deviations_of=index.deviations_of)
    except (NoRecordError, OSError) as error:
        print(f"rlstep: {error}", file=sys.stderr)
        return 2
    answers = why(report, tuple(names))
    if as_json:
        from rlstep_hooks.record.wire import to_json

        print(to_json({"run": report.run, "verdict": report.verdict, "symptoms": answers}, indent=2).decode())
    else:
        from rich.console import Console

        from rlstep_hooks.show.symptoms import symptoms

        console = Console(highlight=False)
        console.print(f"{report.run} · {report.verdict.replace('_', ' ')}", "")
        console.print(symptoms(answers, whole=bool(names)))
        if not names:
            console.print("`rlstep why DIR SYMPTOM` shows what excludes each cause", style="dim")
    return int(any(cause.state == "found" for answer in answers for cause in answer.causes))
