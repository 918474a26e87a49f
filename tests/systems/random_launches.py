"""Random legal launches of a system that is launched by a command, trained for real: none may be accused.

What a framework refuses, or what does not end in time, is drawn again. A finding is printed with the draw that it came from, which
`--only NUMBER` trains again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.systems.audited import read

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from rlstep_hooks.planning.finding import Finding
    from tests.systems.processes import Outcome

SHARE = 0.35
"""How likely a setting is drawn; else it keeps the value of the tests' plain run, or the framework's own."""
LIMIT = 400.0
"""Seconds after which a launch is given up."""


@dataclass(frozen=True)
class Launched:
    """One draw, trained."""

    drawn: dict[str, Any]
    outcome: Outcome
    log: Path
    """Where its records are."""


def some_of(settings: Mapping[str, Sequence[Any]], rng: random.Random) -> dict[str, Any]:
    """Draw which settings are set, and to what; how often a value stands there says how often it is drawn."""
    return {name: rng.choice(values) for name, values in settings.items() if rng.random() < SHARE}


def said(output: str) -> str:
    """Why a launch was refused: the last line of its output that names an error."""
    lines = [line.strip() for line in output.splitlines() if "Error" in line or "error:" in line]
    return (lines or ["no error is named"])[-1][:200]


def train(
    system: str,
    prepare: Callable[[Path], Callable[[int, int], Launched]],
    is_true: Callable[[Finding, dict[str, Any]], bool],
) -> int:
    """Train what the command line asks for; the exit status is 0 if no healthy run was accused.

    Args:
        system: The name that is printed.
        prepare: Makes what all launches need in a folder; returns what launches the draw of a seed and a number.
        is_true: Whether a finding says what was drawn, and is no accusation.
    """
    parser = argparse.ArgumentParser(prog="random_runs")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="train this one draw")
    arguments = parser.parse_args()
    launch = prepare(Path(tempfile.mkdtemp(prefix=f"{system}-runs-")))
    trained = accused = refused = 0
    number = 0 if arguments.only is None else arguments.only
    while trained < arguments.runs:
        begun = time.monotonic()
        launched = launch(arguments.seed, number)
        if launched.outcome.status != 0:
            refused += 1
            print(f"{number}: no run: {said(launched.outcome.output)}", flush=True)
        else:
            trained += 1
            report = read(launched.outcome, launched.log).report
            alarms = [finding for finding in report.findings if finding.severity != "info"]
            found = [str(finding) for finding in alarms if not is_true(finding, launched.drawn)]
            accused += bool(found)
            print(f"{number}: {report.verdict} in {time.monotonic() - begun:.0f} s", flush=True)
            for text in found:
                print(f"  {text}", flush=True)
            if found or report.verdict != "PASS":
                print(f"  {launched.drawn}\n  {report.not_evaluated}", flush=True)
        number += 1
        if arguments.only is not None:
            break
    print(f"{system}: {trained} healthy runs, {accused} accused; {refused} draws gave no run (seed {arguments.seed})")
    return int(bool(accused))
