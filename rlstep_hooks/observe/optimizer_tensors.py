"""A model's trainable tensors that an optimizer holds, by identity: a copy of a tensor does not count as the tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def optimizer_tensors(parameters: Iterable[Any], *optimizers: Any) -> dict[str, int]:
    """The fact `optimizer_tensors`, which rule RLS407 reads.

    Args:
        parameters: The parameters of the trained model.
        optimizers: The torch optimizers that together train it.

    Returns:
        "trainable": trainable tensors of the model; "held": those of them in an optimizer; "others": other tensors in one.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return optimizer_tensors_of(parameters, (parameter for group in groups for parameter in group["params"]))


def optimizer_tensors_of(parameters: Iterable[Any], held_by: Iterable[Any]) -> dict[str, int]:
    """Count which tensors of a model an optimizer has, where it steps on tensors of its own. Returns what `optimizer_tensors` does.

    Args:
        parameters: The parameters of the trained model.
        held_by: The parameters of the model whose weights the optimizer has.
    """
    trainable = {id(parameter) for parameter in parameters if parameter.requires_grad}
    held = {id(parameter) for parameter in held_by}
    return {"trainable": len(trainable), "held": len(trainable & held), "others": len(held - trainable)}


def stepped_by(optimizer: Any, parameters: Iterable[Any]) -> list[Any]:
    """The trainable parameters of a model that an optimizer holds.

    Where it holds none of them, they are all: a shard or a copy in reduced precision is stepped in their place, or they are another
    model's, which is for rules to find.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return [parameter for parameter in trainable if id(parameter) in held] or trainable
