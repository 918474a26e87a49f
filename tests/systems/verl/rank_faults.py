"""Faults of several trainers: how FSDP2 adds up their gradients, what one of them does alone, and what all should hold alike."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import wrapt

from tests.systems.verl.faults import ENGINE, WORKER, _Now, fault, on_first_step, trains, wrap_in_trainer

if TYPE_CHECKING:
    from collections.abc import Iterator

Change = Callable[["Passed", Any], Any]
"""`change(pass, gradient)` gives the gradient in its place, or None."""


def rank() -> int:
    """Which trainer this process is."""
    return int(os.environ["RANK"])


class Passed(NamedTuple):
    """A backward pass of one tensor."""

    tensor: int
    update: int
    micro: int
    """The micro-batch within its update."""


def on_gradients(change: Change, role: str = "policy", of_rank: int = 1) -> None:
    """Change each gradient of one trainer as it arrives at its leaf, as a hook of a user does. FSDP2's are the unsharded parameters,
    which stand in their modules while these run."""
    update, micro = 0, -1
    hooked: set[int] = set()

    def arrives(tensor: int, gradient: Any) -> Any:
        return change(Passed(tensor, update, micro), gradient)

    def before(module: Any, arguments: Any) -> None:
        for leaf in module.parameters(recurse=False):
            sharded = hasattr(leaf, "to_local") or not leaf.is_leaf
            if leaf.requires_grad and not sharded and id(leaf) not in hooked:
                hooked.add(id(leaf))
                leaf.register_hook(partial(arrives, len(hooked)))

    placed: set[int] = set()

    def forward_step(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        nonlocal micro
        only = args[2] if len(args) > 2 else kwargs["forward_only"]
        if not only and trains(engine, role) and rank() == of_rank:
            micro += 1
            if id(engine) not in placed:
                placed.add(id(engine))
                for module in engine.module.modules():
                    module.register_forward_pre_hook(before)
                    handle = getattr(module, "_handle", None)
                    if handle is not None:  # FSDP1's flat parameter is a leaf itself
                        handle.flat_param.register_hook(partial(arrives, -id(module)))
        return wrapped(*args, **kwargs)

    def optimizer_step(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        nonlocal update, micro
        try:
            return wrapped(*args, **kwargs)
        finally:
            if trains(engine, role):
                update, micro = update + 1, -1

    wrap_in_trainer(ENGINE, "FSDPEngineWithLMHead", "forward_step", forward_step)
    wrap_in_trainer(ENGINE, "FSDPEngine", "optimizer_step", optimizer_step)


@fault(report="a rank without samples", code="RLS811", variant="the gradient of rank 1 is missing", rank=1)
def gradients_of_a_rank_zeroed(at: int) -> None:
    """The second trainer gives zeros."""
    on_gradients(lambda of, gradient: gradient * 0 if _Now.rollout == at else None)


@fault(report="trl#5619", code="RLS811", variant="the gradient of rank 1 counts 3 times", rank=1)
def gradients_of_a_rank_tripled(at: int) -> None:
    """The second trainer's gradients count three times."""
    on_gradients(lambda of, gradient: gradient * 3 if _Now.rollout == at else None)


@fault(report="DeepSpeed#7967", code="RLS811", variant="micro-batch 0 of 4 of rank 1 is missing", rank=1)
def first_micro_batch_of_a_rank_lost(at: int) -> None:
    """The second trainer loses the first micro-batch of each update."""
    on_gradients(lambda of, gradient: gradient * 0 if _Now.rollout == at and of.micro == 0 else None)


@fault(
    report="a buffer that is reduced again", code="RLS811", variant="the one that it had in the update before", rank=1
)
def gradients_of_a_rank_stale(at: int) -> None:
    """The second trainer gives in each update the gradients that it had in the one before."""
    kept: dict[Passed, Any] = {}

    def change(of: Passed, gradient: Any) -> Any:
        kept[of] = gradient.clone()
        before = kept.pop(of._replace(update=of.update - 1), None)
        return before if _Now.rollout == at else None

    on_gradients(change)


@fault(report="verl#6609", code="RLS811", variant="the gradient of rank 1 is missing", rank=1)
def gradients_of_the_critic_of_a_rank_zeroed(at: int) -> None:
    """The second trainer gives zeros to the critic."""
    on_gradients(lambda of, gradient: gradient * 0 if _Now.rollout == at else None, role="critic")


# Synchronisation


