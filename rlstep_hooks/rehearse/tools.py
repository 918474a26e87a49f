"""The user's tools in a rehearsal: a random model calls none, so each is called once with arguments made from its schema.

Frameworks give a model the text of an exception that a tool raised, and train on: a tool that always raises is never noticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.rehearse.messages import described, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.rehearse.messages import Level

_OF_CODE = (TypeError, NameError, AttributeError, ImportError, NotImplementedError)
"""What the code of a tool raises, whatever its arguments mean."""
_SHOWN = 100
"""Characters of an answer that a message shows."""
_MADE: dict[str, Any] = {"integer": 3, "number": 3.0, "boolean": True, "array": [], "object": {}, "null": None}


def made_arguments(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that fit the JSON Schema of a tool's parameters; the required ones, or all where none is named as such.

    Args:
        parameters: The schema: `properties`, `required`.
    """
    properties = parameters.get("properties") or {}
    wanted = parameters.get("required") or list(properties)
    return {name: _made(properties.get(name) or {}) for name in wanted}


def _made(schema: Mapping[str, Any]) -> Any:
    for name in ("default", "const"):
        if schema.get(name) is not None:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][0]
    kinds = schema.get("type")
    kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
    if kind == "object":
        return made_arguments(schema)
    if kind == "array" and schema.get("items"):
        return [_made(schema["items"])]
    return _MADE.get(str(kind), "42")


def answered(name: str, arguments: dict[str, Any], answer: Any) -> None:
    """Say that a tool answered a made call."""
    shown = repr(str(answer)[:_SHOWN])
    say("tool", f"called once with {arguments}, made from its schema: {shown}", name=name, answered=True)


def raised(name: str, arguments: dict[str, Any], error: BaseException) -> None:
    """Say that a tool raised on a made call: a doubt where no arguments that fit its schema should raise this."""
    text = f"raised {described(error)} on {arguments}, made from its schema"
    if isinstance(error, _OF_CODE):
        text += "; a model would get that text as the answer, and the run would go on"
    level: Level = "warning" if isinstance(error, _OF_CODE) else "fact"
    say("tool", text, level=level, name=name, answered=False)
