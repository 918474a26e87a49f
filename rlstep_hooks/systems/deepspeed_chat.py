"""DeepSpeed-Chat step 3: batches that wait until there are enough, gradients that the engine carries from rollout to rollout.

Read at DeepSpeedExamples 45b4b71 (2026-03-29): applications/DeepSpeed-Chat/training/step3_rlhf_finetuning/main.py (arguments,
`create_datasets`, `main`), dschat/utils/data/data_utils.py `MiniDataset`, dschat/rlhf/rlhf_engine.py, dschat/rlhf/ppo_trainer.py.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.planning.accumulation import Accumulation
from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.minibatches import cut_by_size_kept
from rlstep_hooks.planning.phases import Passes, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings
    from rlstep_hooks.planning.schedule import Schedule

_MAIN = "DeepSpeedExamples 45b4b71 applications/DeepSpeed-Chat/training/step3_rlhf_finetuning/main.py"

DEFAULTS: dict[str, Any] = {
    "per_device_generation_batch_size": 16,
    "per_device_training_batch_size": 16,
    "generation_batches": 1,
    "ppo_epochs": 1,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 1,
    "unsupervised_dataset_name": None,
    "unsupervised_dataset_config_name": None,
    "lr_scheduler_type": "cosine",
    "num_warmup_steps": 100,
}
_IN_PLAN = tuple(DEFAULTS)[:6]

_SLICES = "generation_batches * ceil(per_device_generation_batch_size / per_device_training_batch_size)"
FORMULAS = (
    Formula(
        "samples_per_rollout",
        "generation_batches * per_device_generation_batch_size * world_size",
        f"{_MAIN} exp_mini_dataset",
    ),
    Formula(
        "updates_per_rollout",
        f"ppo_epochs * {_SLICES} / gradient_accumulation_steps",
        f"{_MAIN} main; data_utils.py MiniDataset.seperate; DeepSpeed counts micro-batches",
    ),
    Formula("critic.updates_per_rollout", f"ppo_epochs * {_SLICES} / gradient_accumulation_steps", f"{_MAIN} main"),
)


class DeepSpeedChat(Reader):
    """step3_rlhf_finetuning/main.py."""

    name = "deepspeed_chat"
    title = "DeepSpeed-Chat"
    version = "45b4b71"

    def defaults(self, version: str) -> Mapping[str, Any]:
        """Defaults of its argument parser."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = request.settings
        world_size = request.world_size()
        generated, size = (
            settings.count("per_device_generation_batch_size"),
            settings.count("per_device_training_batch_size"),
        )
        batches = settings.count("generation_batches")
        accumulation = Accumulation(
            microbatches=cut_by_size_kept(generated, size) * countable(batches, "generation batches of one rollout"),
            passes=settings.count("ppo_epochs"),
            window=settings.count("gradient_accumulation_steps"),
        )
        rows = request.rows()
        run = _Run.of(rows.count, world_size, generated, batches, settings.count("num_train_epochs"))
        prompts = batches * generated * world_size
        if run is None:
            passes = Passes.dropping(None, prompts, epochs=1, why=rows.source)
            updates = horizon = None
        else:
            passes = Passes(
                rows=rows.count,
                rollouts=run.rollouts,
                dropped=0,
                consumed=Fraction(min(run.rollouts * prompts, (rows.count or 0) * settings.count("num_train_epochs"))),
                unknown={"rollouts_per_epoch": "generation batches left over wait for the next pass"}
                if run.batches % batches
                else {},
                per_epoch=run.batches // batches if run.batches % batches == 0 else None,
            )
            updates = run.microbatches(size) * accumulation.passes // accumulation.window
            horizon = math.floor(
                Fraction(
                    settings.count("num_train_epochs") * run.batches * generated * accumulation.passes,
                    size * accumulation.window,
                )
            )
        unsupervised = None not in (
            settings.text("unsupervised_dataset_name"),
            settings.text("unsupervised_dataset_config_name"),
        )
        common: dict[str, Any] = {
            "framework": self.title,
            "version": request.version,
            "algorithm": "PPO",
            "passes": passes,
            "prompts_per_rollout": prompts,
            "samples_per_prompt": 1,
            "minibatches": tuple(part * world_size for part in accumulation.minibatches),
            "world_size": world_size,
            "reuse_epochs": accumulation.passes,
            "updates_per_rollout": accumulation.updates_per_rollout,
            "updates": updates,
            "remainder": "carry" if accumulation.carries else "error" if generated % size == 0 else "keep",
            "lr_horizon": horizon,
        }
        critic = _sized(schedule_in_phases(**common), accumulation, world_size)
        schedule = schedule_in_phases(
            **common,
            old_logprob_source="at_rollout",
            reference_source="at_rollout",
            lags=accumulation.lags,
            ratio_one_updates=(1,),
            step_unit="rollout" if batches == 1 else "prompt",
            step_means=f"1 step = 1 generation batch of {generated * world_size} prompts, counted anew in each pass over the rows",
            critic=critic,
            settings=settings.written(*_IN_PLAN),
            formulas=FORMULAS,
        )
        return Reading(
            schedule=_sized(schedule, accumulation, world_size),
            formulas=FORMULAS,
            notes=tuple(_notes(settings, accumulation, run, generated, size, batches, unsupervised)),
            facts={
                "lr_constant": (settings.text("lr_scheduler_type") or "").startswith("constant"),
                "lr_warmup": settings.count("num_warmup_steps", least=0),
            },
        )


