"""Optimizer steps of a loop that audits itself, seen through torch's own hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.record.values import Role


class OptimizerSteps:
    """Calls back before and after each real optimizer step.

    A step that a gradient scaler skips does not count: torch does not call the optimizer then.

    Args:
        optimizers: The optimizer of each role. If empty, the first optimizer of this process that steps is the policy's, and a second
            one is reported as not named.
        before: Called with the role, the optimizer, and `final`: whether its gradients are final (a closure computes them anew).
        after: Called with role and optimizer once the step is made.
        unnamed: Called once with an optimizer that steps and was not named.
    """

    def __init__(
        self,
        optimizers: dict[Role, Any],
        *,
        before: Callable[..., None],
        after: Callable[[Role, Any], None],
        unnamed: Callable[[str], None],
    ) -> None:
        self._optimizers = {role: _innermost(optimizer) for role, optimizer in optimizers.items()}
        self._named = bool(optimizers)
        self._before = before
        self._after = after
        self._unnamed = unnamed
        self._handles: list[Any] = []

    def attach(self) -> None:
        """Place the hooks.

        Raises:
            TypeError: What was given as an optimizer has no step hooks.
        """
        # torch's own hooks around Optimizer.step, on one optimizer or on all of a process: a real update and nothing else. Gives
        # Update. Verified by real training with torch 2.13.
        if self._named:
            for optimizer in self._optimizers.values():
                if not hasattr(optimizer, "register_step_post_hook"):
                    raise TypeError(f"{type(optimizer).__name__} is no torch optimizer: it has no step hooks")
            for optimizer in self._optimizers.values():
                self._handles.append(optimizer.register_step_pre_hook(self._step_begins))
                self._handles.append(optimizer.register_step_post_hook(self._step_ended))
            return
        from torch.optim import optimizer as hooks

        self._handles.append(hooks.register_optimizer_step_pre_hook(self._step_begins))
        self._handles.append(hooks.register_optimizer_step_post_hook(self._step_ended))

    def detach(self) -> None:
        """Take the hooks off."""
        while self._handles:
            self._handles.pop().remove()

    def _role(self, optimizer: Any) -> Role | None:
        for role, known in self._optimizers.items():
            if known is optimizer:
                return role
        if self._named or self._optimizers:
            return None
        self._optimizers["policy"] = optimizer
        return "policy"

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        role = self._role(optimizer)
        if role is not None:
            # torch hands its own arguments on, the optimizer first (torch/optim/optimizer.py `profile_hook_step`).
            closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
            self._before(role, optimizer, final=closure is None)

    def _step_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        role = self._role(optimizer)
        if role is None:
            self._unnamed(type(optimizer).__name__)
        else:
            self._after(role, optimizer)


def _innermost(optimizer: Any) -> Any:
    """The torch optimizer inside wrappers such as accelerate's."""
    while hasattr(optimizer, "optimizer") and not hasattr(optimizer, "register_step_post_hook"):
        optimizer = optimizer.optimizer
    return optimizer
