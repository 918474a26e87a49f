"""The Schedule of a run in phases (each rollout, then its updates) from the few quantities that a system states.

All other quantities (updates per rollout, lags, totals, epochs, ticks) are derived here and nowhere else.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlstep_hooks.planning.counting import countable

if TYPE_CHECKING:
    from rlstep_hooks.planning.kinds import (
        Bound,
        Clock,
        CriticOrder,
        Flush,
        OldLogProbSource,
        ReferenceSource,
        Remainder,
        StepUnit,
        Syncs,
    )

ENGINE_RATIO = "the ratio, taken to the engine's log-probs"
"""The correction of a loss whose old log-probs are those of the sampler."""
STEP_WORDS: dict[StepUnit, str] = {
    "rollout": "rollout",
    "update": "update",
    "microbatch": "micro-batch",
    "sample": "sample",
    "prompt": "prompt",
    "timestep": "timestep",
    "epoch": "pass over a rollout",
}

Loader = Literal["drops", "keeps", "wraps"]
"""What a loader does with rows that do not fill the last rollout of a pass: leaves them out, makes a smaller rollout of them, or fills
it up with the first rows."""


class Passes(msgspec.Struct, frozen=True, kw_only=True):
    """How rows become rollouts."""

    rows: int | None
    rollouts: int | None
    """Rollouts of the run."""
    per_epoch: int | None = None
    """Rollouts in one pass of the loader."""
    dropped: int | None = None
    """Rows left out in each pass."""
    last_prompts: int = 0
    """Prompts of the last rollout of a pass; 0 if it is not smaller."""
    consumed: Fraction | None = None
    """Rows consumed by the run."""
    unknown: dict[str, str] = {}
    """Quantities that cannot be known, each with the reason."""

    @classmethod
    def of_loader(
        cls, loader: Loader, rows: int, prompts: int | Fraction, *, rollouts: int, per_epoch: int | None = None
    ) -> Passes:
        """The rollouts of a run whose rows and length are known.

        Args:
            loader: What happens at the end of the rows.
            rows: Number of rows.
            prompts: Rows of one rollout.
            rollouts: Rollouts of the run.
            per_epoch: Rollouts in one pass of the loader. None for as many as the rows fill; not known where rollouts wrap.
        """
        if loader == "wraps":
            return cls(
                rows=rows, rollouts=rollouts, per_epoch=per_epoch, dropped=0, consumed=Fraction(rollouts * prompts)
            )
        if loader == "keeps":
            each = per_epoch or -int(-rows // prompts)
            full, rest = divmod(rollouts, each) if each else (0, 0)
            return cls(
                rows=rows,
                rollouts=rollouts,
                per_epoch=each,
                dropped=0,
                last_prompts=int(rows % prompts),
                consumed=Fraction(full * rows + rest * prompts),
            )
        each = per_epoch if per_epoch is not None else int(rows // prompts)
        return cls(
            rows=rows,
            rollouts=rollouts,
            per_epoch=each,
            dropped=int(rows - each * prompts),
            consumed=Fraction(rollouts * prompts),
        )

    @classmethod
    def of_unknown_rows(cls, rollouts: int | None, why: str = "") -> Passes:
        """The rollouts of a run whose rows are not known, and why they are not."""
        names = ["rows", "rows_dropped_per_epoch", "rollouts_per_epoch", "data_epochs", "loader_epochs"]
        if rollouts is None:
            names += ["rollouts", "updates", "lr_ticks"]
        reason = why or "the rows are not known; give --rows"
        return cls(rows=None, rollouts=rollouts, unknown=dict.fromkeys(names, reason))

    @classmethod
    def without_length(cls, rows: int | None, why: str, *, per_epoch: int | None = None) -> Passes:
        """A run of unbounded length."""
        names = ("rollouts", "updates", "data_epochs", "loader_epochs", "lr_ticks")
        return cls(rows=rows, rollouts=None, per_epoch=per_epoch, unknown=dict.fromkeys(names, why))

    @classmethod
    def without_rows(cls, rollouts: int | None) -> Passes:
        """A run that samples from an environment and has no rows."""
        reason = "the run samples from an environment; it has no rows"
        names = ("rows", "rows_dropped_per_epoch", "rollouts_per_epoch", "data_epochs", "loader_epochs")
        return cls(rows=None, rollouts=rollouts, unknown=dict.fromkeys(names, reason))


def fields_in_phases(
    *,
    framework: str,
    version: str,
    algorithm: str,
    passes: Passes,
    prompts_per_rollout: int | Fraction,
    samples_per_prompt: int,
    minibatches: tuple[int, ...],
    world_size: int = 1,
    reuse_epochs: int = 1,
    samples_per_rollout: int | None = None,
    samples_per_microbatch: int | None = None,
    microbatches_per_update: int | None = None,
    updates_per_rollout: Fraction | None = None,
    updates_bound: Bound = "exact",
    updates: int | None = None,
    remainder: Remainder = "error",
    flush: Flush | None = None,
    samples_added: int = 0,
    samples_dropped: int = 0,
    frozen_rollouts: int = 0,
    max_age: int | None = 0,
    max_age_updates: int | None = None,
    correction: str = "",
    correction_inert: str = "",
    correction_biased: str = "",
    syncs: Syncs = "unseen",
    rows_bound: Bound = "exact",
    rows_reshuffled: bool = True,
    old_logprob_source: OldLogProbSource = "recompute",
    lags: tuple[int, ...] | None = None,
    ratio_one_updates: tuple[int, ...] | None = None,
    reference_source: ReferenceSource = "none",
    lr_clock: Clock = "update",
    lr_horizon: int | None = None,
    step_unit: StepUnit = "rollout",
    step_means: str = "",
    critic: Any = None,
    critic_order: CriticOrder = "before",
    settings: dict[str, Any] | None = None,
    sources: dict[str, str] | None = None,
    not_evaluated: dict[str, str] | None = None,
) -> dict[str, Any]:
    """All fields of a Schedule with `loop="phases"`. The arguments are fields of `Schedule`, with these differences.

    Args:
        passes: How rows become rollouts.
        minibatches: Samples of each update of one pass over a rollout, over all processes.
        samples_per_rollout: Default: `prompts_per_rollout * samples_per_prompt`.
        microbatches_per_update: Default: what follows from the sizes.
        updates_per_rollout: Default: `reuse_epochs * len(minibatches)`; another value if gradients are carried.
        updates: The total. Default: `(rollouts - frozen_rollouts) * updates_per_rollout`, rounded down.
        rows_reshuffled: True where no row is dropped: nothing depends on it. `shape` asks for it where some are.
        max_age_updates: Default: the updates of `max_age` rollouts, if every rollout has as many.
        correction: Default: where samples may be old and old log-probs are the engine's, the ratio itself.
        lags: Default: 0, 1, ..., `updates_per_rollout` - 1.
        ratio_one_updates: Default: all updates for the source "detach", the first one for "recompute" and "at_rollout", none for
            "engine" and "none".
        lr_horizon: None if the schedule has no end (a constant rate) or is built for exactly the run's ticks.
        step_means: Default: words for one unit with its updates.
    """
    prompts = Fraction(prompts_per_rollout)
    samples = samples_per_rollout if samples_per_rollout is not None else int(prompts * samples_per_prompt)
    per_rollout = updates_per_rollout if updates_per_rollout is not None else Fraction(reuse_epochs * len(minibatches))
    rollouts = passes.rollouts
    if samples_per_microbatch and minibatches:
        samples_per_microbatch = min(
            samples_per_microbatch, max(minibatches)
        )  # a mini-batch that is split gives no more
    if updates is None and rollouts is not None:
        updates = math.floor((rollouts - min(frozen_rollouts, rollouts)) * per_rollout)
    if microbatches_per_update is None and samples_per_microbatch and len(set(minibatches)) == 1:
        microbatches_per_update = -(-minibatches[0] // samples_per_microbatch)
    microbatches_per_rollout = None
    if samples_per_microbatch:
        microbatches_per_rollout = reuse_epochs * sum(-(-size // samples_per_microbatch) for size in minibatches)
    made = countable(math.ceil(per_rollout))
    if ratio_one_updates is None:
        ratio_one_updates = {
            "detach": tuple(range(1, made + 1)),
            "engine": (),
            "none": (),
            "recompute": (1,),
            "at_rollout": (1,),
        }[old_logprob_source]
    ticks = lr_ticks(
        lr_clock, rollouts=rollouts, updates=updates, reuse_epochs=reuse_epochs, frozen_rollouts=frozen_rollouts
    )
    unknown = {**passes.unknown, **(not_evaluated or {})}
    if max_age_updates is None and max_age is not None:
        if updates_bound == "exact" or not max_age:
            max_age_updates = math.ceil(max_age * per_rollout)
        else:
            unknown.setdefault("max_age_updates", "the updates of a rollout depend on the data")
    if not correction and old_logprob_source == "engine" and max_age != 0:
        correction = ENGINE_RATIO
    if lr_clock in ("microbatch", "sample"):
        unknown.setdefault("lr_ticks", f"the schedule counts {lr_clock}s")
    return {
        "framework": framework,
        "version": version,
        "algorithm": algorithm,
        "loop": "phases",
        "world_size": world_size,
        "prompts_per_rollout": prompts,
        "samples_per_prompt": samples_per_prompt,
        "samples_per_rollout": samples,
        "samples_of_last_rollout": passes.last_prompts * samples_per_prompt,
        "samples_per_microbatch": samples_per_microbatch,
        "reuse_epochs": reuse_epochs,
        "microbatches_per_rollout": microbatches_per_rollout,
        "microbatches_per_update": microbatches_per_update,
        "samples_per_update": minibatches[0] if minibatches else None,
        "updates_per_rollout": per_rollout,
        "updates_bound": updates_bound,
        "minibatches": minibatches,
        "remainder": remainder,
        "flush": flush,
        "samples_added_per_rollout": samples_added,
        "samples_dropped_per_rollout": samples_dropped,
        "frozen_rollouts": frozen_rollouts,
        "max_age": max_age,
        "max_age_updates": max_age_updates,
        "correction": correction,
        "correction_inert": correction_inert,
        "correction_biased": correction_biased,
        "syncs": syncs,
        "rows": passes.rows,
        "rows_dropped_per_epoch": passes.dropped,
        "rows_bound": rows_bound,
        "rows_reshuffled": rows_reshuffled,
        "rollouts_per_epoch": passes.per_epoch,
        "microbatches_per_epoch": None,
        "rollouts": rollouts,
        "updates": updates,
        "data_epochs": passes.consumed / passes.rows if passes.consumed is not None and passes.rows else None,
        "loader_epochs": Fraction(rollouts, passes.per_epoch) if rollouts is not None and passes.per_epoch else None,
        "old_logprob_source": old_logprob_source,
        "lags": lags if lags is not None else tuple(range(max(made, 1))),
        "ratio_one_updates": ratio_one_updates,
        "reference_source": reference_source,
        "lr_ticks": ticks,
        "lr_horizon": lr_horizon if lr_horizon is not None else ticks,
        "lr_clock": lr_clock,
        "step_unit": step_unit,
        "step_means": step_means or _step_means(step_unit, per_rollout),
        "critic": critic,
        "critic_order": critic_order,
        "settings": settings or {},
        "sources": sources or {},
        "not_evaluated": unknown,
    }


def lr_ticks(
    clock: Clock, *, rollouts: int | None, updates: int | None, reuse_epochs: int, frozen_rollouts: int = 0
) -> int | None:
    """Ticks of the learning-rate scheduler in the whole run; None if these counts do not determine them."""
    if clock == "update":
        return updates
    if rollouts is None:
        return None
    trained = rollouts - min(frozen_rollouts, rollouts)
    return {"rollout": trained, "pass": trained * reuse_epochs}.get(clock)


def equal_minibatches(samples: int, count: int) -> tuple[int, ...]:
    """`count` mini-batches of equal size; samples that do not fill them are left out."""
    return (samples // count,) * countable(count)


def minibatches_of(samples: int, size: int, *, keep: bool) -> tuple[int, ...]:
    """Samples cut into mini-batches of `size`; a smaller last one is kept or left out."""
    full, rest = divmod(samples, size)
    return (size,) * countable(full) + ((rest,) if rest and keep else ())


def _step_means(unit: StepUnit, per_rollout: Fraction) -> str:
    if unit == "rollout":
        number = per_rollout.numerator if per_rollout.denominator == 1 else per_rollout
        return f"1 step = 1 rollout = {number} update{'' if per_rollout == 1 else 's'}"
    return f"1 step = 1 {STEP_WORDS[unit]}"
