"""GRPOConfig or RLOOConfig -> Schedule. Integers and fractions only; reads attributes, imports no framework.

Symbols in comments: N rows, G num_generations, B per-device batch, P processes, GA gradient_accumulation_steps,
spg steps_per_generation, mu num_iterations. "Micro-step" is TRL's name for a micro-batch of one process.
"""

from __future__ import annotations

import math
import os
from fractions import Fraction
from typing import Any, Literal

import msgspec

from rlstep_hooks.planning.schedule import OldLogProbSource, ReferenceSource, Schedule, lag_pattern
from rlstep_hooks.systems.trl.releases import TrlRelease, installed_release

Algorithm = Literal["GRPO", "RLOO"]

CYCLE_SETTINGS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_generations",
    "steps_per_generation",
    "generation_batch_size",
    "num_iterations",
)
"""Settings that fix the order and the sizes of events; watched while training."""

PLAN_SETTINGS = (
    *CYCLE_SETTINGS,
    "max_steps",
    "num_train_epochs",
    "beta",
    "loss_type",
    "shuffle_dataset",
    "learning_rate",
    "lr_scheduler_type",
    "use_vllm",
    "num_remains_in_group",
    "divergence_type",
)
"""Settings that appear in a plan."""


class TrlSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The live settings that the formulas need, with this release's defaults filled in."""

    algorithm: Algorithm
    batch: int
    """B: samples of one micro-batch on one process."""
    accumulation: int
    """GA."""
    group: int
    """G."""
    steps_per_generation: int
    """spg; equals GA before 0.18."""
    iterations: int
    """mu."""
    max_steps: int
    """Updates asked for, or a negative number for "as many as the epochs give"."""
    epochs: Fraction
    beta: float
    shuffle: bool
    engine_correction: bool
    """Whether an engine's log-probs are corrected by importance sampling, which needs old log-probs always."""
    peft: bool = False
    kept: int = 0
    """Samples that GFPO's filter leaves of each prompt's; 0 without a filter."""
    ratio_to_sampler: bool = False
    """Whether the sampler's own log-probs are the old ones (DPPO)."""


def is_config(config: Any) -> bool:
    """Whether an object is a GRPOConfig or RLOOConfig of TRL (or a subclass)."""
    return _algorithm(config) is not None


def _algorithm(config: Any) -> Algorithm | None:
    for kind in type(config).__mro__:
        if kind.__module__.split(".")[0] == "trl":
            if kind.__name__ == "GRPOConfig":
                return "GRPO"
            if kind.__name__ == "RLOOConfig" and hasattr(config, "steps_per_generation"):
                return "RLOO"
    return None


def read_settings(config: Any, release: TrlRelease) -> TrlSettings:
    """The settings of a live configuration.

    Raises:
        TypeError: The object is no GRPOConfig or RLOOConfig.
    """
    algorithm = _algorithm(config)
    if algorithm is None:
        raise TypeError(f"{type(config).__name__} is neither a GRPOConfig nor an RLOOConfig of TRL 0.16 or later")
    accumulation = config.gradient_accumulation_steps
    return TrlSettings(
        algorithm=algorithm,
        batch=config.per_device_train_batch_size * max(getattr(config, "n_gpu", 1), 1),
        accumulation=accumulation,
        group=config.num_generations,
        steps_per_generation=config.steps_per_generation if release.has_steps_per_generation else accumulation,
        iterations=config.num_iterations,
        max_steps=config.max_steps,
        epochs=Fraction(str(config.num_train_epochs)),
        beta=config.beta,
        shuffle=bool(getattr(config, "shuffle_dataset", True)),
        engine_correction=bool(
            getattr(config, "use_vllm", False) and getattr(config, "vllm_importance_sampling_correction", False)
        ),
        # trl.experimental: gfpo (0.24 to 1.8), dppo (1.0 to 1.8), where the fields are their configurations' own.
        kept=getattr(config, "num_remains_in_group", None) or 0,
        ratio_to_sampler=hasattr(config, "divergence_type"),
    )