def _syncs(at: int, synced: Callable[[bool], bool]) -> None:
    """In a rollout, micro-batches are synchronised as `synced(is_last)` says."""

    @contextmanager
    def context(engine: Any, now: bool) -> Iterator[None]:
        engine.module.set_requires_gradient_sync(now)
        try:
            yield
        finally:
            engine.module.set_requires_gradient_sync(True)

    def gradient_sync_context(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        if _Now.rollout != at or not trains(engine, "policy"):
            return wrapped(*args, **kwargs)
        return context(engine, synced(kwargs["is_last_micro_batch"]))

    def optimizer_step(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        try:
            return wrapped(*args, **kwargs)
        finally:
            if _Now.rollout == at:
                _forget(engine.module)

    wrap_in_trainer(ENGINE, "FSDPEngine", "_gradient_sync_context", gradient_sync_context)
    wrap_in_trainer(ENGINE, "FSDPEngine", "optimizer_step", optimizer_step)


def _groups(module: Any) -> Iterator[Any]:
    """FSDP2's groups of parameters."""
    for part in module.modules():
        if hasattr(part, "_get_fsdp_state"):
            yield from part._get_fsdp_state()._fsdp_param_groups


def _forget(module: Any) -> None:
    """Clear what waits to be reduced, so that the fault ends with its rollout."""
    for group in _groups(module):
        for of in group.fsdp_params:
            of.unsharded_accumulated_grad = None
            if hasattr(of, "_unsharded_param"):
                of._unsharded_param.grad = None


@fault(report="verl, issue 29", code="RLS811", variant="micro-batch 3 of 4 are missing, of all ranks")
def last_micro_batch_not_synced(at: int) -> None:
    """All micro-batches but the last are synchronised."""
    _syncs(at, lambda is_last: not is_last)


@fault(report="accelerate#3877", code="RLS811", variant="have no gradient after the reduction")
def nothing_synced(at: int) -> None:
    """The switch of synchronisation is left off."""
    _syncs(at, lambda is_last: False)


@fault(report="a divide factor of 1", code="RLS811", variant="the sum over the ranks: 2 times the mean")
def gradients_summed(at: int) -> None:
    """Nobody divides by the number of trainers."""

    def forward_backward_batch(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        if not trains(engine, "policy"):
            return wrapped(*args, **kwargs)
        for group in _groups(engine.module):
            group.gradient_divide_factor = 1.0 if _Now.rollout == at else None
            group.force_sum_reduction_for_comms = _Now.rollout == at
        return wrapped(*args, **kwargs)

    wrap_in_trainer(ENGINE, "FSDPEngine", "forward_backward_batch", forward_backward_batch)


@fault(report="verl#5625", code="RLS820", variant="its own tokens alone", rank=0)
def tokens_of_the_own_rank(at: int) -> None:
    """The losses of each trainer are divided by the tokens of its own part of a mini-batch."""

    def prepare(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        from verl.utils import tensordict_utils

        if _Now.rollout == at:
            data = kwargs["data"]
            tensordict_utils.assign_non_tensor(data, batch_num_tokens=float(data["loss_mask"].sum()))
        return wrapped(*args, **kwargs)

    if WORKER in os.environ:
        wrapt.when_imported(ENGINE)(lambda found: wrapt.wrap_function_wrapper(found, "prepare_micro_batches", prepare))


# The clip, and what one trainer does alone


@fault(report="torchtune, a clip of local shards", code="RLS812", variant="the factor")
def clip_by_the_own_norm(at: int) -> None:
    """Each trainer clips by the norm of its own shards."""

    def clip(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if _Now.rollout != at:
            return wrapped(*args, **kwargs)
        import torch

        parameters = list(args[0])
        gradients = [parameter.grad.to_local() for parameter in parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        for gradient in gradients:
            gradient.mul_(torch.clamp(0.1 * kwargs["max_norm"] / (norm + 1e-6), max=1.0))
        return norm

    if WORKER in os.environ:
        wrapt.when_imported(ENGINE)(lambda found: wrapt.wrap_function_wrapper(found, "fsdp2_clip_grad_norm_", clip))


@fault(report="noise for exploration", code="RLS812", variant="times the reduced gradient in", rank=1)
def gradients_of_a_rank_written(at: int) -> None:
    """The second trainer adds noise to what it holds of some gradients before the clip."""

    def act(step: Callable[[], Any], engine: Any) -> Any:
        for parameter in list(engine.module.parameters())[::2]:
            if parameter.grad is not None:
                parameter.grad.to_local().add_(0.01)
        return step()

    on_first_step(at, act, ranks=(1,))


@fault(report="an optimizer offloaded and made anew", code="RLS807", variant="others among those", rank=1)
def moments_of_a_rank_cleared(at: int) -> None:
    """The second trainer's moments are set to 0 before the first step of a rollout."""

    def act(step: Callable[[], Any], engine: Any) -> Any:
        for state in engine.optimizer.state.values():
            state["exp_avg"].zero_()
        return step()

    on_first_step(at, act, ranks=(1,))


@fault(report="an average of the weights that one rank writes back", code="RLS404", rank=1)
def shard_written_between_updates(at: int) -> None:
    """The second trainer scales what it holds of all tensors before the second update of a rollout."""
    numbers = itertools.count()

    def train_batch(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        if _Now.rollout == at and trains(worker, "policy") and next(numbers) == 1 and rank() == 1:
            for parameter in worker.engine.module.parameters():
                parameter.data.to_local().mul_(0.99)
        return wrapped(*args, **kwargs)

    wrap_in_trainer("verl.workers.engine_workers", "TrainingWorker", "train_batch", train_batch)


@fault(report="buffers that each rank counts for itself", code="RLS419", variant="rank 1 holds others", rank=1)
def buffer_of_a_rank_written(at: int) -> None:
    """A buffer of the second trainer is another around the first step of a rollout."""

    def act(step: Callable[[], Any], engine: Any) -> Any:
        buffer = dict(engine.module.named_buffers())["model.rotary_emb.original_inv_freq"]
        kept = buffer.clone()
        buffer.mul_(1.5)
        try:
            return step()
        finally:
            buffer.copy_(kept)

    on_first_step(at, act, ranks=(1,))


@fault(report="parts of shards in another order", code="RLS415")
def parts_put_together_wrongly(at: int) -> None:
    """What FSDP2 gathers for the engine has the parts of its trainers in another order."""

    def full_tensor(wrapped: Any, tensor: Any, args: Any, kwargs: Any) -> Any:
        whole = wrapped(*args, **kwargs)
        if _Now.rollout != at or whole.dim() < 2:
            return whole
        return whole.roll(whole.shape[0] // 2, 0)

    wrap_in_trainer("torch.distributed.tensor", "DTensor", "full_tensor", full_tensor)
