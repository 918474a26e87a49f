"""Ways to break how ranks share their gradients, in a real trainer: each does what a real mistake does, and raises nothing."""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

if TYPE_CHECKING:
    from collections.abc import Callable

RANK = int(os.environ.get("RANK", "0"))


class _WhenWrapped(TrainerCallback):  # type: ignore[misc]
    """Does something once the model is wrapped for its ranks."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._act()


class _Micro:
    """Counts the micro-batches of each update."""

    def __init__(self, trainer: Any) -> None:
        self.number = -1
        self._update = -1
        train = trainer.training_step

        def training_step(*args: Any, **kwargs: Any) -> Any:
            if trainer.state.global_step != self._update:
                self._update, self.number = trainer.state.global_step, -1
            self.number += 1
            return train(*args, **kwargs)

        trainer.training_step = training_step


def unwrapped(trainer: Any) -> Any:
    """The model inside what the trainer calls."""
    return trainer.accelerator.unwrap_model(trainer.model_wrapped)


def _flat_parameters(trainer: Any) -> list[tuple[str, Any]]:
    """FSDP1's, by the name of their module."""
    named = trainer.model_wrapped.named_modules()
    handles = [(name, getattr(module, "_handle", None)) for name, module in named]
    return [(name, handle.flat_param) for name, handle in handles if handle is not None]


def _on_gradients(trainer: Any, change: Callable[[str, torch.Tensor], torch.Tensor | None], rank: int = 1) -> None:
    """Change each gradient of one rank as it arrives at its leaf, as a hook of a user does."""

    def hook(leaf: Any, name: str) -> None:
        leaf.register_hook(lambda gradient: change(name, gradient))

    hooked: set[int] = set()

    def when_whole(module: Any, path: str) -> None:
        def before(of: Any, arguments: Any) -> None:
            for attribute, leaf in of.named_parameters(recurse=False):
                if leaf.requires_grad and id(leaf) not in hooked:
                    hooked.add(id(leaf))
                    hook(leaf, f"{path}.{attribute}")

        module.register_forward_pre_hook(before)

    def place() -> None:
        if rank != RANK:
            return
        flat = _flat_parameters(trainer)
        for name, parameter in flat:
            hook(parameter, name)
        if not flat:
            model = unwrapped(trainer)
            sharded = any(hasattr(parameter, "to_local") for parameter in model.parameters())
            for path, module in model.named_modules() if sharded else ():
                when_whole(module, path)
            for name, parameter in model.named_parameters() if not sharded else ():
                if parameter.requires_grad:
                    hook(parameter, name)

    trainer.add_callback(_WhenWrapped(place))


def zero_rank(trainer: Any) -> None:
    """Rank 1 gives zeros."""
    _on_gradients(trainer, lambda name, gradient: gradient * 0)


def zero_layer(trainer: Any) -> None:
    """Rank 1 gives zeros for one tensor, or for FSDP1's flat one of a layer, from the third update on."""

    def change(name: str, gradient: torch.Tensor) -> torch.Tensor | None:
        here = "layers.1.mlp.up" in name or name.endswith("layers.1")
        return gradient * 0 if here and trainer.state.global_step >= 2 else None

    _on_gradients(trainer, change)


def scaled_rank(trainer: Any) -> None:
    """Rank 1's gradients count three times."""
    _on_gradients(trainer, lambda name, gradient: gradient * 3)


def drop_first(trainer: Any) -> None:
    """Rank 1 loses the first micro-batch of each update."""
    micro = _Micro(trainer)
    _on_gradients(trainer, lambda name, gradient: gradient * 0 if micro.number == 0 else None)


def drop_last_everywhere(trainer: Any) -> None:
    """All ranks lose the last micro-batch of each update."""
    micro = _Micro(trainer)
    last = trainer.args.gradient_accumulation_steps - 1
    for rank in range(2):
        _on_gradients(trainer, lambda name, gradient: gradient * 0 if micro.number == last else None, rank)


