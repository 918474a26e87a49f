"""Faults that only several ranks can have, or that have to be made in another way where a model is wrapped or sharded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from rlstep_hooks.planning.finding import Where
from rlstep_hooks.testing.trl_faults import alter_microbatches, replace_method
from tests.faults.fault import (
    FALLING_RATE,
    REUSED,
    WHOLE_RUN,
    WITH_REFERENCE,
    Apply,
    Fault,
    after_update,
    made,
    on,
    way,
)
from tests.faults.mistakes.gradients import SMALL_LIMIT, before_steps, clip_that_only_measures

if TYPE_CHECKING:
    from collections.abc import Callable

FAULTY = 1
"""The rank of faults that one rank has."""


def of_one_rank(apply: Apply) -> Apply:
    """A mistake that rank 1 alone makes."""

    def applied(trainer: Any) -> None:
        if int(os.environ.get("RANK", "0")) == FAULTY:
            apply(trainer)

    return made(f"{apply.__name__}_on_one_rank", f"{apply.__doc__ or ''} On rank 1 alone.", applied)


def inner_optimizer(trainer: Any) -> Any:
    """The torch optimizer inside the trainer's."""
    optimizer = trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]


# Gradients that are kept, or cleared in the wrong place


def gradients_kept_by_the_wrapped_model(trainer: Any, state: Any, **kwargs: Any) -> None:
    """The loop's zero_grad does nothing; the loop calls that of the model as the ranks share it."""
    replace_method(trainer.model_wrapped, "zero_grad", lambda original, *args, **more: None)


def gradients_zeroed_late(trainer: Any, state: Any, **kwargs: Any) -> None:
    """Gradients are cleared after the first backward pass of the next update, so that its first micro-batch is lost."""
    clear = trainer.model_wrapped.zero_grad
    replace_method(trainer.model_wrapped, "zero_grad", lambda original, *args, **more: None)
    passes = 0

    def backward(original: Callable[..., Any], *args: Any, **more: Any) -> Any:
        nonlocal passes
        found = original(*args, **more)
        passes += 1
        if passes % trainer.args.gradient_accumulation_steps == 1:
            clear()
        return found

    replace_method(trainer.accelerator, "backward", backward)


def gradients_of_the_last_update_added(trainer: Any) -> None:
    """Before the clip each gradient gets that of the update before it."""
    last: list[torch.Tensor | None] = []

    def clip(original: Callable[..., Any], parameters: Any, *args: Any, **more: Any) -> Any:
        held = list(parameters)
        now = [None if p.grad is None else p.grad.detach().clone() for p in held]
        for parameter, kept in zip(held, last, strict=False):
            if parameter.grad is not None and kept is not None:
                parameter.grad.add_(kept)
        last[:] = now
        return original(held, *args, **more)

    replace_method(trainer.accelerator, "clip_grad_norm_", clip)


def state_of_the_optimizer_reset_at_each_rollout(trainer: Any) -> None:
    """The optimizer forgets its moments and steps whenever a rollout is made."""

    def generate(original: Callable[..., Any], rows: Any) -> Any:
        if trainer.state.global_step:
            inner_optimizer(trainer).state.clear()
        return original(rows)

    replace_method(trainer, "_generate_and_score_completions", generate)


def scheduler_that_never_steps(trainer: Any, state: Any, lr_scheduler: Any = None, **kwargs: Any) -> None:
    """The learning rate stays where it was."""
    lr_scheduler.step = lambda *args, **more: None


# Mistakes of one rank


def another_rate(trainer: Any, state: Any, optimizer: Any = None, **kwargs: Any) -> None:
    """From update 5 on the learning rate is a tenth."""
    if state.global_step >= 5:
        for group in optimizer.param_groups:
            group["lr"] = trainer.args.learning_rate / 10


def moments_cleared(trainer: Any) -> None:
    """Adam begins anew at every update."""
    inner_optimizer(trainer).state.clear()


def last_gradients_zeroed(trainer: Any) -> None:
    """The reduced gradients of the last layer are zeroed before the step."""
    for name, parameter in trainer.model.named_parameters():
        if "layers.1." in name and parameter.grad is not None:
            local(parameter.grad).zero_()


def sample_repeated(trainer: Any) -> None:
    """From micro-batch 8 on the loss gets the first sample in the place of the last one."""

    def repeat(batch: dict[str, Any]) -> dict[str, Any]:
        size = batch["completion_ids"].shape[0]
        return {
            name: value[[*range(size - 1), 0]]
            if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == size
            else value
            for name, value in batch.items()
        }

    alter_microbatches(trainer, repeat, first=8)


