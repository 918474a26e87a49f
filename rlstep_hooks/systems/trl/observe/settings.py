"""What a live trainer and its optimizer compute with, beside what was configured and what was there when training began.

Sizes that a cycle follows are read from the arguments. What the trainer computes with it copies from them when it is built
(`GRPOTrainer.__init__` and `RLOOTrainer.__init__`, 0.16.1 to 1.16.0).
"""

from __future__ import annotations

import os
import struct
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.settings import SameValues, SettingsWatch, attributes, optimizer_settings, values_of
from rlstep_hooks.record.events import DROPPING, EVALUATION_MODE, FORWARD_AUTOCAST, TIED
from rlstep_hooks.systems.trl.launch import CYCLE_SETTINGS
from rlstep_hooks.systems.trl.observe.documented_optimizer import (
    WeightDecay,
    builds_its_own,
    documented_settings,
    is_built_as_documented,
)
from rlstep_hooks.systems.trl.observe.facts import active_dropout
from rlstep_hooks.systems.trl.observe.limits import own_construction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlstep_hooks.observe.head_gradient import HeadWatch
    from rlstep_hooks.observe.settings import Setting
    from rlstep_hooks.observe.sync_watch import EventRecorder

_COPIED = {
    "beta": "beta",
    "entropy_coef": "entropy_coef",
    "epsilon_low": "epsilon",
    "epsilon_high": "epsilon_high",
    "importance_sampling_level": "importance_sampling_level",
    "loss_type": "loss_type",
    "mask_truncated_completions": "mask_truncated_completions",
    "max_completion_length": "max_completion_length",
    "multi_objective_aggregation": "multi_objective_aggregation",
    "normalize_advantages": "normalize_advantages",
    "off_policy_mask_threshold": "off_policy_mask_threshold",
    "reward_clip_range": "reward_clip_range",
    "scale_rewards": "scale_rewards",
    "shuffle_dataset": "shuffle_dataset",
    "temperature": "temperature",
    "top_entropy_quantile": "top_entropy_quantile",
    "use_adaptive_entropy": "use_adaptive_entropy",
}
"""What the trainer keeps for itself -> the argument that it is copied from. The settings of sampling are not here: those that are in
force are read where they are used (`sampling`)."""

_OF_ENGINE = (
    "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode",
    "vllm_importance_sampling_cap",
    "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min",
)
"""Attributes that are computed with where vLLM samples; the setting has the same name."""

_COUNTED = {"num_generations": "num_generations", "num_iterations": "num_iterations"}
"""Attributes of passes and groups. They are compared when training begins; after that rules of their own count them."""

_IN_USE = (
    *("max_grad_norm", "delta", "use_bias_correction_kl", "sapo_temperature_pos", "sapo_temperature_neg"),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
    *("entropy_target", "entropy_coef_delta", "entropy_coef_min", "entropy_coef_max"),
)
"""Arguments that each update or loss reads anew."""


SETTINGS_OF_TRAINING = (*CYCLE_SETTINGS, *_COPIED.values(), *_OF_ENGINE, *_COUNTED.values(), *_IN_USE)
"""The arguments that are compared while training goes on."""

_AUTOCAST = {"bf16": "bfloat16", "fp16": "float16"}
"""Kinds of mixed precision, and the dtype of autocast in them."""

_WEIGHTS = "trainer.reward_weights"

_NEVER_SCHEDULED = ("optimizer.lr", "optimizer.maximize")
"""Beginnings of names of those that nobody changes on purpose while training goes on: the ratio of two rates, and the direction."""


def of_construction(trainer: Any, first: dict[str, Any]) -> SettingsWatch:
    """Sizes when training begins, beside those of the arguments when the trainer was built (`first`) and the size that the arguments
    derived from others."""
    args, product = trainer.args, "per_device_train_batch_size * processes * steps_per_generation"
    derived = getattr(args, "generation_batch_size", None)

    sizes = attributes(args, first)

    def read() -> Iterator[Setting]:
        yield from sizes(args)
        if isinstance(derived, int):
            yield (
                product,
                args.per_device_train_batch_size * trainer.accelerator.num_processes * args.steps_per_generation,
            )

    return SettingsWatch(read, lambda: {**first, product: derived}, since="construction")