def stale_rank(trainer: Any) -> None:
    """Rank 1 gives in each update the gradients that it had in the one before."""
    micro = _Micro(trainer)
    kept: dict[tuple[str, int, int], torch.Tensor] = {}

    def change(name: str, gradient: torch.Tensor) -> torch.Tensor | None:
        update = trainer.state.global_step
        kept[name, update, micro.number] = gradient.clone()
        return kept.pop((name, update - 1, micro.number), None)

    _on_gradients(trainer, change)


def _training_step(trainer: Any, around: Callable[[int], Any]) -> None:
    micro = _Micro(trainer)
    train = trainer.training_step

    def training_step(*args: Any, **kwargs: Any) -> Any:
        with around(micro.number + 1 if trainer.state.global_step == micro._update else 0):
            return train(*args, **kwargs)

    trainer.training_step = training_step


def no_sync_left_on(trainer: Any) -> None:
    """Gradients are never synchronised."""

    def around(number: int) -> Any:
        wrapped = trainer.model_wrapped
        if hasattr(wrapped, "no_sync"):
            return wrapped.no_sync()
        wrapped.set_requires_gradient_sync(False)
        return nullcontext()

    _training_step(trainer, around)


def last_not_synced(trainer: Any) -> None:
    """The gradients of the last micro-batch of each update are not synchronised, and those before it are."""
    last = trainer.args.gradient_accumulation_steps - 1

    def around(number: int) -> Any:
        wrapped = trainer.model_wrapped
        if hasattr(wrapped, "set_requires_gradient_sync"):
            wrapped.set_requires_gradient_sync(number != last)
            return nullcontext()
        wrapped.require_backward_grad_sync = True
        return wrapped.no_sync() if number == last else nullcontext()

    # accelerate switches it itself, to the contrary.
    trainer.accelerator.no_sync = lambda model: nullcontext()
    _training_step(trainer, around)


def own_tokens(trainer: Any) -> None:
    """Each rank weights its loss by a number of its own."""
    backward = trainer.accelerator.backward
    trainer.accelerator.backward = lambda loss, **kwargs: backward(loss * (0.5 + RANK), **kwargs)


def gradients_kept(trainer: Any) -> None:
    """Nothing clears gradients between updates."""

    def keep() -> None:
        trainer.model.zero_grad = lambda *args, **kwargs: None
        trainer.model_wrapped.zero_grad = lambda *args, **kwargs: None
        trainer.optimizer.zero_grad = lambda *args, **kwargs: None

    trainer.add_callback(_WhenWrapped(keep))


# DDP's own


def _communicates(trainer: Any, divisor: float) -> None:
    def hook(state: Any, bucket: Any) -> Any:
        future = torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / divisor)

    hook.__annotations__.clear()  # torch reads them, and refuses texts
    trainer.add_callback(_WhenWrapped(lambda: trainer.model_wrapped.register_comm_hook(None, hook)))


def _divided_by(trainer: Any, divisor: float) -> None:
    """What all ranks' gradients add up to is divided by this, in the place of the number of ranks."""

    def place() -> None:
        for module in trainer.model_wrapped.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_force_sum_reduction_for_comms(True)
                module.set_gradient_divide_factor(divisor)
            elif hasattr(module, "_gradient_predivide_factor"):
                module._gradient_predivide_factor, module._gradient_postdivide_factor = 1.0, divisor

    if getattr(trainer, "is_fsdp_enabled", False):
        trainer.add_callback(_WhenWrapped(place))
    else:
        _communicates(trainer, divisor)


def summed(trainer: Any) -> None:
    """Nobody divides by the number of ranks: a communication hook that forgets it, or a divide factor of 1."""
    _divided_by(trainer, 1.0)


def divided_twice(trainer: Any) -> None:
    """It is divided by the number of ranks twice."""
    _divided_by(trainer, 4.0)


