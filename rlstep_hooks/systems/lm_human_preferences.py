"""lm-human-preferences: exact divisions, batches over all processes, one learning-rate tick a rollout.

Read at commit cbfd210: launch.py (experiments, 8 MPI processes), lm_human_preferences/train_policy.py (`PpoHParams`, `nupdates`,
`PPOTrainer`), lm_human_preferences/utils/core.py (`exact_div`, `ceil_div`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.minibatches import rollouts_of
from rlstep_hooks.planning.phases import Passes, equal_minibatches, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading, multiples, nearest
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

_TRAIN = "lm-human-preferences cbfd210 lm_human_preferences/train_policy.py"

DEFAULTS: dict[str, Any] = {
    "ppo.total_episodes": 2_000_000,
    "ppo.batch_size": 64,
    "ppo.nminibatches": 1,
    "ppo.noptepochs": 4,
    "ppo.whiten_rewards": True,
    "mpi": 8,
}
EXPERIMENTS = {"sentiment": 512, "descriptiveness": 512, "cnndm": 32, "tldr": 32}
"""ppo.batch_size of the experiments of launch.py; each asks for 1,000,000 episodes."""

FORMULAS = (
    Formula("samples_per_rollout", "ppo.batch_size", f"{_TRAIN} PPOTrainer"),
    Formula("samples_per_update", "ppo.batch_size / ppo.nminibatches", f"{_TRAIN} PPOTrainer"),
    Formula("updates_per_rollout", "ppo.noptepochs * ppo.nminibatches", f"{_TRAIN} PPOTrainer.train"),
    Formula("rollouts", "ceil(ppo.total_episodes / ppo.batch_size)", f"{_TRAIN} nupdates"),
    Formula("lr_ticks", "rollouts", f"{_TRAIN} policy_frac"),
)


class LMHumanPreferences(Reader):
    """`launch.py train_policy EXPERIMENT NAME`."""

    name = "lm_human_preferences"
    title = "lm-human-preferences"
    version = "cbfd210"

    def defaults(self, version: str) -> Mapping[str, Any]:
        """Defaults of PpoHParams and of launch.py; those of the experiment are filled in by `read`."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = request.settings
        experiment = _experiment(request)
        batch = settings.count("ppo.batch_size")
        episodes = settings.count("ppo.total_episodes")
        if experiment is not None:
            batch = batch if settings.is_given("ppo.batch_size") else EXPERIMENTS[experiment]
            episodes = episodes if settings.is_given("ppo.total_episodes") else 1_000_000
        count, epochs = settings.count("ppo.nminibatches"), settings.count("ppo.noptepochs")
        world_size = request.world_size(settings.count("mpi"))
        _check(batch, count, world_size, settings.flag("ppo.whiten_rewards"))
        rollouts = rollouts_of(episodes, batch, "up")
        rows = request.rows()
        schedule = schedule_in_phases(
            framework=self.title,
            version=request.version,
            algorithm="PPO",
            passes=Passes.wrapping(rows.count, batch, rollouts=rollouts, why="queries are drawn without end"),
            prompts_per_rollout=batch,
            samples_per_prompt=1,
            minibatches=equal_minibatches(batch, count),
            world_size=world_size,
            reuse_epochs=epochs,
            samples_per_microbatch=batch // count,
            old_logprob_source="at_rollout",
            reference_source="at_rollout",
            lr_clock="rollout",
            step_unit="rollout",
            step_means=f"global_step = rollouts of {epochs * count} updates; elapsed episodes grow by {batch}",
            settings={
                "ppo.batch_size": batch,
                "ppo.total_episodes": episodes,
                "ppo.nminibatches": count,
                "ppo.noptepochs": epochs,
            },
            formulas=FORMULAS,
        )
        notes = []
        if rollouts * batch != episodes:
            notes.append(
                Note("grows", f"the run ends at {rollouts * batch} episodes, not {episodes}: rollouts are whole")
            )
        return Reading(schedule=schedule, formulas=FORMULAS, notes=tuple(notes), facts={"lr_constant": False})


def _experiment(request: Request) -> str | None:
    """The experiment that the command names."""
    words = [token.text for token in request.command.arguments]
    if "train_policy" not in words[:1]:
        return None
    name = words[1] if len(words) > 1 else ""
    if name not in EXPERIMENTS:
        raise LaunchError(f"Couldn't find experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    return name


def _check(batch: int, count: int, world_size: int, whitens: bool) -> None:
    """The divisions of `PPOTrainer`, and the least size for whitening.

    Raises:
        PlanError: One of them fails.
    """
    least = 8
    if batch % count:
        message, fix = (
            _inexact(batch, count),
            f"ppo.nminibatches = {nearest(min(count, batch + 1), lambda m: batch % m == 0)}",
        )
    elif batch % world_size:
        message, fix = _inexact(batch, world_size), f"ppo.batch_size = {multiples(batch, world_size)}"
    elif batch % (count * world_size):
        message, fix = _inexact(batch, count * world_size), f"ppo.batch_size = {multiples(batch, count * world_size)}"
    elif whitens and batch // (count * world_size) < least:
        message = f"Per-rank minibatch size {batch // (count * world_size)} is insufficient for whitening"
        fix = f"ppo.batch_size = {least * count * world_size}, fewer processes (--mpi), or ppo.whiten_rewards = False"
    else:
        return
    raise PlanError(message, when="when the trainer is built", fix=fix, source=f"{_TRAIN} HParams.validate, train")


def _inexact(value: int, by: int) -> str:
    return f"Inexact division: {value} / {by} = {value / by}"


READER = LMHumanPreferences()
