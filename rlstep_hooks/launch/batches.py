"""Expressions over a batch, in the trainers of verl and of what derives from it: whether a batch stays whole."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEEPS = ("union", "repeat", "to", "from_single_dict", "from_dict")
"""Methods that give the batch back whole."""
_IN_PLACE = ("pop", "reorder", "check_consistency", "print_size", "rename")
"""Methods of verl's DataProto (0.7 verl/protocol.py) that take columns out, change the order of rows, or look at them."""
_WHOLE = ("compute_", "apply_", "_compute_", "_apply_", "_create_loss_mask")
"""Beginnings of the names of functions that add columns to a batch."""
_SAME_ROWS = ("dataprotoitem_to_dataproto", "deepcopy", "copy.deepcopy")
"""What gives all rows of a batch anew. The first makes a DataProto of what a slice has made of it (JinyanSu1/A-DLP
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
    if ast.unparse(value.func) in _SAME_ROWS:
        return all(isinstance(argument, ast.Name) for argument in value.args)
    if isinstance(value.func, ast.Attribute):
        return value.func.attr in (*_KEEPS, *makes) or value.func.attr.startswith(_WHOLE)
    return isinstance(value.func, ast.Name) and value.func.id.startswith(_WHOLE)


def leaves_whole(call: ast.Call) -> bool:
    """Whether a method that is called for what it does to a batch leaves it all its rows.

    Args:
        call: The call of the batch's own method.
    """
    return isinstance(call.func, ast.Attribute) and call.func.attr in (*_KEEPS, *_IN_PLACE)


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
