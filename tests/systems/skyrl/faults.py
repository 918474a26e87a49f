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


def _step_with(worker: Any, changed: dict[str, Any]) -> None:
    """The optimizer steps with other settings than configured."""
    for group in worker.optimizer.param_groups:
        group.update(changed)


def _last_microbatch_alone(worker: Any) -> None:
    """Gradients are cleared before each micro-batch, so that an update is made of its last."""
    right = worker._forward_backward_micro

    def wrong(*given: Any, **named: Any) -> Any:
        worker.optimizer.zero_grad()
        return right(*given, **named)

    worker._forward_backward_micro = wrong


def _kl_of_whole_update(worker: Any) -> None:
    """The KL term of a micro-batch counts as that of the whole update."""
    right = worker._forward_backward_micro
    worker._forward_backward_micro = lambda experience, weight, **named: right(experience, 1.0, **named)


def _gradient_halved(worker: Any) -> None:
    """That of one tensor, between the backward passes and the step."""
    right = worker.strategy.optimizer_step

    def wrong(*given: Any, **named: Any) -> Any:
        next(iter(worker.model.model.parameters())).grad.mul_(0.5)
        return right(*given, **named)

    worker.strategy.optimizer_step = wrong


def _weights_shrink(worker: Any) -> None:
    """After each step, by somebody else than the optimizer."""
    right = worker.strategy.optimizer_step

    def wrong(*given: Any, **named: Any) -> Any:
        made = right(*given, **named)
        _scale_weights(worker, 0.999)
        return made

    worker.strategy.optimizer_step = wrong


def _scale_weights(worker: Any, factor: float) -> None:
    with torch.no_grad():
        for weights in worker.model.model.parameters():
            weights.mul_(factor)


def _dropout(worker: Any) -> None:
    """Dropout in the loss, and none where old log-probs are computed."""
    for module in worker.model.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3


def _ticks_twice(worker: Any) -> None:
    right = worker.scheduler.step

    def wrong(*given: Any) -> None:
        right()
        right()

    worker.scheduler.step = wrong


def _layer_frozen(worker: Any) -> None:
    for name, weights in worker.model.model.named_parameters():
        if "layers.0" in name:
            weights.requires_grad_(False)


# In the trainer's process


def _reference_scaled(trainer: Any, factor: float) -> None:
    (actor,) = trainer.ref_model._actor_handlers
    ray.get(actor.__ray_call__.remote(_scale_weights, factor))


def _other_reference(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """The reference has other weights than the policy begins with."""
    _reference_scaled(trainer, 1.3)


def _reference_moves(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """The weights of the reference are others after each rollout."""
    right = trainer.train_critic_and_policy

    def wrong(data: Any) -> Any:
        made = right(data)
        _reference_scaled(trainer, 1.001)
        return made

    trainer.train_critic_and_policy = wrong


def _penalty_turned(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """Rewards rise with the divergence from the reference."""
    from skyrl.train import trainer as module

    right = module.compute_approx_kl
    patch.setattr(module, "compute_approx_kl", lambda *given, **named: -right(*given, **named))


def _groups_mixed(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """Each group has a sample of the group after it."""
    from skyrl.backends.skyrl_train.utils import ppo_utils

    right = ppo_utils.compute_advantages_and_returns

    def wrong(**given: Any) -> Any:
        first, *others = given["index"]
        return right(**(given | {"index": [*others, first]}))

    patch.setattr(ppo_utils, "compute_advantages_and_returns", wrong)


def _drawn_at_another_temperature(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    from skyrl.train import trainer as module

    right = module.get_sampling_params_for_backend
    patch.setattr(module, "get_sampling_params_for_backend", lambda *given: right(*given) | {"temperature": 0.5})


class _SameBatch:
    """A loader that gives its first batch again and again."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Any:
        return iter([next(iter(self._loader))] * len(self._loader))

    def __len__(self) -> int:
        return len(self._loader)


def _same_rows(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    trainer.train_dataloader = _SameBatch(trainer.train_dataloader)


def _ends_early(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """The loop ends after two rollouts, by a limit that is set once it runs."""
    right = trainer._fire

    def wrong(event: str, **named: Any) -> Any:
        if event == "on_epoch_start":
            trainer.cfg.trainer.max_training_steps = 2
        return right(event, **named)

    trainer._fire = wrong


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


def _first_for_second(batch: Any) -> None:
    """The second sample is the first once more, in every column."""
    for name, of in batch.items():
        if isinstance(of, torch.Tensor):
            batch[name] = torch.cat([of[:1], of[:1], of[2:]])


SMALL_CLIP = {"trainer.algorithm.eps_clip_low": 0.002, "trainer.algorithm.eps_clip_high": 0.002}
KL = {"trainer.algorithm.use_kl_loss": True, "trainer.algorithm.kl_loss_coef": 0.5}
PENALTY = {
    "trainer.algorithm.use_kl_in_reward": True,
    "trainer.algorithm.kl_loss_coef": 0.5,
    "trainer.algorithm.kl_estimator_type": "k1",
}
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
    Fault("other moments of Adam", _in_worker(_step_with, {"betas": (0.5, 0.9)}), "RLS101", "adam_betas"),
    Fault(
        "the decay goes into the gradient",
        _in_worker(_step_with, {"decoupled_weight_decay": False}),
        "RLS101",
        "decoupled_weight_decay",
        {"trainer.policy.optimizer_config.weight_decay": 0.5},
    ),
    Fault("an update is made of its last micro-batch", _in_worker(_last_microbatch_alone), "RLS810"),
    Fault("the gradient of a tensor is halved", _in_worker(_gradient_halved), "RLS810", "0.5 times"),
    Fault("weights shrink between updates", _in_worker(_weights_shrink), "RLS404"),
    Fault("dropout in the loss", _in_worker(_dropout), "RLS301"),
    Fault(
        "the schedule ticks twice",
        _in_worker(_ticks_twice),
        "RLS605",
        "",
        {"trainer.policy.optimizer_config.scheduler": "linear"},
    ),
    Fault("a layer is frozen", _in_worker(_layer_frozen), "RLS408", "first weights", first=None),
    Fault(
        "the KL term is not the micro-batch's share",
        _in_worker(_kl_of_whole_update),
        "RLS801",
        "not a share of the update",
        KL,
        first=None,
    ),
    # Before the first update policy and reference are the same, and there is no divergence.
    Fault("a penalty of the opposite sign", _penalty_turned, "RLS516", "", PENALTY, first=1),
    Fault(
        "log-probs of the reference are those of other rows",
        _normalised(_column("base_action_log_probs", lambda of: of.roll(1, 0))),
        "RLS311",
        "",
        KL,
    ),
    Fault("another reference", _other_reference, "RLS414", "", KL),
    Fault("the reference moves", _reference_moves, "RLS411", "", KL, first=1),
    Fault(
        "padding is attended to",
        _changed("convert_to_training_input", _column("attention_mask", torch.ones_like)),
        "RLS306",
    ),
    Fault("groups are mixed", _groups_mixed, "RLS516"),
    Fault("another temperature draws", _drawn_at_another_temperature, "RLS403"),
    Fault("the same rows again and again", _same_rows, "RLS509", first=1),
    Fault("training ends early", _ends_early, "RLS206", first=None),
    Fault("a sample in the place of another", _normalised(_first_for_second), "RLS502"),
    Fault("the engine keeps its weights", nothing, "RLS403", first=1, keeps=True),
)
