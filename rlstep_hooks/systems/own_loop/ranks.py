"""A loop that trains on several ranks: which of them this process is, and how its gradients come to its optimizer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.observe.reduction import ReductionWatch
from rlstep_hooks.observe.sharding import megatron
from rlstep_hooks.observe.sharding.places import Reduction
from rlstep_hooks.observe.sharding.replicated import replicated

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.observe.steps import StepFollower
    from rlstep_hooks.session.recorder import Recorder

_TOPICS = ("reduction",)


class Processes(NamedTuple):
    """Which of its run's processes this one is."""

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1


def processes_of(model: Any) -> Processes:
    """The processes that train this model together: those of torch's default group; this one alone where no model is given."""
    if model is None or not (distributed.is_available() and distributed.is_initialized()):
        return Processes()
    size = distributed.get_world_size()
    return Processes(distributed.get_rank(), size, int(os.environ.get("LOCAL_WORLD_SIZE", size)))


def reduction_of(model: Any, optimizer: Any) -> Reduction:
    """How the gradients of a loop's model are reduced.

    Args:
        model: The model, as the loop calls it.
        optimizer: The optimizer, as the loop steps it.
    """
    if megatron.is_wrapper(model):
        return megatron.wrapped(model, optimizer)
    if isinstance(model, DistributedDataParallel):
        # Between the reduction and the step a loop may do with gradients what it likes, so only known mistakes are told.
        return replicated(model.module.named_parameters(), model)._replace(approximate=True, now=None)
    return Reduction(
        [], hidden=f"gradients are not followed through {type(model).__name__}, which is no DistributedDataParallel"
    )


class ReductionHooks:
    """Follows the gradients of a loop's model from each backward pass to the step, a window at a time.

    A window begins with the first forward after a step, or after gradients were cleared before its first micro-batch: what came before
    is no part of it. What clears gradients later drops micro-batches.

    Args:
        model: The model, as the loop calls it.
        optimizer: The optimizer, as the loop steps it.
        steps: Follows the steps of its torch optimizer.
        recorder: The recorder that is told what cannot be followed.
        passes: Backward passes of a window.
        follows: Whether the gradients of the window that begins are to be followed.
        trained: Whether the loop has told of a micro-batch since the step before.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        steps: StepFollower,
        recorder: Recorder,
        *,
        passes: int,
        follows: Callable[[], bool],
        trained: Callable[[], bool],
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._steps = steps
        self._recorder = recorder
        self._passes = passes
        self._follows = follows
        self._trained = trained
        self._due = True
        """Whether the next forward begins a window."""
        self.limit: float | None = None
        """The limit of the norm to which megatron-core's optimizer clips; None where it does not, or is another's."""
        self._hooks = Hooks(recorder)
        self._watch: ReductionWatch | None = None

    def attach(self) -> None:
        """Place the hooks, or say why gradients are not followed."""
        found = reduction_of(self._model, self._optimizer)
        if found.hidden:
            self._recorder.cannot("reduction", found.hidden)
            return
        guard = Guard(self._recorder, _TOPICS)
        self._watch = ReductionWatch(
            found.places, guard, passes=self._passes, reduced_in=found.reduced_in, approximate=found.approximate
        )
        self._steps.watch_reduction(self._watch)
        self._hooks.forward(self._model, before=self._forward, topics=_TOPICS)
        if not megatron.is_wrapper(self._model):
            self._steps.gradient_scale = None  # a loop may scale its losses, and clip
            self._hooks.wrap(self._optimizer, "zero_grad", after=self._cleared, topics=_TOPICS)
            return
        # megatron-core 0.16.1 distributed/distributed_data_parallel.py:542: where gradients are cleared before an update.
        self._hooks.wrap(self._model, "zero_grad_buffer", after=self._cleared, topics=_TOPICS)
        # optimizer/optimizer.py:524, 922, 1233: reduced gradients become those of the torch optimizer; the clip comes after it.
        self._hooks.wrap(self._optimizer, "prepare_grads", after=self._reduced, topics=_TOPICS)
        # distributed_data_parallel.py:537: `finalize_model_grads` divides by the tokens of all ranks where it is given them.
        self._hooks.wrap(self._model, "scale_gradients", before=self._scaled, topics=_TOPICS)
        if megatron.scales(self._optimizer):
            self._steps.gradient_scale = None
        else:
            self.limit = megatron.limit_of(self._optimizer)

    def detach(self) -> None:
        """Take the hooks off."""
        self._hooks.take_off()
        if self._watch is not None:
            self._watch.remove()

    def stepped(self) -> None:
        """An update was made, or left out."""
        self._due = True

    def _cleared(self, call: Call) -> None:
        self._due = self._due or not self._trained()

    def _forward(self, call: Call) -> None:
        if self._due and self._watch is not None and torch.is_grad_enabled():
            self._due = False
            if self._follows():
                self._watch.begin_window()
            else:
                self._watch.remove()

    def _reduced(self, call: Call) -> None:
        self._steps.gradients_reduced()

    def _scaled(self, call: Call) -> None:
        if self._watch is not None:
            self._watch.remove()
        self._recorder.cannot(
            "reduction", "gradients are multiplied by a factor of the loop's own once they are reduced"
        )
