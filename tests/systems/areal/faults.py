"""Faults of AReaL runs, each a small patch of the framework's own code or a setting, and what must be said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from areal.engine import fsdp_engine
from areal.engine.fsdp_engine import FSDPEngine, FSDPPPOActor
from areal.trainer.ppo import actor
from areal.trainer.ppo.actor import PPOActor

from tests.systems.whole_trainers import Fault, nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def _loss_with(**changed: Any) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """The loss is computed with other settings than configured."""

    def breaks(trainer: Any, patch: pytest.MonkeyPatch) -> None:
        right = actor.ppo_actor_loss_fn
        patch.setattr(actor, "ppo_actor_loss_fn", lambda **given: right(**(given | changed)))

    return breaks


def _loss_doubled(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    right = FSDPEngine._compute_logprobs_and_loss
    patch.setattr(FSDPPPOActor, "_compute_logprobs_and_loss", lambda *given, **named: 2 * right(*given, **named))


def _ratio_of_one(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """The loss takes the current log-probs for old ones, so that nothing is ever clipped."""
    right = actor.ppo_actor_loss_fn

    def wrong(**given: Any) -> Any:
        return right(**(given | {"proximal_logprobs": given["logprobs"].detach()}))

    patch.setattr(actor, "ppo_actor_loss_fn", wrong)


def _half_of_gradient(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """The loss has its value, and half of its gradient."""
    right = actor.ppo_actor_loss_fn

    def wrong(**given: Any) -> Any:
        own = given["logprobs"]
        return right(**(given | {"logprobs": own.detach() + 0.5 * (own - own.detach())}))

    patch.setattr(actor, "ppo_actor_loss_fn", wrong)


def _advantages(changed: Callable[[Any], Any]) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """The actor gives other advantages."""

    def breaks(trainer: Any, patch: pytest.MonkeyPatch) -> None:
        right = PPOActor._compute_advantages

        def wrong(self: Any, data: Any) -> Any:
            made = right(self, data)
            made["advantages"] = changed(made["advantages"])
            return made

        patch.setattr(PPOActor, "_compute_advantages", wrong)

    return breaks


def _not_normalised(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    trainer.actor.actor.reward_norm = None


def _biased(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    trainer.actor.actor.reward_norm.std_unbiased = False


def _batch_with(changed: Callable[[dict[str, Any]], None], name: str) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """The batch of a rollout is changed before a step of the actor."""

    def breaks(trainer: Any, patch: pytest.MonkeyPatch) -> None:
        right = getattr(PPOActor, name)

        def wrong(self: Any, data: Any) -> Any:
            changed(data)
            return right(self, data)

        patch.setattr(PPOActor, name, wrong)

    return breaks


def _other_rewards(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """Samples of a prompt get each other's rewards before their advantages are computed."""
    right = FSDPPPOActor.compute_advantages

    def wrong(self: Any, data: Any) -> Any:
        for group in data:
            group["rewards"] = group["rewards"].roll(1)
        return right(self, data)

    patch.setattr(FSDPPPOActor, "compute_advantages", wrong)


def _other_rows(data: dict[str, Any]) -> None:
    data["advantages"] = data["advantages"].roll(1, 0)


def _other_tokens(data: dict[str, Any]) -> None:
    data["input_ids"] = torch.where(data["loss_mask"] != 0, data["input_ids"].roll(1, 0), data["input_ids"])


def _prompt_counts(data: dict[str, Any]) -> None:
    data["loss_mask"] = torch.where(data["attention_mask"], 1.0, data["loss_mask"])


def _minibatches(changed: Callable[[list[Any]], list[Any]]) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """A rollout is cut into other mini-batches."""

    def breaks(trainer: Any, patch: pytest.MonkeyPatch) -> None:
        right = actor.split_padded_tensor_dict_into_mb_list

        def wrong(*given: Any, **named: Any) -> Any:
            made = right(*given, **named)
            made.mbs = changed(made.mbs)
            return made

        patch.setattr(actor, "split_padded_tensor_dict_into_mb_list", wrong)

    return breaks