def old_logprob_source(settings: TrlSettings, release: TrlRelease) -> OldLogProbSource:
    """Whether a release computes old log-probs with the rollout, or takes the detached current ones in the loss.

    Read in `_generate_and_score_completions`: 0.16.1 and 0.17.0 `num_iterations > 1`; 0.18.2 and 0.19.1 also
    `steps_per_generation > gradient_accumulation_steps`; 0.20 and later `GA % (spg * mu) != 0`, and with an engine whose
    log-probs are corrected. RLOO computes them always (rloo_trainer.py 0.24.0).
    """
    if settings.ratio_to_sampler:
        return "engine"
    if settings.algorithm == "RLOO":
        return "at_rollout"
    if not release.has_steps_per_generation:
        computed = settings.iterations > 1
    elif not release.since("0.20"):
        computed = settings.iterations > 1 or settings.steps_per_generation > settings.accumulation
    else:
        period = settings.steps_per_generation * settings.iterations
        computed = settings.accumulation % period != 0 or settings.engine_correction
    return "at_rollout" if computed else "detach"


def reference_source(settings: TrlSettings, release: TrlRelease) -> ReferenceSource:
    """Where reference log-probs are computed: with the rollout, except in 0.18, where the loss does it.

    RLOO adds the KL term to the reward and computes it with the rollout in all releases.
    """
    if settings.beta == 0.0:
        return "none"
    return "in_loss" if release.since("0.18") and not release.since("0.19") else "at_rollout"


