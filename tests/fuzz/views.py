"""Everything that is made of a record: what each verb prints and writes, the live line, and the answers for agents."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

from rlstep_hooks.cli import answers
from rlstep_hooks.cli.app import main
from rlstep_hooks.cli.watch import Watch
from rlstep_hooks.judge.symptoms import SYMPTOMS
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.record.wire import to_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Arguments = dict[str, tuple[str, ...]]

VERBS: Arguments = {
    "report": ("report", "{record}"),
    "report as JSON": ("report", "{record}", "--json"),
    "report as Markdown": ("report", "{record}", "--markdown"),
    "page": ("report", "{record}", "--html", "{out}"),
    "trace": ("report", "{record}", "--trace", "{out}"),
    "a run that is not there": ("report", "{record}", "--run", "nosuch"),
    "why": ("why", "{record}"),
    "why, every symptom": ("why", "{record}", *(symptom.name for symptom in SYMPTOMS)),
    "why as JSON": ("why", "{record}", "--json"),
    "diff": ("diff", "{record}", "{whole}"),
    "diff, the other way": ("diff", "{whole}", "{record}"),
    "diff as JSON": ("diff", "{record}", "{whole}", "--json"),
    "diff of a run and a plan": ("diff", "{record}", "recipe:gsm8k-grpo-verl"),
}
"""Command lines, by what they show."""

ANSWERS: dict[str, Callable[[Path], answers.Answer]] = {
    "answer of report": lambda folder: answers.report(folder, None),
    "answer of findings": lambda folder: answers.findings(folder, None, None),
    "answer of why": lambda folder: answers.causes(folder, None, "ratio-one"),
    "answer of why without a symptom": lambda folder: answers.causes(folder, None, None),
    "answer of follow": lambda folder: answers.follow(folder, None),
}


def names() -> list[str]:
    """All views."""
    return [*VERBS, *ANSWERS, "live line"]


def shown(name: str, record: Path, whole: Path, out: Path) -> str:
    """What a view shows of a record: all that it prints, and what it writes.

    Args:
        name: The view.
        record: The folder of the record.
        whole: The folder of another record.
        out: A file that may be written.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        if name in VERBS:
            places = {"record": str(record), "whole": str(whole), "out": str(out)}
            out.unlink(missing_ok=True)
            status: object = 0
            try:
                main([word.format(**places) for word in VERBS[name]])
            except SystemExit as end:
                status = end.code
            assert status in (0, 1, 2)
            if out.exists():
                printed.write(out.read_text(encoding="utf-8"))
        elif name in ANSWERS:
            with contextlib.suppress(LaunchError, OSError):
                printed.write(to_json(ANSWERS[name](record)).decode())
        else:
            Watch(record, set(), None).look()
    return printed.getvalue()
