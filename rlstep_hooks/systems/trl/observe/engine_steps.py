"""Optimizer steps that DeepSpeed's engine makes, inside accelerate's backward. The optimizer that the loop steps does nothing then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.rates import RatesOfStep, rates_of, tick_of
from rlstep_hooks.record.events import NOT_FINITE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlstep_hooks.observe.hooks import Call, Hooks


class EngineStep(msgspec.Struct, frozen=True):
    """One step that the engine came to."""

    applied: bool
    """False where the engine skipped it, because a gradient was not finite."""
    skip_reason: str
    rates: RatesOfStep
    """The learning rates before the engine moved its scheduler."""
    tick: int | None
    """How far the scheduler had come, before the engine moved it; None if it has no counter."""


def engine_of(trainer: Any) -> Any:
    """The DeepSpeed engine of a trainer that trains; None where there is none.

    accelerate keeps it when it prepares the model (`Accelerator.deepspeed_engine_wrapped`, accelerate 1.15.0 accelerator.py:2483).
    """
    return getattr(getattr(trainer.accelerator, "deepspeed_engine_wrapped", None), "engine", None)


class EngineSteps:
    """The latest step of one engine, until the observer takes it.

    Args:
        engine: DeepSpeed's engine, `deepspeed.DeepSpeedEngine`.
        scheduler: The trainer's scheduler, or accelerate's wrapper of it.
        begins: Is called before the engine's step.
        ends: Is called after it, with the update that came of it; with None where none did, or it was skipped.
    """

    def __init__(
        self,
        engine: Any,
        scheduler: Any,
        *,
        begins: Callable[[], None],
        ends: Callable[[EngineStep | None], None],
    ) -> None:
        self._begins = begins
        self._ends = ends
        self._engine = engine
        self._scheduler = getattr(scheduler, "scheduler", scheduler)
        self._made: EngineStep | None = None

    def attach(self, hooks: Hooks) -> None:
        """Place the hook."""
        # `step`: accelerate calls it once for each window, at its end, inside `backward` (accelerate 1.15.0 utils/deepspeed.py:258).
        # It gives Update. The inner optimizer steps once for each group of parameters with ZeRO-1 and 2, and once for each sub-group
        # with ZeRO-3, so its hooks do not count updates. Verified with DeepSpeed 0.19.8, ZeRO-0 to 3.
        hooks.wrap(self._engine, "step", around=self._step, topics=("order",))

    def take(self) -> EngineStep | None:
        """The step since the last call; None if the engine made none."""
        made, self._made = self._made, None
        return made

    def _step(self, call: Call) -> Iterator[None]:
        before, skipped = self._engine.global_steps, self._engine.skipped_steps
        optimizer = self._engine.optimizer
        rates, tick = rates_of(optimizer), tick_of(self._scheduler)
        self._begins()
        yield
        # Both are plain integers of the host (runtime/engine.py 0.19.8:3541, 3558).
        if self._engine.global_steps > before:
            applied = self._engine.skipped_steps == skipped
            reason = "" if applied else "gradient scaler" if self._engine.fp16_enabled() else NOT_FINITE
            self._made = EngineStep(applied, reason, rates, tick)
        self._ends(self._made if self._made is not None and self._made.applied else None)
