"""Faults of SkyRL runs, each a small patch of the framework's own code or a setting, and what must be said of it.

Most are made in the process of the policy worker, by a function that Ray runs there; it ends with its run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray
import torch

from tests.systems.whole_trainers import Fault, nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def _in_worker(function: Callable[..., None], *given: Any) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """Break the policy worker in its own process."""

    def breaks(trainer: Any, patch: pytest.MonkeyPatch) -> None:
        (actor,) = trainer.policy_model._actor_handlers
        ray.get(actor.__ray_call__.remote(function, *given))

    return breaks


# In the worker's process


def _loss_with(worker: Any, changed: dict[str, Any]) -> None:
    """The loss is computed with other settings than configured."""
    from dataclasses import replace

    right = worker.policy_loss_fn

    def wrong(*given: Any, config: Any, **named: Any) -> Any:
        return right(*given, config=replace(config, **changed), **named)

    worker.policy_loss_fn = wrong


def _loss_times(worker: Any, factor: float) -> None:
    right = worker.policy_loss_fn

    def wrong(*given: Any, **named: Any) -> Any:
        loss, metrics = right(*given, **named)
        return factor * loss, metrics

    worker.policy_loss_fn = wrong


def _ratio_of_one(worker: Any) -> None:
    right = worker.policy_loss_fn
    worker.policy_loss_fn = lambda new, old, *given, **named: right(new, new.detach(), *given, **named)


def _half_of_gradient(worker: Any) -> None:
    right = worker.policy_loss_fn

    def wrong(new: Any, *given: Any, **named: Any) -> Any:
        return right(new.detach() + 0.5 * (new - new.detach()), *given, **named)

    worker.policy_loss_fn = wrong


def _backward_of(worker: Any, factor: float) -> None:
    right = worker.strategy.backward
    worker.strategy.backward = lambda loss, *given, **named: right(factor * loss, *given, **named)


def _without_kl(worker: Any) -> None:
    worker.cfg.algorithm.kl_loss_coef = 0.0


def _rate_doubled(worker: Any) -> None:
    for group in worker.optimizer.param_groups:
        group["lr"] *= 2
    worker.scheduler.base_lrs = [2 * rate for rate in worker.scheduler.base_lrs]


def _schedule_stands(worker: Any) -> None:
    worker.scheduler.step = lambda *given: None


def _clip_ignored(worker: Any) -> None:
    worker.strategy.max_norm = 1e9


def _never_cleared(worker: Any) -> None:
    worker.optimizer.zero_grad = lambda *given, **named: None


def _every_third_step_skipped(worker: Any) -> None:
    right, calls = worker.optimizer.step, iter(range(10**6))
    worker.optimizer.step = lambda *given: right(*given) if next(calls) % 3 != 2 else None


def _decay_left_out(worker: Any) -> None:
    """The step forgets the decay, while the configuration and the groups have it."""
    from torch.optim import adam

    right = adam.adam
    adam.adam = lambda *given, **named: right(*given, **(named | {"weight_decay": 0.0}))


def _temperature(worker: Any) -> None:
    """Log-probs are computed at another temperature than samples are drawn at."""
    worker.cfg.algorithm.temperature = 0.7


# In the trainer's process


def _sent_once(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """Weights are sent before training, and never again."""
    dispatch, calls = trainer.dispatch, iter(range(10**6))
    right = dispatch._broadcast_to_inference_engines
    dispatch._broadcast_to_inference_engines = lambda *given, **named: None if next(calls) else right(*given, **named)


def _changed(name: str, changed: Callable[[Any], Any]) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """A step of the trainer gives something else."""

    def breaks(trainer: Any, patch: pytest.MonkeyPatch) -> None:
        right = getattr(trainer, name)

        def wrong(*given: Any) -> Any:
            made = right(*given)
            changed(made)
            return made

        setattr(trainer, name, wrong)

    return breaks


def _column(name: str, changed: Callable[[Any], Any]) -> Callable[[Any], None]:
    """A column of the batch of a rollout is another one."""

    def change(batch: Any) -> None:
        batch[name] = changed(batch[name])

    return change


def _normalised(changed: Callable[[Any], None]) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """The batch of a rollout is changed right before it is cut into mini-batches."""
    return _changed("_normalize_advantages", changed)


def _other_tokens(batch: Any) -> None:
    """Samples of the rollout have each other's tokens."""
    batch["sequences"] = batch["sequences"].roll(1, 0)


def _prompt_counts(batch: Any) -> None:
    mask = batch["loss_mask"].clone()
    mask[:, 0] = 1 - mask[:, 0]
    batch["loss_mask"] = mask


def _setting(name: str, value: Any) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """The trainer computes with another setting than its configuration has."""

    def breaks(trainer: Any, patch: pytest.MonkeyPatch) -> None:
        from skyrl.backends.skyrl_train.utils import ppo_utils

        right = ppo_utils.compute_advantages_and_returns
        patch.setattr(ppo_utils, "compute_advantages_and_returns", lambda **given: right(**(given | {name: value})))

    return breaks


