"""Questions that people asked in public: each command is planned, and what is printed must have the facts of the right answer.

`field_questions.json` has the reference, a command with the sizes of the question, the file that it runs if it runs one, and the facts
as patterns; no text of theirs. What only a run can answer is in `RULES`: the rule whose page names the cause.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from rlstep_hooks.judge.rules.catalogue import BY_CODE
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.show.plan import plan_text
from rlstep_hooks.systems.launches import plan_launch

QUESTIONS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("field_questions.json").read_text())


RULES = {
    "rllm-org/rllm#272": ("RLS306", "decoding a turn and encoding the whole conversation gives other ids"),
    "jingyaogong/minimind#850": ("RLS306", "join the token ids that were sampled"),
    "verl-project/verl#4248": ("RLS405", "free_cache_engine=False"),
    "vllm-project/vllm#32718": ("RLS403", "stale weights behind an equal version"),
    "areal-project/AReaL#1290": ("RLS403", "another engine"),
    "NVIDIA-NeMo/RL#3743": ("RLS403", "other kernels"),
}
"""Questions that only a run can answer: the rule that finds the cause, and what its page says of it."""


@pytest.mark.parametrize("reference", RULES)
def test_the_page_of_the_rule_that_finds_it_says_so(reference: str) -> None:
    code, words = RULES[reference]
    page = " ".join((BY_CODE[code].__doc__ or "").split())
    assert words in page
    assert reference.replace("#", "/issues/") in page


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["ref"])
def test_what_is_printed_answers(question: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in question.get("files", {}).items():
        Path(name).write_text(text)
    options = Options(
        **{name: question[name] for name in ("rows", "version", "world_size", "framework") if name in question}
    )
    plan = plan_launch(shlex.split(question["command"]), options)
    said = plan_text(plan, None, explain=False, width=400, coloured=False)
    missing = [fact for fact in question["says"] if not re.search(fact, said)]
    assert not missing, said
