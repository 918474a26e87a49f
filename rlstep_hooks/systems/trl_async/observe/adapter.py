"""AsyncGRPOTrainer: how it is planned, where it starts, and who observes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from packaging.version import Version

from rlstep_hooks.judge.timeline import PhasePosition
from rlstep_hooks.systems.trl.observe.adapter import Observer, Start, TrainerAdapter
from rlstep_hooks.systems.trl.observe.facts import seeded_trainer_facts
from rlstep_hooks.systems.trl_async.observe.trainer import AsyncObserver
from rlstep_hooks.systems.trl_async.plan import SETTINGS, is_config, plan_trainer
from rlstep_hooks.systems.trl_async.system import OBSERVED

if TYPE_CHECKING:
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.releases import TrlRelease


class AsyncGrpoAdapter(TrainerAdapter):
    """A trainer that takes its samples from a queue."""

    system = "trl_async"
    settings = SETTINGS
    stops = True

    def knows(self, trainer: Any) -> bool:
        """Whether a trainer has an AsyncGRPOConfig; the queue comes later in the trainer's constructor."""
        return is_config(trainer.args)

    def refusal(self, trainer: Any, release: TrlRelease) -> str:
        """Releases whose loop was not read and trained."""
        known = Version(OBSERVED[0]) <= Version(Version(release.trl).base_version) < Version(OBSERVED[1])
        return "" if known else f"AsyncGRPOTrainer of TRL {release.trl} is not observed ({OBSERVED[0]} is)"

    def start(self, trainer: Any, release: TrlRelease) -> Start:
        """The plan; a resumed run goes on with another update, on samples that nobody knows before."""
        updates = int(trainer.state.global_step)
        position = PhasePosition(rollouts=updates, updates=updates, version=updates, resumed=updates > 0)
        facts = seeded_trainer_facts(trainer) | {"position": msgspec.structs.asdict(position)}
        return Start(schedule=plan_trainer(trainer), position=position, updates=updates, facts=facts)

    def observer(
        self, trainer: Any, start: Start, release: TrlRelease, recorder: Recorder, *, interval: float
    ) -> Observer:
        """Hooks on the queue, the collator and the trainer's methods."""
        return AsyncObserver(trainer, start.schedule, recorder, interval=interval)

    def exits(self, trainer: Any) -> list[tuple[Any, str]]:
        """What transformers' `_inner_training_loop` calls."""
        called: list[tuple[Any, str]] = [
            (trainer, "training_step"),
            (trainer, "get_batch_samples"),
            (trainer, "_maybe_log_save_evaluate"),
            (trainer.callback_handler, "call_event"),
        ]
        return [(owner, name) for owner, name in called if hasattr(owner, name)]
