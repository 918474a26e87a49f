"""More of the fault corpus of verl (`tests.systems.verl.faults`): what an update has as a whole, and a critic in V1."""

from __future__ import annotations

import os
from typing import Any

import wrapt

from tests.systems.verl.faults import (
    ENGINE,
    WORKER,
    _Now,
    fault,
    on_mini_batches,
    wrap_in_trainer,
)


def _divided_by(at: int, samples: Any, role: str = "policy") -> None:
    """Train the mini-batches of a rollout with another number of samples that losses are divided by: `samples(number)`."""

    def act(number: int, train: Any, data: Any, worker: Any) -> Any:
        from verl.utils import tensordict_utils

        tensordict_utils.assign_non_tensor(data, global_batch_size=samples(data["global_batch_size"]))
        return train(data)

    on_mini_batches(at, act, role)


@fault(report="a mean over another number of samples", code="RLS801", variant="0.4 times")
def samples_of_an_update_miscounted(at: int) -> None:
    """The loss is divided by two and a half times the samples of a mini-batch."""
    _divided_by(at, lambda samples: samples * 5 // 2)


@fault(report="a mean over a micro-batch", code="RLS801", variant="2 times")
def samples_of_an_update_left_out(at: int) -> None:
    """The loss gets no number of samples, so that it is the mean over its micro-batch."""
    _divided_by(at, lambda samples: None)


@fault(report="a mean over another number of samples, for a critic", code="RLS801", variant="0.4 times")
def samples_of_an_update_of_the_critic_miscounted(at: int) -> None:
    """The critic's loss is divided by two and a half times the samples of a mini-batch."""
    _divided_by(at, lambda samples: samples * 5 // 2, role="critic")


@fault(report="an entropy bonus that is configured and not computed", code="RLS801", variant="another")
def entropies_left_out(at: int) -> None:
    """The entropies that the bonus of the loss is made of are not computed, and the loss has none."""

    def act(number: int, train: Any, data: Any, worker: Any) -> Any:
        from verl.utils import tensordict_utils

        tensordict_utils.assign_non_tensor(data, calculate_entropy=False)
        return train(data)

    on_mini_batches(at, act)


@fault(report="a correction that is computed and not used", code="RLS312")
def importance_weights_left_out(at: int) -> None:
    """The samples of a rollout come to the loss without their importance weights."""

    def act(number: int, train: Any, data: Any, worker: Any) -> Any:
        data.pop("rollout_is_weights")
        return train(data)

    on_mini_batches(at, act)


@fault(report="torchtune#2792, for a critic of V1", code="RLS517", variant="other values")
def returns_of_a_mini_batch_altered(at: int) -> None:
    """The returns of the critic's first mini-batch are others than those that came to its process."""

    def act(number: int, train: Any, data: Any, worker: Any) -> Any:
        if number == 0:
            data["returns"].mul_(0.5)
        return train(data)

    on_mini_batches(at, act, role="critic")


@fault(report="a clip for each tensor", code="RLS808")
def tensors_clipped_alone(at: int) -> None:
    """Each tensor's gradient is clipped by its own norm, and not all of them by that of the model."""

    def clip(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        parameters = list(args[0])
        if _Now.rollout != at:
            return wrapped(parameters, *args[1:], **kwargs)
        norms = [wrapped([parameter], *args[1:], **kwargs) for parameter in parameters if parameter.grad is not None]
        return sum(norm.full_tensor() ** 2 for norm in norms) ** 0.5

    if WORKER in os.environ:
        wrapt.when_imported(ENGINE)(lambda found: wrapt.wrap_function_wrapper(found, "fsdp2_clip_grad_norm_", clip))


@fault(report="weights in half precision", code="RLS101", variant="model_dtype = bfloat16")
def weights_in_bfloat16(at: int) -> None:
    """The policy's weights are kept in bfloat16, where float32 is configured."""

    def build(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        import torch

        module = wrapped(*args, **kwargs)
        return module if engine.engine_config.forward_only else module.to(torch.bfloat16)

    wrap_in_trainer(ENGINE, "FSDPEngine", "_build_module", build)
