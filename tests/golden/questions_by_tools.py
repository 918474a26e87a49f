"""How many real questions the agents' tools answer, without a model: `python -m tests.golden.questions_by_tools`.

Each question that has a command is asked of `plan`; it is answered if everything that the right answer must say is in what the tool
gives.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.cli import answers
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.record.wire import to_json
from tests.golden.test_field_questions import QUESTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator


def given(question: dict[str, Any]) -> str:
    """What the tool says to a question, asked in an empty folder that has its files."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for name, text in question.get("files", {}).items():
            Path(name).write_text(text)
        return _said(question)


@contextmanager
def chdir(folder: str) -> Iterator[None]:
    """Within this, another working folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _said(question: dict[str, Any]) -> str:
    launch = answers.LaunchGiven(
        launch=str(question["command"]),
        **{name: question[name] for name in ("rows", "version", "world_size", "framework") if name in question},
    )
    try:
        answer = answers.plan(launch)
    except LaunchError as error:
        return str(error)
    found = " ".join(f"{each['severity'].upper()} {each['code']}" for each in answer.details["findings"])
    return to_json(answer).decode().replace(" | ", "  ") + found


def unanswered() -> dict[str, list[str]]:
    """The questions that are not answered, with what is missing."""
    missing = {}
    for question in QUESTIONS:
        said = given(question)
        lacking = [text for text in question["says"] if not re.search(text, said)]
        if lacking:
            missing[str(question["ref"])] = lacking
    return missing


if __name__ == "__main__":
    left = unanswered()
    print(f"{len(QUESTIONS) - len(left)} of {len(QUESTIONS)} questions are answered by the tools")
    for ref, lacking in left.items():
        print(f"  {ref}: {lacking}")
