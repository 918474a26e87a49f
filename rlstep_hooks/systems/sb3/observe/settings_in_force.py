"""The settings that a model trains with: those that its parts keep for themselves, and how they change in mid-run.

Stable-Baselines3 keeps no arguments: the attributes of a model are its configuration, and whoever sets one before `learn` configures
it. But some parts keep copies from when the model was built (common/on_policy_algorithm.py `_setup_model`, common/base_class.py
`_setup_lr_schedule`, 2.7.0 and 2.9.2): the rollout buffer its discount and lambda, and `lr_schedule` the learning rate. An attribute
that is set later does not reach them, and nobody says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stable_baselines3.common import utils

from rlstep_hooks.record.events import ConfigChanged
from rlstep_hooks.systems.sb3.observe.pure import schedule_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.session.recorder import Recorder

_SETTINGS = (
    "n_steps",
    "batch_size",
    "n_epochs",
    "gamma",
    "gae_lambda",
    "vf_coef",
    "max_grad_norm",
    "normalize_advantage",
    "target_kl",
    "clip_range",
    "clip_range_vf",
    "ent_coef",
)
"""What `train` and the rollouts compute with."""
_BY_DESIGN = ("ent_coef",)
"""Those of them that callbacks lower on purpose, though not below 0. The loss is compared with the value in force."""


class SettingsInForce:
    """Compares the settings of a model with those at the look before.

    Args:
        model: PPO or A2C.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._known = self._now()

    def _now(self) -> dict[str, Any]:
        """The settings of the model, and of its optimizer but its rate and its tensors."""
        of_model = {name: getattr(self._model, name, None) for name in _SETTINGS}
        groups = enumerate(self._model.policy.optimizer.param_groups)
        return of_model | {
            f"{name} of the optimizer" + (f", group {number}" if number else ""): value
            for number, group in groups
            for name, value in group.items()
            if name not in ("params", "lr", "initial_lr")
        }

    def compare_copies(self, recorder: Recorder) -> None:
        """Record what parts of the model compute with otherwise than its attributes say, when training begins."""
        for name, configured, used in _copies(self._model):
            if configured != used:
                recorder.emit(
                    ConfigChanged(at=recorder.now(), name=name, before=configured, after=used, since="configuration")
                )

    def compare(self, recorder: Recorder) -> None:
        """Record those that are not what they were; they take effect when this rollout is trained. A schedule is the object that it
        was."""
        before, now = self._known, self._now()
        self._known = now
        for name, value in now.items():
            known = before.get(name, value)
            if known is not value and (callable(known) or callable(value) or known != value):
                recorder.emit(
                    ConfigChanged(
                        at=recorder.now(),
                        name=name,
                        before=_shown(known),
                        after=_shown(value),
                        since="train_begin",
                        by_design=name in _BY_DESIGN and value >= 0,
                    )
                )


def _copies(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Attributes that were copied when the model was built: name, value, and the copy."""
    for name in ("gamma", "gae_lambda"):
        yield name, getattr(model, name), getattr(model.rollout_buffer, name, getattr(model, name))
    rate: Any = model.learning_rate
    used: Any = schedule_of(model.lr_schedule)
    # Of two functions nobody can say whether they are the same: a model that was loaded has a copy of each.
    if not callable(rate) and isinstance(used, getattr(utils, "ConstantSchedule", ())):
        yield "learning_rate", float(rate), float(getattr(used, "val", rate))


def _shown(value: Any) -> Any:
    """A setting as it is recorded: a schedule by its name."""
    return getattr(value, "__name__", type(value).__name__) if callable(value) else value