def of_copies(trainer: Any) -> SettingsWatch:
    """What the trainer keeps for itself, beside the arguments. It is looked at when training begins."""
    args = trainer.args
    copied, given = _copied(trainer), _given_weights(args)
    copies = attributes(trainer, copied, "trainer.")

    def read() -> Iterator[Setting]:
        yield from copies(trainer)
        yield from _weights(trainer, given) if copied else ()
        yield from _autocast(trainer)
        yield from _tied(trainer)

    def right() -> dict[str, Any]:
        found = {f"trainer.{name}": getattr(args, argument) for name, argument in copied.items()}
        if "epsilon_high" in copied and args.epsilon_high is None:
            found["trainer.epsilon_high"] = args.epsilon
        found |= {name: _padded(given, len(own)) for name, own in _weights(trainer, given)}
        found |= {name: _configured_precision(args) for name, _ in _autocast(trainer)}
        return found | {TIED: True}

    return SettingsWatch(read, right, since="configuration")


def of_training(trainer: Any) -> SettingsWatch:
    """The arguments that are read anew, what the trainer keeps for itself, and the scaling of adapters, from now on."""
    # The trainer keeps the group size for itself, and groups rewards by it (GRPOTrainer and RLOOTrainer, all releases).
    own = ("num_generations", *(name for name in _copied(trainer) if name not in _COUNTED))
    # Each of PEFT's layers multiplies what its adapters give by these numbers (tuners/lora/layer.py 0.14 to 0.21).
    scalings = [getattr(module, "scaling", None) for module in trainer.model.modules()]
    of_adapters = [scaling for scaling in scalings if isinstance(scaling, dict)]
    given = _given_weights(trainer.args)
    of_each = (*CYCLE_SETTINGS, *_IN_USE)
    of_args, of_trainer = attributes(trainer.args, of_each), attributes(trainer, own, "trainer.")

    def read() -> Iterator[Setting]:
        scalings = tuple(sorted({value for of in of_adapters for value in of.values()}))
        more = [*_weights(trainer, given), ("scaling of the adapters", scalings)]
        return chain(of_args(trainer.args), of_trainer(trainer), more)

    values_of_args = values_of([name for name in of_each if hasattr(trainer.args, name)])
    values_of_trainer = values_of([name for name in own if hasattr(trainer, name)])

    def values() -> tuple[Any, ...]:
        """All that these settings are read from, some of it in another form."""
        scalings = [value for of in of_adapters for value in of.values()]
        weights: Any = getattr(trainer, "reward_weights", None)
        read_weights = weights.tolist() if getattr(weights, "is_cpu", False) else ()
        return (*values_of_args(trainer.args), *values_of_trainer(trainer), *read_weights, *scalings)

    return SettingsWatch(read, since="train_begin", unchanged=SameValues(values))


def of_evaluation(trainer: Any) -> SettingsWatch:
    """The mode that the model evaluates in: a GRPOTrainer takes what its model does in training mode for training (all releases)."""
    return SettingsWatch(
        lambda: [(EVALUATION_MODE, trainer.model.training)], lambda: {EVALUATION_MODE: False}, since="configuration"
    )


def of_forwards(trainer: Any) -> SettingsWatch:
    """The modes of the policy's modules that drop something, from now on: transformers puts the whole model into training mode before
    each micro-batch (`Trainer.training_step`, 4.51 to 5.23). Some keep a part of it in evaluation mode on purpose, from the start."""
    dropping = [module for module in trainer.model.modules() if active_dropout([module])]
    return SettingsWatch(
        lambda: [(DROPPING, sum(module.training for module in dropping))] if dropping else [], since="configuration"
    )


