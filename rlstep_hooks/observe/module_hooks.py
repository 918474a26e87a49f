"""Backward hooks of modules that put other gradients in the place of those that autograd computed.

A full backward hook may return gradients with respect to a module's inputs, and a backward pre-hook those with respect to its outputs
(torch.nn.Module.register_full_backward_hook, register_full_backward_pre_hook; torch 2.6 to 2.13). All parameters before it then get
gradients of another loss, and their own hooks see nothing of it. Module.__call__ takes the hooks out of two dicts at each forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.guard import Guard


class ModuleHookWatch:
    """Looks at what the backward hooks of a model's modules return, through the forwards and backwards that it is told to.

    Args:
        guard: Contains errors inside the hooks, which stand in the backward pass.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._placed: list[tuple[dict[int, Any], int, Any, Any]] = []
        """The hooks that are looked at: the dict of each, its key, the hook itself, and what stands in its place."""

    def begin(self, model: Any) -> list[tuple[str, Tensor]]:
        """Look at all hooks that are there.

        Returns:
            Where each module will be noted whose hook replaced gradients, with the number of values that differ, on their device.
        """
        found: list[tuple[str, Tensor]] = []
        self.end()
        for name, module in model.named_modules():
            for hooks in (module._backward_hooks, module._backward_pre_hooks):
                for key, hook in list(hooks.items()) if hooks else ():
                    seen = self._seen(hook, name, found)
                    hooks[key] = seen
                    self._placed.append((hooks, key, hook, seen))
        return found

    def end(self) -> None:
        """Put the hooks back."""
        placed, self._placed = self._placed, []
        for hooks, key, hook, seen in placed:
            if hooks.get(key) is seen:
                hooks[key] = hook

    def _seen(self, hook: Any, name: str, found: list[tuple[str, Tensor]]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:  # the module, then the gradients that may be replaced
            result = hook(*args)
            if result is not None:
                with self._guard:
                    count = _replaced(result, args[1])
                    if count is not None:
                        found.append((name, count))
            return result

        return call


def _replaced(result: Any, given: Any) -> Tensor | None:
    """How many values of the gradients that a hook got differ in those that it returned; None where it returned the same."""
    returned, before = (of if isinstance(of, tuple) else (of,) for of in (result, given))
    pairs = [
        (one, other)
        for one, other in zip(returned, before, strict=False)
        if isinstance(one, Tensor) and isinstance(other, Tensor) and one is not other and one.shape == other.shape
    ]
    counts = [(one.detach() != other.detach()).sum() for one, other in pairs]
    return sum(counts[1:], counts[0]) if counts else None
