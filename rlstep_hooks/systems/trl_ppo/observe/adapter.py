"""PPOTrainer: how it is planned, and who observes it. It always starts at the beginning: `train` resets its counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.judge.timeline import PhasePosition
from rlstep_hooks.observe.seeds import seed_facts
from rlstep_hooks.systems.trl.observe.adapter import Observer, Start, TrainerAdapter
from rlstep_hooks.systems.trl.observe.facts import trainer_facts
from rlstep_hooks.systems.trl_ppo.observe.trainer import PpoObserver
from rlstep_hooks.systems.trl_ppo.plan import SETTINGS, is_trainer, read_trainer
from rlstep_hooks.systems.trl_ppo.releases import refusal

if TYPE_CHECKING:
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.releases import TrlRelease


class PpoAdapter(TrainerAdapter):
    """A trainer with a loop of its own."""

    system = "trl_ppo"
    settings = SETTINGS
    stops = False

    def knows(self, trainer: Any) -> bool:
        """A PPOTrainer with a policy and a value model."""
        return is_trainer(trainer)

    def refusal(self, trainer: Any, release: TrlRelease) -> str:
        """Outside 0.16 to 0.24."""
        return refusal(release)

    def start(self, trainer: Any, release: TrlRelease) -> Start:
        """The plan. This trainer cannot resume."""
        reading = read_trainer(trainer, release.trl)
        position = PhasePosition()
        facts = trainer_facts(trainer) | {
            # trl/trainer/ppo_trainer.py `PPOTrainer.__init__` (0.16 to 0.24) does not call that of Trainer: it seeds torch alone.
            **seed_facts(trainer.args.seed, ("torch",)),
            "position": msgspec.structs.asdict(position),
            "nominal_updates_per_rollout": reading.facts["nominal_updates_per_rollout"],
        }
        return Start(schedule=reading.schedule, position=position, updates=0, facts=facts)

    def observer(
        self, trainer: Any, start: Start, release: TrlRelease, recorder: Recorder, *, interval: float
    ) -> Observer:
        """Hooks on what the loop calls."""
        if trainer.is_deepspeed_enabled:
            for topic in ("order", "versions"):
                recorder.cannot(topic, "DeepSpeed makes the updates inside its own engine, by windows of its own")
        return PpoObserver(trainer, recorder, interval=interval)

    def exits(self, trainer: Any) -> list[tuple[Any, str]]:
        """The functions that its `train` calls, 0.16 to 0.24: generation, the models of a rollout, and the block that trains a
        micro-batch."""
        policy = trainer.accelerator.unwrap_model(trainer.model).policy
        called = [
            (policy, "generate"),
            (trainer, "generate_completions"),
            (trainer.accelerator, "accumulate"),
            (trainer.callback_handler, "call_event"),
        ]
        return [*called, *((part, "forward") for part in _called_in_rollouts(trainer))]


def _called_in_rollouts(trainer: Any) -> list[Any]:
    """The modules that a rollout calls besides the policy. It calls parts of the reward and value models (utils.py `get_reward`)."""
    parts = [trainer.ref_model] if trainer.ref_model is not None else []
    for model in (trainer.reward_model, trainer.value_model):
        names = (getattr(model, "base_model_prefix", ""), "score")
        parts += [getattr(model, name) for name in names if name and hasattr(getattr(model, name, None), "forward")]
    return parts
