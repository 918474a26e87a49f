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
        self._evaluated = int(trainer.state.global_step)
        """Updates made when the latest evaluation ended, or when this call of `train` began: what was due before is over."""
        self._every = 0
        """Updates from one to the next; 0 where they are not followed."""
        by_steps = str(getattr(args.eval_strategy, "value", args.eval_strategy)) == "steps"
        if by_steps and every is not None and every >= 1 and getattr(trainer, "eval_dataset", None) is not None:
            self._every = int(every)

    def evaluated(self) -> None:
        """An evaluation ended."""
        self._evaluated = int(self._trainer.state.global_step)

    def passed(self, updates: int, recorder: EventRecorder) -> None:
        """Look whether an evaluation was due after so many updates, when its time is over.

        Args:
            updates: Updates made, of this moment or the one before.
            recorder: Takes the event.
        """
        due = self._every and updates and not updates % self._every and updates >= self._trainer.args.eval_delay
        if not due or self._told or self._evaluated == updates or own_evaluation(self._trainer):
            return
        self._told = True
        recorder.emit(
            ConfigChanged(
                at=recorder.now(),
                name=PLANNED_EVALUATIONS,
                before=f"one after every {self._every} updates",
                after=f"none after update {updates}",
                since="configuration",
            )
        )