def unprobed(trainer: Any) -> torch.Tensor:
    """What this rank holds of a tensor that no probe reads."""
    held = [p for name, p in trainer.model.named_parameters() if name.endswith("layers.1.mlp.up_proj.weight")]
    return local(held[0].detach())


def weight_changed(trainer: Any) -> None:
    """One weight that no probe reads is changed after update 3."""
    unprobed(trainer).reshape(-1)[5:6] += 1e-3


def other_start(trainer: Any, state: Any, **kwargs: Any) -> None:
    """Training begins with another weight."""
    weight_changed(trainer)


def other_copy(trainer: Any) -> None:
    """The model is loaded with another weight, before training spreads it over the ranks."""
    weight_changed(trainer)


def buffer_changed(trainer: Any) -> None:
    """The frequencies of the positions are changed after update 3."""
    next(iter(trainer.model.buffers())).mul_(1.01)


def reference_changed(trainer: Any) -> None:
    """The reference is changed after update 3."""
    with torch.no_grad():
        for parameter in trainer.ref_model.parameters():
            local(parameter).mul_(1.1)


def step_left_out(trainer: Any, state: Any, **kwargs: Any) -> None:
    """The optimizer makes no step at update 4."""
    replace_method(
        trainer.optimizer,
        "step",
        lambda original, *args, **more: None if trainer.state.global_step == 4 else original(*args, **more),
    )


def before_the_audit(trainer: Any, event: str, act: Callable[[], None]) -> None:
    """Act at an event of transformers', before the audit is told of it."""

    class Acts(TrainerCallback):  # type: ignore[misc]
        pass

    setattr(Acts, event, lambda *args, **kwargs: act())
    trainer.callback_handler.callbacks.insert(0, Acts())


def other_moments_restored(trainer: Any) -> None:
    """The moments that a checkpoint brings back are a third of those that were saved."""

    def act() -> None:
        for state in inner_optimizer(trainer).state.values():
            local(state["exp_avg"]).mul_(0.3)

    before_the_audit(trainer, "on_train_begin", act)


def other_weights_saved(trainer: Any) -> None:
    """The model that a checkpoint has for others has weights that are a hundredth larger."""
    save, held = trainer.model.save_pretrained, trainer.model.state_dict

    def save_pretrained(folder: Any, state_dict: Any = None, **more: Any) -> None:
        larger = {name: of * 1.01 for name, of in (state_dict or held()).items()}
        save(folder, state_dict=larger, **more)

    trainer.model.save_pretrained = save_pretrained


def stepped(trainer: Any) -> list[torch.Tensor]:
    """What this rank's optimizer steps; ZeRO-3 gives it to the inner optimizer within a step alone."""
    engine = getattr(trainer.model_wrapped, "optimizer", None)
    flat = getattr(engine, "fp32_partitioned_groups_flat", None)
    return list(flat or (local(of) for group in inner_optimizer(trainer).param_groups for of in group["params"]))


def changed_while_saved(trainer: Any, tensors: Callable[[], list[torch.Tensor]]) -> None:
    """Some tensors are a hundredth larger while FSDP or DeepSpeed writes its own files."""

    def save(original: Callable[..., Any], *args: Any) -> None:
        held = [of.detach() for of in tensors()]
        before = [of.clone() for of in held]
        for of in held:
            of.mul_(1.01)
        original(*args)
        for of, was in zip(held, before, strict=True):
            of.copy_(was)

    replace_method(trainer, "_save_optimizer_and_scheduler", save)


def other_parts_saved(trainer: Any) -> None:
    """The parts of a checkpoint that a resume loads have other weights than the run."""
    changed_while_saved(trainer, lambda: stepped(trainer))


def other_moments_saved(trainer: Any) -> None:
    """The parts of a checkpoint have other moments than the run."""
    changed_while_saved(trainer, lambda: [local(of["exp_avg"]) for of in inner_optimizer(trainer).state.values()])


def other_seed_of_the_sampler(trainer: Any) -> None:
    """The seed of the arguments is another one, as where a script adds the rank to it."""
    trainer.args.seed += 1


def completions_of_the_first_rank(trainer: Any) -> None:
    """Each rank trains the completions that rank 0 generated, as where each takes the same part of what one engine gave to all."""

    def generate(original: Callable[..., Any], *args: Any, **more: Any) -> Any:
        found = original(*args, **more)
        torch.distributed.broadcast_object_list(sent := [found[0]], src=0)
        return sent[0], *found[1:]

    replace_method(trainer, "_generate_single_turn", generate)


def with_a_scaler(trainer: Any) -> None:
    """Autocast and a gradient scaler, which accelerate has for fp16 on GPUs alone (accelerator.py 1.15.0:565)."""
    trainer.accelerator.native_amp = True
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)


