"""One trainer under observation: what all hooks on it share."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.compared import is_probed

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.observe.batch_adapter import BatchAdapter
    from rlstep_hooks.systems.trl.observe.calls import Activity, Generation
    from rlstep_hooks.systems.trl.observe.identities import SampleIdentities
    from rlstep_hooks.systems.trl.observe.layer_slopes import LayerSlopes
    from rlstep_hooks.systems.trl.observe.measure import MicroBatchMeter
    from rlstep_hooks.systems.trl.observe.numbers import NumberCollector
    from rlstep_hooks.systems.trl.observe.reference import ReferenceWatch
    from rlstep_hooks.systems.trl.observe.sampled import SampledWatch
    from rlstep_hooks.systems.trl.observe.scored_alone import ScoredAlone
    from rlstep_hooks.systems.trl.observe.updates import UpdateObserver


@dataclasses.dataclass(kw_only=True)
class Observation:
    """The trainer, who records what is seen of it, and what it is doing now."""

    trainer: Any
    schedule: Schedule
    adapter: BatchAdapter
    recorder: Recorder
    updates: UpdateObserver
    reference: ReferenceWatch
    identities: SampleIdentities
    drawing: SampledWatch
    alone: ScoredAlone
    slopes: LayerSlopes
    meter: MicroBatchMeter
    numbers: NumberCollector
    counted: dict[int, Tensor] = dataclasses.field(default_factory=dict)
    """Tokens that the masks of the latest rollouts count, by rollout, where all of them are known."""
    activity: Activity | None = None
    """The training step or evaluation that goes on; None outside of these."""
    generation: Generation | None = None
    """The rollout that is being made; None while there is none."""

    def tells_alike(self, cycle: int) -> bool:
        """Whether equal completions of this cycle of rollouts are looked for.

        Their gradients may cancel, which matters where gradients are probed, and where later updates should move the ratio.
        """
        return self.several_updates or is_probed(cycle)

    @cached_property
    def several_updates(self) -> bool:
        """Whether a rollout is trained in several updates."""
        return self.schedule.updates_per_rollout > 1

    def is_policy(self, model: Any) -> bool:
        """Whether this model is the one that is trained, wrapped or not."""
        return model is self.trainer.model or model is self.trainer.model_wrapped
