"""What a trainer of OpenRLHF copies from its arguments when it is built, and computes with from then on.

Verified with 0.11.2: ppo_actor.py:70 and ppo_critic.py:50 copy the number of passes; ppo_actor.py:72 and ppo_critic.py:60 give their
losses the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.openrlhf.observe.settings_in_force import SettingsInForce

if TYPE_CHECKING:
    from rlstep_hooks.record.values import Role


def of_trainer(trainer: Any, role: Role) -> SettingsInForce:
    """Follows the copies of a trainer, beside the arguments that they come from.

    Args:
        trainer: OpenRLHF's `ActorPPOTrainer` or `CriticPPOTrainer`.
        role: Whose it is.
    """
    loss = trainer.critic_loss_fn if role == "critic" else trainer.actor_loss_fn
    documented = _of_value_loss(trainer.args) if role == "critic" else _of_policy_loss(trainer.args)
    right = {"max_epochs": trainer.args.train.max_epochs} | documented

    def read() -> dict[str, Any]:
        return {"max_epochs": trainer.max_epochs} | {name: _plain(getattr(loss, name)) for name in documented}

    return SettingsInForce(read, right)


def _of_policy_loss(args: Any) -> dict[str, Any]:
    low, high = args.actor.eps_clip_low_high
    correction = {
        f"is_correction_{name}": _plain(getattr(args.algo.advantage, f"is_correction_{name}"))
        for name in ("level", "mode", "gating", "threshold")
    }
    kind = args.actor.policy_loss_type
    return {
        "clip_eps_low": low,
        "clip_eps_high": high,
        "dual_clip": args.actor.dual_clip,
        # loss.py:152: GSPO is a mean over samples, whatever the arguments say.
        "token_level_loss": args.actor.loss_agg_mode == "token-mean" and kind != "gspo",
        "policy_loss_type": kind,
        **correction,
    }


def _of_value_loss(args: Any) -> dict[str, Any]:
    return {"clip_eps": args.critic.value_clip}


def _plain(value: Any) -> Any:
    """A setting as it is compared: lists as tuples."""
    return tuple(value) if isinstance(value, list) else value
