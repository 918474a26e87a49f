"""More of the fault corpus of verl (`tests.systems.verl.faults`): numbers that are wrong on their way from the reward to the weight."""

from __future__ import annotations

import itertools
import os
from typing import Any

import wrapt

from tests.systems.verl.faults import (
    CONTROLLER,
    ENGINE,
    WORKER,
    WORKERS,
    Callable,
    _Now,
    between_hooks,
    fault,
    in_loss,
    on_advantages,
    on_first_step,
    on_forward,
    on_mini_batches,
    on_rollouts_of_controller,
    on_training_data,
    trains,
    twice_as_far,
    without_last,
    wrap_in_controller,
    wrap_in_trainer,
)

V0 = "verl.trainer.ppo.ray_trainer"

# From the loss to the gradient


@fault(report="a surrogate whose value is right", code="RLS805", variant="another at some token")
def gradient_against_the_loss(at: int) -> None:
    """The loss has the right value and the opposite gradient."""
    on_forward(at, lambda loss, output: (2 * loss.detach() - loss, output))


@fault(report="log-probs that are detached", code="RLS805", variant="another at some token")
def gradient_of_every_second_token(at: int) -> None:
    """The policy's loss is computed from log-probs of which every second is detached."""

    def get(function: Any, args: Any, kwargs: Any) -> Any:
        import torch

        loss = function(*args, **kwargs)

        def halved(**given: Any) -> Any:
            log_prob = given["log_prob"]
            even = torch.arange(log_prob.shape[-1]) % 2 == 0
            return loss(**given | {"log_prob": torch.where(even, log_prob, log_prob.detach())})

        return halved

    in_loss(at, "get_policy_loss_fn", get)


@fault(report="a critic that is trained away from its targets", code="RLS805", variant="another at some token")
def gradient_against_the_critics_loss(at: int) -> None:
    """The critic's loss has the right value and the opposite gradient."""
    on_forward(at, lambda loss, output: (2 * loss.detach() - loss, output), role="critic")


@fault(report="layer-wise rates by hand", code="RLS810", variant="0.5 times as much in")
def gradient_of_a_layer_halved(at: int) -> None:
    """The gradient of one layer is halved before the clip."""

    def act(step: Callable[[], Any], engine: Any) -> Any:
        for name, p in engine.module.named_parameters():
            if ".layers.0." in name and p.grad is not None:
                p.grad.mul_(0.5)
        return step()

    on_first_step(at, act)


@fault(report="a head that is left out by its name", code="RLS810", variant="times as much in")
def gradients_of_some_tensors_dropped(at: int) -> None:
    """The gradients of every third tensor are dropped before the clip."""

    def act(step: Callable[[], Any], engine: Any) -> Any:
        for p in list(engine.module.parameters())[::3]:
            p.grad = None
        return step()

    on_first_step(at, act)


@fault(report="noise for exploration", code="RLS810", variant="times as much in")
def noise_in_gradients(at: int) -> None:
    """Noise is added to all gradients before the clip."""

    def act(step: Callable[[], Any], engine: Any) -> Any:
        import torch

        for p in engine.module.parameters():
            if p.grad is not None:
                p.grad.add_(torch.full_like(p.grad, 0.01))
        return step()

    on_first_step(at, act)


@fault(report="a setting that a callback changes", code="RLS808")
def limit_of_the_norm_raised(at: int) -> None:
    """The limit of the gradient norm is raised while training goes on."""

    def act(step: Callable[[], Any], engine: Any) -> Any:
        config = engine.optimizer_config
        before = config.clip_grad
        object.__setattr__(config, "clip_grad", 1e9)
        try:
            return step()
        finally:
            object.__setattr__(config, "clip_grad", before)

    on_first_step(at, act)


@fault(report="a setting that a callback changes", code="RLS101", variant="optim.betas = [0.5, 0.9]")
def betas_changed(at: int) -> None:
    """The betas of the optimizer are others in one step."""

    def act(step: Callable[[], Any], engine: Any) -> Any:
        before = [group["betas"] for group in engine.optimizer.param_groups]
        for group in engine.optimizer.param_groups:
            group["betas"] = (0.5, 0.9)
        try:
            return step()
        finally:
            for group, betas in zip(engine.optimizer.param_groups, before, strict=True):
                group["betas"] = betas

    on_first_step(at, act)


