"""Expressions over a batch, in the trainers of verl and of what derives from it: whether a batch stays whole."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEEPS = ("union", "repeat", "to", "from_single_dict", "from_dict")
"""Methods that give the batch back whole."""
_WHOLE = ("compute_", "apply_", "_compute_", "_apply_", "_create_loss_mask")
"""Beginnings of the names of functions that add columns to a batch."""
_AGAIN = "dataprotoitem_to_dataproto"
"""What makes a DataProto of the tensors of a batch, whose class a slice has changed (JinyanSu1/A-DLP
verl/verl/trainer/ppo/ray_trainer.py:42, from rLLM)."""
_ADDS = ("union",)
"""Methods that put the columns of another batch beside those of this one."""
_TAKES_ALL = ("pop", "get", "_get_gen_batch", "reward_fn", "repeat")
"""Methods whose result has as many rows as the batch that they are given."""


def keeps_whole(value: ast.expr, makes: Sequence[str] = ()) -> bool:
    """Whether what a batch is assigned is a whole batch again.

    Args:
        value: The right side of the assignment.
        makes: Further methods, which make a batch and are read on their own.
    """
    if isinstance(value, ast.Name) or (isinstance(value, ast.Constant) and value.value is None):
        return True
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute):
        return value.func.attr in (*_KEEPS, *makes) or value.func.attr.startswith(_WHOLE)
    if not isinstance(value.func, ast.Name):
        return False
    again = value.func.id == _AGAIN and all(isinstance(argument, ast.Name) for argument in value.args)
    return again or value.func.id.startswith(_WHOLE)


def added_to(value: ast.expr) -> set[str]:
    """The names of the batches whose columns an expression adds to another: `output` of `batch.union(output)`."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _ADDS:
        return {argument.id for argument in value.args if isinstance(argument, ast.Name)}
    return set()


def is_made_whole(value: ast.expr) -> bool:
    """Whether what is added to a batch is made anew for all its rows, by the engine, a worker or a reward, and is no part of another.

    Args:
        value: The right side of the assignment.
    """
    if keeps_whole(value):
        return True
    match value:
        case ast.BinOp() | ast.Constant() | ast.List():
            return True
        case ast.Subscript():
            return isinstance(value.slice, ast.Constant) and isinstance(value.slice.value, str)
        case ast.Call(func=ast.Name(id=name)):
            return name.startswith(("unpad_", "deepcopy"))
        case ast.Call(func=ast.Attribute(attr=name, value=holder)):
            # `self.actor_rollout_wg.generate_sequences(batch)`: what holds the method is no batch, nor the trainer itself.
            by_worker = isinstance(holder, ast.Attribute | ast.Subscript)
            return by_worker or name in _TAKES_ALL or name.startswith(("generate_", "run_"))
    return False
