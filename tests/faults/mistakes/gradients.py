"""Gradients and the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.planning.finding import Where
from rlstep_hooks.testing.trl_faults import replace_method
from tests.faults.fault import ONCE, REUSED, Fault, Settings, after_update, made, on, way, whole

if TYPE_CHECKING:
    from collections.abc import Callable


def before_steps(trainer: Any, act: Callable[[], None], *, first: int) -> None:
    """Act right before each step of the optimizer, from one update on."""

    def step(state: Any, **kwargs: Any) -> None:
        if state.global_step >= first:
            act()

    on(trainer, "on_pre_optimizer_step", step)


SMALL_LIMIT: Settings = {**REUSED, "max_grad_norm": 1e-3}


def clip_that_only_measures(trainer: Any) -> None:
    """The clip returns the norm and leaves the gradients as they are."""

    def measure(original: Callable[..., Any], parameters: Any, *args: Any, **kwargs: Any) -> Any:
        return original(parameters, float("inf"))

    replace_method(trainer.accelerator, "clip_grad_norm_", measure)


def gradients_doubled_after_the_clip(trainer: Any) -> None:
    """A callback multiplies the gradients right before the step."""
    for parameter in trainer.model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(2)


def one_update_zeroed_by_a_guard(trainer: Any, state: Any, *, model: Any, **kwargs: Any) -> None:
    """A guard zeroes the gradients of the last update; momentum goes on."""
    if state.global_step == 5:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0)


def weights_swapped_and_put_back(trainer: Any) -> None:
    """After update 5 the first weights are swapped in, and out again before anybody looks."""
    first: list[torch.Tensor] = []

    def remember(state: Any, **kwargs: Any) -> None:
        with whole(trainer.model):
            first.extend(p.detach().clone() for p in trainer.model.parameters())

    def swap() -> None:
        with whole(trainer.model, written=True), torch.no_grad():
            for parameter, value in zip(trainer.model.parameters(), first, strict=True):
                current = parameter.clone()
                parameter.copy_(value)
                parameter.copy_(current)

    on(
        trainer, "on_train_begin", remember
    )  # in mid-run weights may be sharded, which the first ones then have to be too
    after_update(trainer, 6, swap)


def moments_cleared_at_every_update(trainer: Any) -> None:
    """Adam begins anew at every update."""
    optimizer = trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    optimizer.state.clear()


def moments_flattened_after_the_step(trainer: Any) -> None:
    """A hook replaces the second moments of each tensor by their mean, right after each step."""
    create = trainer.create_optimizer

    def flatten(optimizer: Any, *args: Any) -> None:
        if trainer.state.global_step >= 4:
            for state in optimizer.state.values():
                state["exp_avg_sq"].fill_(state["exp_avg_sq"].mean())

    def created(*args: Any, **kwargs: Any) -> Any:
        made = create(*args, **kwargs)
        made.register_step_post_hook(flatten)
        return made

    trainer.create_optimizer = created


def steps_of_adam_counted_anew(trainer: Any) -> None:
    """Adam's count of its steps is set to 0 before each step; its moments stay."""
    optimizer = trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    for state in optimizer.state.values():
        state["step"].zero_()


def half_of_each_step_taken_back(trainer: Any, state: Any, **kwargs: Any) -> None:
    """A wrapped step averages the new weights with the old ones."""
    optimizer = trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    held = [p for group in optimizer.param_groups for p in group["params"]]
    before: list[torch.Tensor] = []

    def remember(*_: Any) -> None:
        before[:] = [p.detach().clone() for p in held]

    def take_back(*_: Any) -> None:
        if trainer.state.global_step >= 4:
            for parameter, old in zip(held, before, strict=True):
                parameter.data.lerp_(old, 0.5)

    optimizer.register_step_pre_hook(remember)
    optimizer.register_step_post_hook(take_back)
    optimizer._optimizer_step_post_hooks.move_to_end(next(reversed(optimizer._optimizer_step_post_hooks)), last=False)


def frozen_weights_swapped_in_for_generation(trainer: Any) -> None:
    """Generation runs with the first weights, which are swapped in and out again before anyone looks."""
    with whole(trainer.model):
        first = [p.detach().clone() for p in trainer.model.parameters()]

    def generate(original: Callable[..., Any], rows: Any) -> Any:
        if trainer.state.global_step < 4:
            return original(rows)
        with whole(trainer.model):
            current = [p.detach().clone() for p in trainer.model.parameters()]
        set_weights(trainer.model, first)
        output = original(rows)
        set_weights(trainer.model, current)
        return output

    replace_method(trainer, "_generate_and_score_completions", generate)


def set_weights(model: Any, values: list[torch.Tensor]) -> None:
    """Write weights in a way that torch does not count."""
    with whole(model, written=True):
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.data.copy_(value)


def one_gradient_scaled_by_a_hook(trainer: Any) -> None:
    """A hook multiplies the gradients of one matrix in the last layer."""
    weight = trainer.model.model.layers[-1].mlp.down_proj.weight
    weight.register_hook(lambda gradient: gradient * 11)


