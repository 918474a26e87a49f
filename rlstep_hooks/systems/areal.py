"""AReaL: mini-batches by number, rollouts of a bounded age, one learning-rate tick a rollout.

Read at commit 4aef98d (2026-05-21): areal/api/cli_args.py (defaults), areal/trainer/rl_trainer.py (`__init__`, `train`),
areal/trainer/ppo/actor.py `_ppo_update`, areal/utils/seqpack.py `ffd_allocate`, areal/utils/dataloader.py,
areal/infra/staleness_manager.py, areal/infra/workflow_executor.py `prepare_batch`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rlstep_hooks.planning.phases import Passes, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading, multiples
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings
    from rlstep_hooks.planning.schedule import OldLogProbSource

_COMMIT = "AReaL 4aef98d"
_TRAINER = f"{_COMMIT} areal/trainer/rl_trainer.py"
_PACKING = f"{_COMMIT} areal/utils/seqpack.py ffd_allocate"

DEFAULTS: dict[str, Any] = {
    "train_dataset.batch_size": 1,
    "train_dataset.drop_last": True,
    "train_dataset.shuffle": True,
    "gconfig.n_samples": 1,
    "actor.ppo_n_minibatches": 4,
    "actor.recompute_logprob": False,
    "actor.use_decoupled_loss": False,
    "actor.prox_logp_method": "recompute",
    "actor.kl_ctl": 0.1,
    "actor.optimizer.lr_scheduler_type": "constant",
    "actor.optimizer.warmup_steps_proportion": 0.001,
    "critic.ppo_n_minibatches": 4,
    "rollout.max_head_offpolicyness": 0,
    "rollout.consumer_batch_size": 1,
    "total_train_epochs": 1,
    "total_train_steps": None,
    "dynamic_bs": False,
    "saver.freq_steps": None,
    "evaluator.freq_steps": None,
}

_SAMPLES = "train_dataset.batch_size * gconfig.n_samples"


class AReaL(Reader):
    """AReaL's `PPOTrainer`, behind its launchers or a script of its own."""

    name = "areal"
    title = "AReaL"
    version = "4aef98d"
    overrides = True

    def defaults(self, version: str) -> Mapping[str, Any]:
        """The defaults of areal/api/cli_args.py."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = request.settings
        prompts = settings.count("train_dataset.batch_size")
        samples_per_prompt = settings.count("gconfig.n_samples")
        world_size = request.world_size(_processes(settings, "actor"))
        _check_loader(request, prompts, world_size)
        minibatches, even = _minibatches(settings, "actor", prompts, samples_per_prompt, world_size)
        passes, horizon = _passes(request, prompts)
        age, age_unknown = _age(settings, prompts)
        source = _old_logprob_source(settings)
        with_critic = settings.is_given("critic.path", "critic.backend", "critic.ppo_n_minibatches")
        by_steps = settings.optional_count("total_train_steps") is not None and passes.rows is None
        formulas = _formulas(settings, with_critic=with_critic, by_steps=by_steps)
        shared: dict[str, Any] = {
            "framework": self.title,
            "version": request.version,
            "passes": passes,
            "prompts_per_rollout": prompts,
            "samples_per_prompt": samples_per_prompt,
            "max_age": age,
            "rows_reshuffled": settings.flag("train_dataset.shuffle"),
            "remainder": "spread",
            "lr_clock": "rollout",
            "lr_horizon": horizon,
            "not_evaluated": age_unknown,
        }
        critic = None
        if with_critic:
            critic_processes = _processes(settings, "critic") if request.world_size_given is None else world_size
            critic_processes = critic_processes or world_size
            critic = schedule_in_phases(
                **shared,
                algorithm="PPO",
                minibatches=_minibatches(settings, "critic", prompts, samples_per_prompt, critic_processes)[0],
                world_size=critic_processes,
            )
        schedule = schedule_in_phases(
            **shared,
            algorithm="PPO" if with_critic else "GRPO",
            minibatches=minibatches,
            world_size=world_size,
            syncs="after_updates",
            old_logprob_source=source,
            reference_source=(
                "at_rollout" if settings.is_given("ref.path") and settings.number("actor.kl_ctl") > 0 else "none"
            ),
            critic=critic,
            settings=settings.written(*(n for n in DEFAULTS if with_critic or not n.startswith("critic."))),
            formulas=formulas,
        )
        return Reading(
            schedule=schedule,
            formulas=formulas,
            notes=_notes(settings, prompts, even=even, age=age),
            facts=_facts(settings, schedule.lr_horizon),
        )


def _processes(settings: Settings, role: str) -> int | None:
    """Data-parallel processes of a role: the number behind "d" in its backend ("fsdp:d4p1t1"), or in that of older releases."""
    backend = settings.text(f"{role}.backend")
    if backend is None:
        # "sglang:d4p1t1+d4p1t1": what generates, then what trains.
        backend = (settings.text("allocation_mode") or "").rpartition("+")[2]
    match = re.search(r"(?<![a-z])d(\d+)|[ptce]\d+d(\d+)", backend)
    return int(match.group(1) or match.group(2)) if match else None


def _check_loader(request: Request, prompts: int, world_size: int) -> None:
    """Under a launcher each process has a loader of its own.

    Raises:
        PlanError: The processes do not share the prompts evenly.
    """
    if "launcher" in request.command.program.name and prompts % world_size:
        raise PlanError(
            f"batch size({prompts}) must be divisible by world_size({world_size})!",
            when="at start-up, when the loader is made",
            fix=f"train_dataset.batch_size = {multiples(prompts, world_size)}",
            source=f"{_COMMIT} areal/utils/dataloader.py create_dataloader",
        )


def _minibatches(
    settings: Settings, role: str, prompts: int, samples_per_prompt: int, world_size: int
) -> tuple[tuple[int, ...], bool]:
    """Samples behind each update, and whether all are of one size.

    `ffd_allocate` makes exactly as many groups as asked for, since tokens are not limited here, with as many samples in each, up
    to one.

    Raises:
        PlanError: A process has fewer samples than updates.
    """
    name = f"{role}.ppo_n_minibatches"
    count = settings.count(name)
    fewest = prompts // world_size * samples_per_prompt
    if fewest < count:
        raise PlanError(
            f"Number of values {fewest} is smaller than min_groups {count}",
            when="after the first rollout, in the first update",
            fix=f"{name} = {fewest} or less" if fewest else f"train_dataset.batch_size = {world_size} or more",
            source=_PACKING,
        )
    size, rest = divmod(prompts * samples_per_prompt, count)
    even = prompts % world_size == 0 and fewest % count == 0
    return (size + 1,) * rest + (size,) * (count - rest), even


def _passes(request: Request, prompts: int) -> tuple[Passes, int | None]:
    """What becomes of the rows, and the length of the rate's schedule: that of all epochs, whatever ends the run earlier."""
    settings = request.settings
    rows = request.rows("train_dataset.path")
    epochs = settings.count("total_train_epochs")
    limit = settings.optional_count("total_train_steps")
    if rows.count is None:
        return Passes.dropping(None, prompts, epochs=epochs, limit=limit, why=rows.source), None
    if settings.flag("train_dataset.drop_last"):
        return Passes.dropping(rows.count, prompts, epochs=epochs, limit=limit), rows.count // prompts * epochs
    # The smaller last batch is counted, but every rollout waits for a full one: prompts go round.
    per_epoch = -(-rows.count // prompts)
    rollouts = per_epoch * epochs if limit is None else min(per_epoch * epochs, limit)
    passes = Passes.wrapping(rows.count, prompts, rollouts=rollouts)
    return passes, per_epoch * epochs


def _age(settings: Settings, prompts: int) -> tuple[int | None, dict[str, str]]:
    """Rollouts by which the sampler may be behind; None where the bound counts something else."""
    consumed = settings.count("rollout.consumer_batch_size")
    if consumed != prompts:
        reason = f"rollout.consumer_batch_size = {consumed} is not the {prompts} prompts of a rollout, so its bound does not hold"
        return None, {"max_age": reason}
    return settings.count("rollout.max_head_offpolicyness", least=0), {}


def _old_logprob_source(settings: Settings) -> OldLogProbSource:
    """What the clipped ratio is taken to: the proximal policy of the decoupled loss, else the sampler or a forward of its own."""
    if settings.flag("actor.use_decoupled_loss"):
        return "engine" if settings.text("actor.prox_logp_method") == "loglinear" else "recompute"
    return "recompute" if settings.flag("actor.recompute_logprob") else "engine"


def _formulas(settings: Settings, *, with_critic: bool, by_steps: bool) -> tuple[Formula, ...]:
    per_epoch = "rows / train_dataset.batch_size"
    rounded = f"floor({per_epoch})" if settings.flag("train_dataset.drop_last") else f"ceil({per_epoch})"
    total = f"total_train_epochs * {rounded}"
    limited = settings.optional_count("total_train_steps") is not None
    rollouts = "total_train_steps" if by_steps else f"min({total}, total_train_steps)" if limited else total
    formulas = [
        Formula("samples_per_rollout", _SAMPLES, f"{_TRAINER} train (prepare_batch)"),
        Formula(
            "updates_per_rollout",
            "actor.ppo_n_minibatches",
            f"{_COMMIT} areal/trainer/ppo/actor.py _ppo_update; {_PACKING}",
        ),
        Formula(
            "samples_per_update",
            f"ceil({_SAMPLES} / actor.ppo_n_minibatches)",
            f"{_PACKING} (the largest; samples are spread)",
        ),
        Formula("rollouts", rollouts, f"{_TRAINER} train"),
        Formula("lr_ticks", "rollouts", f"{_TRAINER} train (step_lr_scheduler once a rollout)"),
    ]
    if settings.flag("train_dataset.drop_last"):
        source = f"{_COMMIT} areal/utils/dataloader.py create_dataloader"
        formulas.append(Formula("rollouts_per_epoch", rounded, source))
    if not by_steps:
        formulas.append(Formula("lr_horizon", total, f"{_TRAINER} __init__ (FinetuneSpec)"))
    if with_critic:
        formulas.append(
            Formula(
                "critic.updates_per_rollout",
                "critic.ppo_n_minibatches",
                f"{_COMMIT} areal/trainer/ppo/critic.py _ppo_update",
            )
        )
    return tuple(formulas)


def _facts(settings: Settings, horizon: int | None) -> dict[str, Any]:
    proportion = settings.number("actor.optimizer.warmup_steps_proportion")
    return {
        "lr_constant": settings.text("actor.optimizer.lr_scheduler_type") == "constant",
        "lr_warmup": None if horizon is None else int(proportion * horizon),
        "save_every": settings.optional_count("saver.freq_steps"),
        "eval_every": settings.optional_count("evaluator.freq_steps"),
    }


def _notes(settings: Settings, prompts: int, *, even: bool, age: int | None) -> tuple[Note, ...]:
    notes = [Note("unit", "ppo_n_minibatches is the number of updates of a rollout, not a size")]
    if age:
        notes.append(Note("carries", f"up to {(age + 1) * prompts} prompts are sampled before the first update"))
    if age is None:
        consumed = settings.count("rollout.consumer_batch_size")
        ahead = (settings.count("rollout.max_head_offpolicyness", least=0) + 1) * consumed
        notes.append(
            Note(
                "assumes",
                f"rollout.consumer_batch_size = {consumed} is meant to be train_dataset.batch_size = {prompts}"
                + (f": with {ahead} prompts at a time the first rollout never gets full" if ahead < prompts else ""),
            )
        )
    if not even:
        notes.append(
            Note("shrinks", "samples do not divide: updates differ in size, in an order that depends on their lengths")
        )
    if settings.flag("dynamic_bs"):
        notes.append(
            Note("shrinks", "dynamic_bs: samples that are rejected are not replaced, so a rollout may be smaller")
        )
    if not settings.flag("train_dataset.drop_last"):
        notes.append(Note("carries", "a last batch that is smaller is filled with prompts of the next pass"))
    return tuple(notes)


READER = AReaL()
