"""`rlstep ingest`: a run that was exported becomes a record, and is judged."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rlstep_hooks.cli import report
from rlstep_hooks.cli.complain import complain
from rlstep_hooks.ingest.events import events_of
from rlstep_hooks.ingest.export import Asked, ExportError
from rlstep_hooks.ingest.formats import opened
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.record.ledger import FolderLedger, rank_process, record_files
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rlstep_hooks.cli.report import Form
    from rlstep_hooks.ingest.export import Export
    from rlstep_hooks.planning.launched import Options, Plan


def weights_of(words: Sequence[str]) -> dict[str, float]:
    """What the user wrote of reward columns, COLUMN or COLUMN=WEIGHT.

    Raises:
        LaunchError: A weight is no number.
    """
    found: dict[str, float] = {}
    for word in words:
        column, equals, weight = word.partition("=")
        try:
            found[column] = float(weight) if equals else 1.0
        except ValueError:
            raise LaunchError(f"--reward takes COLUMN or COLUMN=WEIGHT, not {word!r}") from None
    return found


def settings_of(plan: Plan) -> dict[str, str]:
    """The settings that a plan does not depend on, by the names that the framework has for them, where their values are known."""
    return {each.name.rpartition(".")[2]: str(each.value) for each in plan.unused if not each.unknown}


def _record(export: Export, asked: Asked, folder: Path, run: str) -> None:
    """Write the record of an export; none if it cannot be read to its end.

    Raises:
        ExportError: A line is not what the format has.
        OSError: Something cannot be read or written.
    """
    ledger = FolderLedger(folder, run, rank_process(0))
    try:
        for event in events_of(export, asked, run):
            ledger.write(event)
    except BaseException:
        ledger.close()
        for record in record_files(folder).get(run, ()):
            record.path.unlink(missing_ok=True)
        raise
    ledger.close()


def show(
    paths: Sequence[Path],
    command: list[str],
    options: Options,
    *,
    kind: str | None,
    estimator: str | None,
    rewards: dict[str, float],
    folder: Path,
    form: Form,
    strict: bool,
    html: Path | None,
) -> int:
    """Read an export, write its record, and print the report. Returns the exit status.

    Args:
        paths: Files of the export, or their folder.
        command: The launch command of the run; empty without one.
        options: Options that complete the launch.
        kind: Name of the format; None to recognise it.
        estimator: Name of the estimator of its advantages; None if the export says it, or nobody does.
        rewards: Columns that are rewards -> weight.
        folder: Where the record is written.
        form: The form to print.
        strict: Whether warnings fail too.
        html: File for the report as an HTML page.

    Raises:
        LaunchError: The launch command cannot be read.
    """
    plan = plan_launch(command, options) if command else None
    schedule = plan.shown if plan is not None else None
    settings = settings_of(plan) if plan is not None else {}
    run = f"export-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 1_000_000:06d}"
    try:
        asked = Asked(schedule=schedule, estimator=estimator, rewards=rewards, settings=settings)
        export = opened(paths, asked, kind)
        complain(f"reads {export.title}")
        _record(export, asked, folder, run)
    except (ExportError, OSError) as error:
        complain(error)
        return 2
    return report.show(folder, run=run, form=form, strict=strict, html=html)
