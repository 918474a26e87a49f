"""More of the fault corpus of verl (`tests.systems.verl.faults`): forwards, gradients and tensors that are consistent and wrong.

Nothing on the way contradicts them: they show beside a forward of one row alone, beside each backward pass, or beside all tensors.
"""

from __future__ import annotations

from typing import Any

from tests.systems.verl.faults import (
    ENGINE,
    WORKERS,
    Callable,
    _Now,
    fault,
    on_first_step,
    on_mini_batches,
    trains,
    wrap_in_trainer,
)


def _of_rows(field: Any, change: Callable[[Any], Any]) -> Any:
    """A field of rows with other numbers."""
    import torch

    return torch.nested.nested_tensor_from_jagged(change(field.values()), field.offsets())


# The reference


@fault(report="trl#454", code="RLS311")
def reference_shifted_by_a_token(at: int) -> None:
    """The reference's log-probs are each that of the token before, when its call returns them."""

    def infer_batch(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        if _Now.rollout == at and worker.engine_config.forward_only:
            result["log_probs"] = _of_rows(result["log_probs"], lambda values: values.roll(1))
        return result

    wrap_in_trainer(WORKERS, "TrainingWorker", "infer_batch", infer_batch)


@fault(report="position ids that one forward makes in its own way", code="RLS315")
def reference_at_other_positions(at: int) -> None:
    """The reference's forward has other distances between tokens."""

    def prepared(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        inputs, outputs = wrapped(*args, **kwargs)
        if _Now.rollout == at and engine.engine_config.forward_only:
            inputs["position_ids"] = inputs["position_ids"] * 3
        return inputs, outputs

    wrap_in_trainer(ENGINE, "FSDPEngineWithLMHead", "prepare_model_inputs", prepared)


# The forward of training


@fault(report="a chunked entropy that divides twice", code="RLS314", variant="of their mean away")
def entropies_halved(at: int) -> None:
    """The entropies that the loss takes are half of those of the distributions."""

    def outputs(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        if _Now.rollout == at and "entropy" in result and result["entropy"].requires_grad:
            result["entropy"] = _of_rows(result["entropy"], lambda values: values * 0.5)
        return result

    wrap_in_trainer(ENGINE, "FSDPEngineWithLMHead", "prepare_model_outputs", outputs)


@fault(report="positions of a cache that is not cleared", code="RLS314", variant="away on average")
def later_updates_at_other_positions(at: int) -> None:
    """From the second update on, where no ratio has to be 1, the forward has other distances between tokens."""
    later = [False]

    def act(number: int, train: Any, data: Any, worker: Any) -> Any:
        later[0] = number > 0
        try:
            return train(data)
        finally:
            later[0] = False

    def prepared(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        inputs, outputs = wrapped(*args, **kwargs)
        if later[0]:
            inputs["position_ids"] = inputs["position_ids"] * 3
        return inputs, outputs

    on_mini_batches(at, act)
    wrap_in_trainer(ENGINE, "FSDPEngineWithLMHead", "prepare_model_inputs", prepared)


# From the backward passes to the next update


@fault(report="a gradient that each micro-batch clears", code="RLS810")
def gradient_of_a_micro_batch_lost(at: int) -> None:
    """Of the micro-batches of an update, the first leaves no gradient."""
    made = [0]

    def forward_backward_batch(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        made[0] = 0
        return wrapped(*args, **kwargs)

    def forward_step(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        if _Now.rollout == at and trains(engine, "policy") and not kwargs.get("forward_only"):
            made[0] += 1
            if made[0] == 2:
                for gradient in _accumulated(engine.module):
                    gradient.zero_()
        return wrapped(*args, **kwargs)

    wrap_in_trainer(ENGINE, "FSDPEngine", "forward_backward_batch", forward_backward_batch)
    wrap_in_trainer(ENGINE, "FSDPEngineWithLMHead", "forward_step", forward_step)


def _accumulated(model: Any) -> list[Any]:
    """What FSDP2 has added up of gradients that were not reduced yet (_fsdp_param.py 2.13.0)."""
    found = []
    for module in model.modules():
        state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
        group = getattr(state, "_fsdp_param_group", None)
        for parameter in [] if group is None else group.fsdp_params:
            whole = getattr(parameter, "_unsharded_param", None)
            found += [
                parameter.unsharded_accumulated_grad,
                None if whole is None else whole.grad,
                parameter.sharded_param.grad,
            ]
    return [gradient for gradient in found if gradient is not None]


@fault(report="an optimizer state that is repaired tensor by tensor", code="RLS807", variant="others in 2 tensors")
def moments_of_one_tensor_cleared(at: int) -> None:
    """The moments of one tensor, which no probe reads, are set to 0 before the first step of a rollout."""

    def act(step: Callable[[], Any], engine: Any) -> Any:
        named = dict(engine.module.named_parameters())
        state = engine.optimizer.state[named["model.layers.1.post_attention_layernorm.weight"]]
        state["exp_avg"].zero_()
        state["exp_avg_sq"].zero_()
        return step()

    on_first_step(at, act)


@fault(report="rotary frequencies that a buffer's cast rounds", code="RLS404", variant="rotary_emb.inv_freq")
def rotary_frequencies_changed(at: int) -> None:
    """The trainer's model has other rotary frequencies on one rollout."""
    kept: dict[str, Any] = {}

    def compute_log_prob(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        begins = _Now.rollout + 1  # this call is the first on a rollout
        for name, buffer in worker.actor.engine.module.named_buffers():
            if name.endswith("rotary_emb.inv_freq"):
                first = kept.setdefault(name, buffer.clone())
                buffer.copy_(first * 0.5 if begins == at else first)
        return wrapped(*args, **kwargs)

    wrap_in_trainer(WORKERS, "ActorRolloutRefWorker", "compute_log_prob", compute_log_prob)
