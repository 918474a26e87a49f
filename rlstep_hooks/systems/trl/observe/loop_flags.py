"""Whether the loop of a trainer is told what nobody asked for: to evaluate, or to end a pass of the loader.

transformers' loop is told what comes next by flags of `TrainerControl` (trainer_callback.py 4.51.3 to 5.23.0): its default callback
sets them as configured, and other callbacks as they wish. Where no callback is somebody's own, they are what the configuration says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import ENDS_OF_PASSES, PLANNED_EVALUATIONS, ConfigChanged
from rlstep_hooks.systems.trl.observe.limits import own_flow

if TYPE_CHECKING:
    from rlstep_hooks.observe.sync_watch import EventRecorder


class LoopFlags:
    """Looks at the flags of a trainer, and records once each that nobody asked for.

    Args:
        trainer: A trainer of transformers when training begins.
        recorder: Takes the events.
    """

    def __init__(self, trainer: Any, recorder: EventRecorder) -> None:
        self._trainer = trainer
        self._recorder = recorder
        args = trainer.args
        self._strategy = str(getattr(args.eval_strategy, "value", args.eval_strategy))
        every = getattr(args, "eval_steps", None)
        self._every = int(every) if every is not None and every >= 1 else 0
        """Updates from one evaluation to the next; 0 where that is a share of the run."""
        self._told: set[str] = set()

    def pass_begins(self) -> None:
        """A pass of the loader begins: what ended the one before does not end it, `should_epoch_stop` "will be set back to False"."""
        if self._trainer.control.should_epoch_stop and not own_flow(self._trainer):
            self._tell(
                ENDS_OF_PASSES, "where its rows end, or where a callback asks for it", "asked for before it began"
            )

    def update_ends(self) -> None:
        """An update was made, and what follows it is asked for."""
        state = self._trainer.state
        updates = int(state.global_step)
        by_steps = self._strategy == "steps" and (not self._every or not updates % self._every)
        last = (
            self._strategy == "steps" and updates >= state.max_steps
        )  # an evaluation of the last update may come besides
        if not (by_steps or last):
            self._look_at_evaluation(f"one after update {updates} too")

    def pass_ends(self) -> None:
        """A pass of the loader ended, and what follows it is asked for."""
        if self._strategy != "epoch":
            self._look_at_evaluation("one at the end of a pass of the loader too")

    def _look_at_evaluation(self, after: str) -> None:
        if self._trainer.control.should_evaluate and not own_flow(self._trainer):
            planned = {"steps": f"one after every {self._every} updates", "epoch": "one after each pass of the loader"}
            self._tell(PLANNED_EVALUATIONS, planned.get(self._strategy, "none"), after)

    def _tell(self, name: str, before: str, after: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._recorder.emit(
                ConfigChanged(at=self._recorder.now(), name=name, before=before, after=after, since="configuration")
            )