def _old_with_noise(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    right = PPOActor._compute_logp

    def wrong(self: Any, data: Any) -> Any:
        made = right(self, data)
        return made + 0.1 * torch.sin(torch.arange(made.numel())).reshape(made.shape)

    patch.setattr(PPOActor, "_compute_logp", wrong)


def _rate_doubled(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    for group in trainer.actor.optimizer.param_groups:
        group["lr"] *= 2


def _schedule_stands(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FSDPEngine, "lr_scheduler_step", lambda self: None)


def _clip_ignored(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    right = fsdp_engine.fsdp2_clip_grad_norm
    patch.setattr(
        fsdp_engine, "fsdp2_clip_grad_norm", lambda *given, **named: right(*given, **(named | {"max_norm": 1e9}))
    )


def _never_cleared(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FSDPEngine, "optimizer_zero_grad", lambda self: None)
    patch.setattr(FSDPPPOActor, "optimizer_zero_grad", FSDPEngine.optimizer_zero_grad)


def _every_third_step_skipped(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    right, calls = trainer.actor.optimizer.step, iter(range(10**6))
    patch.setattr(trainer.actor.optimizer, "step", lambda *given: right(*given) if next(calls) % 3 != 2 else None)


def _not_sent(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FSDPEngine, "update_weights", lambda self, meta: None)


def _step_with(**changed: Any) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """The optimizer steps with other settings than configured."""

    def breaks(trainer: Any, patch: pytest.MonkeyPatch) -> None:
        for group in trainer.actor.optimizer.param_groups:
            group.update(changed)

    return breaks


def _other_optimizer(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    engine = trainer.actor
    engine.optimizer = torch.optim.SGD(engine.model.parameters(), lr=3e-3)
    engine.lr_scheduler.optimizer = engine.optimizer


def _actor_with(name: str, value: float) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """The actor computes advantages with another setting than configured."""

    def breaks(trainer: Any, patch: pytest.MonkeyPatch) -> None:
        setattr(trainer.actor.actor, name, value)

    return breaks


def _ticks_each_update(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    engine, right = trainer.actor, FSDPEngine.optimizer_step

    def wrong() -> Any:
        made = right(engine)
        engine.lr_scheduler.step()
        return made

    engine.optimizer_step = wrong


def _last_microbatch_alone(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """Gradients are cleared before each micro-batch, so that an update is made of its last."""
    engine, right = trainer.actor, trainer.actor._compute_logprobs_and_loss

    def wrong(*given: Any, **named: Any) -> Any:
        engine.optimizer.zero_grad()
        return right(*given, **named)

    engine._compute_logprobs_and_loss = wrong


def _microbatches_weighted_alike(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """Each micro-batch has the same share of the loss, however many tokens it has."""
    right = FSDPEngine._compute_logprobs_and_loss

    def wrong(self: Any, logits: Any, ctx: Any, loss_fn: Any, weight: Any, *given: Any, **named: Any) -> Any:
        return right(self, logits, ctx, loss_fn, lambda data: torch.tensor(10.0), *given, **named)

    patch.setattr(FSDPPPOActor, "_compute_logprobs_and_loss", wrong)


def _gradient_halved(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """That of one tensor, between the backward passes and the step."""
    right = fsdp_engine.fsdp2_clip_grad_norm

    def wrong(parameters: Any, *given: Any, **named: Any) -> Any:
        parameters[0].grad.mul_(0.5)
        return right(parameters, *given, **named)

    patch.setattr(fsdp_engine, "fsdp2_clip_grad_norm", wrong)


def _scale(model: Any, factor: float) -> None:
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(factor)


def _weights_shrink(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """After each step, by somebody else than the optimizer."""
    engine, right = trainer.actor, FSDPEngine.optimizer_step

    def wrong() -> Any:
        made = right(engine)
        _scale(engine.model, 0.999)
        return made

    engine.optimizer_step = wrong


def _dropout(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """Dropout in the loss, and none where log-probs are recomputed."""
    for module in trainer.actor.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3


def _layer_frozen(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    for name, weights in trainer.actor.model.named_parameters():
        if "layers.0" in name:
            weights.requires_grad_(False)


def _other_reference(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    _scale(trainer.ref.model, 1.3)


def _reference_moves(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    right = trainer.actor.ppo_update

    def wrong(batch: Any) -> Any:
        made = right(batch)
        _scale(trainer.ref.model, 1.001)
        return made

    trainer.actor.ppo_update = wrong


def _ends_early(trainer: Any, patch: pytest.MonkeyPatch) -> None:
    """The loop ends after two rollouts, by a limit that is set once it runs."""
    right = trainer.actor.set_version

    def wrong(version: int) -> Any:
        trainer.config.total_train_steps = 2
        return right(version)

    trainer.actor.set_version = wrong


def _proximal_of_engine(data: dict[str, Any]) -> None:
    data["prox_logp"] = data["logprobs"].clone()


SMALL_CLIP = {"actor.eps_clip": 0.002}
REFERENCE = {"reference": True, "actor.kl_ctl": 0.3}
FAULTS = (
    # Whether the clip ever acts in a mini-batch depends on its samples.
    Fault("the clip is ignored", _loss_with(eps_clip=1e9), "RLS801", "without a clip", SMALL_CLIP, first=None),
    Fault("the loss is doubled", _loss_doubled, "RLS801", "2 times"),
    Fault("the ratio is always 1", _ratio_of_one, "RLS801", "ratio 1", SMALL_CLIP),
    Fault("half of the gradient", _half_of_gradient, "RLS805", "the loss has its value"),
    Fault("advantages of the opposite sign", _advantages(lambda of: -of), "RLS516", "opposite sign"),
    Fault("rewards are not normalised", _not_normalised, "RLS516", "not normalised"),
    Fault("the other standard deviation", _biased, "RLS516", "biased or not"),
    Fault("rewards of other samples", _other_rewards, "RLS515"),
    Fault("advantages of other rows", _batch_with(_other_rows, "_ppo_update"), "RLS517"),
    Fault("completions of other rows", _batch_with(_other_tokens, "_ppo_update"), "RLS306"),
    Fault("the prompt counts in the loss", _batch_with(_prompt_counts, "_ppo_update"), "RLS804"),
    Fault("old log-probs with noise", _old_with_noise, "RLS301"),
    Fault("the rate is doubled", _rate_doubled, "RLS605"),
    Fault(
        "the schedule stands still",
        _schedule_stands,
        "RLS605",
        "",
        {"actor.optimizer.lr_scheduler_type": "linear"},
        first=1,
    ),
    Fault("the norm is not clipped", _clip_ignored, "RLS808", "", {"actor.optimizer.gradient_clipping": 0.01}),
    Fault("gradients are never cleared", _never_cleared, "RLS803"),
    Fault("a mini-batch is left out", _minibatches(lambda of: of[:-1]), "RLS204"),
    Fault("a mini-batch is trained twice", _minibatches(lambda of: [*of, of[0]]), "RLS202"),
    Fault("every third step is skipped", _every_third_step_skipped, "RLS204"),
    Fault("other moments of Adam", _step_with(betas=(0.5, 0.9)), "RLS101", "beta1 and beta2"),
    Fault("another epsilon", _step_with(eps=1e-3), "RLS101", "eps"),
    Fault("another optimizer", _other_optimizer, "RLS101", "SGD"),
    Fault(
        "the schedule ticks with each update",
        _ticks_each_update,
        "RLS605",
        "",
        {"actor.optimizer.lr_scheduler_type": "linear"},
    ),
    Fault("lambda is left out", _actor_with("gae_lambda", 1.0), "RLS516", "lambda = 1", {"actor.gae_lambda": 0.8}),
    Fault(
        "rewards are not clipped", _actor_with("reward_clip", 1e9), "RLS516", "the clip of", {"actor.reward_clip": 0.5}
    ),
    Fault("an update is made of its last micro-batch", _last_microbatch_alone, "RLS810"),
    Fault("micro-batches are weighted alike", _microbatches_weighted_alike, "RLS801"),
    Fault("the gradient of a tensor is halved", _gradient_halved, "RLS810"),
    Fault("weights shrink between updates", _weights_shrink, "RLS404"),
    Fault("dropout in the loss", _dropout, "RLS301"),
    Fault("a layer is frozen", _layer_frozen, "RLS408", "first weights", first=None),
    Fault("a penalty of the opposite sign", _actor_with("kl_ctl", -0.3), "RLS516", "opposite sign", REFERENCE, first=1),
    Fault("another reference", _other_reference, "RLS414", "", REFERENCE),
    Fault("the reference moves", _reference_moves, "RLS411", "", REFERENCE, first=1),
    Fault("training ends early", _ends_early, "RLS206", first=None),
    Fault(
        "the engine's log-probs are the proximal ones",
        _batch_with(_proximal_of_engine, "_ppo_update"),
        "RLS305",
        "",
        {"actor.use_decoupled_loss": True, "rollout.max_head_offpolicyness": 1},
        first=None,
    ),
    Fault("weights are not sent", _not_sent, "RLS405", first=1),
    Fault("the server keeps its weights", nothing, "RLS403", first=1, keeps=True),
    Fault(
        "samples of a pack see each other, as with torch's attention",
        nothing,
        "RLS403",
        settings={"actor.mb_spec.max_tokens_per_mb": None},
    ),
)