class _Run(msgspec.Struct, frozen=True, kw_only=True):
    """Generation batches of one process."""

    batches: int
    """Of one pass over the rows."""
    generated: int
    """Prompts of one."""
    last: int
    """Prompts of the last of a pass."""
    rollouts: int
    per_rollout: int
    """Generation batches of one rollout."""
    left: int
    """Generation batches at the end of the run that no rollout takes."""

    @classmethod
    def of(cls, rows: int | None, world_size: int, generated: int, per_rollout: int, epochs: int) -> _Run | None:
        """The run over `rows`, which the sampler fills up to a multiple of the processes."""
        if rows is None:
            return None
        share = -(-rows // world_size)
        batches = -(-share // generated)
        rollouts, left = divmod(batches * epochs, per_rollout)
        last = share - (batches - 1) * generated
        return cls(
            batches=batches, generated=generated, last=last, rollouts=rollouts, per_rollout=per_rollout, left=left
        )

    def microbatches(self, size: int) -> int:
        """Micro-batches of one pass over every rollout of the run."""
        used = self.rollouts * self.per_rollout
        passes, rest = divmod(used, self.batches)
        full, last = -(-self.generated // size), -(-self.last // size)
        return passes * ((self.batches - 1) * full + last) + rest * full


def _sized(schedule: Schedule, accumulation: Accumulation, world_size: int) -> Schedule:
    """Sizes of micro-batches where they are all alike."""
    micro = accumulation.samples_per_microbatch
    if micro is None:
        return msgspec.structs.replace(
            schedule, microbatches_per_update=accumulation.window, microbatches_per_rollout=accumulation.per_rollout
        )
    return msgspec.structs.replace(
        schedule,
        samples_per_microbatch=micro * world_size,
        microbatches_per_update=accumulation.window,
        microbatches_per_rollout=accumulation.per_rollout,
        samples_per_update=micro * accumulation.window * world_size,
    )


def _notes(
    settings: Settings,
    accumulation: Accumulation,
    run: _Run | None,
    generated: int,
    size: int,
    batches: int,
    unsupervised: bool,
) -> list[Note]:
    notes = []
    if accumulation.carries:
        notes.append(
            Note(
                "carries",
                f"{accumulation.per_rollout} micro-batches for each rollout and {accumulation.window} for each update: gradients wait "
                "for the next rollout",
            )
        )
    if generated % size:
        notes.append(
            Note(
                "grows",
                f"each generation batch of {generated} ends with a training batch of {generated % size}, not {size}",
            )
        )
    if run is not None and run.left:
        notes.append(
            Note(
                "drops",
                f"the last {run.left} generation batches of the run are not trained: they do not fill a rollout",
            )
        )
    if run is not None and batches > 1 and run.batches % batches:
        notes.append(
            Note("carries", "generation batches that do not fill a rollout wait for the next pass over the rows")
        )
    if unsupervised:
        notes.append(
            Note(
                "unit",
                "with unsupervised data each update of the policy takes as many unsupervised micro-batches as others",
            )
        )
    if settings.count("ppo_epochs") > 1:
        notes.append(
            Note("assumes", "the first pass over a rollout is in the order of generation; the others are shuffled")
        )
    notes.append(
        Note(
            "assumes", "no step is skipped: with fp16 an overflow skips one, and answers of a single token are left out"
        )
    )
    return notes


READER = DeepSpeedChat()
