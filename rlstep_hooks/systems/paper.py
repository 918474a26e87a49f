"""Numbers of a paper or of a log, in no framework's settings: for published runs and for quick questions.

Everything is as the flags say; the loader drops what does not fill a rollout, and old log-probs are recomputed for each rollout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.settings import MISSING
from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.planning.phases import Passes, equal_minibatches, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Reading, nearest
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULTS: dict[str, Any] = {
    "title": "a paper",
    "algorithm": "PPO",
    "prompts_per_rollout": MISSING,
    "samples_per_prompt": 1,
    "samples_per_update": None,
    "reuse_epochs": 1,
    "rollouts": None,
    "updates": None,
    "epochs": None,
    "step_unit": "rollout",
}

_SOURCE = "by definition (DESIGN words): a rollout is prompts x samples, and each pass over it is cut into updates"
FORMULAS = (
    Formula("samples_per_rollout", "prompts_per_rollout * samples_per_prompt", _SOURCE),
    Formula("updates_per_rollout", "reuse_epochs * samples_per_rollout / samples_per_update", _SOURCE),
)
_UNITS = ("rollout", "update", "sample", "prompt", "timestep")


class Paper(Reader):
    """Numbers without a framework: `rlstep plan --framework paper -- paper --prompts-per-rollout 512 ...`."""

    name = "paper"
    title = "paper"
    version = "-"

    def defaults(self, version: str) -> Mapping[str, Any]:
        """One sample a prompt, one pass, one update a rollout."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule that the numbers describe."""
        settings = request.settings
        prompts, group = settings.count("prompts_per_rollout"), settings.count("samples_per_prompt")
        samples, epochs = prompts * group, settings.count("reuse_epochs")
        size = settings.optional_count("samples_per_update") or samples
        if samples % size:
            raise SettingError(
                f"samples_per_update = {size} does not divide the {samples} samples of a rollout; "
                f"{nearest(size, lambda v: samples % v == 0)} do",
                settings.place("samples_per_update"),
            )
        unit = settings.text("step_unit") or "rollout"
        if unit not in _UNITS:
            raise SettingError(f"step_unit = {unit!r} is none of {', '.join(_UNITS)}", settings.place("step_unit"))
        rollouts = settings.optional_count("rollouts")
        updates = settings.optional_count("updates")
        each = epochs * (samples // size)
        if rollouts is None and updates is not None:
            rollouts = -(-updates // each)
        rows = request.rows("rows")
        count = (
            settings.optional_count("rows") if settings.is_given("rows") and request.rows_given is None else rows.count
        )
        passes = settings.optional_count("epochs")
        if passes is None and rollouts is not None:
            how = Passes.wrapping(count, prompts, rollouts=rollouts)
        elif passes is not None:
            how = Passes.dropping(count, prompts, epochs=passes, limit=rollouts)
        else:
            how = Passes.without_length(count, "the numbers do not say: give --rollouts, --updates or --epochs")
        schedule = schedule_in_phases(
            framework=settings.text("title") or self.title,
            version=request.version,
            algorithm=settings.text("algorithm") or "PPO",
            passes=how,
            prompts_per_rollout=prompts,
            samples_per_prompt=group,
            minibatches=equal_minibatches(samples, samples // size),
            reuse_epochs=epochs,
            step_unit=unit,  # type: ignore[arg-type]  # checked above
            settings=settings.written(*DEFAULTS) | {"samples_per_update": size},
            formulas=FORMULAS,
        )
        return Reading(schedule=schedule, formulas=FORMULAS)


READER = Paper()
