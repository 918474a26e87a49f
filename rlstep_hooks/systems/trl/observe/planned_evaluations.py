"""Whether the evaluations happen that the configuration asks for: after every `eval_steps` updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import PLANNED_EVALUATIONS, ConfigChanged
from rlstep_hooks.systems.trl.observe.limits import own_evaluation

if TYPE_CHECKING:
    from rlstep_hooks.observe.sync_watch import EventRecorder


class PlannedEvaluations:
    """Follows a trainer's evaluations, and records once if one that was due did not come.

    `TrainingArguments` (4.51.3 to 5.23.0): with `eval_strategy="steps"` evaluation "is done (and logged) every `eval_steps`", from
    `eval_delay` on. What is evaluated besides, by callbacks or at the end, is nobody's business here.

    Args:
        trainer: A trainer of transformers when training begins.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        args = trainer.args
        every = getattr(args, "eval_steps", None)
        self._told = False
        self._passed = int(trainer.state.global_step)
        """Updates up to which nothing is looked at any more: those made when this call of `train` began, or were looked at."""
        self._evaluated: set[int] = set()
        """Updates since then after which an evaluation ended."""
        self._every = 0
        """Updates from one to the next; 0 where they are not followed."""
        by_steps = str(getattr(args.eval_strategy, "value", args.eval_strategy)) == "steps"
        if by_steps and every is not None and every >= 1 and getattr(trainer, "eval_dataset", None) is not None:
            self._every = int(every)

    def evaluated(self) -> None:
        """An evaluation ended."""
        if self._every:
            self._evaluated.add(int(self._trainer.state.global_step))

    def passed(self, updates: int, recorder: EventRecorder) -> None:
        """Look whether evaluations were due after up to so many updates, when the time of the last one is over. A loop that leaves out
        its callbacks is looked at when it ends.

        Args:
            updates: Updates made, of this moment or the one before.
            recorder: Takes the event.
        """
        if not self._every or updates <= self._passed:
            return
        first = self._passed - self._passed % self._every + self._every
        due = (of for of in range(first, updates + 1, self._every) if of >= self._trainer.args.eval_delay)
        missing = next((of for of in due if of not in self._evaluated), None)
        self._passed, self._evaluated = updates, {of for of in self._evaluated if of > updates}
        if missing is None or self._told or own_evaluation(self._trainer):
            return
        self._told = True
        recorder.emit(
            ConfigChanged(
                at=recorder.now(),
                name=PLANNED_EVALUATIONS,
                before=f"one after every {self._every} updates",
                after=f"none after update {missing}",
                since="configuration",
            )
        )