def gradients_tripled_by_a_module(trainer: Any) -> None:
    """A backward hook of the last norm returns three times the gradients that it got."""
    trainer.model.model.norm.register_full_backward_hook(
        lambda module, to_inputs, to_outputs: tuple(None if of is None else of * 3 for of in to_inputs)
    )


def gradients_clipped_by_value(trainer: Any) -> None:
    """The clip cuts each value, so that all directions change."""

    def cut(original: Callable[..., Any], parameters: Any, *args: Any, **kwargs: Any) -> Any:
        torch.nn.utils.clip_grad_value_(list(parameters), 1e-4)
        return torch.ones(())

    replace_method(trainer.accelerator, "clip_grad_norm_", cut)


def gradients_cleared_between_micro_batches(trainer: Any) -> None:
    """Each backward pass begins with a zero_grad, so an update sees its last micro-batch alone."""

    def backward(original: Callable[..., Any], loss: Any, **kwargs: Any) -> Any:
        trainer.model.zero_grad()
        return original(loss, **kwargs)

    replace_method(trainer.accelerator, "backward", backward)


def further_backward_pass(trainer: Any) -> None:
    """A wrapper adds the gradients of another loss."""

    def backward(original: Callable[..., Any], loss: Any, **kwargs: Any) -> Any:
        original(loss, **kwargs)
        if trainer.state.global_step >= 4:
            (0.1 * sum((parameter**2).sum() for parameter in trainer.model.parameters())).backward()

    replace_method(trainer.accelerator, "backward", backward)


def gradients_halved_before_the_step(trainer: Any) -> None:
    """A callback halves all gradients right before the step; no clip is configured."""
    for parameter in trainer.model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)


# fmt: off
FAULTS = (
    # N: gradient and optimizer
    Fault(clip_that_only_measures, code="RLS808", where=Where(update=0), report="TRL, clipping left out", settings=SMALL_LIMIT),
    Fault(way(before_steps, by=gradients_doubled_after_the_clip, first=4), code="RLS808", where=Where(update=4),
          report="TRL, gradients changed after the clip", settings=SMALL_LIMIT),
    Fault(made("gradients_never_cleared", "The loop's zero_grad does nothing, so each update steps along all gradients so far.",
               lambda trainer: replace_method(trainer.model, "zero_grad", lambda original, *args, **kwargs: None)),
          code="RLS803", where=Where(update=1), report="trl#583"),
    Fault(way(on, "on_pre_optimizer_step", by=one_update_zeroed_by_a_guard), code="RLS809", where=Where(update=5),
          report="a guard against NaN", settings=ONCE),
    Fault(weights_swapped_and_put_back, code="RLS404", where=Where(update=6), report="an average swapped in for an evaluation",
          doubtful=True),
    Fault(way(before_steps, by=moments_cleared_at_every_update, first=4), code="RLS807", where=Where(update=4),
          report="OpenRLHF#1297"),
    Fault(moments_flattened_after_the_step, code="RLS807", where=Where(update=4), report="a smaller optimizer state",
          cause="the step itself was right"),
    Fault(way(before_steps, by=steps_of_adam_counted_anew, first=4), code="RLS807", where=Where(update=4),
          report="an optimizer whose steps are counted anew", cause="1 - beta**steps"),
    Fault(way(on, "on_train_begin", by=half_of_each_step_taken_back), code="RLS806", where=Where(update=4),
          report="Megatron, a step made in part"),
    Fault(frozen_weights_swapped_in_for_generation, code="RLS412", where=Where(rollout=2, update=4), report="trl#5312",
          where_016=Where(rollout=4, update=4)),
    # N: gradients between the backward passes and the step
    Fault(one_gradient_scaled_by_a_hook, code="RLS810", where=Where(update=0), report="a hook on one parameter",
          cause="11 times as much in model.layers.1"),
    Fault(gradients_tripled_by_a_module, code="RLS810", where=Where(update=0, microbatch=0), report="a backward hook of a module",
          cause="a backward hook of model.norm"),
    Fault(made("embedding_frozen_by_a_hook", "A hook zeroes the gradients of the embedding.",
               lambda trainer: trainer.model.get_input_embeddings().weight.register_hook(torch.zeros_like)),
          code="RLS810", where=Where(update=0), report="a frozen embedding, by a hook",
          cause="0 times as much in model.embed_tokens"),
    Fault(gradients_clipped_by_value, code="RLS810", where=Where(update=0),
          report="clip_grad_value_ in the place of clip_grad_norm_"),
    Fault(gradients_cleared_between_micro_batches, code="RLS810", where=Where(update=0), report="trl#583"),
    Fault(further_backward_pass, code="RLS810", where=Where(update=4), report="an auxiliary loss of one's own",
          cause="a further backward pass"),
    Fault(way(before_steps, by=gradients_halved_before_the_step, first=4), code="RLS810", where=Where(update=4),
          report="a guard that halves gradients", settings={**REUSED, "max_grad_norm": 0.0},
          cause="all gradients of the update were scaled"),
    Fault(made("layer_frozen_in_mid_run", "The first layer stops to be trained after four updates.",
               lambda trainer: after_update(trainer, 4, lambda: trainer.model.model.layers[0].requires_grad_(False))),
          code="RLS408", where=Where(update=4), report="layers frozen in mid-run", cause="require no gradient any more"),
)
# fmt: on
