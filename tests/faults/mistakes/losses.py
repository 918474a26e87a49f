"""The scale of the loss, its formula, and what it teaches."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.planning.finding import Where
from rlstep_hooks.testing.trl_faults import alter_microbatches, log_prob_method, replace_method
from tests.faults.fault import LARGE_ROLLOUT, ONCE, REUSED, WITH_REFERENCE, Fault, Settings, alter_rollouts, made, way

if TYPE_CHECKING:
    from collections.abc import Callable


def loss_divided_twice(trainer: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A loss that is already divided by the accumulation is divided once more."""
    value = original(*args, **kwargs)
    return value / 2 if trainer.state.global_step >= 2 else value


def accelerate_divides_too(trainer: Any) -> None:
    """accelerate is told the accumulation as well, and its backward divides by it once more."""
    trainer.accelerator.gradient_accumulation_steps = 2


def advantages_scaled_by_a_learned_factor(trainer: Any) -> None:
    """Advantages are multiplied by a parameter that is trained with the policy."""
    factor = torch.nn.Parameter(torch.ones(()))
    alter_microbatches(trainer, lambda batch: batch | {"advantages": batch["advantages"] * factor}, first=8)


def backward_of_a_quarter(trainer: Any) -> None:
    """A wrapped backward multiplies each loss by a quarter."""

    def backward(original: Callable[..., Any], loss: Any, **kwargs: Any) -> Any:
        return original(loss / 4 if trainer.state.global_step >= 2 else loss, **kwargs)

    replace_method(trainer.accelerator, "backward", backward)


def inner_loss(trainer: Any) -> str:
    """The method that computes the loss; of its own from 0.17 on."""
    return "_compute_loss" if hasattr(trainer, "_compute_loss") else "compute_loss"


def within_losses(trainer: Any, alter: Callable[[dict[str, Any]], dict[str, Any]], *, first: int = 4) -> None:
    """Change what the loss is computed from behind all that could look at it, from one update on."""

    def loss(original: Callable[..., Any], model: Any, inputs: dict[str, Any], **kwargs: Any) -> Any:
        return original(model, alter(dict(inputs)) if trainer.state.global_step >= first else inputs, **kwargs)

    replace_method(trainer, inner_loss(trainer), loss)


