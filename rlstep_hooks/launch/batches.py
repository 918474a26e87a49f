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
    return isinstance(value.func, ast.Name) and value.func.id.startswith(_WHOLE)