def _reduced_by(name: str) -> Callable[[Any, pytest.MonkeyPatch], None]:
    def breaks(trainer: Any, patch: pytest.MonkeyPatch) -> None:
        from skyrl.train import trainer as module

        right = module.apply_loss_reduction_to_advantages_minibatch

        def wrong(**given: Any) -> Any:
            return right(**(given | {"loss_reduction": name}))

        patch.setattr(module, "apply_loss_reduction_to_advantages_minibatch", wrong)

    return breaks


def _minibatches(changed: Callable[[list[Any]], list[Any]]) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """A rollout is cut into other mini-batches."""

    def breaks(trainer: Any, patch: pytest.MonkeyPatch) -> None:
        right = trainer.dispatch.stage_data

        def wrong(model: str, data: Any, boundaries: list[Any]) -> Any:
            staged = right(model, data, boundaries)
            return changed(staged) if "advantages" in data else staged

        trainer.dispatch.stage_data = wrong

    return breaks


def _noise(of: torch.Tensor) -> torch.Tensor:
    return of + 0.1 * torch.sin(torch.arange(of.numel())).reshape(of.shape)


SMALL_CLIP = {"trainer.algorithm.eps_clip_low": 0.002, "trainer.algorithm.eps_clip_high": 0.002}
KL = {"trainer.algorithm.use_kl_loss": True, "trainer.algorithm.kl_loss_coef": 0.5}
LONGER = {"trainer.update_epochs_per_batch": 2}
FAULTS = (
    Fault(
        "the clip is ignored",
        _in_worker(_loss_with, {"eps_clip_low": 1e9, "eps_clip_high": 1e9}),
        "RLS801",
        "without a clip",
        SMALL_CLIP,
        first=None,
    ),
    Fault("the loss is doubled", _in_worker(_loss_times, 2.0), "RLS801", "2 times"),
    Fault("the ratio is always 1", _in_worker(_ratio_of_one), "RLS801", "ratio 1", SMALL_CLIP),
    Fault("half of the gradient", _in_worker(_half_of_gradient), "RLS805", "the loss has its value"),
    Fault("the KL term is left out", _in_worker(_without_kl), "RLS801", "without the KL term", KL, first=None),
    Fault("the loss is reduced otherwise", _reduced_by("sequence_mean"), "RLS801", "sequence_mean"),
    Fault("log-probs at another temperature", _in_worker(_temperature), "RLS403"),
    Fault(
        "advantages of the opposite sign",
        _changed("compute_advantages_and_returns", _column("advantages", torch.neg)),
        "RLS516",
        "opposite sign",
    ),
    Fault("rewards are not divided by their deviation", _setting("grpo_norm_by_std", False), "RLS516", "deviation"),
    Fault(
        "rewards of other samples",
        _changed("convert_to_training_input", _column("rewards", lambda of: of.roll(1, 0))),
        "RLS515",
    ),
    Fault("advantages of other rows", _normalised(_column("advantages", lambda of: of.roll(1, 0))), "RLS517"),
    Fault("completions of other rows", _normalised(_other_tokens), "RLS306"),
    Fault("another mask in the loss", _normalised(_prompt_counts), "RLS804"),
    Fault(
        "old log-probs with noise",
        _changed("fwd_logprobs_values_reward", _column("action_log_probs", _noise)),
        "RLS301",
    ),
    Fault(
        "old log-probs of other rows in the loss",
        _normalised(_column("action_log_probs", lambda of: of.roll(1, 0))),
        "RLS305",
    ),
    Fault("the rate is doubled", _in_worker(_rate_doubled), "RLS605"),
    Fault(
        "the schedule stands still",
        _in_worker(_schedule_stands),
        "RLS605",
        "",
        {"trainer.policy.optimizer_config.scheduler": "linear"},
    ),
    Fault(
        "the norm is not clipped",
        _in_worker(_clip_ignored),
        "RLS808",
        "",
        {"trainer.policy.optimizer_config.max_grad_norm": 0.01},
    ),
    Fault("gradients are never cleared", _in_worker(_never_cleared), "RLS803"),
    Fault(
        "the decay is left out",
        _in_worker(_decay_left_out),
        "RLS806",
        "",
        {"trainer.policy.optimizer_config.weight_decay": 0.5},
    ),
    Fault("a mini-batch is left out", _minibatches(lambda of: of[:-1]), "RLS204"),
    Fault("a mini-batch is trained twice", _minibatches(lambda of: [*of, of[0]]), "RLS202"),
    Fault("every third step is skipped", _in_worker(_every_third_step_skipped), "RLS204", first=None),
    Fault("weights are not sent", _sent_once, "RLS405", first=1),
    Fault("the engine keeps its weights", nothing, "RLS403", first=1, keeps=True),
)
