"""What can fail to be observed has a name that the record knows."""

from __future__ import annotations

import ast
from pathlib import Path

import rlstep_hooks
from rlstep_hooks.record.values import TOPICS


def test_every_topic_in_the_code_is_known() -> None:
    named: dict[str, str] = {}
    for file in Path(rlstep_hooks.__file__).parent.rglob("*.py"):
        text = file.read_text()
        if not any(call in text for call in ("cannot(", "Guard(", "contained(")):
            continue
        for call in ast.walk(ast.parse(text)):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            given = call.args[0] if name == "cannot" else call.args[1] if name == "Guard" else None
            topics = given.elts if isinstance(given, ast.Tuple) else call.args if name == "contained" else [given]
            for topic in topics:
                if isinstance(topic, ast.Constant) and isinstance(topic.value, str):
                    named[topic.value] = f"{file.name}:{call.lineno}"
    assert len(named) > 10, "calls are found"
    assert {topic: place for topic, place in named.items() if topic not in TOPICS} == {}
