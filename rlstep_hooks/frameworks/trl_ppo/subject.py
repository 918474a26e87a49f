"""PPOTrainer: how it is planned, and who observes it. It always starts at the beginning: `train` resets its counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.frameworks.trl.facts import trainer_facts
from rlstep_hooks.frameworks.trl.subject import Observer, Start, Subject
from rlstep_hooks.frameworks.trl_ppo.observe import PpoObserver
from rlstep_hooks.frameworks.trl_ppo.plan import SETTINGS, read_trainer
from rlstep_hooks.frameworks.trl_ppo.releases import refusal
from rlstep_hooks.timeline import PhasePosition

if TYPE_CHECKING:
    from rlstep_hooks.frameworks.trl.releases import Release
    from rlstep_hooks.recorder import Recorder


class PpoSubject(Subject):
    """A trainer with a loop of its own."""

    settings = SETTINGS
    stops = False

    def refusal(self, release: Release) -> str:
        """Outside 0.16 to 0.24."""
        return refusal(release)

    def start(self, trainer: Any, release: Release) -> Start:
        """The plan; a resume is not something that this trainer has."""
        reading = read_trainer(trainer, release.trl)
        position = PhasePosition()
        facts = trainer_facts(trainer) | {
            "position": msgspec.structs.asdict(position),
            "nominal_updates_per_rollout": reading.facts["nominal_updates_per_rollout"],
        }
        return Start(schedule=reading.schedule, position=position, updates=0, facts=facts)

    def observer(
        self, trainer: Any, start: Start, release: Release, recorder: Recorder, *, interval: float
    ) -> Observer:
        """Hooks on what the loop calls."""
        if trainer.is_deepspeed_enabled:
            recorder.cannot("order", "DeepSpeed makes the updates inside its own engine, by windows of its own")
        return PpoObserver(trainer, recorder, interval=interval)
