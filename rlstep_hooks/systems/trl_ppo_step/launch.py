"""TRL's first PPOTrainer, whose `step()` a script calls itself (up to 0.11): the length of the run is the script's own.

Read in the wheels of 0.9.6 and 0.11.4: trl/trainer/ppo_config.py `__post_init__`, ppo_trainer.py `step`; and in the repository at
0b972a6 examples/research_projects/stack_llama/scripts/rl_training.py, whose loop is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.calls import names_of
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.accumulation import Accumulation, updates_of_run
from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.phases import Passes, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading, multiples
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.planning.schedule import Flush
from rlstep_hooks.systems.reader import Reader, Request, release_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings

_CONFIG = "trl 0.11.4 trl/trainer/ppo_config.py __post_init__"
_STEP = "trl 0.11.4 trl/trainer/ppo_trainer.py step"

DEFAULTS: dict[str, Any] = {
    "batch_size": 128,
    "mini_batch_size": 128,
    "forward_batch_size": None,
    "gradient_accumulation_steps": 1,
    "ppo_epochs": 4,
    "early_stopping": False,
}

STACK_LLAMA: dict[str, Any] = {"batch_size": 32, "mini_batch_size": 1, "gradient_accumulation_steps": 4, "steps": 20000}
"""Defaults of stack_llama's rl_training.py where they are not those of PPOConfig."""

FORMULAS = (
    Formula(
        "samples_per_rollout", "batch_size * world_size", "trl 0.11.4 trl/trainer/ppo_trainer.py global_batch_size"
    ),
    Formula("samples_per_update", "mini_batch_size * gradient_accumulation_steps * world_size", _CONFIG),
    Formula("updates_per_rollout", "ppo_epochs * batch_size / (mini_batch_size * gradient_accumulation_steps)", _STEP),
)


class TRLStep(Reader):
    """`PPOTrainer.step()` of TRL 0.4 to 0.11."""

    name = "trl_ppo_step"
    title = "TRL PPO step()"
    version = "0.11.4"

    def defaults(self, version: str) -> Mapping[str, Any]:
        """Defaults of the dataclass PPOConfig (trl/trainer/ppo_config.py)."""
        if release_of(version) >= (0, 12):
            raise LaunchError(f"TRL {version} has no step() any more; --framework trl_ppo reads its PPOTrainer")
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule of one call of `step()`; how often a script calls it is known only of stack_llama's."""
        known = request.command.program.matches("script:stack_llama/scripts/rl_training.py")
        settings = _Reads(request.settings, STACK_LLAMA if known else {})
        world_size = request.world_size()
        batch, window = settings.count("batch_size"), settings.count("gradient_accumulation_steps")
        micro = settings.optional_count("forward_batch_size") or settings.count("mini_batch_size")
        if batch % (micro * window):
            raise PlanError(
                f"`batch_size` must be a multiple of `mini_batch_size * gradient_accumulation_steps`, inexact division: {batch} / "
                f"{micro * window} = {batch / (micro * window)}",
                when="when the configuration is built",
                fix=f"batch_size = {multiples(batch, micro * window)}",
                source=_CONFIG,
            )
        accumulation = Accumulation(
            microbatches=(micro,) * countable(batch // micro, "micro-batches of one pass"),
            passes=settings.count("ppo_epochs"),
            window=window,
        )
        rows = request.rows()
        asked = -(-settings.count("steps") // batch) if known else None
        passes = _passes(rows.count, batch * world_size, asked)
        updates = None
        flush = Flush(rollouts_per_epoch=passes.per_epoch) if passes.per_epoch else None
        if flush is not None and passes.rollouts is not None:
            updates = updates_of_run(accumulation, flush, rollouts=passes.rollouts)
        early = settings.given.flag(*settings.names("early_stopping"))
        sizes = {
            "batch_size": batch,
            "mini_batch_size": micro,
            "gradient_accumulation_steps": window,
            "ppo_epochs": accumulation.passes,
        }
        schedule = schedule_in_phases(
            framework="TRL",
            version=request.version,
            algorithm="PPO",
            passes=passes,
            prompts_per_rollout=batch * world_size,
            samples_per_prompt=1,
            minibatches=tuple(size * world_size for size in accumulation.minibatches),
            world_size=world_size,
            reuse_epochs=accumulation.passes,
            samples_per_microbatch=micro * world_size,
            updates=updates,
            updates_bound="upper" if early else "exact",
            remainder="flush" if window > 1 else "error",
            flush=flush if window > 1 else None,
            old_logprob_source="at_rollout",
            reference_source="at_rollout",
            lags=accumulation.flushed_lags if window > 1 else accumulation.lags,
            lr_clock="rollout",
            settings=sizes,
            formulas=FORMULAS,
        )
        return Reading(
            schedule=schedule,
            formulas=FORMULAS,
            notes=tuple(
                _notes(accumulation, world_size, early, ignores_steps=not known and settings.is_given("steps"))
            ),
            facts={"lr_constant": True, "nominal_updates_per_rollout": schedule.updates_per_rollout},
        )


class _Reads:
    """Reads of one launch: its flag, its call of PPOConfig, else the script's own default."""

    def __init__(self, settings: Settings, own: Mapping[str, Any]) -> None:
        self.given = settings
        self._own = own

    def names(self, key: str) -> tuple[str, ...]:
        """Names of a setting, its call left out where the script fills that from its flags."""
        return (key,) if key in self._own else names_of(self.given, key, "PPOConfig")

    def is_given(self, key: str) -> bool:
        """Whether the launch says it."""
        return self.given.is_given(*self.names(key))

    def count(self, key: str) -> int:
        """A whole number of at least 1."""
        if key in self._own and not self.given.is_given(key):
            return int(self._own[key])
        return self.given.count(*self.names(key))

    def optional_count(self, key: str) -> int | None:
        """The same, or None."""
        return self.given.optional_count(*self.names(key))


def _passes(rows: int | None, prompts: int, asked: int | None) -> Passes:
    """One pass over the rows where the script's loop is known, else an open number of rollouts."""
    if asked is not None:
        return Passes.dropping(rows, prompts, epochs=1, limit=asked)
    why = "how often the script calls step() is its own affair"
    unknown = Passes.dropping(None, prompts, epochs=1, why=why).unknown
    if rows is None:
        return Passes(rows=None, rollouts=None, unknown=unknown)
    unknown = dict.fromkeys(("rollouts", "updates", "lr_ticks", "data_epochs", "loader_epochs"), why)
    return Passes(rows=rows, rollouts=None, per_epoch=rows // prompts, dropped=rows % prompts, unknown=unknown)


def _notes(accumulation: Accumulation, world_size: int, early: bool, *, ignores_steps: bool) -> list[Note]:
    notes = [Note("unit", "mini_batch_size is the micro-batch; an update takes gradient_accumulation_steps of them")]
    if ignores_steps:
        notes.append(Note("ignores", "steps: step() does not read it; the script's own loop ends the run"))
    if accumulation.window > 1:
        notes.append(
            Note(
                "grows",
                "where the script goes through ppo_trainer.dataloader, every micro-batch of the last rollout of a pass is an update, "
                f"{accumulation.per_rollout} in all (accelerate without DeepSpeed)",
            )
        )
    if early:
        notes.append(
            Note("shrinks", "early_stopping ends the passes over a rollout once the KL is above 1.5 x target_kl")
        )
    if world_size > 1:
        notes.append(
            Note("unit", f"a learning-rate scheduler given to the trainer ticks {world_size} times for each step()")
        )
    return notes


READER = TRLStep()
