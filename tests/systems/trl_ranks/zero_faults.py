"""Faults of DeepSpeed's engine and of ranks under it, each made where the real ones were: between autograd and the inner optimizer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.planning.finding import Where
from rlstep_hooks.testing.trl_faults import replace_method
from tests.faults.fault import FALLING_RATE, REUSED, WHOLE_RUN, WITH_REFERENCE, Fault, on
from tests.faults.mistakes import data, gradients, losses, weights
from tests.faults.mistakes.gradients import SMALL_LIMIT
from tests.faults.mistakes.order import old_log_probs_follow_the_policy

if TYPE_CHECKING:
    from collections.abc import Callable

FAULTY = 1
"""The rank of faults that one rank has."""


def is_faulty() -> bool:
    """Whether this is the rank of faults that one rank has."""
    return int(os.environ.get("RANK", "0")) == FAULTY


def inner_optimizer(trainer: Any) -> Any:
    """The torch optimizer inside DeepSpeed's."""
    optimizer = trainer.model_wrapped.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def when_training_begins(trainer: Any, act: Callable[[], None]) -> None:
    """Act once the engine is there."""
    on(trainer, "on_train_begin", lambda state, **kwargs: act())


def change_gradients(trainer: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change what autograd computed for each parameter before DeepSpeed gets it, on one rank."""

    def hook() -> None:
        if is_faulty():
            for parameter in trainer.model.parameters():
                if parameter.requires_grad:
                    parameter.register_hook(change)

    when_training_begins(trainer, hook)


# Reductions


def a_rank_gives_zeros(trainer: Any) -> None:
    """The gradients of one rank are lost: the others' mean is half as large."""
    change_gradients(trainer, lambda gradient: gradient * 0)


def a_rank_counts_twice(trainer: Any) -> None:
    """One rank's gradients are doubled, as by a divisor of its own."""
    change_gradients(trainer, lambda gradient: gradient * 2)


def a_rank_loses_a_microbatch(trainer: Any) -> None:
    """The first micro-batch of each update is lost on one rank."""
    passes = 0

    def step(original: Callable[..., Any], *args: Any, **more: Any) -> Any:
        nonlocal passes
        passes += 1
        return original(*args, **more)

    replace_method(trainer, "training_step", step)
    accumulated = trainer.args.gradient_accumulation_steps
    change_gradients(trainer, lambda gradient: gradient * 0 if passes % accumulated == 1 else gradient)


def a_rank_repeats_the_update_before(trainer: Any) -> None:
    """One rank gives the gradients of its backward pass before this one."""
    before: dict[torch.Size, torch.Tensor] = {}

    def late(gradient: torch.Tensor) -> torch.Tensor:
        last = before.get(gradient.shape)
        before[gradient.shape] = gradient.clone()
        return gradient if last is None else last

    change_gradients(trainer, late)


def divided_otherwise(trainer: Any) -> None:
    """With ZeRO-2 the gradients of the ranks are added up and not divided; with ZeRO-3 they are divided twice."""

    def change() -> None:
        engine = trainer.model_wrapped
        outer = engine.optimizer
        if engine.zero_optimization_stage() == 3:
            outer.gradient_predivide_factor = 2.0
        else:
            outer.gradient_average = engine.gradient_average = False

    when_training_begins(trainer, change)


def only_the_last_microbatch(trainer: Any) -> None:
    """DeepSpeed 0.18.2's own mistake, made in any release: what micro-batches before the last one gave is overwritten."""
    passes = 0

    def step(original: Callable[..., Any], *args: Any, **more: Any) -> Any:
        nonlocal passes
        passes += 1
        return original(*args, **more)

    replace_method(trainer, "training_step", step)
    accumulated = trainer.args.gradient_accumulation_steps

    def hook() -> None:
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(lambda gradient: gradient if passes % accumulated == 0 else gradient * 0)

    when_training_begins(trainer, hook)


def a_weight_of_one_rank_drifts(trainer: Any) -> None:
    """One weight of one rank is changed after the fourth update, until the next one overwrites it."""

    def act(state: Any, **kwargs: Any) -> None:
        if state.global_step == 4 and is_faulty():
            with torch.no_grad():
                next(trainer.model.model.layers[0].parameters()).view(-1)[5] += 1e-3

    on(trainer, "on_step_end", act)


# Clip, step, state, rate


def clip_left_out(trainer: Any) -> None:
    """The engine divides by no norm."""

    def change() -> None:
        trainer.model_wrapped.optimizer.clip_grad = 0.0

    when_training_begins(trainer, change)


def half_steps(trainer: Any) -> None:
    """The inner optimizer's step is made half."""

    def change() -> None:
        optimizer = inner_optimizer(trainer)
        real = optimizer.step

        def step(*args: Any, **more: Any) -> Any:
            stepped = [tensor for group in optimizer.param_groups for tensor in group["params"]]
            before = [tensor.detach().clone() for tensor in stepped]
            found = real(*args, **more)
            with torch.no_grad():
                for tensor, old in zip(stepped, before, strict=True):
                    tensor.lerp_(old, 0.5)
            return found

        optimizer.step = step

    when_training_begins(trainer, change)


def rotary_frequencies_changed(trainer: Any) -> None:
    """After the fourth update something scales the frequencies that positions are computed from, on all ranks."""

    def scale(state: Any, **kwargs: Any) -> None:
        if state.global_step == 4:
            for name, buffer in trainer.model.named_buffers():
                if name.endswith("inv_freq"):
                    buffer.mul_(1.05)

    on(trainer, "on_step_end", scale)


def moments_cleared_at_each_rollout(trainer: Any) -> None:
    """The moments of Adam are set to 0 whenever a new rollout is generated."""

    def generate(original: Callable[..., Any], rows: Any) -> Any:
        for kept in inner_optimizer(trainer).state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                if name in kept:
                    kept[name].zero_()
        return original(rows)

    replace_method(trainer, "_generate_and_score_completions", generate)


def masters_shrink_between_updates(trainer: Any) -> None:
    """Something scales the float32 weights that DeepSpeed steps on, after the fourth update."""

    def scale(state: Any, **kwargs: Any) -> None:
        if state.global_step == 4:
            outer = trainer.model_wrapped.optimizer
            for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
                for tensor in getattr(outer, name, ()):
                    tensor.data.mul_(1.01)

    on(trainer, "on_step_end", scale)


def scheduler_never_stepped(trainer: Any) -> None:
    """The learning rate stays where it began."""

    def change() -> None:
        scheduler = trainer.lr_scheduler
        scheduler = getattr(scheduler, "scheduler", scheduler)
        scheduler.step = lambda *args, **more: None

    when_training_begins(trainer, change)


def update_swallowed(trainer: Any) -> None:
    """The engine does nothing where the third update is due."""

    def act(state: Any, **kwargs: Any) -> None:
        engine = trainer.model_wrapped
        vars(engine).pop("_take_model_step", None)
        if state.global_step == 2:
            engine._take_model_step = lambda *args, **more: None

    on(trainer, "on_step_begin", act)


# Forwards and backward passes that one process can make again alone, where it holds the whole model


def reference_scored_a_token_late(trainer: Any) -> None:
    """From the third rollout on each token has the reference's log-prob of the token before it."""

    def score(original: Callable[..., Any], model: Any, *args: Any, **more: Any) -> Any:
        log_probs, *others = original(model, *args, **more)
        late = model is trainer.ref_model and trainer.state.global_step >= 2
        return (log_probs.roll(1, 1) if late else log_probs), *others

    replace_method(trainer, "_get_per_token_logps_and_entropies", score)


class _TooSmall(torch.autograd.Function):
    """Gives its input, and less than a third of the gradient."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 0.3


def backward_of_a_layer_too_small(trainer: Any) -> None:
    """The backward pass of a part of the first layer is not that of its forward."""
    part = trainer.model.model.layers[0].mlp
    forward = part.forward
    part.forward = lambda hidden: _TooSmall.apply(forward(hidden))


IN_ONE_PROCESS = {fault.name: fault for part in (data, gradients, losses, weights) for fault in part.FAULTS}
OF_ENGINE = (
    Fault(clip_left_out, "RLS808", Where(update=0), "deepspeed#7718", settings={**REUSED, **SMALL_LIMIT}),
    Fault(half_steps, "RLS806", Where(update=0), "any wrapper of step"),
    Fault(moments_cleared_at_each_rollout, "RLS807", Where(update=2), "states that are offloaded between rollouts"),
    Fault(masters_shrink_between_updates, "RLS404", Where(update=4), "any writer to the weights"),
    Fault(
        rotary_frequencies_changed, "RLS404", Where(update=4), "a cast of the whole model", cause="rotary_emb.inv_freq"
    ),
    Fault(scheduler_never_stepped, "RLS602", Where(update=1), "accelerate#1382", settings=FALLING_RATE),
    Fault(update_swallowed, "RLS210", Where(update=2), "any wrapper of the engine"),
    Fault(old_log_probs_follow_the_policy, "RLS310", WHOLE_RUN, "see the corpus of one process"),
    *(
        IN_ONE_PROCESS[name]
        for name in ("layer_detached_in_mid_run", "optimizer_maximizes", "reference_follows_the_policy")
    ),
)
"""Faults that each rank can see alone."""

REDUCTIONS = (
    Fault(a_rank_gives_zeros, "RLS811", Where(update=0), "axolotl#3061", cause="rank 1"),
    Fault(a_rank_counts_twice, "RLS811", Where(update=0), "a divisor of one rank", cause="rank 1"),
    Fault(a_rank_loses_a_microbatch, "RLS811", Where(update=0), "DeepSpeed#7967, on one rank", cause="micro-batch"),
    Fault(a_rank_repeats_the_update_before, "RLS811", Where(update=0), "stale gradients"),
    Fault(divided_otherwise, "RLS811", Where(update=0), "a hook that forgets to divide", cause="the mean"),
    Fault(only_the_last_microbatch, "RLS811", Where(update=0), "accelerate#3877", cause="micro-batch"),
)
"""Faults of the gradient over all ranks."""

OF_WHOLE_WEIGHTS = tuple(
    IN_ONE_PROCESS[name]
    for name in (
        "weights_overwritten_between_updates",
        "weights_swapped_and_put_back",
        "frozen_weights_swapped_in_for_generation",
    )
)
"""Not with ZeRO-3: they write to whole weights, which are empty there until they are used."""

DRIFT = Fault(a_weight_of_one_rank_drifts, "RLS419", Where(update=4), "a rank that writes to its copy", cause="rank 1")
"""Not with ZeRO-3, where no rank has a copy."""

OF_WHOLE_MODELS = (
    Fault(
        reference_scored_a_token_late,
        "RLS315",
        Where(update=2),
        "a shift by one",
        cause="each token has the log-prob of the one before it",
        settings=WITH_REFERENCE,
    ),
    Fault(backward_of_a_layer_too_small, "RLS813", Where(rollout=1), "a kernel of somebody's own", cause="layers.0"),
)
"""With ZeRO-3, where a forward of one rank alone would wait for the others, rows go beside those of training
(tests/systems/trl_ranks/test_scored_alone.py)."""

ZERO_FAULTS = (*OF_ENGINE, *REDUCTIONS)
