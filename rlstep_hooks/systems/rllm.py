"""rLLM on verl: the number of updates is fixed by the settings, and rows are padded until they divide into it.

Read at commit 9beb6e0 (2026-08-15): rllm/trainer/verl/verl_backend.py `_pad_dataproto_to_world_size`, rllm/trainer/unified_trainer.py
(rollouts), rllm/trainer/config/rllm/base.yaml and _generated_agent_ppo_trainer.yaml (defaults). A rollout is one row where its
turns are merged; how often that fails, only the data shows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.planning.phases import Passes, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

_ACTOR = "actor_rollout_ref.actor"
_BACKEND = "rLLM 9beb6e0 rllm/trainer/verl/verl_backend.py _pad_dataproto_to_world_size"
_TRAINER = "rLLM 9beb6e0 rllm/trainer/unified_trainer.py"

DEFAULTS: dict[str, Any] = {
    "data.train_batch_size": 1024,
    f"{_ACTOR}.ppo_mini_batch_size": 256,
    f"{_ACTOR}.ppo_epochs": 1,
    f"{_ACTOR}.ulysses_sequence_parallel_size": 1,
    f"{_ACTOR}.use_kl_loss": False,
    "actor_rollout_ref.rollout.n": 1,
    "algorithm.adv_estimator": "grpo",
    "rllm.algorithm.rollout_correction.bypass_mode": False,
    "rllm.async_training.enable": False,
    "rllm.trainer.total_epochs": 10,
    "rllm.trainer.total_batches": -1,
    "rllm.trainer.save_freq": 20,
    "rllm.trainer.test_freq": 5,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
}

FORMULAS = (
    Formula("samples_per_rollout", "data.train_batch_size * actor_rollout_ref.rollout.n", _BACKEND),
    Formula("rollouts_per_epoch", "floor(rows / data.train_batch_size)", f"{_TRAINER} (drop_last)"),
)


class RLLM(Reader):
    """rLLM's unified trainer with the backend verl."""

    name = "rllm"
    title = "rLLM"
    version = "9beb6e0"
    overrides = True

    def defaults(self, version: str) -> Mapping[str, Any]:
        """The defaults of its configuration files."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule, with one row for each sample."""
        settings = request.settings
        if settings.flag("rllm.async_training.enable"):
            raise SettingError(
                "asynchronous training of rLLM is not read", settings.place("rllm.async_training.enable")
            )
        prompts, group = settings.count("data.train_batch_size"), settings.count("actor_rollout_ref.rollout.n")
        size, epochs = settings.count(f"{_ACTOR}.ppo_mini_batch_size"), settings.count(f"{_ACTOR}.ppo_epochs")
        gpus = settings.count("trainer.n_gpus_per_node") * settings.count("trainer.nnodes")
        world_size = request.world_size(max(gpus // settings.count(f"{_ACTOR}.ulysses_sequence_parallel_size"), 1))
        samples = prompts * group
        each, updates = padded_rows(samples, updates=max(1, prompts // size), processes=world_size)
        limit = settings.count("rllm.trainer.total_batches", least=-1)
        rows = request.rows("data.train_files")
        passes = (
            Passes.wrapping(rows.count, prompts, rollouts=limit, why=rows.source)
            if limit > 0
            else Passes.dropping(
                rows.count,
                prompts,
                epochs=settings.count("rllm.trainer.total_epochs", "trainer.total_epochs"),
                why=rows.source,
            )
        )
        added = each * updates - samples
        notes = [
            Note("unit", "train_batch_size and ppo_mini_batch_size count prompts"),
            Note("assumes", "each sample is one row; turns that cannot be merged make more rows, in as many updates"),
        ]
        if prompts % size or prompts < size:
            notes.append(
                Note(
                    "shrinks",
                    f"{prompts} // {size} = {prompts // size}: {updates} updates of {each} rows, not {size} prompts each",
                )
            )
        if added:
            notes.append(
                Note(
                    "pads",
                    f"{added} rows without loss are added to {samples}, so that {updates} updates of {each} divide them",
                )
            )
        engine = settings.flag("rllm.algorithm.rollout_correction.bypass_mode")
        schedule = schedule_in_phases(
            framework=self.title,
            version=request.version,
            algorithm=(settings.text("algorithm.adv_estimator") or "grpo").upper(),
            passes=passes,
            prompts_per_rollout=prompts,
            samples_per_prompt=group,
            minibatches=(each,) * updates,
            world_size=world_size,
            reuse_epochs=epochs,
            remainder="pad",
            samples_added=added,
            syncs="first_and_after_updates",
            old_logprob_source="engine" if engine else "recompute",
            reference_source="at_rollout" if settings.flag(f"{_ACTOR}.use_kl_loss") else "none",
            lr_clock="rollout",
            settings=settings.written(*DEFAULTS),
            formulas=FORMULAS,
        )
        return Reading(
            schedule=schedule,
            formulas=FORMULAS,
            notes=tuple(notes),
            facts={
                "save_every": settings.count("rllm.trainer.save_freq", "trainer.save_freq", least=-1),
                "eval_every": settings.count("rllm.trainer.test_freq", "trainer.test_freq", least=-1),
            },
        )


def padded_rows(rows: int, *, updates: int, processes: int) -> tuple[int, int]:
    """Rows behind each update after padding, and how many updates that makes: never more than asked for.

    Args:
        rows: Rows of one rollout.
        updates: Updates asked for: `max(1, train_batch_size // ppo_mini_batch_size)`.
        processes: Data-parallel processes, among which each update is shared evenly.
    """
    each = math.ceil(math.ceil(rows / updates) / processes) * processes
    return each, math.ceil(rows / each)


READER = RLLM()
