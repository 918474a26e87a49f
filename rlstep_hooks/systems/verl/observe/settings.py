"""What a trainer process of verl computes with, beside the configuration that its worker was given.

The configuration is read once, when the model is built, so that whatever changes either of them later shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    """The limit of the gradients and the settings of an engine's optimizer (workers/config/optimizer.py 0.9.1:298).

    Args:
        engine: verl's, when its optimizer has been built.
        section: Where the optimizer's settings stand in the configuration.
    """

    def read() -> Iterator[Setting]:
        yield f"{section}.clip_grad", clip_grad(engine)
        yield from optimizer_settings(engine.optimizer, lambda name, place: f"{section}.{name}")

    def right() -> dict[str, Any]:
        config = engine.optimizer_config
        given = {"weight_decay": config.weight_decay, "betas": getattr(config, "betas", None)}
        given |= dict(getattr(config, "override_optimizer_config", None) or {})  # wins over the others
        return {f"{section}.{name}": value for name, value in given.items() if value is not None}

    return SettingsWatch(read, right, since="configuration")


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
