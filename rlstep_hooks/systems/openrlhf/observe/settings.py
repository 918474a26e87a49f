"""The settings that a process of OpenRLHF computes with, beside those that it was started with.

Every process has its own copy of the arguments, and its trainer, its optimizer and its engine have theirs. Nothing changes them while
training goes on, with one exception of OpenRLHF's own (`_OWN_CHANGES`). Verified with 0.11.2 on DeepSpeed 0.19.
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from rlstep_hooks.observe.settings import SettingsWatch, optimizer_settings
from rlstep_hooks.observe.sharding.zero import parameters_of_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlstep_hooks.observe.settings import Setting
    from rlstep_hooks.record.values import Role

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""`ds.param_dtype` -> torch's name."""

FOLLOWED = ("actor", "algo", "critic", "data", "ref", "reward", "rollout", "train")
"""Parts of the arguments that training depends on."""

_OWN_CHANGES = ("algo.advantage.gamma",)
"""experience_maker.py:312 writes the gamma that estimators without a discount compute with."""

_PLAIN = (bool, int, float, str, list, tuple, type(None))

_COPIED: dict[Role, dict[str, Callable[[Any], Any]]] = {
    "policy": {
        "clip_eps_low": lambda args: args.actor.eps_clip_low_high[0],
        "clip_eps_high": lambda args: args.actor.eps_clip_low_high[1],
        "dual_clip": attrgetter("actor.dual_clip"),
        # loss.py:152: GSPO is a mean over samples, whatever the arguments say.
        "token_level_loss": lambda args: (
            args.actor.loss_agg_mode == "token-mean" and args.actor.policy_loss_type != "gspo"
        ),
        "policy_loss_type": attrgetter("actor.policy_loss_type"),
        "is_correction_level": attrgetter("algo.advantage.is_correction_level"),
        "is_correction_mode": attrgetter("algo.advantage.is_correction_mode"),
        "is_correction_gating": attrgetter("algo.advantage.is_correction_gating"),
        "is_correction_threshold": attrgetter("algo.advantage.is_correction_threshold"),
    },
    "critic": {"clip_eps": attrgetter("critic.value_clip")},
}
"""What the loss of a role keeps for itself (ppo_actor.py:72, ppo_critic.py:60) -> the argument that it comes from."""


def of_arguments(args: Any) -> SettingsWatch:
    """The plain values among the arguments that training depends on, by their full name."""

    def read() -> Iterator[Setting]:
        for part in FOLLOWED:
            yield from _flat(part, getattr(args, part, None))

    return SettingsWatch(read, since="train_begin")


def _flat(name: str, value: Any) -> Iterator[Setting]:
    if name in _OWN_CHANGES:
        return
    if isinstance(value, _PLAIN):
        yield name, value
    else:
        for key, inner in getattr(value, "__dict__", {}).items():
            yield from _flat(f"{name}.{key}", inner)


def of_trainer(trainer: Any, role: Role) -> SettingsWatch:
    """What a trainer and its loss copy from the arguments when they are built, and compute with from then on.

    ppo_actor.py:70 and ppo_critic.py:50 copy the number of passes.

    Args:
        trainer: OpenRLHF's `ActorPPOTrainer` or `CriticPPOTrainer`.
        role: The role of the trainer.
    """
    prefix = f"{role} trainer "

    def read() -> Iterator[Setting]:
        loss = trainer.critic_loss_fn if role == "critic" else trainer.actor_loss_fn
        yield f"{prefix}max_epochs", trainer.max_epochs
        for name in _COPIED[role]:
            yield prefix + name, getattr(loss, name)

    def right() -> dict[str, Any]:
        given = {prefix + name: of(trainer.args) for name, of in _COPIED[role].items()}
        return {f"{prefix}max_epochs": trainer.args.train.max_epochs, **given}

    return SettingsWatch(read, right, since="configuration")


def of_optimizer(engine: Any, settings: Any, role: Role) -> SettingsWatch:
    """What a DeepSpeed engine and its optimizer step with, beside the arguments of their role; nothing where these are not Adam's.

    DeepSpeed decays the weights of one of two groups, and a group without trained weights is left out (deepspeed_utils.py:121).
    """
    prefix = f"{role} optimizer "
    decays = _decays(engine, float(settings.adam.weight_decay)) if settings.optim == "adam" else []

    def read() -> Iterator[Setting]:
        if settings.optim != "adam":
            return
        for of in decays:
            yield prefix + of.name, of.group.get("weight_decay")
        yield from optimizer_settings(engine.basic_optimizer, lambda name, place: prefix + name)
        limit = getattr(engine.optimizer, "clip_grad", None)
        if limit is not None:
            yield f"{prefix}max_norm", float(limit)

    def right() -> dict[str, Any]:
        adam = settings.adam
        given = {"betas": tuple(map(float, adam.betas)), "eps": adam.eps, "weight_decay": adam.weight_decay}
        of_tensors = {prefix + of.name: of.right for of in decays}
        return (
            of_tensors
            | {prefix + name: value for name, value in given.items()}
            | {f"{prefix}max_norm": settings.max_norm}
        )

    return SettingsWatch(read, right, since="configuration", allowed={f"{prefix}weight_decay": (0.0,)})


_NOT_DECAYED = ("bias", "layer_norm.weight", "layernorm.weight", "norm.weight", "ln_f.weight")
"""Parts of the names of parameters that Adam does not decay (deepspeed_utils.py:124)."""


class _Decay(NamedTuple):
    """Some tensors of one group that have one decay."""

    name: str
    group: dict[str, Any]
    """The group of these tensors: while ZeRO steps one group, `param_groups` has no other."""
    right: float


def _decays(engine: Any, configured: float) -> list[_Decay]:
    """What the tensors of each group must be decayed by, those that are decayed and those that are not; nothing without a decay, or
    where nobody can say which tensors a group has."""
    if not configured:
        return []
    try:
        members, groups = parameters_of_groups(engine), engine.basic_optimizer.param_groups
    except Exception:  # noqa: BLE001 - an optimizer of another kind has no such groups; its other settings are compared
        return []
    names, found = {id(p): name for name, p in engine.module.named_parameters()}, list[_Decay]()
    for of_group, group in zip(members, groups, strict=False):
        own = [names[id(p)] for p in of_group if id(p) in names]
        spared = [name for name in own if any(part in name for part in _NOT_DECAYED)]
        for tensors, right in ((spared, 0.0), ([name for name in own if name not in set(spared)], configured)):
            if tensors:
                others = f" and {len(tensors) - 1} others" if len(tensors) > 1 else ""
                found.append(_Decay(f"weight_decay of {tensors[0]}{others}", group, right))
    return found if len(members) == len(groups) else []


_WITH_LEAST = ("cosine_with_min_lr", "cosine_warmup_with_min_lr")
"""Schedules that OpenRLHF hands the least rate to (deepspeed.py:373)."""


def configured_schedule(settings: Any, horizon: int) -> dict[str, Any]:
    """The schedule of the learning rate that the arguments of a role ask for, as rule RLS605 reads it (deepspeed.py:365-384).

    Args:
        settings: The arguments of the role.
        horizon: Updates that the schedule is built for.
    """
    kind = str(settings.lr_scheduler)
    return {
        "kind": kind,
        "base": float(settings.adam.lr),
        "horizon": horizon,
        "warmup": math.ceil(horizon * float(settings.lr_warmup_ratio)),
        "least": float(settings.min_lr_ratio) if kind in _WITH_LEAST else 0.0,
    }
