"""Hooks in the classes of verl's workers: what tells the one `VerlTrainer` of a process what its trainer does.

The trainer is made when the first model is built. Each hook looks at a call of the controller, or at what a worker does within one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.verl.observe.engines import role_of
from rlstep_hooks.systems.verl.observe.trainer import VerlTrainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.patches import Patches
    from rlstep_hooks.record.events import PhaseName


def place_hooks(patches: Patches, module: Any) -> None:
    """Put the trainer's hooks into the classes of `verl.workers.engine_workers`. All verified in 0.9.1 by real runs."""
    worker, training = module.ActorRolloutRefWorker, module.TrainingWorker
    # engine_workers.py:138: builds or reloads the engine; from here on the model and its optimizer can be read.
    patches.wrap(training, "reset", _after_reset)
    # engine_workers.py:657, 667, 728: the controller's calls, each made on every trainer. Between them nothing is trained.
    patches.wrap(worker, "compute_log_prob", _log_probs)
    patches.wrap(worker, "compute_ref_log_prob", _reference)
    patches.wrap(worker, "update_actor", _policy_updates)
    patches.wrap(worker, "update_weights", _weights)
    # engine_workers.py:201, 350: calls of the controller for the critic; for the policy they happen within those above.
    patches.wrap(training, "train_mini_batch", _mini_batches)
    patches.wrap(training, "infer_batch", _inference)
    # engine_workers.py:444, 448: one checkpoint of one role, with its path.
    patches.wrap(training, "save_checkpoint", _saved)
    patches.wrap(training, "load_checkpoint", _loaded)
    from verl.workers.engine.fsdp import transformer_impl
    from verl.workers.utils import losses

    # transformer_impl.py:1549, 788: one micro-batch, and one optimizer step or its omission; the value head inherits both. The first
    # gets the micro-batch on the CPU and returns the loss that goes into the backward, with the log-probs it was computed from.
    patches.wrap(transformer_impl.FSDPEngineWithLMHead, "forward_step", _forward)
    patches.wrap(transformer_impl.FSDPEngine, "optimizer_step", _optimizer_step)
    # transformer_impl.py:1358: the logits of a micro-batch, before the temperature; the value head has its own.
    patches.wrap(transformer_impl.FSDPEngineWithLMHead, "prepare_model_outputs", _outputs)
    # transformer_impl.py:715: all micro-batches of one update, forward and backward; what it leaves is what the step comes to.
    patches.wrap(transformer_impl.FSDPEngine, "forward_backward_batch", _passes)
    # transformer_impl.py:977: the tensors of a sync, whichever way they take to the engines; also called where nothing is synced.
    patches.wrap(transformer_impl.FSDPEngine, "get_per_tensor_param", _tensors)
    # losses.py:119: the policy loss of a micro-batch, looked up at each use, gets both log-probs, mask and advantages.
    patches.wrap(losses, "get_policy_loss_fn", _policy_loss)
    # losses.py:224: the critic's loss of a micro-batch, looked up at each use, gets the values of its forward by name.
    patches.wrap(losses, "compute_value_loss", _value_loss)


def place_saving_hooks(patches: Patches, module: Any) -> None:
    """Put hooks into the trainers' class of `verl.experimental.separation.engine_workers`. Verified in 0.9.1 by real runs."""
    # engine_workers.py:116, 133: old log-probs of separate_async are those of the weights at the beginning of a step, which are saved
    # and put into place for them.
    patches.wrap(module.DetachActorWorker, "save_model_to_cpu", partial(_named, VerlTrainer.saves_weights))
    patches.wrap(module.DetachActorWorker, "restore_model_from_cpu", partial(_named, VerlTrainer.restores_weights))


_trainer: VerlTrainer | None = None