@fault(report="an average of the weights that is written back", code="RLS404")
def one_tensor_written_between_updates(at: int) -> None:
    """One tensor of the policy is scaled between two updates."""

    def act(number: int, train: Any, data: Any, worker: Any) -> Any:
        if number == 1:
            list(worker.engine.module.parameters())[1].data.mul_(0.99)
        return train(data)

    on_mini_batches(at, act)


@fault(report="a cache of gathered weights", code="RLS403", shows_after=1)
def stale_tensor_handed_over(at: int) -> None:
    """One tensor that goes to the engine is that of the sync before."""
    before: list[Any] = []

    def get_per_tensor_param(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        tensors, adapter = wrapped(*args, **kwargs)
        return _with_stale(tensors), adapter

    def _with_stale(tensors: Any) -> Any:
        for name, tensor in tensors:
            if "lm_head" not in name:
                yield name, tensor
                continue
            kept = tensor.detach().clone()
            yield name, before[0] if _Now.rollout == at and before else tensor
            before[:] = [kept]

    wrap_in_trainer(ENGINE, "FSDPEngine", "get_per_tensor_param", get_per_tensor_param)


@fault(report="a fused kernel with a backward of its own", code="RLS813")
def backward_of_a_layer_halved(at: int) -> None:
    """Half of the gradient gets lost in the feed-forward part of each layer, whose output stays as it is."""

    def forward(wrapped: Any, layer: Any, args: Any, kwargs: Any) -> Any:
        output = wrapped(*args, **kwargs)
        return output.detach() / 2 + output / 2 if _Now.rollout == at and output.requires_grad else output

    wrap_in_trainer("transformers.models.qwen2.modeling_qwen2", "Qwen2MLP", "forward", forward)


# The reference


@fault(report="verl, a temperature that one forward does not get", code="RLS414")
def reference_at_another_temperature(at: int) -> None:
    """The reference computes its log-probs at half of the temperature."""

    def infer_batch(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        from verl.utils import tensordict_utils

        if _Now.rollout == at and worker.engine_config.forward_only:
            data = args[0] if args else kwargs["data"]
            tensordict_utils.assign_non_tensor(data, temperature=0.5)
        return wrapped(*args, **kwargs)

    wrap_in_trainer(WORKERS, "TrainingWorker", "infer_batch", infer_batch)


@fault(report="trl#454", code="RLS311")
def reference_log_probs_altered(at: int) -> None:
    """The log-probs of the reference are others when the policy trains on them."""

    def alter(data: Any) -> None:
        for row in data["ref_log_prob"].unbind():
            row.sub_(0.25)

    on_training_data(at, alter)


@fault(
    report="verl 0.9.1, the policy's worker in the place of the reference's",
    code="RLS311",
    variant="without any forward",
)
def policy_scores_as_reference(at: int) -> None:
    """The policy computes the log-probs that the reference is asked for."""

    def compute_ref_log_prob(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        reference = worker.ref
        worker.ref = worker.actor if _Now.rollout == at else reference
        try:
            return wrapped(*args, **kwargs)
        finally:
            worker.ref = reference

    wrap_in_trainer(WORKERS, "ActorRolloutRefWorker", "compute_ref_log_prob", compute_ref_log_prob)


# Rewards, advantages, masks


@fault(report="only what is better than the mean", code="RLS516", variant="others, up to")
def advantages_below_zero_left_out(at: int) -> None:
    """Advantages below 0 are set to 0."""

    def alter(data: Any) -> None:
        data.batch["advantages"] = data.batch["advantages"].clamp(min=0)

    on_advantages(at, alter)


@fault(report="a reward that is scaled twice", code="RLS515")
def rewards_halved_for_the_estimator(at: int) -> None:
    """The estimator of the older trainer gets half of each reward."""
    rollouts = itertools.count()

    def compute(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if next(rollouts) == at:
            args[0].batch["token_level_rewards"] = 0.5 * args[0].batch["token_level_rewards"]
        return wrapped(*args, **kwargs)

    if WORKER not in os.environ:
        wrapt.when_imported(V0)(lambda found: wrapt.wrap_function_wrapper(found, "compute_advantage", compute))


@fault(report="a coefficient that never adapts", code="RLS516", variant="where its adaptive controller gives")
def coefficient_stands_still(at: int) -> None:
    """The adaptive coefficient of the KL penalty is not adapted after a rollout."""
    rollouts = itertools.count()

    def update(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return None if next(rollouts) == at else wrapped(*args, **kwargs)

    wrap_in_controller("verl.trainer.ppo.core_algos", "AdaptiveKLController", "update", update)


@fault(report="a penalty of the opposite sign", code="RLS516")
def penalty_reversed(at: int) -> None:
    """The KL penalty of a rollout is added to its rewards."""
    rollouts = itertools.count()

    def penalise(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        data, metrics = wrapped(*args, **kwargs)
        if next(rollouts) == at:
            batch = data.batch
            batch["token_level_rewards"] = 2 * batch["token_level_scores"] - batch["token_level_rewards"]
        return data, metrics

    if WORKER not in os.environ:
        name = "apply_kl_penalty"
        wrapt.when_imported(CONTROLLER)(lambda found: wrapt.wrap_function_wrapper(found, name, penalise))


@fault(report="a temperature that log-probs leave out", code="RLS314")
def log_probs_at_another_temperature(at: int) -> None:
    """Old log-probs and those of the loss are not those of the temperature that samples are drawn at."""

    def act(rollout: int, call: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if rollout != at:
            return call(*args, **kwargs)
        configured = trainer.config.actor_rollout_ref.rollout
        kept, configured.temperature = configured.temperature, 1.0
        try:
            return call(*args, **kwargs)
        finally:
            configured.temperature = kept

    for method in ("_compute_old_log_prob", "_update_actor"):
        on_rollouts_of_controller(method, act)


def on_v0(at: int, method: str, act: Callable[[Any, Any], Any]) -> None:
    """Act in place of a method of the older trainer on a rollout: `act(call, batch)`."""
    rollouts = itertools.count()

    def call(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        return act(wrapped, *args) if next(rollouts) == at else wrapped(*args, **kwargs)

    wrap_in_controller(V0, "RayPPOTrainer", method, call)


@fault(report="torchtune#2792", code="RLS518", variant="others in 16 of 16")
def masks_without_the_end(at: int) -> None:
    """The masks of the older trainer leave out the last token before anything is computed with them."""

    def act(call: Any, batch: Any) -> Any:
        mask = batch.batch["response_mask"]
        batch.batch["response_mask"] = without_last(mask.bool()).to(mask.dtype)
        return call(batch)

    on_v0(at, "_compute_old_log_prob", act)


# The critic


@fault(report="values that belong to other samples", code="RLS517", variant="other values")
def values_of_other_samples(at: int) -> None:
    """The critic's values are those of the sample before."""

    def act(call: Any, batch: Any) -> Any:
        values = call(batch)
        values.batch["values"] = values.batch["values"].roll(1, 0)
        return values

    on_v0(at, "_compute_values", act)


@fault(report="values of other tokens in every forward of a critic", code="RLS314", variant="of their mean away")
def values_of_the_token_before(at: int) -> None:
    """The critic gives each token the value of the one before it, when a rollout is scored and when it is trained."""

    def outputs(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        import torch

        given = wrapped(*args, **kwargs)
        if _Now.rollout != at:
            return given
        values = given["values"]
        return {"values": torch.nested.nested_tensor_from_jagged(values.values().roll(1), values.offsets())}

    wrap_in_trainer(ENGINE, "FSDPEngineWithValueHead", "prepare_model_outputs", outputs)


@fault(report="torchtune#2792, for a critic", code="RLS517", variant="other values")
def returns_altered_before_training(at: int) -> None:
    """The returns of the samples are others when the critic trains on them."""
    on_training_data(at, lambda data: data["returns"].mul_(0.5), role="critic")


@fault(report="a value clip that is configured and not applied", code="RLS801", variant="times that")
def value_clip_removed(at: int) -> None:
    """The critic's loss has no clip of the values."""
    in_loss(
        at, "compute_value_loss", lambda function, args, kwargs: function(*args, **kwargs | {"cliprange_value": 1e9})
    )


@fault(report="returns of the next step", code="RLS801", variant="times that")
def returns_shifted_by_a_token(at: int) -> None:
    """The critic's loss gets the returns of the token after."""

    def call(function: Any, args: Any, kwargs: Any) -> Any:
        return function(*args, **kwargs | {"returns": kwargs["returns"].roll(-1, 1)})

    in_loss(at, "compute_value_loss", call)


@fault(report="verl 0.9.1, zero_grad left out for the critic", code="RLS803")
def gradients_of_the_critic_left(at: int) -> None:
    """The critic's gradients are not cleared between its updates on a rollout."""

    def optimizer_zero_grad(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        return None if _Now.rollout == at and trains(engine, "critic") else wrapped(*args, **kwargs)

    wrap_in_trainer(ENGINE, "FSDPEngine", "optimizer_zero_grad", optimizer_zero_grad)


@fault(report="one rate for two models", code="RLS605")
def rate_of_the_critic_doubled(at: int) -> None:
    """The critic's rate is doubled before its first step on a rollout."""

    def act(step: Callable[[], Any], engine: Any) -> Any:
        for group in engine.optimizer.param_groups:
            group["lr"] *= 2
        return step()

    on_first_step(at, act, role="critic")


@fault(report="weights of a critic written after the step", code="RLS806", variant="2 times the step")
def step_of_the_critic_twice_as_far(at: int) -> None:
    """Each step of the critic is made twice as far."""
    between_hooks(at, twice_as_far, role="critic")


@fault(report="ms-swift#10117, for a critic", code="RLS805", variant="0.5 times")
def backward_of_half_the_critics_loss(at: int) -> None:
    """Half of the critic's loss goes into the backward."""
    inside: list[bool] = []

    def act(number: int, train: Any, data: Any, worker: Any) -> Any:
        inside.append(True)
        try:
            return train(data)
        finally:
            inside.clear()

    def backward(wrapped: Any, loss: Any, args: Any, kwargs: Any) -> Any:
        return wrapped.__func__(loss / 2 if inside else loss, *args, **kwargs)

    on_mini_batches(at, act, role="critic")
    if WORKER in os.environ:
        import torch

        wrapt.wrap_function_wrapper(torch, "Tensor.backward", backward)


# What the engine draws, which gives no log-probs unless they are asked for

REQUESTS = 16
"""Of a rollout: its samples."""


def on_requests(at: int, act: Callable[[Any, dict[str, Any]], Any]) -> None:
    """Act in place of each request of a rollout to the engine: `act(request, its keywords)`, in the one process that sends them."""
    made = itertools.count()

    def generate(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        if next(made) // REQUESTS != at:
            return wrapped(*args, **kwargs)
        return act(lambda **given: wrapped(*args, **given), kwargs)

    wrap_in_controller("verl.workers.rollout.llm_server", "LLMServerClient", "generate", generate)


def with_sampling(at: int, **settings: float) -> None:
    """The engine draws a rollout with these settings in the place of those that it was asked for."""

    def act(request: Any, kwargs: dict[str, Any]) -> Any:
        return request(**kwargs | {"sampling_params": kwargs["sampling_params"] | settings})

    on_requests(at, act)


@fault(report="trl#4159", code="RLS413", variant="more probable than that")
def engine_at_another_temperature(at: int) -> None:
    """The engine draws at 0.6 times the temperature of the trainer."""
    with_sampling(at, temperature=0.6)


@fault(report="top_p read from generation_config.json", code="RLS413", variant="more probable than that")
def engine_truncates(at: int) -> None:
    """The engine draws from the tokens that make up 0.7 of the distribution."""
    with_sampling(at, top_p=0.7)


@fault(report="trl#3024", code="RLS519", variant="equal another of the rollout")
def answers_from_a_cache(at: int) -> None:
    """A prompt that was asked before gets the answer of that time."""
    answers: dict[tuple[int, ...], Any] = {}

    async def act(request: Any, kwargs: dict[str, Any]) -> Any:
        import asyncio

        prompt = tuple(kwargs["prompt_ids"])
        if prompt not in answers:
            answers[prompt] = asyncio.ensure_future(request(**kwargs))
        return (await answers[prompt]).model_copy(deep=True)

    on_requests(at, act)
