"""The settings that a model trains with, and how they change in mid-run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import ConfigChanged

if TYPE_CHECKING:
    from rlstep_hooks.session.recorder import Recorder

_SETTINGS = (
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


def _shown(value: Any) -> Any:
    """A setting as it is recorded: a schedule by its name."""
    return getattr(value, "__name__", type(value).__name__) if callable(value) else value
