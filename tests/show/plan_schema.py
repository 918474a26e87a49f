"""The JSON Schema of `rlstep plan --json`, made of the types: `python -m tests.show.plan_schema` writes it into the package."""

from __future__ import annotations

import ast
import inspect
from fractions import Fraction
from itertools import pairwise
from typing import Any, cast

import msgspec

from rlstep_hooks.planning.reading import Formula, Note
from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.planning.steps import StepReading
from rlstep_hooks.show.plan_json import SCHEMA, Answer, Failure, PlanFinding, UnusedSetting


def schema() -> dict[str, Any]:
    """The JSON Schema of an answer: every field that is always there is required, and described as its type describes it."""
    found, parts = msgspec.json.schema_components((Answer,), schema_hook=_hooked, ref_template="#/$defs/{name}")
    for kind in (Answer, Schedule, PlanFinding, Formula, Note, StepReading, UnusedSetting, Failure):
        part, words = parts[kind.__name__], _described(kind)
        for name, field in part["properties"].items():
            field.pop("default", None)
            if name in words:
                parts_of = {"$ref": field.pop("$ref")} if "$ref" in field else {}
                field.update(parts_of, description=words[name])
        if not kind.__struct_config__.omit_defaults:
            part["required"] = list(part["properties"])
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The answer of `rlstep plan --json`",
    }
    return {**head, **found[0], "$defs": parts}


def _described(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The docstrings of a type's fields, by their names in JSON."""
    names = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    words: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("rlstep_hooks"):
            continue
        body = cast("ast.ClassDef", ast.parse(inspect.getsource(base)).body[0]).body
        for field, text in pairwise(body):
            said = text.value if isinstance(text, ast.Expr) else None
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(said, ast.Constant)
            ):
                words[names.get(field.target.id, field.target.id)] = " ".join(str(said.value).split())
    return words


def _hooked(kind: type) -> dict[str, Any]:
    if kind is Fraction:
        return {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^-?\d+/[1-9]\d*$"}]}
    raise NotImplementedError(kind)


def text_of(found: dict[str, Any]) -> str:
    """A schema as the file has it."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(text_of(schema()), encoding="utf-8")
