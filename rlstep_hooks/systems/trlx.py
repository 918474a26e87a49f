"""trlX's PPO: sizes of each process, `epochs` are rollouts, the run's length comes from the first rollout.

Read at commit 3340c2f (2024-01-09): trlx/trainer/accelerate_ppo_trainer.py (`make_experience`, `prepare_learning`),
trlx/trainer/accelerate_base_trainer.py (`__init__`, `learn`), trlx/pipeline/ppo_pipeline.py `create_loader`; and accelerate's
scheduler.py `step`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.settings import MISSING
from rlstep_hooks.planning.minibatches import cut_by_size_kept
from rlstep_hooks.planning.phases import Passes, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading, nearest
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings

_PPO = "trlX 3340c2f trlx/trainer/accelerate_ppo_trainer.py"
_BASE = "trlX 3340c2f trlx/trainer/accelerate_base_trainer.py"

_REQUIRED = {
    "method.num_rollouts": "PPOConfig.num_rollouts",
    "method.chunk_size": "PPOConfig.chunk_size",
    "method.ppo_epochs": "PPOConfig.ppo_epochs",
    "train.batch_size": "TrainConfig.batch_size",
    "train.epochs": "TrainConfig.epochs",
    "train.total_steps": "TrainConfig.total_steps",
}
"""Settings without a default, in YAML and in a Python file."""

DEFAULTS: dict[str, Any] = {**dict.fromkeys(_REQUIRED, MISSING), "train.minibatch_size": None}

_LENGTH = f"{_PPO} prepare_learning"
FORMULAS = (
    Formula(
        "samples_per_rollout",
        "ceil(method.num_rollouts / method.chunk_size) * method.chunk_size * world_size",
        f"{_PPO} make_experience",
    ),
    Formula(
        "updates_per_rollout",
        "method.ppo_epochs * ceil(samples_per_rollout / world_size / train.batch_size)",
        f"{_BASE} learn",
    ),
    Formula("updates", "min(train.epochs * updates_per_rollout, train.total_steps)", _LENGTH),
    Formula("rollouts", "ceil(updates / updates_per_rollout)", f"{_BASE} learn"),
)


class TrlX(Reader):
    """`trlx.train` with AcceleratePPOTrainer."""

    name = "trlx"
    title = "trlX"
    version = "3340c2f"

    def defaults(self, version: str) -> Mapping[str, Any]:
        """None but the micro-batch: TrainConfig and PPOConfig demand every size."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = request.settings
        sizes = {name: _count(settings, name) for name in _REQUIRED}
        world_size = request.world_size()
        chunk, batch = sizes["method.chunk_size"], sizes["train.batch_size"]
        micro = settings.optional_count("train.minibatch_size", "TrainConfig.minibatch_size") or batch
        if batch % micro:
            raise PlanError(
                "Minibatch size must divide batch size",
                when="when the trainer is built",
                fix=f"train.minibatch_size = {nearest(min(micro, batch + 1), lambda m: batch % m == 0)}",
                source=f"{_BASE} __init__",
            )
        samples = -(-sizes["method.num_rollouts"] // chunk) * chunk
        minibatches = cut_by_size_kept(samples, batch)
        per_rollout = sizes["method.ppo_epochs"] * len(minibatches)
        updates = min(sizes["train.epochs"] * per_rollout, sizes["train.total_steps"])
        rollouts = math.ceil(updates / per_rollout)
        rows = request.rows()
        passes = Passes.wrapping(rows.count, samples * world_size, rollouts=rollouts, why=rows.source)
        ragged = rows.count is not None and rows.count % (chunk * world_size) != 0
        schedule = schedule_in_phases(
            framework=self.title,
            version=request.version,
            algorithm="PPO",
            passes=passes,
            prompts_per_rollout=samples * world_size,
            samples_per_prompt=1,
            minibatches=tuple(size * world_size for size in minibatches),
            world_size=world_size,
            reuse_epochs=sizes["method.ppo_epochs"],
            samples_per_microbatch=micro * world_size,
            microbatches_per_update=batch // micro,
            updates=updates,
            updates_bound="data_dependent" if ragged else "exact",
            remainder="error" if samples % batch == 0 else "keep",
            old_logprob_source="at_rollout",
            reference_source="at_rollout",
            lr_clock="update",
            step_unit="update",
            step_means=f"1 step (iter_count) = 1 update; train.epochs counts rollouts of {per_rollout} updates",
            settings=sizes,
            formulas=FORMULAS,
        )
        if world_size > 1:
            schedule = msgspec.structs.replace(schedule, lr_ticks=updates * world_size, lr_horizon=updates * world_size)
        return Reading(
            schedule=schedule,
            formulas=FORMULAS,
            notes=tuple(_notes(sizes, samples, updates, rollouts, per_rollout, world_size, ragged)),
            facts=_facts(settings),
        )


def _count(settings: Settings, name: str) -> int:
    called = _REQUIRED[name]
    return settings.count(*((name, called) if settings.is_given(called) else (name,)))


def _facts(settings: Settings) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for fact, name in (("save_every", "checkpoint_interval"), ("eval_every", "eval_interval")):
        every = settings.optional_count(f"train.{name}", f"TrainConfig.{name}")
        if every is not None:
            facts[fact] = every
    return facts


def _notes(
    sizes: dict[str, int], samples: int, updates: int, rollouts: int, per_rollout: int, world_size: int, ragged: bool
) -> list[Note]:
    wanted, batch = sizes["method.num_rollouts"], sizes["train.batch_size"]
    notes = [
        Note(
            "unit",
            "num_rollouts counts samples of one process, train.epochs counts rollouts, total_steps counts updates",
        )
    ]
    if samples != wanted:
        notes.append(
            Note(
                "grows",
                f"{samples} samples for each process, not {wanted}: whole chunks of {sizes['method.chunk_size']} are kept",
            )
        )
    if samples % batch:
        notes.append(
            Note("grows", f"the last update of each pass takes {samples % batch} samples of a process, not {batch}")
        )
    if updates % per_rollout:
        notes.append(
            Note(
                "shrinks",
                f"total_steps ends the last of {rollouts} rollouts after {updates % per_rollout} of its {per_rollout} updates",
            )
        )
    if ragged:
        notes.append(
            Note(
                "assumes",
                "the rows do not fill whole chunks: a rollout that meets the end of the rows takes one chunk more",
            )
        )
    if world_size > 1:
        notes.append(
            Note("unit", f"accelerate moves the scheduler {world_size} ticks for each update, one for each process")
        )
    return notes


READER = TrlX()
