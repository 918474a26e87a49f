"""The settings that the policy loss computes with, against the configuration that its worker was given.

The worker makes the loss's own configuration out of its part of the launch's (workers/engine_workers.py 0.9.1:593, 643). A loss that
is put in its place, or a configuration that is written to, computes with other settings, and its formula would be read from these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_OF_LOSS = (
    "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "loss_agg_mode", "loss_scale_factor", "entropy_coeff",
    "use_kl_loss", "kl_loss_coef", "kl_loss_type", "tau_pos", "tau_neg",
)  # fmt: skip
"""What `ppo_loss` and the losses that it calls read of it (workers/utils/losses.py and trainer/ppo/core_algos.py, 0.9.1)."""

_OF_KIND = ("loss_mode", "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef")
"""The same of its part `policy_loss`."""


class LossSettings:
    """Follows the settings of the policy loss of one worker.

    Args:
        worker: verl's `ActorRolloutRefWorker`, once its model has been built.

    Raises:
        AttributeError: The worker has no loss with a configuration of its own.
    """

    def __init__(self, worker: Any) -> None:
        from verl.utils.config import omega_conf_to_dataclass

        self._worker = worker
        self._right = _read(omega_conf_to_dataclass(worker.config.actor))
        self._told: set[str] = set()

    def changes(self) -> Iterator[tuple[str, Any, Any]]:
        """Settings that are not those of the configuration, each once: name, configured value, value in force."""
        config = self._worker.actor.loss_fn.keywords["config"]
        for name, value in _read(config).items():
            if value != self._right[name] and name not in self._told:
                self._told.add(name)
                yield f"actor_rollout_ref.actor.{name}", self._right[name], value


def _read(config: Any) -> dict[str, Any]:
    kind = config.policy_loss
    values = {name: getattr(config, name, None) for name in _OF_LOSS}
    return values | {f"policy_loss.{name}": getattr(kind, name, None) for name in _OF_KIND}
