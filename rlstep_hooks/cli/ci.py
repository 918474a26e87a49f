"""`rlstep ci`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlstep_hooks.cli.complain import complain
from rlstep_hooks.judge.gate import gate_of, runs_of
from rlstep_hooks.judge.rules.catalogue import BY_CODE
from rlstep_hooks.judge.suite import recorded_suite
from rlstep_hooks.show.gate import gate_markdown, gate_text
from rlstep_hooks.systems.engine import index

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_KEY = re.compile(r"\bRLS\d{3}:[\w.-]+")


def show(folder: Path, *, known: Path | None, required: Iterable[str], as_markdown: bool, strict: bool) -> int:
    """Print what the runs of a folder found that is not known. Returns the exit status.

    Args:
        folder: The folder of records.
        known: A file with keys of known problems, anywhere in its text.
        required: Codes of rules that must have compared something.
        as_markdown: Whether to print one report for an issue.
        strict: Whether warnings are problems too.
    """
    required = list(required)
    for code in required:
        if code not in BY_CODE:
            complain(f"there is no rule {code}; `rlstep rules` lists them")
            return 2
    try:
        keys = _KEY.findall(known.read_text(encoding="utf-8")) if known is not None else ()
        suite, others = recorded_suite(folder, deviations_of=index.deviations_of)
    except (OSError, UnicodeDecodeError) as error:
        complain(error)
        return 2
    refused = [reason for test in suite.tests for reason in test.refused]
    gate = gate_of(runs_of(suite, others), known=set(keys), required=required, strict=strict, refused=refused)
    print(gate_markdown(gate) if as_markdown else gate_text(gate))
    return gate.exit_status