def fp16_hook(trainer: Any) -> None:
    """No fault: torch's own hook that reduces in float16."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    group = torch.distributed.group.WORLD
    trainer.add_callback(_WhenWrapped(lambda: trainer.model_wrapped.register_comm_hook(group, fp16_compress_hook)))


def low_rank_hook(trainer: Any) -> None:
    """No fault: torch's own hook that reduces in low rank."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    def place() -> None:
        state = PowerSGDState(torch.distributed.group.WORLD, start_powerSGD_iter=2, min_compression_rate=1)
        trainer.model_wrapped.register_comm_hook(state, powerSGD_hook)

    trainer.add_callback(_WhenWrapped(place))


def outside_of_buckets(model: Any) -> None:
    """DDP is told to leave out one tensor, and the optimizer trains it."""
    name = next(
        name for name, of in model.named_parameters() if "layers.1.self_attn.q_proj" in name and of.requires_grad
    )
    model._ddp_params_and_buffers_to_ignore = [name]


def not_the_mean(trainer: Any) -> None:
    """Rank 1 goes on with gradients of its own once they are reduced: what it had before."""
    own: dict[str, torch.Tensor] = {}

    def change(name: str, gradient: torch.Tensor) -> None:
        own[name] = own.get(name, 0) + gradient  # type: ignore[arg-type]

    _on_gradients(trainer, change)
    clip = trainer.accelerator.clip_grad_norm_

    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        for name, parameter in unwrapped(trainer).named_parameters():
            if name in own:
                parameter.grad.copy_(own.pop(name))
        return clip(*args, **kwargs)

    # Before the audit stands in front of it, so that it sees what the clip gets only from the optimizer.
    trainer.accelerator.clip_grad_norm_ = clip_grad_norm_


# The clip


def _clips(trainer: Any, clip: Callable[[Any, float], None]) -> None:
    def clip_grad_norm_(parameters: Any, limit: float, *args: Any, **kwargs: Any) -> torch.Tensor:
        clip(list(parameters), limit)
        return torch.tensor(1.0)

    trainer.accelerator.clip_grad_norm_ = clip_grad_norm_


def _local(parameter: Any) -> torch.Tensor:
    gradient = parameter.grad
    local: torch.Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return local


def clip_left_out(trainer: Any) -> None:
    """Nothing clips."""
    _clips(trainer, lambda parameters, limit: None)


def clip_of_values(trainer: Any) -> None:
    """Each value is clipped by itself."""

    def clip(parameters: list[Any], limit: float) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                _local(parameter).clamp_(-1e-3, 1e-3)

    _clips(trainer, clip)


