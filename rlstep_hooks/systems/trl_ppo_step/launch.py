"""One call of `PPOTrainer.step()` from a launch; read where `rlstep_hooks.systems.trl_ppo_step.system` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.planning.accumulation import Accumulation, updates_of_run
from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.phases import Passes, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading, multiples
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.planning.schedule import Flush
from rlstep_hooks.systems.trl_ppo_step.system import own_defaults

if TYPE_CHECKING:
    from rlstep_hooks.systems.declaration import Quantities

_CONFIG = "trl 0.11.4 trl/trainer/ppo_config.py __post_init__"
_STEP = "trl 0.11.4 trl/trainer/ppo_trainer.py step"

FORMULAS = (
    Formula(
        "samples_per_rollout", "batch_size * world_size", "trl 0.11.4 trl/trainer/ppo_trainer.py global_batch_size"
    ),
    Formula("samples_per_update", "mini_batch_size * gradient_accumulation_steps * world_size", _CONFIG),
    Formula("updates_per_rollout", "ppo_epochs * batch_size / (mini_batch_size * gradient_accumulation_steps)", _STEP),
)


def read(launch: Quantities) -> Reading:
    """The Schedule of one call of `step()`; how often a script calls it is known only of stack_llama's."""
    request, own = launch.request, own_defaults(launch.request)

    def size(name: str) -> int:
        """The script fills the call's arguments from its flags."""
        return request.settings.count(name) if name in own else launch[name]

    world_size = request.world_size()
    batch, window = size("batch_size"), size("gradient_accumulation_steps")
    micro = launch["forward_batch_size"] or size("mini_batch_size")
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
        passes=size("ppo_epochs"),
        window=window,
    )
    rows = request.rows()
    asked = -(-size("steps") // batch) if own else None
    passes = _passes(rows.count, batch * world_size, asked)
    updates = None
    flush = Flush(rollouts_per_epoch=passes.per_epoch) if passes.per_epoch else None
    if flush is not None and passes.rollouts is not None:
        updates = updates_of_run(accumulation, flush, rollouts=passes.rollouts)
    early = launch["early_stopping"]
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
        notes=tuple(_notes(accumulation, world_size, early, ignores_steps=not own and launch.given("steps"))),
        facts={"lr_constant": True, "nominal_updates_per_rollout": schedule.updates_per_rollout},
    )


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
