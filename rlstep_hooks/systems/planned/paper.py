"""Numbers of a paper or of a log, without a framework's settings: for published runs and quick questions.

The flags decide everything else: the loader drops rows that do not fill a rollout, and old log-probs are recomputed for each rollout.

    rlstep plan --framework paper -- paper --prompts-per-rollout 512 ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.planning.formula import Unknown
from rlstep_hooks.systems.engine.declaration import REQUIRED, Demand, Entry, Formula, System, count, text

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request

_SOURCE = "by definition (DESIGN words): a rollout is prompts x samples, and each pass over it is cut into updates"
_UNITS = ("rollout", "update", "sample", "prompt", "timestep")


def _asked_rollouts(launch: Request, updates_per_rollout: int) -> int | None:
    """Rollouts as the flags give them, else as many as the given updates need."""
    rollouts = launch.settings.optional_count("rollouts")
    updates = launch.settings.optional_count("updates")
    return -(-updates // int(updates_per_rollout)) if rollouts is None and updates is not None else rollouts


def _rows(launch: Request) -> int | Unknown:
    """Rows as `--rows` of this tool says, else as the flag of the launch does."""
    if launch.rows_given is None and launch.settings.is_given("rows"):
        return launch.settings.count("rows")
    rows = launch.rows("rows")
    return Unknown("the rows are not known; give --rows") if rows.count is None else rows.count


SYSTEM = System(
    name="paper",
    title="paper",
    version="-",
    recognised=(Entry("paper", programs=("executable:paper",), keys=("prompts_per_rollout",)),),
    settings={
        "title": text("a paper"),
        "algorithm": text("PPO"),
        "prompts_per_rollout": count(REQUIRED),
        "samples_per_prompt": count(1),
        "samples_per_update": count(None),
        "reuse_epochs": count(1),
        "rollouts": count(None),
        "updates": count(None),
        "epochs": count(None),
        "step_unit": text("rollout"),
    },
    functions={"asked_rollouts": _asked_rollouts, "asked_rows": _rows},
    shown=(
        "title",
        "algorithm",
        "prompts_per_rollout",
        "samples_per_prompt",
        "samples_per_update",
        "reuse_epochs",
        "rollouts",
        "updates",
        "epochs",
        "step_unit",
    ),
    let={
        "framework": "title",
        "world_size": "1",
        "algorithm": "algorithm",
        "prompts_per_rollout": "prompts_per_rollout",
        "samples_per_prompt": "samples_per_prompt",
        "samples_per_update": "samples_per_update or samples_per_rollout",
        "reuse_epochs": "reuse_epochs",
        "step_unit": "step_unit",
        "updates": "None",
        "rows": "asked_rows(launch)",
        "limit": "asked_rollouts(launch, updates_per_rollout)",
        "loader": "'wraps' if epochs is None else 'drops'",
        "rows_reshuffled": "True if epochs is None else unknown('the numbers do not say whether each pass is shuffled')",
        "rollouts_per_epoch": "None if epochs is None else floor(rows / prompts_per_rollout)",
        "rollouts": "limited(epochs * rollouts_per_epoch, limit) if epochs is not None "
        "else limit or unknown('the numbers do not say: give --rollouts, --updates or --epochs')",
    },
    formulas=(
        Formula("samples_per_rollout", "prompts_per_rollout * samples_per_prompt", _SOURCE),
        Formula("updates_per_rollout", "reuse_epochs * samples_per_rollout / samples_per_update", _SOURCE),
    ),
    checks=(
        Demand(
            "samples_per_rollout % samples_per_update == 0",
            "samples_per_update = {samples_per_update} does not divide the {samples_per_rollout} samples of a rollout; "
            "{nearest(samples_per_update, samples_per_rollout % it == 0)} do",
            about="samples_per_update",
        ),
        Demand(
            f"step_unit in {_UNITS}",
            "step_unit = {quoted(step_unit)} is none of " + ", ".join(_UNITS),
            about="step_unit",
        ),
    ),
)
