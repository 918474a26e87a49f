"""A hook on a leaf of the autograd graph that comes before all others of its tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def watch_leaf(leaf: Any, see: Callable[[Tensor], None]) -> Callable[[], None]:
    """Call `see` in each backward pass with what autograd computed for a leaf in it, all uses of the leaf added up.

    The hook runs before the gradient is accumulated, hence before DDP, FSDP and DeepSpeed reduce it: they do so in hooks of the
    accumulation (torch 2.6 to 2.13). It stays when the leaf's `data` is exchanged, as ZeRO-3 and FSDP1 do.

    Args:
        leaf: The parameter.
        see: Gets the gradient. What it gives back is not used.

    Returns:
        Takes the hook off.
    """

    def arrives(gradient: Tensor) -> None:
        see(gradient)

    handle = leaf.register_hook(arrives)
    hooks = leaf._backward_hooks
    # torch calls a tensor's hooks in the order in which they entered this dict, so the others enter it again after this one.
    for key in [key for key in hooks if key != handle.id]:
        hooks[key] = hooks.pop(key)

    def remove() -> None:
        handle.remove()

    return remove
