"""Where a checkout of verl takes old log-probs from: a call of the trainer's own, or the workers while they generate.

The workers of verl 0.1 compute them at the end of `generate_sequences`, which its forks keep under later versions' numbers; from 0.2
on the trainer asks for them before the update.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import UNKNOWN, Line, taken, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlstep_hooks.launch.checkout import Checkout, Function, Source

_COMPUTES = ("compute_log_prob", "compute_old_log_prob")
_CALLED = re.compile(rf"\.({'|'.join(_COMPUTES)})\(")
_COLUMN = "old_log_probs"
_OF_ENGINE = "rollout_log_probs"


def read_logprobs(
    fit: Function, source: Source, checkout: Checkout, values: Mapping[str, object]
) -> tuple[Line | None, Line | None]:
    """Where the workers compute old log-probs while they generate, and what keeps that from being known.

    Args:
        fit: The trainer's loop.
        source: The trainer's file.
        checkout: The package.
        values: The settings of the launch and of its configuration, where they are known.

    Returns:
        The line, and what is not known: both None where the trainer asks for them before the update, as in the releases.
    """
    if (handed := _from_engine(fit, values)) is not None:
        return None, Line("old log-probs may be those of the engine that samples", source.at(handed.lineno))
    made = _made_by_workers(checkout)
    if made is None:
        return None, None
    calls = list(_calls(fit, values, certain=True))
    if any(certain for _, certain in calls):
        return None, None
    if calls:
        line = calls[0][0]
        says = f"old log-probs come from the workers that generate ({made.where}), and may be computed again"
        return None, Line(says, source.at(line))
    lines = [number for number, line in enumerate(source.text.splitlines(), start=1) if _is_call(line)]
    elsewhere = [line for line in lines if not fit.lineno <= line <= (fit.end_lineno or fit.lineno)]
    if elsewhere:
        return None, Line("old log-probs may be computed again outside of fit", source.at(elsewhere[0]))
    return made, None


def _from_engine(fit: Function, values: Mapping[str, object]) -> ast.Assign | None:
    """Where a loop takes the engine's log-probs for old ones by a condition of its own: that of the releases is their bypass mode."""
    released = {
        inner
        for node in ast.walk(fit)
        if isinstance(node, ast.If) and "bypass" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    nodes = (node for node in taken(fit, values) if isinstance(node, ast.Assign) and node not in released)
    return next(
        (node for node in nodes if _is_column(node.value, _OF_ENGINE) and _is_column(node.targets[0], _COLUMN)), None
    )


def _is_column(node: ast.expr, name: str) -> bool:
    """Whether an expression is a column of a batch: `batch.batch["old_log_probs"]`."""
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == name


def _is_call(line: str) -> bool:
    return not line.lstrip().startswith("#") and _CALLED.search(line) is not None


def _made_by_workers(checkout: Checkout) -> Line | None:
    """Where `generate_sequences` of the policy's worker adds old log-probs to what it gives back."""
    workers = checkout.source("workers/fsdp_workers.py")
    if workers is None:
        return None
    for method in workers.methods("generate_sequences"):
        for node in ast.walk(method):
            if isinstance(node, ast.Assign) and any(_names_column(target) for target in node.targets):
                return Line(
                    "old log-probs are computed with the rollout, in generate_sequences", workers.at(node.lineno)
                )
    return None


def _names_column(target: ast.expr) -> bool:
    return (
        isinstance(target, ast.Subscript)
        and isinstance(target.slice, ast.Constant)
        and target.slice.value == _COLUMN
        and ast.unparse(target.value).endswith("batch")
    )


def _calls(node: ast.AST, values: Mapping[str, object], *, certain: bool) -> Iterator[tuple[int, bool]]:
    """The lines within a statement that compute log-probs of the policy, and whether the launch surely comes to them."""
    if isinstance(node, ast.If):
        holds = value_of(node.test, values)
        for branch, taken in ((node.body, holds), (node.orelse, not holds)):
            for statement in branch if holds is UNKNOWN or taken else ():
                yield from _calls(statement, values, certain=certain and holds is not UNKNOWN)
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _COMPUTES:
        yield node.lineno, certain
    for inner in ast.iter_child_nodes(node):
        yield from _calls(inner, values, certain=certain)