class _TrlTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What the number of rows decides."""

    chunks: int
    microbatches_per_epoch: int
    rows_dropped: int
    rollouts_per_epoch: int
    updates: int
    horizon: int
    microbatches: int


def _prompts_per_chunk(settings: TrlSettings, release: TrlRelease, world_size: int) -> int:
    """U: prompts that the sampler takes at a time; a remainder of the rows is dropped.

    0.16 and 0.17: B*P*GA // G; 0.18 and later: generation_batch_size // G with generation_batch_size = B*P*spg
    (`_get_train_sampler`).
    """
    return settings.batch * world_size * settings.steps_per_generation // settings.group


def _divide_up(value: int, by: int) -> int:
    return -(-value // by)


def _totals(settings: TrlSettings, release: TrlRelease, world_size: int, rows: int) -> _TrlTotals:
    prompts = _prompts_per_chunk(settings, release, world_size)
    chunks = rows // prompts
    microbatches = chunks * settings.steps_per_generation * settings.iterations
    if release.sampler_counts_dropped_rows:
        # The loader divides the sampler's length by its batch, and accelerate that by the processes, each rounded up.
        batches = _divide_up(rows * settings.group * settings.iterations, settings.batch)
        length = _divide_up(batches, world_size)
    else:
        length = microbatches
    per_epoch = max(
        length // settings.accumulation if release.updates_rounded_down else _divide_up(length, settings.accumulation),
        1,
    )
    if settings.max_steps > 0:
        horizon = settings.max_steps
        passes = _divide_up(horizon, per_epoch)
    else:
        horizon = math.ceil(settings.epochs * per_epoch)
        passes = math.ceil(settings.epochs)
    # What the rows really allow: the last, shorter window of a pass is an update too.
    possible = _divide_up(microbatches, settings.accumulation)
    updates = min(horizon, passes * possible)
    full, rest = divmod(updates, possible) if possible else (0, 0)
    return _TrlTotals(
        chunks=chunks,
        microbatches_per_epoch=microbatches,
        rows_dropped=rows - chunks * prompts,
        rollouts_per_epoch=chunks * (settings.accumulation if release.generates_per_microbatch else 1),
        updates=updates,
        horizon=horizon,
        microbatches=full * microbatches + min(rest * settings.accumulation, microbatches),
    )


NEEDS_ROWS = (
    "rows", "rows_dropped_per_epoch", "rollouts_per_epoch", "microbatches_per_epoch", "data_epochs", "loader_epochs",
)  # fmt: skip
"""What of a schedule is known only with the rows of the training set."""


def make_schedule(
    settings: TrlSettings,
    release: TrlRelease,
    *,
    world_size: int,
    rows: int | None,
    written: dict[str, Any] | None = None,
) -> Schedule:
    """The Schedule of one configuration under one release.

    Args:
        settings: The live settings.
        release: Releases of TRL and transformers.
        world_size: Data-parallel processes.
        rows: Rows of the training set; None for a stream.
        written: What the user wrote, kept for display.
    """
    per_microbatch = release.generates_per_microbatch
    samples_per_microbatch = settings.batch * world_size
    samples_per_rollout = samples_per_microbatch * (1 if per_microbatch else settings.steps_per_generation)
    rollouts_per_cycle = settings.accumulation if per_microbatch else 1
    microbatches_per_rollout = settings.iterations * (1 if per_microbatch else settings.steps_per_generation)
    source = old_logprob_source(settings, release)
    pattern = lag_pattern(microbatches_per_rollout, settings.accumulation, rollouts_per_cycle, settings.iterations)
    lags = {lag for window in pattern for lag in window}
    totals = _totals(settings, release, world_size, rows) if rows is not None else None
    prompts = Fraction(samples_per_rollout, settings.group)
    # GFPO filters each prompt's samples before it cuts them into micro-batches (gfpo_trainer.py 0.24.0 and 1.0.0).
    dropped = int(prompts * (settings.group - settings.kept)) if settings.kept else 0
    samples_per_microbatch = samples_per_microbatch * (settings.kept or settings.group) // settings.group
    of_a_stream = dict.fromkeys(NEEDS_ROWS, "the training set is a stream of unknown length")
    not_evaluated = of_a_stream if totals is None else {}
    updates = totals.updates if totals else (settings.max_steps if settings.max_steps > 0 else None)
    schedule = Schedule(
        framework="TRL",
        version=release.trl,
        algorithm=settings.algorithm,
        world_size=world_size,
        prompts_per_rollout=prompts,
        samples_per_prompt=settings.group,
        samples_per_rollout=samples_per_rollout,
        samples_dropped_per_rollout=dropped,
        rollouts_per_cycle=rollouts_per_cycle,
        samples_per_microbatch=samples_per_microbatch,
        reuse_epochs=settings.iterations,
        microbatches_per_rollout=microbatches_per_rollout,
        microbatches_per_update=settings.accumulation,
        samples_per_update=samples_per_microbatch * settings.accumulation,
        updates_per_rollout=Fraction(microbatches_per_rollout, settings.accumulation),
        # A stream's pass ends when the stream does; transformers makes no update for a window that it cuts short.
        partial_window="flush" if totals else "carry",
        rows=rows,
        rows_dropped_per_epoch=totals.rows_dropped if totals else None,
        rows_reshuffled=settings.shuffle or per_microbatch,
        rollouts_per_epoch=totals.rollouts_per_epoch if totals else None,
        microbatches_per_epoch=totals.microbatches_per_epoch if totals else None,
        rollouts=None,
        updates=updates,
        data_epochs=None,
        loader_epochs=None,
        old_logprob_source=source,
        lags=tuple(sorted(lags)),
        ratio_one_updates=tuple(
            index for index, window in enumerate(pattern, 1) if source == "detach" or not any(window)
        ),
        reference_source=reference_source(settings, release),
        lr_ticks=updates,
        lr_horizon=totals.horizon if totals else updates,
        step_means="1 step = 1 update",
        settings=written or {},
        sources=_sources(release),
        not_evaluated=not_evaluated,
    )
    if updates is not None:
        microbatches = totals.microbatches if totals else updates * settings.accumulation
        rollouts = schedule.rollouts_after(microbatches)
        schedule = msgspec.structs.replace(
            schedule,
            rollouts=rollouts,
            data_epochs=Fraction(rollouts) * prompts / rows if rows else None,
            loader_epochs=(
                Fraction(microbatches, totals.microbatches_per_epoch)
                if totals and totals.microbatches_per_epoch
                else None
            ),
        )
        if totals and not totals.microbatches_per_epoch:
            not_evaluated["loader_epochs"] = "the rows do not fill a single rollout"
    else:
        for name in ("updates", "rollouts", "lr_ticks", "lr_horizon"):
            not_evaluated[name] = "neither the rows nor max_steps are known"
        schedule = msgspec.structs.replace(schedule, not_evaluated=not_evaluated)
    return schedule


def _sources(release: TrlRelease) -> dict[str, str]:
    trainer = f"trl {release.trl} trl/trainer/grpo_trainer.py"
    return {
        "samples_per_rollout": f"{trainer} _prepare_inputs"
        + (": one generation for each micro-batch" if release.generates_per_microbatch else ""),
        "rollouts": f"{trainer} _prepare_inputs: "
        + (
            "global_step % num_iterations == 0"
            if release.generates_per_microbatch
            else "every steps_per_generation * num_iterations micro-steps"
            if release.has_steps_per_generation
            else "every gradient_accumulation_steps * num_iterations micro-steps"
        ),
        "rows_dropped_per_epoch": f"{trainer} _get_train_sampler (chunks of whole rollouts)",
        "old_logprob_source": f"{trainer} _generate_and_score_completions",
        "updates": f"transformers {release.transformers} Trainer.set_initial_training_values",
    }


def written_settings(config: Any) -> dict[str, Any]:
    """The settings behind a plan, under TRL's own names, as plain values."""
    written = {}
    for name in PLAN_SETTINGS:
        if hasattr(config, name):
            value = getattr(config, name)
            value = getattr(value, "value", value)
            written[name] = value if isinstance(value, int | float | str | bool | None) else str(value)
    return written


