"""Faults of one of several ranks, and of what ranks do together; registered and made as those of `faults.py`, all on the policy.

Each is made in one rollout of two updates, between autograd and the optimizer inside DeepSpeed's (ZeRO-2).
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import wrapt

from tests.systems.openrlhf.configured_faults import forwards_at_a_temperature_of_one
from tests.systems.openrlhf.faults import FAULTS, POLICY, Now, fault, make_faults, swallow_one_step, wrap

if TYPE_CHECKING:
    from collections.abc import Callable

FAULTY = 1
"""The rank of faults that one rank has."""


def is_faulty() -> bool:
    """Whether this is the rank of faults that one rank has."""
    import torch

    return bool(torch.distributed.get_rank() == FAULTY)


def while_trained(at: int, act: Callable[[Any], Callable[[], None] | None]) -> None:
    """Act on the policy's engine before one rollout is trained; what `act` returns is called when it has been."""

    def ppo_train(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if Now.training != at - 1:  # counted by the wrapper inside of this one
            return wrapped(*args, **kwargs)
        undo = act(trainer.actor.model)
        try:
            return wrapped(*args, **kwargs)
        finally:
            if undo is not None:
                undo()

    wrap(POLICY, "ActorPPOTrainer.ppo_train", ppo_train)


def change_gradients(at: int, change: Callable[[int, Any, Any], Any], *, all_ranks: bool = False) -> None:
    """Change what autograd computed for each parameter before DeepSpeed gets it.

    Args:
        at: The rollout.
        change: Gets the number of the backward pass in its update, the parameter and its gradient; gives another one.
        all_ranks: Whether all ranks have the fault.
    """

    def act(engine: Any) -> Callable[[], None] | None:
        if not (all_ranks or is_faulty()):
            return None

        def hook(parameter: Any) -> Any:
            accumulated = engine.gradient_accumulation_steps()
            return parameter.register_hook(
                lambda gradient: change(engine.micro_steps % accumulated, parameter, gradient)
            )

        handles = [hook(parameter) for parameter in engine.module.parameters() if parameter.requires_grad]

        def undo() -> None:
            for handle in handles:
                handle.remove()

        return undo

    while_trained(at, act)


# Divisors


@fault(report="OpenRLHF, arXiv 2604.23747, the mean of means", code="RLS820", cause="its own tokens alone")
def tokens_of_the_own_rank(at: int) -> None:
    """The losses of each rank are divided by its own tokens of their update."""

    def norm(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        info = wrapped(*args, **kwargs)
        if Now.training == at:
            masks, _, _, accumulated = args
            info["batch_num_tokens"] = sum(mask.float().sum() for mask in masks) / accumulated
        return info

    wrap("openrlhf.utils.loss_utils", "_optimizer_step_loss_norm", norm)


# Forwards


@fault(
    report="a temperature that the trainer does not divide by, in the refresh and in the loss",
    code="RLS314",
    cause="temperature",
)
def logits_at_a_temperature_of_one(at: int) -> None:
    """The logits of each forward of a rollout are not divided by the temperature."""
    forwards_at_a_temperature_of_one(at)


# Reductions


@fault(report="axolotl#3061", code="RLS811", cause="rank 1 is missing")
def a_rank_gives_zeros(at: int) -> None:
    """The gradients of one rank are lost: the mean is half as large."""
    change_gradients(at, lambda number, parameter, gradient: gradient * 0)


@fault(report="a divisor of one rank", code="RLS811", cause="counts 2 times|, 2 in place of 1")
def a_rank_counts_twice(at: int) -> None:
    """The gradients of one rank are doubled."""
    change_gradients(at, lambda number, parameter, gradient: gradient * 2)


@fault(report="DeepSpeed#7967, on one rank", code="RLS811", cause="micro-batch")
def a_rank_loses_a_microbatch(at: int) -> None:
    """The first micro-batch of each update is lost on one rank."""
    change_gradients(at, lambda number, parameter, gradient: gradient if number else gradient * 0)


@fault(report="accelerate#3877", code="RLS811", cause="micro-batch")
def only_the_last_microbatch(at: int) -> None:
    """What micro-batches before the last one gave is lost on all ranks."""
    change_gradients(at, lambda number, parameter, gradient: gradient if number else gradient * 0, all_ranks=True)


@fault(report="stale gradients", code="RLS811")
def a_rank_repeats_the_pass_before(at: int) -> None:
    """One rank gives the gradients of its backward pass before this one."""
    before: dict[int, Any] = {}

    def late(number: int, parameter: Any, gradient: Any) -> Any:
        last = before.get(id(parameter))
        before[id(parameter)] = gradient.clone()
        return gradient if last is None else last

    change_gradients(at, late)


@fault(report="a hook that forgets to divide", code="RLS811", cause="the mean")
def ranks_are_divided_otherwise(at: int) -> None:
    """With ZeRO-2 the gradients of the ranks are added up and not divided; with ZeRO-3 they are divided twice."""

    def act(engine: Any) -> Callable[[], None]:
        outer = engine.optimizer
        name, other = (
            ("gradient_predivide_factor", 2.0) if engine.zero_optimization_stage() == 3 else ("gradient_average", False)
        )
        usual = getattr(outer, name)
        setattr(outer, name, other)
        return lambda: setattr(outer, name, usual)

    while_trained(at, act)


@fault(report="verl#6609", code="RLS811", cause="rank")
def ranks_are_not_reduced(at: int) -> None:
    """Each rank keeps its own gradients: nothing is sent."""

    def act(engine: Any) -> Callable[[], None]:
        outer = engine.optimizer

        def alone(bucket: Any, *args: Any, **kwargs: Any) -> Any:
            return outer.flatten(bucket)

        outer.allreduce_bucket = alone
        average, outer.gradient_average = outer.gradient_average, False

        def undo() -> None:
            del outer.allreduce_bucket
            outer.gradient_average = average

        return undo

    while_trained(at, act)


# Clip, step, state, copies


@fault(report="torchtune#2300", code="RLS812", cause="rank")
def a_rank_clips_by_a_norm_of_its_own(at: int) -> None:
    """The gradients of each rank are clipped by another norm."""

    def act(engine: Any) -> Callable[[], None]:
        outer = engine.optimizer
        norm = outer.scaled_global_norm
        outer.scaled_global_norm = lambda *args, **kwargs: norm(*args, **kwargs) * (4 if is_faulty() else 1)

        def undo() -> None:
            del outer.scaled_global_norm

        return undo

    while_trained(at, act)


@fault(report="verl#7401, on one rank", code="RLS902", cause="update skipped")
def a_rank_skips_a_step(at: int) -> None:
    """One rank swallows one step."""
    swallow_one_step(at, lambda: Now.policy and is_faulty())


@fault(report="states that are offloaded between rollouts", code="RLS807", cause="")
def a_rank_forgets_its_moments(at: int) -> None:
    """The moments of Adam are set to 0 on one rank before a rollout is trained."""

    def act(engine: Any) -> None:
        if is_faulty():
            for state in engine.basic_optimizer.state.values():
                for name in ("exp_avg", "exp_avg_sq"):
                    if name in state:
                        state[name].zero_()

    while_trained(at, act)


@fault(report="a rank that writes to its copy", code="RLS419", cause="rank 1")
def a_weight_of_one_rank_drifts(at: int) -> None:
    """One weight of one rank is written to before a rollout is trained, until its owner's step overwrites it."""

    def act(engine: Any) -> None:
        import torch

        if is_faulty():
            with torch.no_grad():
                next(engine.module.parameters()).view(-1)[5] += 0.25

    while_trained(at, act)


@fault(report="a callback of rank 0 alone", code="RLS806", cause="")
def a_rank_steps_half_as_far(at: int) -> None:
    """The steps of one rank in a rollout are made half."""

    def place(module: Any) -> None:
        plain = module.FusedAdam.step
        plain = getattr(plain, "__wrapped__", plain)  # torch puts its hooks around it later

        @functools.wraps(plain)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not (Now.policy and Now.inside and Now.training == at and is_faulty()):
                return plain(optimizer, *args, **kwargs)
            stepped = [tensor for group in optimizer.param_groups for tensor in group["params"]]
            before = [tensor.detach().clone() for tensor in stepped]
            found = plain(optimizer, *args, **kwargs)
            for tensor, old in zip(stepped, before, strict=True):
                tensor.data.lerp_(old, 0.5)
            return found

        del step.__wrapped__
        module.FusedAdam.step = step

    wrapt.when_imported("deepspeed.ops.adam.fused_adam")(place)


# What is gathered for the engines


def change_gathered(at: int, change: Callable[[Any], Any]) -> None:
    """Change the weights that ZeRO-3 gathers for the sync after a rollout, on each rank. Nothing is written back from them."""
    syncing: list[bool] = []

    def broadcast(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if Now.training == at:
            syncing.append(True)
        try:
            return wrapped(*args, **kwargs)
        finally:
            syncing.clear()

    def enter(wrapped: Any, gathered: Any, args: Any, kwargs: Any) -> Any:
        found = wrapped(*args, **kwargs)
        for parameter in gathered.params if syncing and gathered.enabled else ():
            parameter.data.copy_(change(parameter.data.clone()))
        return found

    wrap(POLICY, "ActorPPOTrainer.broadcast_to_vllm", broadcast)
    wrap("deepspeed.runtime.zero.partition_parameters", "GatheredParameters.__enter__", enter)


@fault(report="parts of shards in another order", code="RLS415", cause="")
def parts_are_gathered_in_another_order(at: int) -> None:
    """The parts of each weight stand in another order when it is sent."""
    change_gathered(at, lambda whole: whole.view(-1).roll(-(-whole.numel() // 2)).view_as(whole))


@fault(report="a rank that gives nothing", code="RLS415", cause="")
def the_part_of_a_rank_is_missing(at: int) -> None:
    """The second half of each weight is 0 when it is sent."""

    def change(whole: Any) -> Any:
        whole.view(-1)[-(-whole.numel() // 2) :] = 0
        return whole

    change_gathered(at, change)


# What training begins with


@fault(report="transformers, names that ZeRO-3's loader does not find", code="RLS423", cause="")
def the_policy_is_not_loaded(at: int) -> None:
    """The next model that is loaded has random weights."""
    left = [True]

    def load(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        model = wrapped(*args, **kwargs)
        for parameter in model.parameters() if left else ():
            getattr(parameter, "ds_tensor", parameter).data.normal_(std=0.02)
        left.clear()
        return model

    wrap("transformers.modeling_utils", "PreTrainedModel.from_pretrained", load)


OF_WHOLE_RUNS = (the_policy_is_not_loaded.__name__,)
"""Faults that are there before anything is trained."""
NAMES = tuple(
    name for name, found in FAULTS.items() if found.apply.__module__ == __name__ and name not in OF_WHOLE_RUNS
)
"""The other faults of this module."""
OF_ZERO_2 = (ranks_are_not_reduced, a_rank_clips_by_a_norm_of_its_own, a_weight_of_one_rank_drifts)
"""Those that act on what only ZeRO-2 has."""
OF_ZERO_3 = (parts_are_gathered_in_another_order, the_part_of_a_rank_is_missing)
"""Those of what only ZeRO-3 gathers."""

if os.environ.get("RLSTEP_TEST_MODULE") == __name__:
    make_faults()
