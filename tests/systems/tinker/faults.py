"""Faults of a program around the client and the loop, as small patches. Those of a server are `server.FAULTS`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tinker
from tinker_cookbook import completers
from tinker_cookbook.rl import train

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    Breaks = Callable[[pytest.MonkeyPatch], None]


def _around(owner: Any, name: str, change: Callable[..., Any]) -> Breaks:
    """Replace a function by `change(original, *args, **kwargs)`."""

    def breaks(patch: pytest.MonkeyPatch) -> None:
        original = getattr(owner, name)
        patch.setattr(owner, name, lambda *args, **kwargs: change(original, *args, **kwargs))

    return breaks


def _with(datum: Any, name: str, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    tensor = datum.loss_fn_inputs[name]
    other = tinker.TensorData.from_numpy(change(np.array(tensor.to_numpy())).astype(tensor.to_numpy().dtype))
    return dataclasses.replace(datum, loss_fn_inputs=datum.loss_fn_inputs | {name: other})


def _sent(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Breaks:
    """Change a tensor of all data on their way into forward_backward."""

    def changed(original: Any, self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, [_with(datum, name, change) for datum in data], *args, **kwargs)

    return _around(tinker.TrainingClient, "forward_backward", changed)


def _stepped(**others: float) -> Breaks:
    """Change parameters of Adam on their way into optim_step."""

    def changed(original: Any, self: Any, given: Any, **kwargs: Any) -> Any:
        return original(self, given.model_copy(update=others), **kwargs)

    return _around(tinker.TrainingClient, "optim_step", changed)


def _one_late(drift: float = 0.5) -> Breaks:
    """The rate falls although it is constant by configuration."""
    calls = [0]

    def changed(original: Any, self: Any, given: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        rate = given.learning_rate * drift ** (calls[0] - 1)
        return original(self, given.model_copy(update={"learning_rate": rate}), **kwargs)

    return _around(tinker.TrainingClient, "optim_step", changed)


def _step_twice(original: Any, self: Any, given: Any, **kwargs: Any) -> Any:
    original(self, given, **kwargs)
    return original(self, given, **kwargs)


def _skip_every_second(patch: pytest.MonkeyPatch) -> None:
    original, calls = tinker.TrainingClient.optim_step, [0]

    def changed(self: Any, given: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] % 2:
            return original(self, given, **kwargs)
        return self.holder.run_coroutine_threadsafe(_nothing())

    async def _nothing() -> Any:
        return tinker.types.OptimStepResponse(metrics={})

    patch.setattr(tinker.TrainingClient, "optim_step", changed)


def _uncentred(original: Any, groups: Any) -> Any:
    import torch

    return [torch.tensor(group.get_total_rewards()) for group in groups]


def _normalised(original: Any, groups: Any) -> Any:
    return [each / (each.std() + 1e-6) for each in original(groups)]


def _over_batch(original: Any, groups: Any) -> Any:
    import torch

    rewards = [torch.tensor(group.get_total_rewards()) for group in groups]
    mean = torch.cat(rewards).mean()
    return [each - mean for each in rewards]


def _trained(change: Callable[[list[Any]], list[Any]]) -> Breaks:
    """Change the data between their preparation and the training."""

    async def changed(original: Any, *args: Any, **kwargs: Any) -> Any:
        return await original(*args, **(kwargs | {"data_D": change(list(kwargs["data_D"]))}))

    return _around(train, "train_step", changed)


def _assembled(change: Callable[[list[Any]], list[Any]]) -> Breaks:
    """Change the data that are made of groups."""

    def changed(original: Any, *args: Any, **kwargs: Any) -> Any:
        data, metadata = original(*args, **kwargs)
        return change(list(data)), change(list(metadata))

    return _around(train, "assemble_training_data", changed)


def _twice(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    original(self, *args, **kwargs)
    return original(self, *args, **kwargs)


def _first_flipped(original: Any, groups: Any) -> Any:
    made = original(groups)
    made[0] = -made[0]
    return made


def _of_neighbours(original: Any, groups: Any) -> Any:
    return [each.roll(1) for each in original(groups)]


def _half_of_distribution(original: Any, *args: Any, sampling_params: Any, **kwargs: Any) -> Any:
    return original(*args, sampling_params=sampling_params.model_copy(update={"top_p": 0.5}), **kwargs)


def _penalty_times(factor: float) -> Breaks:
    """The KL penalty has another coefficient than configured."""

    def breaks(patch: pytest.MonkeyPatch) -> None:
        original = train.incorporate_kl_penalty

        async def changed(data: Any, client: Any, coefficient: float, *args: Any) -> Any:
            return await original(data, client, factor * coefficient, *args)

        patch.setattr(train, "incorporate_kl_penalty", changed)

    return breaks


def _keeps_sampler(patch: pytest.MonkeyPatch) -> None:
    original, kept = train.save_checkpoint_and_get_sampling_client, []

    async def changed(*args: Any, **kwargs: Any) -> Any:
        if not kept:
            kept.append(await original(*args, **kwargs))
        return kept[0]

    patch.setattr(train, "save_checkpoint_and_get_sampling_client", changed)


def _sampler_before_updates(patch: pytest.MonkeyPatch) -> None:
    """Each sampler is the one before: it is made, and not used until the next."""
    original, kept = train.save_checkpoint_and_get_sampling_client, []

    async def changed(*args: Any, **kwargs: Any) -> Any:
        kept.append(await original(*args, **kwargs))
        return kept[max(len(kept) - 2, 0)]

    patch.setattr(train, "save_checkpoint_and_get_sampling_client", changed)


def _samples_base_model(patch: pytest.MonkeyPatch) -> None:
    services: list[Any] = []
    begins = tinker.ServiceClient.__init__
    original = train.save_checkpoint_and_get_sampling_client

    def built(self: Any, *args: Any, **kwargs: Any) -> None:
        begins(self, *args, **kwargs)
        services.append(self)

    async def changed(*args: Any, **kwargs: Any) -> Any:
        _, metrics = await original(*args, **kwargs)
        return await services[-1].create_sampling_client(base_model="tiny/model"), metrics

    patch.setattr(tinker.ServiceClient, "__init__", built)
    patch.setattr(train, "save_checkpoint_and_get_sampling_client", changed)


def _temperature(patch: pytest.MonkeyPatch) -> None:
    original = completers.TinkerTokenCompleter.__call__

    async def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.temperature = 0.5
        return await original(self, *args, **kwargs)

    patch.setattr(completers.TinkerTokenCompleter, "__call__", changed)


def _raised(original: Any, groups: Any, *args: Any) -> Any:
    for group in groups:
        group.final_rewards_G[0] += 1.0
    return original(groups, *args)


def _swap_log_probs(data: list[Any]) -> list[Any]:
    first, second = data[0].loss_fn_inputs["logprobs"], data[1].loss_fn_inputs["logprobs"]
    if first.shape != second.shape:
        return [_with(data[0], "logprobs", lambda of: of * 0.9), *data[1:]]
    swapped = [
        dataclasses.replace(datum, loss_fn_inputs=datum.loss_fn_inputs | {"logprobs": other})
        for datum, other in ((data[0], second), (data[1], first))
    ]
    return [*swapped, *data[2:]]


def _next_token(of: np.ndarray) -> np.ndarray:
    return np.concatenate([of[:-1], [(of[-1] + 1) % 50]])


def _mask_of_prompt(original: Any, *args: Any, **kwargs: Any) -> Any:
    data, metadata = original(*args, **kwargs)
    return [_with(datum, "mask", np.ones_like) for datum in data], metadata


def _advantages_of_prompt(original: Any, *args: Any, **kwargs: Any) -> Any:
    data, metadata = original(*args, **kwargs)
    return [_with(datum, "advantages", lambda of: np.full_like(of, of[-1])) for datum in data], metadata


PENALTY = {"kl_penalty_coef": 0.5, "kl_reference_config": train.KLReferenceConfig(base_model="tiny/model")}
PROGRAM: dict[str, tuple[Breaks, dict[str, Any], str]] = {
    # What is broken, settings of the run, and the rule that finds it.
    "rate halved": (_stepped(learning_rate=5e-3), {}, "RLS605"),
    "rate falls": (_one_late(), {}, "RLS605"),
    "rate at zero": (_stepped(learning_rate=0.0), {}, "RLS603"),
    "second beta": (_stepped(beta2=0.999), {}, "RLS101"),
    "weight decay": (_stepped(weight_decay=0.1), {}, "RLS101"),
    "gradient limit": (_stepped(grad_clip_norm=1e-3), {}, "RLS101"),
    "each step twice": (_around(tinker.TrainingClient, "optim_step", _step_twice), {}, "RLS203"),
    "every second step left out": (_skip_every_second, {"num_substeps": 2}, "RLS204"),
    "rewards as advantages": (_around(train, "compute_advantages", _uncentred), {}, "RLS516"),
    "divided by the deviation": (_around(train, "compute_advantages", _normalised), {}, "RLS516"),
    "centred over the batch": (_around(train, "compute_advantages", _over_batch), {}, "RLS516"),
    "advantages of the wrong sign": (
        _around(train, "compute_advantages", lambda original, groups: [-each for each in original(groups)]),
        {},
        "RLS516",
    ),
    "advantages altered on the way": (_sent("advantages", lambda of: of * 2), {}, "RLS517"),
    "advantages at the prompt": (_around(train, "assemble_training_data", _advantages_of_prompt), {}, "RLS518"),
    "mask of the prompt": (_around(train, "assemble_training_data", _mask_of_prompt), {}, "RLS518"),
    "old log-probs at 0": (_sent("logprobs", np.zeros_like), {}, "RLS305"),
    "old log-probs of others": (_trained(_swap_log_probs), {}, "RLS305"),
    "another last token": (_sent("target_tokens", _next_token), {}, "RLS306"),
    "samples left out": (_assembled(lambda data: data[:-3]), {}, "RLS207"),
    "a sample twice": (_assembled(lambda data: [data[0], *data[:-1]]), {}, "RLS502"),
    "one update for two": (
        _around(
            train, "train_step", lambda original, *args, **kwargs: original(*args, **(kwargs | {"num_substeps": 1}))
        ),
        {"num_substeps": 2},
        "RLS204",
    ),
    "another loss": (
        _around(
            train, "train_step", lambda original, *args, **kwargs: original(*args, **(kwargs | {"loss_fn": "ppo"}))
        ),
        {},
        "RLS101",
    ),
    "bounds left out": (
        _around(
            train,
            "train_step",
            lambda original, *args, **kwargs: original(*args, **(kwargs | {"loss_fn_config": None})),
        ),
        {"loss_fn": "ppo", "loss_fn_config": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}},
        "RLS101",
    ),
    "first beta": (_stepped(beta1=0.5), {}, "RLS101"),
    "epsilon": (_stepped(eps=1e-3), {}, "RLS101"),
    "each forward_backward twice": (_around(tinker.TrainingClient, "forward_backward", _twice), {}, "RLS502"),
    "a group of the wrong sign": (_around(train, "compute_advantages", _first_flipped), {}, "RLS516"),
    "advantages of the episode before": (_around(train, "compute_advantages", _of_neighbours), {}, "RLS516"),
    "a KL penalty of the wrong sign": (_penalty_times(-1.0), PENALTY, "RLS516"),
    "no KL penalty": (_penalty_times(0.0), PENALTY, "RLS516"),
    "half of the distribution": (_around(tinker.SamplingClient, "sample", _half_of_distribution), {}, "RLS410"),
    "the first sampler is kept": (_keeps_sampler, {}, "RLS405"),
    "the sampler before": (_sampler_before_updates, {}, "RLS402"),
    "the base model samples": (_samples_base_model, {}, "RLS402"),
    "another temperature": (_temperature, {}, "RLS410"),
    "rewards altered before advantages": (_around(train, "compute_trajectory_metrics", _raised), {}, "RLS515"),
}


SERVER: dict[str, tuple[dict[str, Any], str]] = {
    # Fault of the server -> settings of the run, and the rule that finds it.
    "sampler_keeps_first_weights": ({}, "RLS403"),
    "sampler_one_behind": ({}, "RLS403"),
    "sampler_temperature": ({}, "RLS403"),
    "log_probs_shifted": ({}, "RLS403"),
    "loss_halved": ({}, "RLS801"),
    "loss_sign": ({}, "RLS801"),
}


LATER = {
    "rate falls": 1,
    "the first sampler is kept": 1,
    "the sampler before": 1,
    "a KL penalty of the wrong sign": 1,
    "no KL penalty": 1,
    "sampler_keeps_first_weights": 1,
    "sampler_one_behind": 1,
}
"""The first rollout that can show a fault, where that is not the first of the run: before the first update the weights are those of the
base model."""

DRAWN = frozenset({"rewards as advantages", "divided by the deviation", "centred over the batch"})
"""Faults that the rewards of a rollout may hide: where groups have one mean, or a deviation of 1. A later one shows them."""
