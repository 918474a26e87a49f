"""Hooks in the classes of verl's workers: what tells the one `VerlTrainer` of a process what its trainer does.

The trainer is made when the first model is built. Each hook looks at a call of the controller, or at what a worker does within one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.hooks import Hooks, LateRecorder
from rlstep_hooks.systems.verl.observe.checkpoints import Checkpoints
from rlstep_hooks.systems.verl.observe.engines import role_of
from rlstep_hooks.systems.verl.observe.trainer import VerlTrainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.observe.patches import Patches
    from rlstep_hooks.record.events import PhaseName


def place_hooks(patches: Patches, module: Any) -> None:
    """Put the trainer's hooks into the classes of `verl.workers.engine_workers`. All verified in 0.9.1 by real runs."""
    from verl.utils import tensordict_utils
    from verl.workers.engine.fsdp import transformer_impl
    from verl.workers.utils import losses

    worker, training = module.ActorRolloutRefWorker, module.TrainingWorker
    engine, language_model = transformer_impl.FSDPEngine, transformer_impl.FSDPEngineWithLMHead
    wrap = partial(Hooks(_process, patches).wrap, topics=("order",))
    # engine_workers.py:138: builds or reloads the engine; from here on the model and its optimizer can be read.
    wrap(training, "reset", after=_built)
    # engine_workers.py:657, 667, 728: the controller's calls, each made on every trainer. Between them nothing is trained.
    wrap(worker, "compute_log_prob", around=_along(_log_probs))
    wrap(worker, "compute_ref_log_prob", around=_along(_reference))
    wrap(worker, "update_actor", around=_along(_policy_updates))
    wrap(worker, "update_weights", around=_along(_weights))
    # engine_workers.py:201, 350: calls of the controller for the critic; for the policy they happen within those above.
    wrap(training, "train_mini_batch", around=_along(_mini_batches))
    wrap(training, "infer_batch", around=_along(_inference))
    # engine_workers.py:273: cuts the samples of such a call into mini-batches, once they have been fetched.
    wrap(tensordict_utils, "make_iterator", before=_on_trainer(_samples), topics=("critic_loss",))
    # engine_workers.py:444, 448: one checkpoint of one role, with its path.
    saved = _on_trainer(partial(_checkpoint, Checkpoints.saved))
    wrap(training, "save_checkpoint", after=saved, topics=("checkpoints",))
    wrap(training, "load_checkpoint", after=_on_trainer(partial(_checkpoint, Checkpoints.loads)))
    # transformer_impl.py:1549, 788: one micro-batch, and one optimizer step or its omission; the value head inherits both. The first
    # gets the micro-batch on the CPU and returns the loss that goes into the backward, with the log-probs it was computed from.
    wrap(language_model, "forward_step", around=_along(_forward))
    wrap(engine, "optimizer_step", around=_along(_optimizer_step))
    # transformer_impl.py:1358: the logits of a micro-batch, before the temperature; the value head has its own.
    wrap(language_model, "prepare_model_outputs", before=_on_trainer(_outputs), after=_on_trainer(_output))
    # transformer_impl.py:715: all micro-batches of one update, forward and backward; what it leaves is what the step comes to.
    wrap(engine, "forward_backward_batch", after=_on_trainer(_passes), topics=("log_ratio", "weights"))
    # transformer_impl.py:977: the tensors of a sync, whichever way they take to the engines; also called where nothing is synced.
    wrap(engine, "get_per_tensor_param", after=_on_trainer(_tensors))
    # losses.py:119: the policy loss of a micro-batch, looked up at each use, gets both log-probs, mask and advantages.
    wrap(losses, "get_policy_loss_fn", after=_on_trainer(_policy_loss))
    # losses.py:224: the critic's loss of a micro-batch, looked up at each use, gets the values of its forward by name.
    wrap(losses, "compute_value_loss", before=_on_trainer(_value_loss), topics=("critic_loss",))


