"""The weights that a policy's trainer brings to the engines: their label, their elements, and whether all of them were sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from rlstep_hooks.observe.delivery import SentWatch
from rlstep_hooks.systems.openrlhf.observe.fingerprint import WeightSums, label_of, sums_of, total

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.observe.sharding.own_part import OwnPart
    from rlstep_hooks.observe.trainer_record import TrainerRecord

HELD_BY_NONE = -1
"""Label of a sync that left out some weights: no engine holds exactly these."""
_DELIVERY = ("delivery",)


class Sends:
    """Counts the tensors that this process sends in a sync.

    Args:
        look: Called with each of them.
    """

    def __init__(self, look: Callable[[Any], None] = lambda _: None) -> None:
        self._look = look
        self._count = 0
        self.any = False
        """Whether this process sends each tensor of a sync, so that the hooks see it."""

    def follow(self, hooks: Hooks, trainer: Any) -> None:
        """Place the hook, where there is something to look at."""
        group = getattr(trainer, "_model_update_group", None)
        if hasattr(group, "broadcast"):
            self.any = True
            # ppo_actor.py:434: each tensor of a sync, on rank 0; not called if the engines share the GPUs.
            hooks.wrap(group, "broadcast", before=self._see, topics=("sampler",))

    def take(self) -> int:
        """How many there were since the last call."""
        count, self._count = self._count, 0
        return count

    def _see(self, call: Call) -> None:
        self._count += 1
        self._look(call.argument("tensor", 0))


class SyncedWeights(Protocol):
    """Follows the tensors of each sync out of one process."""

    sends: Sends
    """The tensors that this process sends."""

    def attach(self, hooks: Hooks) -> None:
        """Place the hooks."""

    def label_held(self) -> int | None:
        """The label of the weights that are held now; None where no rank has the whole model."""

    def label_sent(self, sent: int) -> int:
        """The label of the policy's weights, once a sync of this many tensors is over."""

    def deliver(self, sent: int, record: TrainerRecord) -> None:
        """A sync of this many tensors is over: write what the engines must hold now, as far as it has arrived from the device."""


def synced_weights(trainer: Any, engine: Any) -> SyncedWeights:
    """What follows the syncs of a trainer.

    Args:
        trainer: OpenRLHF's `ActorPPOTrainer` or `CriticPPOTrainer`; the second syncs nothing.
        engine: The DeepSpeed engine of its weights.
    """
    of = trainer.strategy.args.ds
    whole = of.zero_stage < 3 and of.tensor_parallel_size == 1
    return WholeWeights(trainer, engine) if whole else GatheredWeights(trainer, engine)


class WholeWeights:
    """Weights that each rank has whole, and sends as they are.

    Args:
        trainer: OpenRLHF's `ActorPPOTrainer` or `CriticPPOTrainer`; the second syncs nothing.
        engine: The DeepSpeed engine of its weights.
    """

    def __init__(self, trainer: Any, engine: Any) -> None:
        self._trainer = trainer
        self._engine = engine
        self._watch = SentWatch()
        self.sends = Sends()
        """The tensors that this process sends."""

    def attach(self, hooks: Hooks) -> None:
        """Place the hook."""
        self.sends.follow(hooks, self._trainer)

    def label_held(self) -> int:
        """The label of the weights that are held now."""
        return label_of(total(sums_of(self._synced().values())))

    def label_sent(self, sent: int) -> int:
        """The label of the policy's weights, once a sync is over."""
        return self.label_held()

    def deliver(self, sent: int, record: TrainerRecord) -> None:
        """Read what the engines must hold now, and write what has arrived from the device."""
        if sent:
            synced = self._synced()
            self._watch.begin()
            for name, tensor in synced.items():
                self._watch.see(name, tensor)
            self._watch.end(record.version, len(synced), sent)
        record.writer.emit(*self._watch.ready(record.writer.now()))

    def _synced(self) -> dict[str, Any]:
        return _parameters(self._trainer, self._engine)


