"""`rlstep plan --json`: one shape for every launch, and its published JSON Schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlstep_hooks.cli.plan import failure_json, to_json
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.show.plan_json import SCHEMA, Answer
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.golden import plan_dump
from tests.show.plan_schema import schema, text_of

CASES = plan_dump.read(plan_dump.STORED)


def test_the_published_schema_is_that_of_the_types() -> None:
    """Where they part: `python -m tests.show.plan_schema`, and another number for the shape if something is taken away."""
    assert SCHEMA.read_text(encoding="utf-8") == text_of(schema())


def test_the_schema_requires_and_describes_the_whole_answer() -> None:
    answer = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"]["Answer"]
    assert answer["required"] == list(Answer.__struct_encode_fields__)
    assert all(field.get("description") for field in answer["properties"].values())


def printed(case: plan_dump.Case) -> dict[str, Any]:
    with plan_dump.beside(case.launch) as (words, options):
        try:
            text = to_json(plan_launch(words, Options(**options)), 100)
        except (LaunchError, OSError) as error:
            text = failure_json(error)
    answer: dict[str, Any] = json.loads(text)
    return answer


@pytest.mark.parametrize("system", sorted({case.system for case in CASES}))
def test_every_stored_launch_is_answered_in_the_published_shape(system: str) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the session installs it")
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    for case in CASES:
        if case.system != system:
            continue
        answer = printed(case)
        validator.validate(answer)
        if answer["accepted"]:
            assert answer["schedule"] is not None
            assert not [one for one in answer["findings"] if one["code"] == "RLS110"]
        elif answer["error"] is None:
            assert "RLS110" in [one["code"] for one in answer["findings"]]


def test_the_schema_refuses_another_shape() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the session installs it")
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    answer = printed(next(case for case in CASES if "schedule" in case.answer))
    for name, value in (("schema", 2), ("findings", None), ("assumptions", [1]), ("schedule", {})):
        assert list(validator.iter_errors({**answer, name: value})), name
    del answer["notes"]
    assert list(validator.iter_errors(answer))
