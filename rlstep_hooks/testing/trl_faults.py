"""Mistakes from real runs, to be made on a TRL trainer before it trains, to see what the audit says about them.

Each function takes a GRPOTrainer and changes only that object, as a wrapper library or a user's patch does. TRL itself is not
changed.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def replace_method(trainer: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace one trainer's method.

    Args:
        trainer: The trainer; only its own attributes change.
        name: The method.
        around: Called with the original method, then the call's arguments.
    """
    original = getattr(trainer, name)

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(trainer, name, replacement)


def alter_microbatches(trainer: Any, alter: Callable[[dict[str, Any]], dict[str, Any]], *, first: int = 0) -> None:
    """Change what each training micro-batch passes to the loss.

    Args:
        trainer: The trainer.
        alter: Takes a copy of the micro-batch (its tensors belong to the buffer) and returns what the loss gets.
        first: The first micro-batch to change, counted from 0.
    """
    count = itertools.count()

    def prepare(original: Callable[..., Any], batch: Any) -> Any:
        prepared = original(batch)
        return alter(dict(prepared)) if trainer.model.training and next(count) >= first else prepared

    replace_method(trainer, "_prepare_inputs", prepare)


def log_prob_method(trainer: Any) -> str:
    """The name of the method that computes per-token log-probs; renamed in TRL 0.20."""
    name = "_get_per_token_logps_and_entropies"
    return name if hasattr(trainer, name) else "_get_per_token_logps"


def log_probs(trainer: Any, model: Any, batch: dict[str, Any]) -> Tensor:
    """Per-token log-probs of a batch's completions (samples, tokens), by the method that the loss uses in this release."""
    import torch

    method = getattr(trainer, log_prob_method(trainer))
    tokens = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    with torch.no_grad():
        found = method(model, tokens, mask, batch["completion_ids"].shape[1])
    return found[0] if isinstance(found, tuple) else found


def regenerate_every_step(trainer: Any) -> None:
    """Clear the sample buffer before each micro-batch, so that TRL generates for every micro-batch.

    ms-swift#9261: an integration misread the generation period, and rollouts came twice as often as configured. Nothing is reused, the
    ratio is always 1, and the run takes several times as long.
    """
    slots = isinstance(trainer._buffered_inputs, list)  # TRL 0.16 has a slot per micro-batch and fills only some

    def prepare(original: Callable[..., Any], batch: Any) -> Any:
        if not slots:
            trainer._buffered_inputs = None
        elif trainer.state.global_step % trainer.num_iterations:
            trainer._step += 1
            return trainer._generate_and_score_completions(batch)
        return original(batch)

    replace_method(trainer, "_prepare_inputs", prepare)


def recompute_old_log_probs(trainer: Any) -> None:
    """Recompute the old log-probs in every loss, with the current weights.

    verifiers PR#320: num_iterations was "not working correctly ... ratio always 1". Clipping never acts.
    """

    def loss(original: Callable[..., Any], model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        inputs["old_per_token_logps"] = log_probs(trainer, model, inputs)
        return original(model, inputs, *args, **kwargs)

    replace_method(trainer, "compute_loss", loss)


def permuted_old_log_probs(trainer: Any) -> None:
    """Move the old log-probs of each micro-batch to the next sample, and nothing else.

    trl#454: ratios diverge from the first update on, because numerator and denominator belong to different samples. It happens if
    code sorts or shuffles some tensors of the sample buffer but not others.
    """

    def alter(batch: dict[str, Any]) -> dict[str, Any]:
        return batch | {"old_per_token_logps": batch["old_per_token_logps"].roll(1, dims=0)}

    alter_microbatches(trainer, alter)


FAULTS: dict[str, Callable[[Any], None]] = {
    function.__name__: function for function in (regenerate_every_step, recompute_old_log_probs, permuted_old_log_probs)
}
"""The faults of `rlstep demo` by name. All of them need `num_iterations` above 1 to show."""
