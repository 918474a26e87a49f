"""What a trainer process of OpenRLHF writes to the disk, beside what it holds: checkpoints, models for others, the moving average."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.averaged_weights import AveragedWeights
from rlstep_hooks.observe.checkpoints import note_saved
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.saved_parts import SavedParts
from rlstep_hooks.observe.sharding import saved_zero
from rlstep_hooks.systems.openrlhf.observe.checkpoints import state_of, weights_published, weights_saved
from rlstep_hooks.systems.openrlhf.observe.process import folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.observe.sync_watch import EventRecorder
    from rlstep_hooks.record.values import Role

TOPIC = "checkpoints"


class SavedModels:
    """The saved models of one trainer process.

    Args:
        trainer: OpenRLHF's `ActorPPOTrainer` or `CriticPPOTrainer`.
        engine: The DeepSpeed engine of the model that is trained.
        role: What is trained.
        process: The name of this process in the record.
        recorder: Takes the events.
        version: Gives the version of the weights.
        averages: Whether a moving average of the policy's weights can be followed; not where a scaler may leave steps out.
    """

    def __init__(
        self,
        trainer: Any,
        engine: Any,
        role: Role,
        process: str,
        recorder: EventRecorder,
        version: Callable[[], int],
        *,
        averages: bool,
    ) -> None:
        self.recorder = recorder
        """Takes the events."""
        self._trainer = trainer
        self._engine = engine
        self._role = role
        self._process = process
        self._version = version
        self._parts = SavedParts(recorder, role)
        self._has_average = role == "policy" and bool(trainer.args.train.enable_ema)
        self._averaged = self._average() if self._has_average and averages else None
        """The moving average of the policy's weights; None where there is none that is followed."""

    def attach(self, hooks: Hooks) -> None:
        """Place the hooks."""
        trainer = self._trainer
        if self._averaged is not None:
            # ppo_actor.py:362: behind the step of an update the weights are averaged, so that it is done where the next one begins.
            hooks.wrap(trainer, "training_step", before=self._see_average, topics=(TOPIC,))
        # deepspeed.py:685: writes the checkpoint of this process's model.
        hooks.wrap(trainer.strategy, "save_ckpt", after=self._saved, topics=(TOPIC,))
        # deepspeed.py:533: writes the model for others, at checkpoints (`ckpt.save_hf`) and once training is over.
        hooks.wrap(trainer.strategy, "save_model", after=self._published, topics=(TOPIC,))

    @contained(TOPIC)
    def _average(self) -> AveragedWeights | None:
        trained, averaged = self._trainer.actor.parameters(), self._trainer.ema_model.parameters()
        return AveragedWeights(trained, averaged, float(self._trainer.args.train.ema_beta))

    def _see_average(self, call: Call) -> None:
        if self._averaged is not None:
            self._averaged.look(self._version())

    def _saved(self, call: Call) -> None:
        path = os.path.join(call.argument("save_dir", 1), call.argument("tag", 2))
        note_saved(folder(), self._process, path, state_of(self._engine))
        parts = saved_zero.parts_saved(self._engine, Path(path))
        self._parts.tell({"weights": weights_saved(self._engine, path), **parts})

    def _published(self, call: Call) -> None:
        # ppo_actor.py:612, 677: whoever asks for averaged weights is given these.
        trainer = self._trainer
        model = trainer.ema_model if self._has_average else trainer.actor if self._role == "policy" else trainer.critic
        found = weights_published(model, call.argument("output_dir", 2))
        parts = {"averaged Hugging Face weights" if self._has_average else "Hugging Face weights": found}
        if self._averaged is not None:
            self._averaged.look(self._version())
            parts["moving average of the weights"] = self._averaged.found()
        self._parts.tell(parts)
