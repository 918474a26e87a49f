"""The weights that a policy's trainer brings to the engines: their label, their fingerprints, and whether all of them were sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.delivery import SentWatch
from rlstep_hooks.systems.openrlhf.observe.fingerprint import WeightSums, label_of, sums_of, total

if TYPE_CHECKING:
    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.observe.trainer_record import TrainerRecord

HELD_BY_NONE = -1
"""Label of a sync that left out some weights: no engine holds exactly these."""


class SyncedWeights:
    """Follows the tensors of each sync out of one process.

    Args:
        trainer: OpenRLHF's `ActorPPOTrainer` or `CriticPPOTrainer`; the second syncs nothing.
        engine: The DeepSpeed engine of its weights.
    """

    def __init__(self, trainer: Any, engine: Any) -> None:
        self._trainer = trainer
        self._engine = engine
        self._watch = SentWatch()
        of = trainer.strategy.args.ds
        whole = of.zero_stage < 3 and of.tensor_parallel_size == 1
        self._gathered = None if whole else WeightSums()
        """Sums of the tensors of a sync, if no rank holds the whole model (ZeRO-3, tensor parallelism); they are gathered one by
        one."""
        self._sent = 0
        """Tensors of the sync under way."""
        self.sends = False
        """Whether this process sends each tensor of a sync, so that the hooks see it."""

    def attach(self, hooks: Hooks) -> None:
        """Place the hook."""
        group = getattr(self._trainer, "_model_update_group", None)
        if hasattr(group, "broadcast"):
            # ppo_actor.py:434: each tensor of a sync, on rank 0; not called if the engines share the GPUs.
            self.sends = True
            hooks.wrap(group, "broadcast", before=self._tensor, topics=("sampler",))

    def take_sent(self) -> int:
        """How many tensors were sent since the last call."""
        sent, self._sent = self._sent, 0
        return sent

    def label_held(self) -> int | None:
        """The label of the weights that are held now; None where no rank has the whole model."""
        return label_of(total(sums_of(self._synced()))) if self._gathered is None else None

    def label_sent(self, sent: int) -> int:
        """The label of the policy's weights, once a sync of this many tensors is over."""
        if self._gathered is None:
            return label_of(total(sums_of(self._synced())))
        sums = self._gathered.take()
        return label_of(total(sums)) if sent == len(self._synced()) else HELD_BY_NONE

    def deliver(self, sent: int, record: TrainerRecord) -> None:
        """Read what the engines must hold now. With ZeRO-3 each rank has a part of each tensor only, so the label alone is compared."""
        if sent and self._gathered is None:
            own = {id(tensor): name for name, tensor in self._engine.module.named_parameters()}
            synced = self._synced()
            self._watch.begin()
            for tensor in synced:
                self._watch.see(own[id(tensor)], tensor)
            self._watch.end(record.version, len(synced), sent)
        record.writer.emit(*self._watch.ready(record.writer.now()))

    def _synced(self) -> list[Any]:
        """The parameters that a sync consists of (ppo_actor.py:474)."""
        vision = getattr(self._trainer.actor, "is_vlm", False)
        return [p for p in self._engine.module.parameters() if p.requires_grad or not vision]

    def _tensor(self, call: Call) -> None:
        self._sent += 1
        if self._gathered is not None:
            self._gathered.add(call.argument("tensor", 0))