def of_autocast(trainer: Any, head: HeadWatch) -> SettingsWatch:
    """The dtype of autocast in the policy's forwards, where mixed precision is asked for: accelerate wraps the model's forward with it
    (accelerator.py 1.15.0:1824, `prepare_model`), and so does TRL (grpo_trainer.py 1.16.0:1497). DeepSpeed's engines have their own,
    and FSDP2 casts what it gathers (`mixed_precision_policy`), with autocast in TRL 1.16 and without in 1.0. On a CPU accelerate trains
    in float32 where fp16 is asked for (accelerator.py 1.15.0:565).

    Args:
        trainer: A trainer of transformers.
        head: Has seen autocast in the latest forward that was looked at.
    """
    accelerator, precision = trainer.accelerator, _configured_precision(trainer.args)
    handler = getattr(accelerator, "autocast_handler", None)
    none_here = precision == "fp16" and accelerator.device.type == "cpu"
    cast = getattr(trainer, "is_deepspeed_enabled", False) or getattr(accelerator, "is_fsdp2", False)
    own = cast or not getattr(handler, "enabled", True)
    due = None if own or none_here else _AUTOCAST.get(precision)

    def read() -> Iterator[Setting]:
        if due is not None and head.autocast is not None:
            yield FORWARD_AUTOCAST, head.autocast

    return SettingsWatch(read, lambda: {FORWARD_AUTOCAST: due}, since="configuration")


def _tied(trainer: Any) -> Iterator[Setting]:
    """Whether the policy's embeddings are one tensor, where its configuration and its class say so. Not with adapters, which may train
    copies of both."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    asked = getattr(getattr(model, "config", None), "tie_word_embeddings", False)
    if asked and getattr(model, "_tied_weights_keys", None) and not hasattr(model, "peft_config"):
        ends = [getattr(end, "weight", None) for end in (model.get_input_embeddings(), model.get_output_embeddings())]
        # FSDP1's flat parameters leave views there, and no parameters.
        if all(isinstance(end, torch.nn.Parameter) for end in ends):
            yield TIED, ends[0] is ends[1]


def _copied(trainer: Any) -> dict[str, str]:
    """What this trainer keeps for itself -> its argument; nothing where it is built in a way that was not read."""
    if own_construction(trainer):
        return {}
    # An adaptive entropy bonus moves its own coefficient.
    moves = ("entropy_coef",) if getattr(trainer, "use_adaptive_entropy", False) else ()
    of_engine = {name: name for name in _OF_ENGINE if getattr(trainer, "use_vllm", False)}
    return {
        name: argument
        for name, argument in (_COPIED | _COUNTED | of_engine).items()
        if hasattr(trainer, name) and hasattr(trainer.args, argument) and name not in moves
    }


def _given_weights(args: Any) -> tuple[float, ...]:
    return tuple(map(float, getattr(args, "reward_weights", None) or ()))


def _padded(given: tuple[float, ...], number: int) -> tuple[float, ...]:
    """The weight of each reward function: 1 for those of environments, and where none are given (grpo_trainer.py 1.16.0:730)."""
    return given + (1.0,) * (number - len(given))


def _weights(trainer: Any, given: tuple[float, ...]) -> Iterator[Setting]:
    """The weights of the reward functions: those given, where the trainer's are these in float32; none where reading them would wait
    for the device."""
    weights: Any = getattr(trainer, "reward_weights", None)
    if getattr(weights, "is_cpu", False):
        own = tuple(weights.tolist())
        expected = _padded(given, len(own))
        yield _WEIGHTS, expected if own == tuple(map(_in_float32, expected)) else own


def _in_float32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


def _autocast(trainer: Any) -> Iterator[Setting]:
    """The precision of autocast, where the trainer's arguments or the launcher decide it and no engine has its own."""
    if not getattr(trainer, "is_deepspeed_enabled", False):
        yield "accelerator.mixed_precision", str(trainer.accelerator.mixed_precision)


def _configured_precision(args: Any) -> str:
    """`fp16` and `bf16` of the arguments, else what the launcher asks for (training_args.py 4.51.3:1827 to 5.23.0:1615)."""
    configured = "fp16" if args.fp16 else "bf16" if args.bf16 else None
    return configured or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")


# The optimizer


