"""Whether validations and checkpoints come when `trainer.test_freq` and `trainer.save_freq` ask for them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import DUE_CHECKPOINTS, DUE_EVALUATIONS, ConfigChanged

if TYPE_CHECKING:
    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.observe.sync_watch import EventRecorder

_WORK = (("test_freq", "_validate", DUE_EVALUATIONS), ("save_freq", "_save_checkpoint", DUE_CHECKPOINTS))
"""The setting, the trainer's method that does what it asks for, and the name of both in a record."""

_TOPICS = ("settings",)


class DueWork:
    """Follows one trainer's validations and checkpoints, and records once of each kind if one that was due did not come.

    Both are made in each step of `trainer` whose number the setting divides, and in the last one (V1 trainer_base.py 0.9.1:475, 484; V0
    ray_trainer.py:1704, 1728). What comes besides is nobody's business here.

    Args:
        trainer: verl's, when its checkpoint has been loaded.
        recorder: Takes what is found.
    """

    def __init__(self, trainer: Any, recorder: EventRecorder) -> None:
        self._trainer = trainer
        self._recorder = recorder
        config = trainer.config.trainer
        self._every = {name: int(config.get(setting, -1) or -1) for setting, _, name in _WORK}
        self._latest = dict.fromkeys(self._every, int(trainer.global_steps))
        """The step in which each was done last; what was due before this run is over."""
        self._frozen = int(config.get("critic_warmup", 0) or 0)
        """Steps before this one train no policy, and V0 saves nothing in them."""

    def place(self, hooks: Hooks) -> None:
        """Put the hooks on the trainer."""
        for _, method, name in _WORK:
            hooks.wrap(self._trainer, method, before=partial(self._done, name), topics=_TOPICS)

    def _done(self, name: str, call: Call) -> None:
        self._latest[name] = int(self._trainer.global_steps)

    def step_is_over(self, step: int) -> None:
        """Look at what was due in a step that no more work is done in."""
        for setting, _, name in _WORK:
            every = self._every[name]
            due = every > 0 and step >= max(self._frozen, 1) and step % every == 0
            if due and self._latest[name] < step:
                self._every[name] = -1
                rollouts = "each rollout" if every == 1 else f"every {every} rollouts"
                self._recorder.emit(
                    ConfigChanged(
                        at=self._recorder.now(),
                        name=name,
                        before=f"one after {rollouts} (trainer.{setting})",
                        after=f"none after rollout {step}",
                        since="configuration",
                    )
                )