class GatheredWeights:
    """Weights that no rank has whole (ZeRO-3, tensor parallelism): they are gathered one by one, and rank 0 sends each.

    With ZeRO-3 each rank compares what was gathered with the part of it that is its own.

    Args:
        trainer: OpenRLHF's `ActorPPOTrainer` or `CriticPPOTrainer`; the second syncs nothing.
        engine: The DeepSpeed engine of its weights.
    """

    def __init__(self, trainer: Any, engine: Any) -> None:
        self._trainer = trainer
        self._engine = engine
        self._sums = WeightSums()
        self._watch = SentWatch(part=self._part) if trainer.strategy.args.ds.tensor_parallel_size == 1 else None
        self._names: dict[int, str] = {}
        """Names of the parameters of the sync under way, by their identity; empty between syncs."""
        self._gathered: tuple[str, Any] | None = None
        """The parameter that is gathered now."""
        self.sends = Sends(self._sent)
        """The tensors that this process sends."""

    def attach(self, hooks: Hooks) -> None:
        """Place the hooks."""
        trainer = self._trainer
        self.sends.follow(hooks, trainer)
        if self._watch is not None and hasattr(trainer, "broadcast_to_vllm"):
            from deepspeed.runtime.zero.partition_parameters import GatheredParameters

            # ppo_actor.py:466: around each parameter of a sync, on each rank. DeepSpeed has gathered it when this returns
            # (runtime/zero/partition_parameters.py 0.19.8 `GatheredParameters.__enter__`). Verified in OpenRLHF 0.11.2.
            hooks.wrap(GatheredParameters, "__enter__", after=self._gathers, topics=_DELIVERY)
            hooks.wrap(trainer, "broadcast_to_vllm", before=self._begin, topics=_DELIVERY)

    def label_held(self) -> None:
        """No rank has the whole model."""

    def label_sent(self, sent: int) -> int:
        """The label of the tensors that were sent, which are gathered one by one."""
        sums = self._sums.take()
        return label_of(total(sums)) if sent == len(_parameters(self._trainer, self._engine)) else HELD_BY_NONE

    def deliver(self, sent: int, record: TrainerRecord) -> None:
        """Write what has arrived from the device of what was gathered."""
        if self._watch is None:
            return
        if self._names:
            self._watch.end(record.version, len(self._names), sent if self.sends.any else None)
        self._names, self._gathered = {}, None
        events = self._watch.ready(record.writer.now())
        record.writer.emit(*(msgspec.structs.replace(of, by_another=not self.sends.any) for of in events))

    def _begin(self, call: Call) -> None:
        self._names = {id(of): name for name, of in _parameters(self._trainer, self._engine).items()}
        if self._watch is not None:
            self._watch.begin()

    def _gathers(self, call: Call) -> None:
        """Parameters are whole on this rank."""
        if not self._names or not call.owner.enabled:
            return
        for parameter in call.owner.params:
            name = self._names.get(id(parameter))
            if name is not None:
                self._gathered = name, parameter
                if not self.sends.any:
                    self._see(parameter.data)

    def _part(self, name: str) -> OwnPart | None:
        """What this rank holds of the parameter that is gathered now."""
        from rlstep_hooks.observe.sharding.own_part import own_part

        return own_part(self._gathered[1]) if self._gathered is not None and self._gathered[0] == name else None

    def _see(self, tensor: Any) -> None:
        if self._watch is not None and self._gathered is not None:
            self._watch.see(self._gathered[0], tensor)

    def _sent(self, tensor: Any) -> None:
        self._sums.add(tensor)
        self._see(tensor)


def _parameters(trainer: Any, engine: Any) -> dict[str, Any]:
    """The parameters that a sync consists of (ppo_actor.py:474)."""
    vision = getattr(trainer.actor, "is_vlm", False)
    return {name: of for name, of in engine.module.named_parameters() if of.requires_grad or not vision}