def _after_reset(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    global _trainer
    result = wrapped(*args, **kwargs)
    try:
        if not instance.engine_config.forward_only and instance.engine.is_mp_src_rank_with_outputs():
            _trainer = _trainer or VerlTrainer(instance.engine)
            _trainer.built(instance.engine)
    except Exception:  # noqa: BLE001 - a trainer that cannot be observed leaves no record, which is a finding
        return result
    return result


def _named(see: Callable[[VerlTrainer, Any], None], wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if _trainer is not None:
        see(_trainer, kwargs.get("n", args[0] if args else None))
    return result


def _within(name: PhaseName, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    trainer = _trainer
    if trainer is None:
        return wrapped(*args, **kwargs)
    trainer.begin(name)
    result = wrapped(*args, **kwargs)
    trainer.end(name)
    return result


def _policy_updates(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    trainer = _trainer
    if trainer is None or "rollout" in instance.role:
        return _within("policy_updates", wrapped, instance, args, kwargs)
    # Without an engine beside it, weights may be synced before the updates on a rollout, and then no sync follows the last.
    trainer.sends_with_updates = True
    trainer.begin("policy_updates")
    result = wrapped(*args, **kwargs)  # verl synchronises with the device at its end (engine_workers.py:723)
    trainer.write_numbers()
    trainer.end("policy_updates")
    return result


def _reference(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = _within("reference", wrapped, instance, args, kwargs)
    if _trainer is not None:
        _trainer.sees_reference(instance)
    return result


def _saved(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if _trainer is not None and not instance.engine_config.forward_only:
        _trainer.saved(instance.engine, kwargs.get("local_path", args[0] if args else None))
    return result


def _loaded(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if _trainer is not None and not instance.engine_config.forward_only:
        _trainer.loads(instance.engine, kwargs.get("local_path", args[0] if args else None))
    return result


def _log_probs(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    # Whether this is a refresh or the reference of an actor with LoRA shows only in the data, which `infer_batch` sees.
    if _trainer is None:
        return wrapped(*args, **kwargs)
    _trainer.expects_log_probs = True
    try:
        return wrapped(*args, **kwargs)
    finally:
        _trainer.expects_log_probs = False


async def _weights(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    trainer = _trainer
    if trainer is None:
        return await wrapped(*args, **kwargs)
    trainer.begins()
    trainer.begin("sync")
    if hasattr(instance, "actor"):
        trainer.compares_loss_settings(instance)
    trainer.send_numbers()
    trainer.syncing = True
    try:
        result = await wrapped(*args, **kwargs)
    finally:
        trainer.syncing = False
    label = kwargs.get("global_steps", args[0] if args else None)
    trainer.synced(label)
    trainer.end("sync")
    return result


def _tensors(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    trainer = _trainer
    if trainer is None or not trainer.syncing or role_of(instance) == "critic":
        return result
    tensors, adapter = result
    # Tensors of an adapter do not go through the engine's loader, and have no names that it knows.
    return result if adapter is not None else (trainer.hands_over(tensors, instance), adapter)


def _mini_batches(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    trainer = _trainer
    if trainer is not None and role_of(instance.engine) == "critic":
        data = kwargs.get("data", args[0] if args else None)
        if _are_rows(data):
            trainer.sees_targets(data)
        return _within("critic_updates", wrapped, instance, args, kwargs)
    if trainer is not None:
        trainer.sees_advantages(kwargs.get("data", args[0] if args else None))
    result = wrapped(*args, **kwargs)
    if trainer is not None and trainer.sends_with_updates:
        trainer.send_numbers()
    return result


def _inference(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    trainer = _trainer
    if trainer is None:
        return wrapped(*args, **kwargs)
    data = kwargs.get("data", args[0] if args else None)
    if instance.engine_config.forward_only:
        result = wrapped(*args, **kwargs)
        if _are_rows(data):
            trainer.sees_reference_log_probs(data, result, instance.engine)
        return result
    if role_of(instance.engine) == "critic":
        result = _within("values", wrapped, instance, args, kwargs)
        if _are_rows(data):
            trainer.computed_values(data, result)
        return result
    if not trainer.expects_log_probs:
        return wrapped(*args, **kwargs)
    if _is_reference(data):
        result = _within("reference", wrapped, instance, args, kwargs)
        trainer.sees_reference_log_probs(data, result, instance.engine)
        return result
    trainer.begin("refresh")
    version = trainer.version_in_place
    result = wrapped(*args, **kwargs)
    trainer.refreshed(data, result, version)
    trainer.end("refresh")
    return result


def _are_rows(data: Any) -> bool:
    """Whether a call brings the samples themselves: to the critic V1 sends their names, and the worker fetches them within the call."""
    return hasattr(data, "keys")


def _is_reference(data: Any) -> bool:
    """Whether log-probs are asked of the model without its adapter (engine_workers.py:362)."""
    return "no_lora_adapter" in data.keys() and bool(data["no_lora_adapter"])  # noqa: SIM118 - a TensorDict iterates over rows


def _forward(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    trainer = _trainer
    forward_only = kwargs.get("forward_only", args[2] if len(args) > 2 else False)
    if trainer is not None and forward_only and trainer.distances.open and role_of(instance) == "policy":
        trainer.distances.sees(kwargs.get("micro_batch", args[0] if args else None))
    if trainer is None or forward_only:
        return wrapped(*args, **kwargs)
    data, loss_function = (kwargs.get(name, args[i] if len(args) > i else None) for i, name in enumerate(_FORWARD))
    trainer.before_microbatch(data, role_of(instance), loss_function)
    result = wrapped(*args, **kwargs)
    trainer.after_microbatch(instance, result)
    return result


_FORWARD = ("micro_batch", "loss_function")


def _outputs(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    trainer = _trainer
    if trainer is not None and trainer.distances.open and not getattr(instance, "use_ulysses_sp", False):
        output, arguments = (kwargs.get(name, args[i] if len(args) > i else None) for i, name in enumerate(_OUTPUT))
        trainer.distances.keep(output, packed="temperature_rmpad" in arguments)
    return wrapped(*args, **kwargs)


_OUTPUT = ("output", "output_args")


def _passes(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if _trainer is not None and not kwargs.get("forward_only", args[2] if len(args) > 2 else False):
        _trainer.gradients_made(instance)
    return result


def _optimizer_step(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    trainer = _trainer
    if trainer is None:
        return wrapped(*args, **kwargs)
    trainer.before_update()
    result = wrapped(*args, **kwargs)
    trainer.after_update(instance, result)
    return result


def _policy_loss(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    loss = wrapped(*args, **kwargs)
    trainer = _trainer
    if trainer is None:
        return loss

    def measured(*loss_args: Any, **loss_kwargs: Any) -> Any:
        trainer.sees_log_probs(loss_kwargs)
        return loss(*loss_args, **loss_kwargs)

    return measured


def _value_loss(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    trainer = _trainer
    if trainer is not None and "vpreds" in kwargs and "response_mask" in kwargs:
        trainer.sees_values(kwargs["vpreds"], kwargs["response_mask"])
    return wrapped(*args, **kwargs)
