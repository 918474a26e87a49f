"""GRPOTrainer and RLOOTrainer: how they are planned, where they start, and who observes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rlstep_hooks.systems.trl.launch import CYCLE_SETTINGS
from rlstep_hooks.systems.trl.observe.adapter import Observer, Start, TrainerAdapter
from rlstep_hooks.systems.trl.observe.batch_adapter import BatchAdapter
from rlstep_hooks.systems.trl.observe.facts import live_facts
from rlstep_hooks.systems.trl.observe.limits import own_loss
from rlstep_hooks.systems.trl.observe.restored import restored_facts
from rlstep_hooks.systems.trl.observe.resume import resume_position
from rlstep_hooks.systems.trl.observe.same_on_ranks import facts_of_ranks
from rlstep_hooks.systems.trl.observe.trainer import TrlObserver
from rlstep_hooks.systems.trl.plan import is_config, plan_trainer
from rlstep_hooks.systems.trl.releases import installed_release

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.releases import TrlRelease


class GrpoAdapter(TrainerAdapter):
    """A trainer that generates within transformers' own loop."""

    system = "trl"
    settings = CYCLE_SETTINGS
    stops = True
    adapter: ClassVar[type[BatchAdapter]] = BatchAdapter
    """How the trainer hands on its data."""

    def knows(self, trainer: Any) -> bool:
        """Whether a trainer has a GRPOConfig or RLOOConfig, and the loop of GRPO."""
        return is_config(trainer.args) and hasattr(trainer, "_generate_and_score_completions")

    def refusal(self, trainer: Any, release: TrlRelease) -> str:
        """Outside 0.16 to 1.16."""
        return "" if release.supported else f"TRL {release.trl} is not supported (0.16 to 1.16 are)"

    def plan(self, trainer: Any) -> Schedule:
        """The plan of a live trainer."""
        return plan_trainer(trainer)

    def start(self, trainer: Any, release: TrlRelease) -> Start:
        """The plan, and the place in it where a resumed run goes on."""
        schedule = self.plan(trainer)
        updates = int(trainer.state.global_step)
        position = resume_position(
            schedule,
            updates=updates,
            updates_per_epoch=_updates_per_epoch(trainer, schedule.window),
            skips_data=not trainer.args.ignore_data_skip,
        )
        facts = live_facts(trainer) | {
            "position": msgspec.structs.asdict(position),
            "own_loss": own_loss(trainer, self.adapter.read),
        }
        facts |= facts_of_ranks(trainer)
        if updates:
            facts |= restored_facts(trainer)
        return Start(schedule=schedule, position=position, updates=updates, facts=facts)

    def observer(
        self, trainer: Any, start: Start, release: TrlRelease, recorder: Recorder, *, interval: float
    ) -> Observer:
        """Hooks on the trainer's methods."""
        epoch = start.facts["position"]["epoch"]
        adapter = self.adapter(trainer, start.schedule, release, recorder)
        return TrlObserver(adapter, recorder, epochs=epoch, interval=interval)

    def exits(self, trainer: Any) -> list[tuple[Any, str]]:
        """What transformers' `_inner_training_loop` calls, in all releases that have it."""
        called: list[tuple[Any, str]] = [
            (trainer, "training_step"),
            (trainer, "get_batch_samples"),
            (trainer, "_maybe_log_save_evaluate"),
            (trainer.accelerator, "clip_grad_norm_"),
            (trainer.callback_handler, "call_event"),
        ]
        return [(owner, name) for owner, name in called if hasattr(owner, name)]


def _updates_per_epoch(trainer: Any, accumulation: int) -> int:
    """Updates of one pass as transformers counts them, from the live loader's length; the whole run for a stream."""
    loader = trainer.callback_handler.train_dataloader
    try:
        length = len(loader)
    except TypeError:
        return max(int(trainer.state.max_steps), 1)
    release = installed_release()
    down = release is not None and release.updates_rounded_down
    return max(length // accumulation if down else -(-length // accumulation), 1)
