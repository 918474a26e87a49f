"""Which of a model's trainable tensors an optimizer holds: by identity, so that copies do not pass for the real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def optimizer_tensors(parameters: Iterable[Any], *optimizers: Any) -> dict[str, int]:
    """The fact `optimizer_tensors`, which rule RLS407 reads.

    Args:
        parameters: Of the model that is trained.
        optimizers: torch optimizers that together train it.

    Returns:
        How many tensors of the model are trainable, how many of these the optimizers hold, and how many others they hold.
    """
    trainable = {id(parameter) for parameter in parameters if parameter.requires_grad}
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    held = {id(parameter) for group in groups for parameter in group["params"]}
    return {"trainable": len(trainable), "held": len(trainable & held), "others": len(held - trainable)}
