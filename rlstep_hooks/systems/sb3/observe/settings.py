"""The settings that a model trains with: those that its parts keep for themselves, and how they change in mid-run.

Stable-Baselines3 keeps no arguments: the attributes of a model are its configuration, and whoever sets one before `learn` configures
it. But some parts keep copies from when the model was built (common/on_policy_algorithm.py `_setup_model`, common/base_class.py
`_setup_lr_schedule`, 2.7.0 and 2.9.2): the rollout buffer its discount and lambda, and `lr_schedule` the learning rate. An attribute
that is set later does not reach them, and nobody says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stable_baselines3.common import utils

from rlstep_hooks.observe.settings import SettingsWatch, attributes, optimizer_settings
from rlstep_hooks.systems.sb3.observe.pure import schedule_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.settings import Setting

_SETTINGS = (
    "n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "vf_coef", "max_grad_norm", "normalize_advantage", "target_kl",
    "clip_range", "clip_range_vf", "ent_coef",
)  # fmt: skip
"""What `train` and the rollouts compute with."""
_COPIED = ("gamma", "gae_lambda")
"""Settings that the rollout buffer has copies of."""


def of_copies(model: Any) -> SettingsWatch:
    """What parts of a model compute with, beside its attributes. It is looked at when training begins."""
    copies, own = attributes(model.rollout_buffer, _COPIED), attributes(model, _COPIED)

    def read() -> Iterator[Setting]:
        yield from copies(model.rollout_buffer)
        if _one_rate(model):
            yield "learning_rate", float(getattr(schedule_of(model.lr_schedule), "val", model.learning_rate))

    def right() -> dict[str, Any]:
        copied: dict[str, Any] = dict(own(model))
        return copied | ({"learning_rate": float(model.learning_rate)} if _one_rate(model) else {})

    return SettingsWatch(read, right, since="configuration")


def _one_rate(model: Any) -> bool:
    """Whether the rate is a number. Of two functions nobody can say whether they are the same: a model that was loaded has copies."""
    constant: Any = getattr(utils, "ConstantSchedule", ())
    return not callable(model.learning_rate) and isinstance(schedule_of(model.lr_schedule), constant)


def of_training(model: Any) -> SettingsWatch:
    """The settings of a model and of its optimizer from the beginning of training on; they take effect when a rollout is trained.

    Callbacks lower `ent_coef` on purpose, though not below 0. The loss is compared with the value in force.
    """
    settings = attributes(model, _SETTINGS)

    def read() -> Iterator[Setting]:
        yield from settings(model)
        yield from optimizer_settings(
            model.policy.optimizer,
            lambda name, place: f"{name} of the optimizer" + (f", group {place}" if place else ""),
        )

    return SettingsWatch(
        read,
        since="train_begin",
        by_design=lambda name, value: name == "ent_coef" and not callable(value) and value >= 0,
    )
