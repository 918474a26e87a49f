"""The code of TRL that decides the schedule of GRPO, as a mark: equal marks mean the same code, whatever its comments and texts say."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.systems.engine.marks import mark_of_lines, plain
from rlstep_hooks.systems.trl import evaluation
from rlstep_hooks.systems.trl.system import DECIDING, SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = ("trl/trainer/grpo_trainer.py", "trl/trainer/grpo_config.py", "trl/trainer/utils.py")
"""The trainer, its configuration, and where the sampler is since 0.17."""


def mark_of(trainer: str, config: str, utils: str) -> str:
    """The mark of three files' code: the sampler, the methods that give each process its prompts, and the settings' defaults.

    Args:
        trainer: The text of the first of `FILES`.
        config: The text of the second.
        utils: The text of the third; empty where there is none.

    Raises:
        SyntaxError: One of them is not Python.
    """
    lines = [
        *_sampling(ast.parse(trainer)),
        *_settings(ast.parse(config)),
        *_sampling(ast.parse(utils), functions=False),
    ]
    return mark_of_lines(lines)


def fields_of(config: str) -> frozenset[str]:
    """The fields that the classes of the second of `FILES` declare.

    Raises:
        SyntaxError: It is not Python.
    """
    classes = (node for node in ast.parse(config).body if isinstance(node, ast.ClassDef))
    return frozenset(
        ast.unparse(each.target) for node in classes for each in node.body if isinstance(each, ast.AnnAssign)
    )


def _sampling(tree: ast.Module, *, functions: bool = True) -> Iterator[str]:
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        if node.name.startswith("Repeat"):
            yield plain(node)
        elif functions and node.name == "GRPOTrainer":
            yield from (
                plain(each) for each in node.body if isinstance(each, ast.FunctionDef) and each.name in DECIDING
            )


def _settings(tree: ast.Module) -> Iterator[str]:
    deciding = SYSTEM.settings.keys() - evaluation.SETTINGS.keys()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in deciding:
            words = node.value.keywords if isinstance(node.value, ast.Call) else []
            default = next((ast.unparse(word.value) for word in words if word.arg == "default"), "")
            yield f"{ast.unparse(node.target)} = {default}"
        elif isinstance(node, ast.FunctionDef) and node.name == "__post_init__":
            yield from (ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Assign))
