"""What a trainer process of verl computes with, beside the configuration that its worker was given.

The configuration is read once, when the model is built, so that whatever changes either of them later shows.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.settings import SettingsWatch, optimizer_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.settings import Setting

_OF_LOSS = (
    "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "loss_agg_mode", "loss_scale_factor", "entropy_coeff",
    "use_kl_loss", "kl_loss_coef", "kl_loss_type", "tau_pos", "tau_neg",
)  # fmt: skip
"""What `ppo_loss` and the losses that it calls read of their configuration (workers/utils/losses.py and trainer/ppo/core_algos.py,
0.9.1)."""

_OF_KIND = ("loss_mode", "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef")
"""Settings of its part `policy_loss` that the loss computes with."""


def clip_grad(engine: Any) -> float:
    """The limit of the norm of an engine's gradients; 0 for none."""
    return float(engine.optimizer_config.clip_grad or 0.0)


def of_optimizer(engine: Any, section: str) -> SettingsWatch:
    """The limit of the gradients, and what the optimizer of an engine is and steps with (workers/config/optimizer.py 0.9.1:298).

    A setting that the configuration does not name is the default of the configured class.

    Args:
        engine: verl's, when its optimizer has been built.
        section: Where the optimizer's settings stand in the configuration.
    """

    def of(optimizer: Any) -> Iterator[Setting]:
        yield f"{section}.optimizer", type(optimizer).__name__
        yield from optimizer_settings(optimizer, lambda name, place: f"{section}.{name}")

    def read() -> Iterator[Setting]:
        yield f"{section}.clip_grad", clip_grad(engine)
        yield from of(engine.optimizer)

    def right() -> dict[str, Any]:
        config = engine.optimizer_config
        if str(getattr(config, "optimizer_impl", "")).startswith("torch.optim"):
            return dict(of(_as_configured(config)))
        given = {"weight_decay": config.weight_decay, "betas": getattr(config, "betas", None)} | _overrides(config)
        return {f"{section}.{name}": value for name, value in given.items() if value is not None}

    return SettingsWatch(read, right, since="configuration")


def _overrides(config: Any) -> dict[str, Any]:
    return dict(getattr(config, "override_optimizer_config", None) or {})  # wins over the others


def _as_configured(config: Any) -> Any:
    """The optimizer of torch that the configuration means, of a tensor of its own."""
    kind = getattr(importlib.import_module(config.optimizer_impl), config.optimizer)
    given = {"lr": float(config.lr), "weight_decay": config.weight_decay}
    if "adam" in str(config.optimizer).lower():
        given["betas"] = tuple(config.betas)
    return kind([torch.zeros(1, requires_grad=True)], **given | _overrides(config))


_DTYPES = {
    "fp32": "float32",
    "float32": "float32",
    "fp16": "float16",
    "float16": "float16",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
}
"""What the configuration calls a dtype (utils/torch_dtypes.py 0.9.1) -> its name in torch; other names are not compared."""


def of_precision(engine: Any, section: str) -> SettingsWatch:
    """The precision in which an engine of FSDP keeps its weights and computes (workers/engine/fsdp/transformer_impl.py 0.9.1:258, 393).

    Args:
        engine: verl's, when its model has been built; nothing is compared of engines of other strategies.
        section: Where the settings of FSDP stand in the configuration.
    """
    of_fsdp = str(engine.engine_config.strategy) in ("fsdp", "fsdp2")

    def read() -> Iterator[Setting]:
        if not of_fsdp:
            return
        computes = getattr(engine, "_autocast_dtype", None)
        if computes is not None:
            yield f"{section}.mixed_precision.param_dtype", _name(computes)
        # The weights of adapters are cast to those beside them, and quantised ones have scales of their own.
        if not engine.model_config.lora_rank and not getattr(engine, "_qat_enabled", False):
            kept = {_name(of.dtype) for of in engine.module.parameters() if of.requires_grad}
            yield f"{section}.model_dtype", " and ".join(sorted(kept))

    def right() -> dict[str, Any]:
        config = engine.engine_config
        if not of_fsdp:
            return {}
        given = {
            f"{section}.mixed_precision.param_dtype": (config.mixed_precision or {}).get("param_dtype", "bf16"),
            f"{section}.model_dtype": config.model_dtype or "fp32",
        }
        return {name: _DTYPES[str(value)] for name, value in given.items() if str(value) in _DTYPES}

    return SettingsWatch(read, right, since="configuration")


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def of_loss(worker: Any) -> SettingsWatch:
    """The settings of the policy loss.

    The worker makes the loss's own configuration out of its part of the launch's (workers/engine_workers.py 0.9.1:593, 643). A loss
    that is put in its place, or a configuration that is written to, computes with other settings, and its formula would be read from
    these.

    Args:
        worker: verl's `ActorRolloutRefWorker`, once its model has been built.
    """

    def of(config: Any) -> Iterator[Setting]:
        for name in _OF_LOSS:
            yield f"actor_rollout_ref.actor.{name}", getattr(config, name, None)
        for name in _OF_KIND:
            yield f"actor_rollout_ref.actor.policy_loss.{name}", getattr(config.policy_loss, name, None)

    def right() -> dict[str, Any]:
        from verl.utils.config import omega_conf_to_dataclass

        return dict(of(omega_conf_to_dataclass(worker.config.actor)))

    return SettingsWatch(lambda: of(worker.actor.loss_fn.keywords["config"]), right, since="configuration")