def read_world_size(config: Any) -> int:
    """Data-parallel processes of a configuration: WORLD_SIZE where a launcher set it, else the configuration's own."""
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return int(getattr(config, "world_size", 1))


def rows_of(dataset: Any) -> int | None:
    """Rows of a data set, or None for a stream."""
    try:
        return len(dataset)
    except TypeError:
        return None


def plan_config(
    config: Any, *, rows: int | None, world_size: int | None = None, release: TrlRelease | None = None
) -> Schedule:
    """The Schedule of a live GRPOConfig or RLOOConfig.

    Args:
        config: The configuration.
        rows: Rows of the training set; None for a stream, whose totals are then not evaluated.
        world_size: Data-parallel processes; read from the environment or the configuration if left out.
        release: Releases of TRL and transformers; the installed ones if left out.

    Raises:
        TypeError: The object is no such configuration.
        LookupError: TRL is not installed and no release is given.
    """
    release = release or installed_release()
    if release is None:
        raise LookupError("TRL is not installed here; name its release")
    return make_schedule(
        read_settings(config, release),
        release,
        world_size=world_size or read_world_size(config),
        rows=rows,
        written=written_settings(config),
    )


def plan_trainer(trainer: Any) -> Schedule:
    """The Schedule of a live GRPOTrainer or RLOOTrainer.

    Raises:
        TypeError: The object is no such trainer.
    """
    return plan_config(trainer.args, rows=rows_of(trainer.train_dataset), world_size=trainer.accelerator.num_processes)


def plan_live(thing: Any, *, rows: int | None, world_size: int | None) -> Schedule | None:
    """The Schedule of a GRPOConfig, RLOOConfig, GRPOTrainer or RLOOTrainer of TRL 0.16 to 1.16; None for anything else.

    Raises:
        LookupError: TRL is not installed, or its release is not supported.
    """
    trainer = thing if hasattr(thing, "train_dataset") else None
    config = thing if trainer is None else getattr(trainer, "args", None)
    if not is_config(config):
        return None
    release = installed_release()
    if release is not None and not release.supported:
        raise LookupError(f"TRL {release.trl} is not supported (0.16 to 1.16 are)")
    if trainer is not None:
        rows = rows_of(trainer.train_dataset) if rows is None else rows
        world_size = world_size or trainer.accelerator.num_processes
    return plan_config(config, rows=rows, world_size=world_size)