def place_saving_hooks(patches: Patches, module: Any) -> None:
    """Put hooks into the trainers' class of `verl.experimental.separation.engine_workers`. Verified in 0.9.1 by real runs."""
    wrap = partial(Hooks(_process, patches).wrap, topics=("samples", "refresh"))
    # engine_workers.py:116, 133: old log-probs of separate_async are those of the weights at the beginning of a step, which are saved
    # and put into place for them.
    worker = module.DetachActorWorker
    wrap(
        worker,
        "save_model_to_cpu",
        after=_on_trainer(lambda trainer, call: trainer.saves_weights(call.argument("n", 0))),
    )
    wrap(
        worker,
        "restore_model_from_cpu",
        after=_on_trainer(lambda trainer, call: trainer.restores_weights(call.argument("n", 0))),
    )


_trainer: VerlTrainer | None = None


_process = LateRecorder(lambda: _trainer)
"""A trainer that never came leaves no record, which is a finding."""


def _on_trainer(see: Callable[[VerlTrainer, Call], None]) -> Callable[[Call], None]:
    """A hook that looks while this process has a trainer, and gets it too."""

    def look(call: Call) -> None:
        if _trainer is not None:
            see(_trainer, call)

    return look


def _along(see: Callable[[VerlTrainer, Call], Iterator[None]]) -> Callable[[Call], Iterator[None]]:
    """A hook that looks before and after a call while this process has a trainer, and gets it too."""

    def running(call: Call) -> Iterator[None]:
        if _trainer is None:
            yield
        else:
            yield from see(_trainer, call)

    return running


def _built(call: Call) -> None:
    global _trainer
    worker = call.owner
    if not worker.engine_config.forward_only and worker.engine.is_mp_src_rank_with_outputs():
        _trainer = _trainer or VerlTrainer(worker.engine)
        _trainer.built(worker.engine)


def _within(name: PhaseName, trainer: VerlTrainer) -> Iterator[None]:
    trainer.begin(name)
    yield
    trainer.end(name)


def _policy_updates(trainer: VerlTrainer, call: Call) -> Iterator[None]:
    # Without an engine beside it, weights may be synced before the updates on a rollout, and then no sync follows the last.
    alone = "rollout" not in call.owner.role
    trainer.sends_with_updates = trainer.sends_with_updates or alone
    trainer.begin("policy_updates")
    yield
    trainer.compares_mini_batches(call.owner)
    if alone:
        trainer.write_numbers()  # verl has synchronised with the device at the end of the call (engine_workers.py:723)
    trainer.end("policy_updates")


def _reference(trainer: VerlTrainer, call: Call) -> Iterator[None]:
    trainer.asks_reference(call.owner.ref.engine)
    yield from _within("reference", trainer)
    trainer.reference_answers(call.result)
    trainer.sees_reference(call.owner)


def _checkpoint(see: Callable[[Checkpoints, Any, str | None], None], trainer: VerlTrainer, call: Call) -> None:
    if not call.owner.engine_config.forward_only:
        see(trainer.checkpoints, call.owner.engine, call.argument("local_path", 0))


def _log_probs(trainer: VerlTrainer, call: Call) -> Iterator[None]:
    # Whether this is a refresh or the reference of an actor with LoRA shows only in the data, which `infer_batch` sees.
    trainer.expects_log_probs = True
    try:
        yield
    finally:
        trainer.expects_log_probs = False


def _weights(trainer: VerlTrainer, call: Call) -> Iterator[None]:
    trainer.checkpoints.begins()
    trainer.begin("sync")
    if hasattr(call.owner, "actor"):
        trainer.compares_loss_settings(call.owner)
    trainer.send_numbers()
    trainer.syncing = True
    try:
        yield
    finally:
        trainer.syncing = False
    trainer.synced(call.argument("global_steps", 0))
    trainer.end("sync")


def _tensors(trainer: VerlTrainer, call: Call) -> None:
    if not trainer.syncing or role_of(call.owner) == "critic":
        return
    tensors, adapter = call.result
    if adapter is None:  # tensors of an adapter do not go through the engine's loader, and have no names that it knows
        call.result = trainer.hands_over(tensors, call.owner), adapter


