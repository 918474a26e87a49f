"""What the validation of a trainer uses and its program does not give it: such a run ends there, whatever its sizes are.

A recipe of verl in a fork extends the fork's trainer, and builds it as verl's is built: what the fork needs besides is None there.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import Line, taken
from rlstep_hooks.launch.python_source import name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlstep_hooks.launch.checkout import Function, Source

_VALIDATES = "_validate"


def not_given(
    main: Source | None, trainer: str, own: Source, common: Source | None, values: Mapping[str, object]
) -> Line | None:
    """The line at which a run ends because its trainer was not given what the validation uses; None where there is none.

    Args:
        main: The file of the program.
        trainer: The class that it builds.
        own: The file of that class, which extends the common trainer.
        common: The file of the common trainer.
        values: The settings that are known.
    """
    tree = main.tree() if main is not None else None
    if tree is None or main is None or common is None or not _validates(values) or own.methods(_VALIDATES, of=trainer):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and name_of(node.func) == trainer]
    given = {word.arg for call in calls for word in call.keywords}
    if not calls or None in given or own.methods("__init__", of=trainer):
        return None
    optional = {name for start in common.methods("__init__", of="RayPPOTrainer") for name in _optional(start)} - given
    for method in common.methods(_VALIDATES, of="RayPPOTrainer"):
        for node in taken(method, values):
            name = _called_of(node)
            if name in optional and not _is_asked(name, method):
                says = (
                    f"the validation calls self.{name}, which {trainer} is not given ({main.shown}): the run ends there"
                )
                return Line(says, common.at(node.lineno))  # type: ignore[attr-defined]
    return None


def _validates(values: Mapping[str, object]) -> bool:
    """Whether a run validates, before it trains or later."""
    every = values.get("trainer.test_freq")
    return values.get("trainer.val_before_train", True) is not False or (isinstance(every, int) and every > 0)


def _optional(start: Function) -> Iterator[str]:
    """The attributes that a trainer keeps of what it need not be given."""
    words = start.args
    positional = [*words.posonlyargs, *words.args]
    defaults = [*zip(positional[len(positional) - len(words.defaults) :], words.defaults, strict=True)]
    defaults += [(word, value) for word, value in zip(words.kwonlyargs, words.kw_defaults, strict=True) if value]
    none = {word.arg for word, value in defaults if isinstance(value, ast.Constant) and value.value is None}
    for node in ast.walk(start):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in none:
            yield from (target.attr for target in node.targets if isinstance(target, ast.Attribute))


def _called_of(node: ast.AST) -> str:
    """The attribute of the trainer that a call is a method of: "envs" in `self.envs.reset()`; empty for any other node."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr=name))):
            return name
    return ""


def _is_asked(name: str, method: Function) -> bool:
    """Whether a method asks anywhere what an attribute is."""
    conditions = (node.test for node in ast.walk(method) if isinstance(node, ast.If | ast.IfExp | ast.While))
    return any(f"self.{name}" in ast.unparse(condition) for condition in conditions)