def other_rows(trainer: Any) -> None:
    """The data set is shuffled, as where each process shuffles for itself."""
    trainer.train_dataset = trainer.train_dataset.shuffle(seed=FAULTY)


# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault(way(on, "on_train_begin", by=gradients_kept_by_the_wrapped_model), code="RLS803", where=Where(update=1), report="trl#583"),
    Fault(way(on, "on_train_begin", by=gradients_zeroed_late), code="RLS803", where=Where(update=1), report="trl#583"),
    Fault(gradients_of_the_last_update_added, code="RLS810", where=Where(update=1), report="gradients of two updates"),
    Fault(state_of_the_optimizer_reset_at_each_rollout, code="RLS807", where=Where(update=2), report="OpenRLHF#1297"),
    Fault(way(on, "on_train_begin", by=scheduler_that_never_steps), code="RLS602", where=Where(update=1), report="SkyRL#872",
          settings=FALLING_RATE),
    # of one rank
    Fault(of_one_rank(way(on, "on_step_begin", by=another_rate)), code="RLS605", where=Where(update=5, rank=FAULTY),
          report="a callback of one rank"),
    Fault(of_one_rank(way(before_steps, by=moments_cleared, first=4)), code="RLS807", where=Where(update=4, rank=FAULTY),
          report="OpenRLHF#1297"),
    Fault(of_one_rank(way(before_steps, by=last_gradients_zeroed, first=4)), code="RLS810", where=Where(update=4, rank=FAULTY),
          report="a guard against NaN"),
    Fault(of_one_rank(clip_that_only_measures), code="RLS808", where=Where(update=0, rank=FAULTY),
          report="a rank that clips nothing", settings=SMALL_LIMIT),
    # Where the sample is trained more often than there are passes.
    Fault(of_one_rank(sample_repeated), code="RLS502", where=Where(update=5, microbatch=10, rank=FAULTY),
          report="a filter of one rank"),
    Fault(of_one_rank(way(after_update, 4, by=weight_changed)), code="RLS419", where=Where(update=4, rank=FAULTY),
          report="a callback of rank 0 alone"),
    Fault(of_one_rank(way(on, "on_train_begin", by=other_start)), code="RLS419", where=Where(update=0, rank=FAULTY),
          report="trl#5619"),
    Fault(of_one_rank(other_copy), code="RLS419", where=Where(update=0, rank=FAULTY), report="trl#5619"),
    Fault(of_one_rank(way(after_update, 4, by=buffer_changed)), code="RLS419", where=Where(update=4, rank=FAULTY),
          report="a buffer of one rank", doubtful=True),
    Fault(of_one_rank(way(after_update, 4, by=reference_changed)), code="RLS411", where=Where(rollout=2, update=4, rank=FAULTY),
          report="a reference of one rank", settings=WITH_REFERENCE),
    Fault(of_one_rank(way(on, "on_train_begin", by=step_left_out)), code="RLS210", where=Where(update=4, rank=FAULTY),
          report="a rank that skips a step"),
    Fault(of_one_rank(other_seed_of_the_sampler), code="RLS902", where=Where(rank=FAULTY), report="a seed with the rank added"),
)
OF_CHECKPOINTS = (
    Fault(of_one_rank(other_moments_restored), code="RLS702", where=Where(rank=FAULTY), report="verl PR#5725"),
    Fault(other_weights_saved, code="RLS703", where=Where(update=4), report="weights that are gathered wrongly"),
)
"""Of a run that goes on from a checkpoint, and makes another."""
OF_PARTS = (
    Fault(other_parts_saved, code="RLS703", where=Where(update=4), report="parts that are written wrongly"),
    Fault(of_one_rank(other_moments_saved), code="RLS703", where=Where(update=4, rank=FAULTY), report="parts of one rank"),
)
"""Of the files that FSDP and DeepSpeed write for a resume."""
# Eight completions of one prompt, four on each rank: the copies have the prompt that they were drawn for.
COPIES = Fault(completions_of_the_first_rank, code="RLS519", where=Where(rollout=0, rank=FAULTY),
               report="each rank takes the first part of what one engine gave",
               settings=REUSED | {"num_generations": 8, "max_completion_length": 24})
OTHER_ROWS = Fault(of_one_rank(other_rows), code="RLS902", where=Where(rank=FAULTY), report="a set that each process shuffles",
                   doubtful=True)
SCALED = Fault(made("scaled", "Nothing: the healthy run has a scaler.", lambda trainer: None), code="", where=WHOLE_RUN, report="",
               settings=REUSED | {"fp16": True}, prepare=with_a_scaler)
# fmt: on

OF_RANKS = {fault.name: fault for fault in (*FAULTS, COPIES, OTHER_ROWS)}
