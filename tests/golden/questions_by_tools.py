"""How many real questions the agents' tools answer, without a model: `python -m tests.golden.questions_by_tools`.

Each question that has a command is asked of `plan`; it is answered if everything that the right answer must say is in what the tool
gives.
"""

from __future__ import annotations

import re

from rlstep_hooks.cli import answers
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.record.wire import to_json
from tests.golden.test_field_questions import QUESTIONS


def given(question: dict[str, object]) -> str:
    """What the tool says to a question."""
    launch = answers.LaunchGiven(
        launch=str(question["command"]),
        **{name: question[name] for name in ("rows", "version", "world_size", "framework") if name in question},  # type: ignore[arg-type]
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