def clip_of_own_shard(trainer: Any) -> None:
    """Each rank clips by the norm of what it holds."""

    def clip(parameters: list[Any], limit: float) -> None:
        gradients = [_local(parameter) for parameter in parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        for gradient in gradients:
            gradient.mul_(torch.clamp(0.1 * limit / (norm + 1e-6), max=1.0))

    _clips(trainer, clip)


def clip_left_out_later(trainer: Any) -> None:
    """From update 2 on the clip returns the norm and leaves the gradients as they are."""
    clip = trainer.accelerator.clip_grad_norm_

    def clip_grad_norm_(parameters: Any, limit: float, *args: Any, **kwargs: Any) -> Any:
        return clip(parameters, limit if trainer.state.global_step < 2 else math.inf, *args, **kwargs)

    trainer.accelerator.clip_grad_norm_ = clip_grad_norm_


class _WritesOnRankOne(TrainerCallback):  # type: ignore[misc]
    """Once update 2 is made, rank 1 makes a tensor larger that no probe reads."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step == 3 and RANK == 1:
            next(of for name, of in model.named_parameters() if "layers.1.mlp.up_proj" in name).data.mul_(1.01)


# What nothing but the optimizer's step may change


class _ShrinksTheNorm(TrainerCallback):  # type: ignore[misc]
    """After each step all ranks make one tensor smaller, which no probe reads."""

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        weight = next(of for name, of in model.named_parameters() if name.endswith("model.norm.weight"))
        _part(weight.data).mul_(0.97)


class _LosesAMoment(TrainerCallback):  # type: ignore[misc]
    """Before update 2 all ranks lose what Adam keeps of one tensor."""

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if state.global_step == 2:
            while hasattr(optimizer, "optimizer"):
                optimizer = optimizer.optimizer
            _part([*optimizer.state.values()][7]["exp_avg"]).zero_()


def _part(tensor: Any) -> torch.Tensor:
    """What this rank holds of a tensor."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


# What one rank computes otherwise, and no reduction shows


def layer_detached(trainer: Any) -> None:
    """From update 2 on rank 1 computes a part of the last layer without a gradient."""
    part = trainer.model.model.layers[1].mlp
    forward = part.forward

    def detached(hidden: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = forward(hidden)
        return found.detach() if RANK == 1 and trainer.state.global_step >= 2 else found

    part.forward = detached


def own_rewards_for_all(trainer: Any) -> None:
    """Each rank takes its own samples' rewards for those of all ranks too."""
    calculate = trainer._calculate_rewards

    def calculated(*args: Any) -> torch.Tensor:
        rewards: torch.Tensor = calculate(*args)
        own = rewards.shape[0] // trainer.accelerator.num_processes
        mine = rewards[RANK * own : (RANK + 1) * own]
        return torch.cat([mine] * trainer.accelerator.num_processes)

    trainer._calculate_rewards = calculated


def own_entropies_alone(trainer: Any) -> None:
    """Each rank takes the threshold of its own tokens' entropies."""

    def mask_of(entropies: torch.Tensor, mask: torch.Tensor, threshold: float) -> torch.Tensor:
        own = torch.quantile(entropies[mask.bool()].float(), threshold)
        return (entropies * mask >= own) & mask.bool()

    trainer.get_high_entropy_mask = mask_of


def entropies_of_the_other_end(trainer: Any) -> None:
    """All ranks together train the share of the tokens that the quantile is to leave out."""
    mask_of = trainer.get_high_entropy_mask
    trainer.get_high_entropy_mask = lambda entropies, mask, threshold: mask_of(entropies, mask, 1 - threshold)


def seed_with_the_rank(trainer: Any) -> None:
    """Each rank adds its number to the seed of the arguments."""
    trainer.args.seed += RANK


def rows_of_each_rank(trainer: Any) -> None:
    """Each rank shuffles the data set by a seed of its own."""
    trainer.train_dataset = trainer.train_dataset.shuffle(seed=RANK)


BEFORE_BUILT: dict[str, Callable[[Any], None]] = {"outside": outside_of_buckets}
"""By the word of a case: what is done to the model before the trainer gets it."""
AFTER_BUILT: dict[str, Callable[[Any], None]] = {
    "zerorank": zero_rank,
    "zerolayer": zero_layer,
    "scaledrank": scaled_rank,
    "dropfirst": drop_first,
    "droplast": drop_last_everywhere,
    "stalerank": stale_rank,
    "nosync": no_sync_left_on,
    "lastunsynced": last_not_synced,
    "owntokens": own_tokens,
    "kept": gradients_kept,
    "summed": summed,
    "twice": divided_twice,
    "fp16hook": fp16_hook,
    "lowrank": low_rank_hook,
    "notmean": not_the_mean,
    "noclip": clip_left_out,
    "valueclip": clip_of_values,
    "shardclip": clip_of_own_shard,
    "lateclip": clip_left_out_later,
    "drift": lambda trainer: trainer.add_callback(_WritesOnRankOne()),
    "shrinks": lambda trainer: trainer.add_callback(_ShrinksTheNorm()),
    "detached": layer_detached,
    "ownrewards": own_rewards_for_all,
    "ownentropies": own_entropies_alone,
    "otherend": entropies_of_the_other_end,
    "rankseed": seed_with_the_rank,
    "rankrows": rows_of_each_rank,
    "forgets": lambda trainer: trainer.add_callback(_LosesAMoment()),
}
"""By the word of a case: what is done to the trainer before it trains."""