def with_other(name: str, change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Change one input of the losses."""
    return lambda trainer: within_losses(trainer, lambda batch: batch | {name: change(batch[name])})


def normalised_again(batch: dict[str, Any]) -> dict[str, Any]:
    """The advantages of a micro-batch with mean 0 and deviation 1."""
    advantages = batch["advantages"]
    return batch | {"advantages": (advantages - advantages.mean()) / (advantages.std() + 1e-8)}


WHOLE_GROUPS: Settings = {**ONCE, "loss_type": "dr_grpo"}


def of_one_length(trainer: Any) -> None:
    """All completions end at the limit: the loss of a micro-batch with whole groups is 0 at lag 0, whatever its mask is."""
    trainer.generation_config.min_new_tokens = trainer.max_completion_length


def every_second_backward_left_out(trainer: Any) -> None:
    """A memory saver skips the backward pass of each window's second micro-batch."""
    calls = itertools.count()

    def backward(original: Callable[..., Any], loss: Any, **kwargs: Any) -> Any:
        number = next(calls)
        return original(loss, **kwargs) if number < 8 or number % 2 == 0 else None

    replace_method(trainer.accelerator, "backward", backward)


def last_token_masked_within_the_loss(trainer: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """The mask ends one token early, and the loss has the same value with it."""
    mask = batch["completion_mask"]
    return batch | {"completion_mask": mask * (mask.cumsum(1) < mask.sum(1, keepdim=True))}


def loss_taught_twice(trainer: Any) -> None:
    """The loss has its value, and twice its gradient."""

    def loss(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        return 2 * value - value.detach() if trainer.state.global_step >= 4 else value

    replace_method(trainer, inner_loss(trainer), loss)


def gradients_of_log_probs_cut(trainer: Any) -> None:
    """A hook on the log-probs leaves gradients of the smaller half out."""

    def computed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        log_probs = found[0] if isinstance(found, tuple) else found
        if trainer.state.global_step >= 4 and log_probs.requires_grad:
            log_probs.register_hook(lambda gradient: gradient * (gradient.abs() > gradient.abs().median()))
        return found

    replace_method(trainer, log_prob_method(trainer), computed)


def late_log_probs_detached(trainer: Any) -> None:
    """The method that computes log-probs detaches those of the last tokens."""

    def computed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        log_probs = found[0] if isinstance(found, tuple) else found
        if trainer.state.global_step < 4 or not log_probs.requires_grad:
            return found
        cut = torch.cat([log_probs[:, :-3], log_probs[:, -3:].detach()], dim=1)
        return (cut, *found[1:]) if isinstance(found, tuple) else cut

    replace_method(trainer, log_prob_method(trainer), computed)


def layer_detached_in_mid_run(trainer: Any) -> None:
    """The first layer's output is detached from one update on: only the last layer learns."""

    def cut(module: Any, inputs: Any, output: Any) -> Any:
        if trainer.state.global_step < 4 or not torch.is_grad_enabled():
            return output
        return output.detach() if isinstance(output, torch.Tensor) else (output[0].detach(), *output[1:])

    trainer.model.model.layers[0].register_forward_hook(cut)


def in_losses(trainer: Any, *, first: int, **values: Any) -> None:
    """Give the trainer other settings while it computes its losses, from one update on."""

    def loss(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = {name: getattr(trainer, name) for name in values}
        if trainer.state.global_step >= first:
            vars(trainer).update(values)
        try:
            return original(*args, **kwargs)
        finally:
            vars(trainer).update(before)

    replace_method(trainer, "_compute_loss", loss)


PER_SAMPLE: Settings = {**REUSED, "loss_type": "grpo"}


def old_log_probs_taken_out_by_the_loss(trainer: Any) -> None:
    """A patched loss takes old log-probs out of what it got."""

    def loss(original: Callable[..., Any], model: Any, inputs: dict[str, Any]) -> Any:
        if trainer.state.global_step >= 4:
            inputs = inputs | {"old_per_token_logps": None}
        return original(model, inputs)

    replace_method(trainer, "_compute_loss", loss)


OF_WINDOW: Settings = {**REUSED, "loss_type": "dapo"}


"""A loss that is divided by the tokens of the window."""


def window_counted_with_padding(trainer: Any, rollout: dict[str, Any]) -> dict[str, Any]:
    """The tokens that the loss is divided by are those of the padded completions."""
    padded = torch.tensor(rollout["completion_ids"].numel() + 8)
    return rollout | {"num_items_in_batch": padded}


def window_counted_by_the_micro_batch(trainer: Any) -> None:
    """Each loss is divided by its own tokens alone."""
    alter_microbatches(trainer, lambda batch: batch | {"num_items_in_batch": batch["completion_mask"].sum()}, first=8)


# fmt: off
FAULTS = (
    # M: the scale of the loss
    Fault(way(replace_method, "compute_loss", by=loss_divided_twice), code="RLS801", where=Where(update=2, microbatch=4),
          report="ms-swift#10116"),
    Fault(accelerate_divides_too, code="RLS805", where=Where(update=0, microbatch=0), report="ms-swift#10117"),
    Fault(advantages_scaled_by_a_learned_factor, code="RLS802", where=Where(update=4, microbatch=8), report="textbook PPO"),
    Fault(backward_of_a_quarter, code="RLS805", where=Where(update=2, microbatch=4), report="ms-swift#10117"),
    # What a loss teaches, where its value is right
    Fault(every_second_backward_left_out, code="RLS805", where=Where(update=4, microbatch=9), report="a backward pass left out",
          cause="no gradient of it"),
    Fault(way(within_losses, by=last_token_masked_within_the_loss), code="RLS805", where=Where(update=4, microbatch=8),
          report="a mask that ends one token early, in completions of one length", headline="RLS314", beside=("RLS801", "RLS805"),
          settings=WHOLE_GROUPS,
          prepare=of_one_length, since="0.18", cause="at some token"),
    Fault(made("advantages_rolled_within_the_loss", "Each sample is trained with the advantage of another.",
               lambda trainer: within_losses(trainer, lambda batch: batch | {"advantages": batch["advantages"].roll(1, 0)})),
          code="RLS805", where=Where(update=4, microbatch=8), report="advantages of other samples, where they add up to 0",
          settings=WHOLE_GROUPS, prepare=of_one_length, since="0.18", cause="at some token"),
    Fault(loss_taught_twice, code="RLS805", where=Where(update=4, microbatch=8), report="a surrogate whose value is right",
          since="0.18", cause="at some token"),
    Fault(gradients_of_log_probs_cut, code="RLS805", where=Where(update=4, microbatch=8),
          report="a trust region of one's own, without its value", cause="at some token"),
    Fault(late_log_probs_detached, code="RLS805", where=Where(update=4, microbatch=8), report="a fused kernel without its backward",
          settings=ONCE, cause="the log-probs are right"),
    Fault(layer_detached_in_mid_run, code="RLS408", where=Where(update=4), report="a layer under no_grad",
          cause="these matrices learn nothing"),
    # M: the formula of the loss
    Fault(old_log_probs_taken_out_by_the_loss, code="RLS801", where=Where(rollout=2, update=5, microbatch=10), report="trl#3120",
          settings=PER_SAMPLE, since="0.18", cause="old log-probs equal to the current ones"),
    Fault(made("clip_range_lost_in_the_loss", "The loss has no clip.",
               lambda trainer: in_losses(trainer, first=4, epsilon_low=1e9, epsilon_high=1e9)),
          code="RLS801", where=Where(rollout=2, update=5), report="TRL, a clip that does not clip",
          settings={**PER_SAMPLE, "epsilon": 0.05}, since="0.18", cause="without the clip"),
    Fault(made("divided_by_the_generation_period", "The loss takes the generation period for the accumulation.",
               lambda trainer: in_losses(trainer, first=3, current_gradient_accumulation_steps=4)),
          code="RLS801", where=Where(update=3, microbatch=6), report="trl PR#6024", settings={**LARGE_ROLLOUT}, since="0.24",
          cause="steps_per_generation and not by the accumulation"),
    Fault(made("averaged_over_tokens_instead", "The loss is normalised as another type is.",
               lambda trainer: in_losses(trainer, first=4, loss_type="bnpo")),
          code="RLS801", where=Where(update=4, microbatch=8), report="ms-swift#10116", settings={**REUSED, "loss_type": "dr_grpo"},
          since="0.18", cause="averaged over the tokens of the micro-batch"),
    Fault(way(alter_rollouts, by=window_counted_with_padding, after=4), code="RLS801", where=Where(update=4, microbatch=8),
          report="tokens counted with their padding", settings=OF_WINDOW, since="0.24",
          cause="another number of tokens than the masks"),
    Fault(window_counted_by_the_micro_batch, code="RLS801", where=Where(update=4, microbatch=8),
          report="tokens of one micro-batch for those of the window", settings=OF_WINDOW, since="0.24",
          cause="another number of tokens than the masks"),
    Fault(made("only_good_samples_taught_by_the_loss", "Negative advantages are 0 in the loss.",
               with_other("advantages", lambda advantages: advantages.clamp(min=0))),
          code="RLS801", where=Where(update=4, microbatch=8), report="a loss of one's own that learns from success alone",
          settings={**REUSED, "loss_type": "dr_grpo"}, since="0.18", cause="advantages whose negative ones are 0"),
    Fault(made("advantages_normalised_again_by_the_loss", "The loss normalises the advantages of each micro-batch once more.",
               lambda trainer: within_losses(trainer, normalised_again)),
          code="RLS801", where=Where(update=4, microbatch=8), report="advantages whitened a second time, by micro-batch",
          settings={**REUSED, "loss_type": "dr_grpo", "scale_rewards": False}, since="0.18",
          cause="advantages normalised again over the samples"),
    Fault(made("old_log_probs_cut_by_the_loss", "The loss cuts the old log-probs from below, so that no ratio gets large.",
               with_other("old_per_token_logps", lambda old: old.clamp(min=-3.95))),
          code="RLS801", where=Where(update=4, microbatch=8), report="old log-probs cut from below on their way into the loss",
          settings={**REUSED, "loss_type": "dr_grpo"}, since="0.18", cause="old log-probs cut from below at -3.95"),
    Fault(made("reference_of_the_token_before", "The KL term compares each token with the reference's log-prob of the token before.",
               with_other("ref_per_token_logps", lambda reference: reference.roll(1, 1))),
          code="RLS801", where=Where(update=4, microbatch=8), report="reference log-probs off by one token",
          settings={**WITH_REFERENCE, "loss_type": "dr_grpo"}, since="0.18", cause="the reference log-probs of the token before"),
    Fault(made("kl_left_out_of_the_loss", "The loss is computed with beta 0.",
               lambda trainer: in_losses(trainer, first=4, beta=0.0)),
          code="RLS801", where=Where(rollout=2, update=4, microbatch=8), report="TRL, KL left out",
          settings={**PER_SAMPLE, "beta": 0.5}, since="0.24", cause="without its KL term"),
    Fault(made("small_kl_left_out_of_the_loss", "The loss is computed with beta 0 for 0.04: 1 % of it, in every micro-batch.",
               lambda trainer: in_losses(trainer, first=4, beta=0.0)),
          code="RLS801", where=Where(rollout=2, update=4, microbatch=8), report="TRL, KL left out at the usual coefficient",
          settings=WITH_REFERENCE, since="1.0", cause="without its KL term"),
    Fault(made("ratios_of_tokens_for_those_of_sequences", "The loss takes the ratio of each token for that of its sequence.",
               lambda trainer: in_losses(trainer, first=4, importance_sampling_level="token")),
          code="RLS801", where=Where(rollout=2, update=5), report="GSPO, ratios of tokens",
          settings={**REUSED, "importance_sampling_level": "sequence"}, since="1.0", cause="that of ratios of each token"),
    Fault(made("cispo_without_old_log_probs", "A CISPO loss whose ratio is always 1.",
               lambda trainer: old_log_probs_taken_out_by_the_loss(trainer)),
          code="RLS801", where=Where(rollout=2, update=5), report="CISPO, its constant",
          settings={**REUSED, "loss_type": "cispo", "epsilon_high": 1.05}, since="1.0",
          cause="old log-probs equal to the current ones"),
)
# fmt: on