def _mini_batches(trainer: VerlTrainer, call: Call) -> Iterator[None]:
    data = call.argument("data", 0)
    if role_of(call.owner.engine) == "critic":
        if _are_rows(data):
            trainer.sees_targets(data)
        else:  # V1's call brings the names of rows, which are fetched before they are cut into mini-batches
            trainer.expects_targets = True
        try:
            yield from _within("critic_updates", trainer)
        finally:
            trainer.expects_targets = False
        return
    trainer.sees_advantages(data)
    yield
    if trainer.sends_with_updates:
        trainer.send_numbers()


def _samples(trainer: VerlTrainer, call: Call) -> None:
    if trainer.expects_targets:
        trainer.sees_targets(call.argument("tensordict", 0))


def _inference(trainer: VerlTrainer, call: Call) -> Iterator[None]:
    data, engine = call.argument("data", 0), call.owner.engine
    if call.owner.engine_config.forward_only:
        trainer.begins_reference()
        yield
        trainer.ends_reference()
        if _are_rows(data):
            trainer.sees_reference_log_probs(data, call.result, engine)
    elif role_of(engine) == "critic":
        yield from _within("values", trainer)
        if _are_rows(data):
            trainer.computed_values(data, call.result)
        else:
            trainer.computed_named_values()
    elif not trainer.expects_log_probs:
        yield
    elif _is_reference(data):
        trainer.asks_reference(engine)
        trainer.begins_reference()
        yield from _within("reference", trainer)
        trainer.ends_reference()
        trainer.reference_answers(call.result)
        trainer.sees_reference_log_probs(data, call.result, engine)
    else:
        trainer.begin("refresh")
        version = trainer.version_in_place
        yield
        trainer.refreshed(data, call.result, version)
        trainer.end("refresh")


def _are_rows(data: Any) -> bool:
    """Whether a call brings the samples themselves: to the critic V1 sends their names, and the worker fetches them within the call."""
    return hasattr(data, "keys")


def _is_reference(data: Any) -> bool:
    """Whether log-probs are asked of the model without its adapter (engine_workers.py:362)."""
    return "no_lora_adapter" in data.keys() and bool(data["no_lora_adapter"])  # noqa: SIM118 - a TensorDict iterates over rows


def _forward(trainer: VerlTrainer, call: Call) -> Iterator[None]:
    data = call.argument("micro_batch", 0)
    if call.argument("forward_only", 2, default=False):
        if trainer.distances.open and role_of(call.owner) == "policy":
            trainer.distances.sees(data)
        with trainer.beside_scoring(call.owner, data):
            yield
        trainer.computed(call.owner, data, call.result)
        return
    trainer.before_microbatch(call.owner, data, call.argument("loss_function", 1))
    with trainer.beside(call.owner, data):
        yield
    trainer.after_microbatch(call.owner, data, call.result)


def _outputs(trainer: VerlTrainer, call: Call) -> None:
    if trainer.distances.open and not getattr(call.owner, "use_ulysses_sp", False):
        trainer.distances.keep(
            call.argument("output", 0), packed="temperature_rmpad" in call.argument("output_args", 1)
        )


def _output(trainer: VerlTrainer, call: Call) -> None:
    if torch.is_grad_enabled():  # a forward of old log-probs or of the reference has no loss
        trainer.sees_output(call.result, role_of(call.owner))


def _passes(trainer: VerlTrainer, call: Call) -> None:
    if not call.argument("forward_only", 2, default=False):
        trainer.steps.gradients_made(call.owner)


def _optimizer_step(trainer: VerlTrainer, call: Call) -> Iterator[None]:
    trainer.steps.asked(call.owner)
    yield
    trainer.after_update(call.owner, call.result)


def _policy_loss(trainer: VerlTrainer, call: Call) -> None:
    loss = call.result

    def measured(*args: Any, **kwargs: Any) -> Any:
        trainer.sees_log_probs(kwargs)
        return loss(*args, **kwargs)

    call.result = measured


def _value_loss(trainer: VerlTrainer, call: Call) -> None:
    if "vpreds" in call.kwargs and "response_mask" in call.kwargs:
        trainer.sees_values(call.kwargs["vpreds"], call.kwargs["response_mask"])