class OptimizerSettings:
    """Follows the settings of one optimizer: beside those that transformers builds it with, and from the beginning of training on.

    Args:
        trainer: A trainer of transformers.
        optimizer: The torch optimizer inside its own.
        members: The model's parameters of each of its groups, where it steps on other tensors.
    """

    def __init__(self, trainer: Any, optimizer: Any, members: Sequence[Sequence[Any]] | None = None) -> None:
        self._trainer = trainer
        self._optimizer = optimizer
        self._members = members
        # Not by methods of this object: nothing may wait for the garbage collector once training is over.
        self._followed = SettingsWatch(partial(_of_optimizer, trainer, optimizer), since="train_begin")
        self._lasting = self._from_now_on()

    def tell(self, recorder: EventRecorder, *, stepped: bool) -> None:
        """Record what changed since the last call.

        Args:
            recorder: Takes the events.
            stepped: Whether the optimizer has stepped; if not, its settings must be those that it was built with.
        """
        certain = self._lasting
        if not stepped:
            certain = self._beside_documented()
        if certain.tell(recorder):
            self._followed.changes()  # those of `certain` among them are told
        else:
            self._followed.tell(recorder)
        if not stepped:
            self._lasting = self._from_now_on()

    def _from_now_on(self) -> SettingsWatch:
        trainer, optimizer = self._trainer, self._optimizer
        return SettingsWatch(
            lambda: [of for of in _of_optimizer(trainer, optimizer) if of[0].startswith(_NEVER_SCHEDULED)],
            since="configuration",
        )

    def _beside_documented(self) -> SettingsWatch:
        """Compares the groups with those that transformers builds; with nothing where somebody else built the optimizer."""
        trainer, optimizer, groups = self._trainer, self._optimizer, self._optimizer.param_groups
        decay = WeightDecay(trainer, self._members or [group["params"] for group in groups], len(groups))
        # An engine, or somebody else, may have built it just so; what it is made of then says that it follows the arguments.
        certain = self._members is None and builds_its_own(trainer, optimizer)
        alike = is_built_as_documented(trainer, optimizer)
        known = decay.known() and (certain or (alike and decay.as_documented()))
        built = (documented_settings(trainer, optimizer) or {}) if known else {}

        def read() -> Iterator[Setting]:
            yield from _of_groups(trainer, optimizer, "lr", "initial_lr", "fused")
            if built:
                yield from ((name, now) for name, _, now in _misplaced(decay, groups))

        def right() -> dict[str, Any]:
            if not built:
                return {}
            of_all = {**built, "lr": groups[0]["lr"], "initial_lr": trainer.args.learning_rate}
            found = {
                _name(name, place): value
                for place in range(len(groups))
                if decay.has(place)
                for name, value in {**of_all, "weight_decay": decay.of_group(place)}.items()
                if value is not None
            }
            return found | {name: wanted for name, wanted, _ in _misplaced(decay, groups)}

        return SettingsWatch(read, right, since="configuration")


def _misplaced(decay: WeightDecay, groups: Sequence[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """Describe the first parameter that stands in a group of another decay: name of the setting, right value, and value now."""
    found = decay.misplaced([group["weight_decay"] for group in groups])
    if not found:
        return []
    (first, right, now), others = found[0], len(found) - 1
    return [(f"optimizer.weight_decay of {first}" + (f" and {others} others" if others else ""), right, now)]


def _of_groups(trainer: Any, optimizer: Any, *also: str) -> Iterator[Setting]:
    return optimizer_settings(optimizer, _name, scheduler=trainer.lr_scheduler, also=also)


def _of_optimizer(trainer: Any, optimizer: Any) -> Iterator[Setting]:
    yield from _of_groups(trainer, optimizer)
    # Where all groups follow one function of the ticks, their rates keep their ratio.
    functions = list(getattr(trainer.lr_scheduler, "lr_lambdas", None) or [])
    first, *rates = [group["lr"] for group in optimizer.param_groups]
    if functions and all(function is functions[0] for function in functions) and isinstance(first, float) and first:
        for place, rate in enumerate(rates, 1):
            if isinstance(rate, float):
                yield f"{_name('lr', place)} over that of group 0", float(f"{rate / first:.4g}")


def _name(setting: str, place: int) -> str:
    return f"optimizer.{setting} of group {place}"
