"""ms-swift's GRPOTrainer: how it is planned, what is refused, and who observes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.engine.request import release_of
from rlstep_hooks.systems.swift.observe.batch_adapter import SwiftBatchAdapter
from rlstep_hooks.systems.swift.plan import plan_live
from rlstep_hooks.systems.swift.releases import FIRST, FIRST_UNSUPPORTED, installed_swift
from rlstep_hooks.systems.trl.observe.grpo import GrpoAdapter

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.trl.releases import TrlRelease


class SwiftAdapter(GrpoAdapter):
    """TRL's loop with micro-batches and old log-probs of its own."""

    system = "swift"
    adapter = SwiftBatchAdapter

    def refusal(self, trainer: Any, release: TrlRelease) -> str:
        """Outside 4.4 to 4.6, and where samples are shared out in a way that was not read."""
        version = installed_swift() or "?"
        if not FIRST <= release_of(version)[:2] < FIRST_UNSUPPORTED:
            return f"ms-swift {version} is not supported (4.4 to 4.6 are)"
        if trainer.template.sequence_parallel_size > 1:
            return "ms-swift with sequence_parallel_size above 1 is not supported: processes share sequences"
        if trainer.args.async_generate:
            return (
                "ms-swift with async_generate is not supported: a rollout is sampled while the one before it is trained"
            )
        return super().refusal(trainer, release)

    def plan(self, trainer: Any) -> Schedule:
        """Plan a run with ms-swift's own rule for old log-probs."""
        schedule = plan_live(trainer, rows=None, world_size=None)
        assert schedule is not None
        return schedule
