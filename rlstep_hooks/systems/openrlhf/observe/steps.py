"""The optimizer steps of a DeepSpeed engine: when one is made, which weights are looked at around it, and the norm of its gradients.

DeepSpeed steps on flat tensors, group by group, at the end of each window of micro-batches, whichever call reaches that end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.compared import is_compared, is_compared_whole
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.norms import norm_of_gradients, parameters_of
from rlstep_hooks.systems.openrlhf.observe.gradients import gradients_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.observe.trainer_record import TrainerRecord
    from rlstep_hooks.record.values import Role
    from rlstep_hooks.systems.openrlhf.observe.model_weights import ModelWeights

_ORDER, _VALUES, _GRADIENT, _OPTIMIZER = ("order",), ("log_ratio", "weights"), ("gradient",), ("optimizer",)
"""What is not observed any more where a hook fails."""


class EngineSteps:
    """Follows the steps of one engine.

    Args:
        engine: DeepSpeed's.
        role: The role whose weights it trains.
        record: Takes what is seen.
        model: The weights that the model computes with.
        limit: The configured limit of the norm of the gradients; 0 where there is none.
        cycle: Gives the rollout that is trained, counted from 0.
        scaled: Whether a scaler changes the loss (float16), so that gradients are not those of the loss.
    """

    def __init__(
        self,
        engine: Any,
        role: Role,
        record: TrainerRecord,
        model: ModelWeights,
        *,
        limit: float,
        cycle: Callable[[], int],
        scaled: bool,
    ) -> None:
        self._engine = engine
        self._role: Role = role
        self._record = record
        self._model = model
        self._limit = limit
        self._cycle = cycle
        self._scaled = scaled
        self._gradients = Guard(record.writer, _GRADIENT)
        self._steps = engine.global_steps
        """Steps that are recorded."""
        self._rate, self._tick, self._skipped = 0.0, None, 0
        """The learning rate of the step that is made, its scheduler's tick, and the steps that were skipped before."""
        self._stepped = False
        self._probed: Any = None
        """The flat tensor that is looked at."""
        self._probing = False
        """Whether the optimizer that steps has it."""
        self._norms: list[torch.Tensor] = []
        """Norms of the gradients of the parts in which this process makes its step."""

    def place(self, hooks: Hooks, strategy: Any) -> None:
        """Place the hooks. All verified in 0.11.2 by real runs."""
        # deepspeed.py:183: called once for each micro-batch; DeepSpeed steps at the end of each window. Hooks that are placed later
        # stand outside: what was seen of a step is recorded before the step is.
        hooks.wrap(strategy, "optimizer_step", before=self._forget_norms, after=self._see_norm, topics=_OPTIMIZER)
        hooks.wrap(strategy, "optimizer_step", after=self._leave, topics=_VALUES)
        hooks.wrap(strategy, "optimizer_step", before=self._begin, after=self._updated, topics=_ORDER)
        # torch's own hooks. ZeRO steps its groups of flat weights one after the other; only one of them is looked at.
        optimizer = self._engine.basic_optimizer
        hooks.steps(optimizer, before=self._before, after=self._after, topics=_VALUES)
        hooks.steps(optimizer, before=self._take_norm, topics=_OPTIMIZER)

    def begin_window(self) -> None:
        """A backward comes next."""
        self._record.begin_window(self._role, probed=False, followed=is_compared_whole(self._cycle()))

    def elsewhere(self) -> None:
        """Record steps that DeepSpeed made since the last look without a call of the training loop."""
        while self._steps < self._engine.global_steps:
            self._steps += 1
            self._record.updated(self._role, applied=True, rate=float(self._engine.get_lr()[0]), by_loop=False)

    # A call of the training loop that may step

    def _begin(self, call: Call) -> None:
        self._rate, self._tick, self._skipped = 0.0, None, 0
        self.elsewhere()
        self._stepped = False
        self._rate, self._skipped = float(self._engine.get_lr()[0]), self._engine.skipped_steps
        self._tick = getattr(self._engine.lr_scheduler, "last_epoch", None)

    def _forget_norms(self, call: Call) -> None:
        self._norms.clear()

    def _see_norm(self, call: Call) -> None:
        if self._norms and self._limit > 0:
            self._record.see_norm(self._role, torch.stack(self._norms).square().sum().sqrt(), self._limit)

    def _leave(self, call: Call) -> None:
        if self._engine.global_steps != self._steps:
            self._model.left()

    def _updated(self, call: Call) -> None:
        if self._engine.global_steps == self._steps:
            return
        self._steps = self._engine.global_steps
        scaler = self._engine.skipped_steps != self._skipped
        self._record.updated(
            self._role,
            applied=self._stepped and not scaler,
            rate=self._rate,
            tick=self._tick,
            reason="gradient scaler" if scaler else "",
        )

    # A step of the optimizer

    def _before(self, call: Call) -> None:
        self._probing = False
        held, steps = list(_with_gradient(call.owner)), self._record.steps[self._role]
        if self._probed is None and held:
            self._probed = held[0]
            steps.watch_weights([self._probed])
            steps.watch_graded([("", self._probed)])
            steps.watch_steps(call.owner)
            if not self._scaled:
                with self._gradients:
                    watch = gradients_of(self._engine.module.named_parameters(), self._probed, self._gradients)
                    if watch is not None:
                        steps.watch_gradients(watch)
        if any(weights is self._probed for weights in held):
            self._probing = True
            steps.see_frozen(self._model.frozen)
            self._record.before_step(self._role, replayed=is_compared(self._cycle()))

    def _take_norm(self, call: Call) -> None:
        norm = norm_of_gradients(parameters_of(call.owner)) if is_compared_whole(self._cycle()) else None
        if norm is not None:
            self._norms.append(norm)

    def _after(self, call: Call) -> None:
        self._stepped = True
        if self._probing:
            self._record.after_step(self._role, call.owner.param_groups[0]["lr"])


def _with_gradient(optimizer: Any) -> Iterable[Any]:
    return (weights for group in optimizer.param_groups for weights in group["params"] if weights.grad is not None)
