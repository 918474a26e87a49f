"""Mistakes made on ms-swift's GRPOTrainer before it trains, each with the rule that names it, and the rollout where it begins."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.testing.trl_faults import regenerate_every_step, replace_method

if TYPE_CHECKING:
    from collections.abc import Callable

# Six rollouts of eight samples; with two passes rollout r is trained by micro-batches 4r to 4r+3 and updates 2r and 2r+1.


def from_microbatch(trainer: Any, first: int, alter: Callable[[dict[str, Any]], None]) -> None:
    """Change micro-batches of the buffer before they are trained, from one on."""
    count = itertools.count()

    def prepare(original: Callable[..., Any], inputs: Any) -> Any:
        entry = original(inputs)
        if next(count) >= first:
            alter(entry)
        return entry

    replace_method(trainer, "_prepare_inputs", prepare)


def recomputed_in_the_loss(trainer: Any) -> None:
    """Old log-probs anew in every loss: the ratio is always 1 (verifiers PR#320)."""

    def loss(original: Callable[..., Any], model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        batch = inputs["grpo_batch"]
        with torch.no_grad():
            found = trainer._get_per_token_logps_and_entropies(model, inputs["model_inputs"], batch)
        batch.old_per_token_logps = found[0]
        return original(model, inputs, *args, **kwargs)

    replace_method(trainer, "compute_loss", loss)


def old_log_probs_of_the_next_sample(trainer: Any) -> None:
    """Old log-probs moved by one (trl#454)."""

    def alter(entry: dict[str, Any]) -> None:
        entry["grpo_batch"].old_per_token_logps = entry["grpo_batch"].old_per_token_logps.roll(1, dims=0)

    from_microbatch(trainer, 8, alter)


def tokens_altered_after_the_rollout(trainer: Any) -> None:
    """The completion that is trained is not the one that was scored."""

    def alter(entry: dict[str, Any]) -> None:
        entry["model_inputs"]["input_ids"] = entry["model_inputs"]["input_ids"].roll(1, dims=0)

    from_microbatch(trainer, 8, alter)


def no_advantages(trainer: Any) -> None:
    """All advantages are zero."""

    def postprocess(original: Callable[..., Any], samples: Any, entries: Any) -> Any:
        original(samples, entries)
        for entry in entries:
            entry["grpo_batch"].advantages.zero_()

    replace_method(trainer, "_postprocess_batch", postprocess)


def advantages_of_the_next_sample(trainer: Any) -> None:
    """Each sample is trained with the advantage of another."""
    replace_method(trainer, "_compute_advantages", lambda original, *args, **kwargs: original(*args, **kwargs).roll(1))


def rewards_in_another_order(trainer: Any) -> None:
    """Advantages are those of other samples' rewards."""

    def advantages(original: Callable[..., Any], samples: Any, rewards: Any, entries: Any) -> Any:
        return original(samples, rewards.flip(0), entries)

    replace_method(trainer, "_compute_advantages", advantages)


def penalty_added(trainer: Any) -> None:
    """The KL term is added to the rewards and not taken off."""

    def advantages(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        trainer.beta = -trainer.beta
        try:
            return original(*args, **kwargs)
        finally:
            trainer.beta = -trainer.beta

    replace_method(trainer, "_compute_advantages", advantages)


def weights_of_functions_ignored(trainer: Any) -> None:
    """The reward functions count alike, whatever their weights are."""

    def advantages(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        weights = trainer.reward_weights
        trainer.reward_weights = torch.ones_like(weights)
        try:
            return original(*args, **kwargs)
        finally:
            trainer.reward_weights = weights

    replace_method(trainer, "_compute_advantages", advantages)


def last_token_without_advantage(trainer: Any) -> None:
    """The last counted token of each sample has an advantage of zero."""

    def postprocess(original: Callable[..., Any], samples: Any, entries: Any) -> Any:
        original(samples, entries)
        for entry in entries:
            batch = entry["grpo_batch"]
            batch.advantages[batch.completion_mask.long().cumsum(1) == batch.completion_mask.sum(1, keepdim=True)] = 0.0

    replace_method(trainer, "_postprocess_batch", postprocess)


def temperatures_swapped(trainer: Any) -> None:
    """sapo's temperature of negative advantages is that of positive ones, in the loss alone."""

    def loss(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        kept = trainer.tau_pos, trainer.tau_neg
        trainer.tau_pos, trainer.tau_neg = reversed(kept)
        try:
            return original(*args, **kwargs)
        finally:
            trainer.tau_pos, trainer.tau_neg = kept

    replace_method(trainer, "_compute_loss", loss)


def loss_divided_once_more(trainer: Any) -> None:
    """The loss over the accumulation twice."""
    replace_method(trainer, "_compute_loss", lambda original, *args, **kwargs: original(*args, **kwargs) / 2)


def one_update_left_out(trainer: Any) -> None:
    """The fourth update is not made."""
    from transformers import TrainerCallback

    class LeavesOut(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            count = itertools.count()
            optimizer = trainer.optimizer
            step = optimizer.step
            optimizer.step = lambda *words, **named: None if next(count) == 3 else step(*words, **named)

    trainer.add_callback(LeavesOut())


def sampled_by_another_model(trainer: Any) -> None:
    """The engine holds weights of its own, which nobody brings up to date."""
    import copy

    trainer.engine.model = copy.deepcopy(trainer.engine.model)


FAULTS: dict[str, tuple[Callable[[Any], None], str, int | None, dict[str, Any]]] = {
    function.__name__: (function, code, rollout, settings)
    for function, code, rollout, settings in (
        (regenerate_every_step, "RLS201", 1, {"num_iterations": 2}),
        (recomputed_in_the_loss, "RLS307", 0, {"num_iterations": 2}),
        (old_log_probs_of_the_next_sample, "RLS305", 2, {"num_iterations": 2}),
        (tokens_altered_after_the_rollout, "RLS306", 2, {"num_iterations": 2}),
        (no_advantages, "RLS516", 0, {}),
        (advantages_of_the_next_sample, "RLS516", 0, {}),
        (rewards_in_another_order, "RLS516", 0, {"advantage_estimator": "reinforce_plus_plus"}),
        # In the first rollout policy and reference are the same.
        (penalty_added, "RLS516", 1, {"advantage_estimator": "rloo", "kl_in_reward": "true", "beta": 0.5}),
        (weights_of_functions_ignored, "RLS516", 0, {"reward_funcs": ["tiny", "other"], "reward_weights": [1, 2]}),
        (last_token_without_advantage, "RLS516", 0, {}),
        (temperatures_swapped, "RLS801", 0, {"loss_type": "sapo", "num_iterations": 2, "tau_neg": 1.5}),
        (loss_divided_once_more, "RLS801", 0, {"num_iterations": 2}),
        (one_update_left_out, "RLS210", 3, {}),
        (sampled_by_another_model, "RLS402", 0, {}),
    )
}
