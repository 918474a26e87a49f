"""Questions that people asked in public: each command is planned, and what is printed must have the facts of the right answer.

`field_questions.json` has the reference, a command with the sizes of the question, and the facts as patterns; no text of theirs.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from rlstep_hooks.planning.launched import Options
from rlstep_hooks.show.plan import plan_text
from rlstep_hooks.systems.launches import plan_launch

QUESTIONS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("field_questions.json").read_text())


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["ref"])
def test_what_is_printed_answers(question: dict[str, Any]) -> None:
    options = Options(
        **{name: question[name] for name in ("rows", "version", "world_size", "framework") if name in question}
    )
    plan = plan_launch(shlex.split(question["command"]), options)
    said = plan_text(plan, None, explain=False, width=400, coloured=False)
    missing = [fact for fact in question["says"] if not re.search(fact, said)]
    assert not missing, said
