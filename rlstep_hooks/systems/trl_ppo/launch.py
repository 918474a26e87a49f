"""TRL's PPOTrainer, and its RLOOTrainer up to 0.21, from a launch; read where `rlstep_hooks.systems.trl_ppo.system` says."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.accumulation import Accumulation, updates_of_run
from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.phases import Passes, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading, nearest
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.planning.schedule import Flush, Sampling
from rlstep_hooks.systems.request import release_of

if TYPE_CHECKING:
    from rlstep_hooks.systems.declaration import Quantities

_BUILT = "when the trainer is built"


def read(launch: Quantities) -> Reading:
    """The Schedule; see `system` for its sources."""
    return with_evaluation(launch, *_evaluation_rows(launch))


def with_evaluation(launch: Quantities, evaluation_rows: int | None, why: str = "") -> Reading:
    """The Schedule, where the rows of the evaluation set are known from elsewhere.

    Args:
        launch: The launch.
        evaluation_rows: Rows from which completions are sampled; 0 where there is no such set.
        why: Why they are not known, with None.

    Raises:
        LaunchError: This release has another trainer.
        PlanError: The trainer refuses these sizes, or fails on them.
    """
    request = launch.request
    release, rloo = release_of(request.version), _is_rloo(launch)
    if rloo and release >= (0, 22):
        raise LaunchError(
            f"RLOO of TRL {request.version} has no rloo_k any more: --version 0.21.0 reads this launch, --framework trl later ones"
        )
    sizes = _PpoSizes.of(launch, release, request.world_size(), rloo=rloo)
    group = launch["rloo_k"] if rloo else 1
    if sizes.per_process % group:
        raise PlanError(
            f"`local_batch_size` must be a multiple of rloo_k, inexact division: {sizes.per_process} / {group} = "
            f"{sizes.per_process / group}",
            when=_BUILT,
            fix=f"rloo_k = {nearest(min(group, sizes.per_process + 1), lambda k: sizes.per_process % k == 0)}",
            source=f"{_trainer(release, rloo=True)} __init__",
        )
    accumulation = sizes.accumulation(launch["num_ppo_epochs"])
    samples = sizes.per_process * sizes.world_size
    rows = request.rows()
    passes = _passes(launch, release, rows.count, rows.source, samples, samples // group)
    sampling, unknown = None, ""
    if passes.rollouts and launch["num_sample_generations"] > 0:
        unknown = why
        if evaluation_rows is not None:
            sampling = _sampling(launch, release, passes.rollouts, evaluation_rows, sizes.world_size, rloo=rloo)
    updates = flush = None
    if not unknown and passes.rollouts is not None and passes.per_epoch:
        flush = Flush(rollouts_per_epoch=passes.per_epoch, sampling=sampling)
        try:
            updates = updates_of_run(accumulation, flush, rollouts=passes.rollouts)
        except OverflowError as error:
            unknown = str(error)
    elif passes.per_epoch is None:
        unknown = passes.unknown["rollouts_per_epoch"]
    flushes = accumulation.window > 1
    if not flushes and passes.rollouts is not None:
        updates, unknown = passes.rollouts * accumulation.per_rollout, ""
    formulas = _formulas(release, rloo, passes, sampling, exact=not accumulation.carries and updates is not None)
    micro, minibatches = accumulation.samples_per_microbatch, accumulation.minibatches
    schedule = schedule_in_phases(
        framework="TRL",
        version=request.version,
        algorithm="RLOO" if rloo else "PPO",
        passes=passes,
        prompts_per_rollout=samples // group,
        samples_per_prompt=group,
        minibatches=tuple(size * sizes.world_size for size in minibatches),
        world_size=sizes.world_size,
        reuse_epochs=accumulation.passes,
        samples_per_microbatch=micro * sizes.world_size if micro is not None else None,
        microbatches_per_update=accumulation.window,
        updates_per_rollout=accumulation.updates_per_rollout,
        updates=updates,
        remainder="flush" if flushes and not accumulation.carries else "carry" if accumulation.carries else "error",
        flush=flush if flushes else None,
        old_logprob_source="at_rollout",
        reference_source="at_rollout",
        lags=accumulation.flushed_lags if _flushes(accumulation, passes, updates) else accumulation.lags,
        ratio_one_updates=(1,),
        lr_clock="rollout",
        lr_horizon=passes.rollouts,
        step_unit="rollout",
        settings=launch.written() | ({"rloo_k": group} if rloo else {}),
        formulas=formulas,
        not_evaluated={"updates": unknown} if unknown else None,
    )
    schedule = msgspec.structs.replace(
        schedule,
        updates=updates,
        microbatches_per_rollout=accumulation.per_rollout,
        samples_per_update=minibatches[0] * sizes.world_size
        if minibatches
        else micro * accumulation.window * sizes.world_size
        if micro
        else None,
    )
    return Reading(
        schedule=schedule,
        formulas=formulas,
        notes=tuple(_notes(release, accumulation, passes, sampling, unknown, rloo=rloo, launch=launch)),
        facts=_facts(launch, passes.rollouts, accumulation.passes * sizes.minibatches),
    )


def _flushes(accumulation: Accumulation, passes: Passes, updates: int | None) -> bool:
    """Whether some rollout makes an update of every micro-batch, as far as that is known; True where it is not."""
    if passes.rollouts is None or updates is None:
        return True
    return updates > passes.rollouts * accumulation.updates_per_rollout


class _PpoSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Batch sizes as `__init__` works them out."""

    world_size: int
    per_process: int
    """local_batch_size: samples of a rollout on one process."""
    per_minibatch: int
    """local_mini_batch_size."""
    minibatches: int
    per_microbatch: int
    window: int

    @classmethod
    def of(cls, launch: Quantities, release: tuple[int, ...], world_size: int, *, rloo: bool) -> _PpoSizes:
        """The sizes.

        Raises:
            PlanError: They do not divide.
        """
        micro = launch["per_device_train_batch_size"]
        window = launch["gradient_accumulation_steps"]
        minibatches = launch["num_mini_batches"]
        # Up to 0.16 (and in RLOO) num_mini_batches made the rollout larger; from 0.17 on it divides it (trl PR#2531).
        per_process = micro * window * (minibatches if rloo or release < (0, 17) else 1)
        for name, size in (("batch_size", per_process * world_size), ("local_batch_size", per_process)):
            if size % minibatches:
                raise PlanError(
                    f"`{name}` must be a multiple of `num_mini_batches`, inexact division: {size} / {minibatches} = "
                    f"{size / minibatches}",
                    when=_BUILT,
                    fix=f"num_mini_batches = {nearest(min(minibatches, per_process + 1), lambda m: per_process % m == 0)}",
                    source=f"{_trainer(release, rloo)} __init__",
                )
        whitens = not rloo or release < (0, 10)
        if whitens and launch["whiten_rewards"] and per_process // minibatches < 8:
            raise PlanError(
                f"Per-rank minibatch size {per_process // minibatches} is insufficient for whitening",
                when=_BUILT,
                fix="8 samples or more for each process and mini-batch, or whiten_rewards = false",
                source=f"{_trainer(release, rloo)} __init__",
            )
        return cls(
            world_size=world_size,
            per_process=per_process,
            per_minibatch=per_process // minibatches,
            minibatches=minibatches,
            per_microbatch=micro,
            window=window,
        )

    def accumulation(self, passes: int) -> Accumulation:
        """Micro-batches of one process: each mini-batch is cut on its own, and its last piece may be smaller."""
        pieces = -(-self.per_minibatch // self.per_microbatch)
        countable(pieces * self.minibatches, "micro-batches of one pass")
        starts = range(0, self.per_minibatch, self.per_microbatch)
        one = tuple(min(self.per_microbatch, self.per_minibatch - start) for start in starts)
        return Accumulation(microbatches=one * self.minibatches, passes=passes, window=self.window)


def _is_rloo(launch: Quantities) -> bool:
    script = launch.request.command.program.name.rpartition("/")[2]
    given = any(launch.request.settings.is_given(f"RLOOConfig.{key}") for key in launch.system.settings)
    return given or "rloo" in script or launch.request.settings.is_given("rloo_k")


def _trainer(release: tuple[int, ...], rloo: bool) -> str:
    version = ".".join(str(part) for part in release)
    if rloo:
        return f"trl {version} trl/trainer/rloo_trainer.py"
    if release >= (1, 0):
        return f"trl {version} trl/experimental/ppo/ppo_trainer.py"
    return f"trl {version} trl/trainer/{'ppo' if release >= (0, 12) else 'ppov2'}_trainer.py"


def _passes(
    launch: Quantities, release: tuple[int, ...], rows: int | None, why: str, samples: int, prompts: int
) -> Passes:
    """Rollouts from total_episodes, which counts samples; left out, they are epochs x rows.

    Raises:
        PlanError: The rows do not fill one batch.
    """
    episodes = launch["total_episodes"]
    epochs = launch["num_train_epochs"]
    if episodes is None and rows is not None:
        episodes = math.floor(epochs * rows)
    rollouts = None
    if episodes is not None:
        rollouts = episodes // samples if release < (0, 10) else -(-episodes // samples)
    if rows is None:
        return Passes.dropping(None, prompts, epochs=1, limit=rollouts, why=why)
    if rows < prompts and rollouts:
        raise PlanError(
            f"the run hangs: {rows} rows do not fill a batch of {prompts} prompts, and `repeat_generator` goes round an "
            "empty loader for ever",
            when="at the first rollout",
            fix=f"at most {rows} prompts for each rollout, or {prompts} rows",
            source=f"{_trainer(release, rloo=False)} train",
        )
    passes = Passes.wrapping(rows, prompts, rollouts=rollouts)
    return msgspec.structs.replace(passes, per_epoch=rows // prompts, dropped=rows % prompts)


def _sampling(
    launch: Quantities, release: tuple[int, ...], rollouts: int, rows: int, world_size: int, *, rloo: bool
) -> Sampling | None:
    """Completions sampled between rollouts from an evaluation set of `rows` rows.

    Raises:
        PlanError: There is no evaluation set to sample from.
    """
    wanted = launch["num_sample_generations"]
    if rows == 0:
        raise PlanError(
            "TypeError: object of type 'NoneType' has no len(): there is no evaluation set, and num_sample_generations = "
            f"{wanted} samples from it",
            when="after the first rollout",
            fix="num_sample_generations = 0, or eval_strategy = steps",
            source=f"{_trainer(release, rloo)} generate_completions",
        )
    batches = rows // launch["per_device_eval_batch_size"] // world_size
    return Sampling(every=max(1, rollouts // wanted), batches=batches) if batches else None


def _evaluation_rows(launch: Quantities) -> tuple[int | None, str]:
    """Rows of the evaluation set of TRL's own scripts; 0 where there is none."""
    program = launch.request.command.program
    script = program.name.rpartition("/")[2]
    if program.matches("script:scripts/ppo/ppo.py") or program.matches("script:scripts/rloo/rloo.py"):
        return 100, ""  # `eval_samples = 100` in the script
    if script in ("ppo_tldr.py", "rloo_tldr.py") and launch["eval_strategy"] == "no":
        return 0, ""
    reason = (
        "the last rollout of a pass makes more updates, unless completions were sampled from the evaluation set before"
    )
    return None, f"{reason}; the rows of that set are not known (num_sample_generations = 0 settles it)"


def _formulas(
    release: tuple[int, ...], rloo: bool, passes: Passes, sampling: Sampling | None, *, exact: bool
) -> tuple[Formula, ...]:
    init, train = f"{_trainer(release, rloo)} __init__", f"{_trainer(release, rloo)} train"
    local = "per_device_train_batch_size * gradient_accumulation_steps"
    if rloo or release < (0, 17):
        samples, updates = f"{local} * num_mini_batches * world_size", "num_ppo_epochs * num_mini_batches"
    else:
        samples = f"{local} * world_size"
        micro = "num_ppo_epochs * num_mini_batches * ceil(gradient_accumulation_steps / num_mini_batches)"
        updates = f"{micro} / gradient_accumulation_steps"
    whole = "floor" if release < (0, 10) else "ceil"
    formulas = [
        Formula("samples_per_rollout", samples, init),
        Formula("updates_per_rollout", updates, f"{train}; accelerate accelerator.py _do_sync"),
        Formula("rollouts_per_epoch", "floor(rows / prompts_per_rollout)", f"{init} (drop_last)"),
        Formula("lr_ticks", "rollouts", train),
    ]
    if rloo:
        formulas.append(Formula("prompts_per_rollout", "samples_per_rollout / rloo_k", init))
    if passes.rollouts is not None and passes.rows is None:
        formulas.append(Formula("rollouts", f"{whole}(total_episodes / samples_per_rollout)", init))
    if exact and sampling is None and passes.per_epoch:
        more = "floor(rollouts / rollouts_per_epoch) * updates_per_rollout * (gradient_accumulation_steps - 1)"
        formulas.append(Formula("updates", f"rollouts * updates_per_rollout + {more}", f"{train}; accelerate _do_sync"))
    return tuple(formulas)


def _notes(
    release: tuple[int, ...],
    accumulation: Accumulation,
    passes: Passes,
    sampling: Sampling | None,
    unknown: str,
    *,
    rloo: bool,
    launch: Quantities,
) -> list[Note]:
    nominal = accumulation.passes * launch["num_mini_batches"]
    notes = []
    if accumulation.updates_per_rollout != nominal:
        notes.append(
            Note(
                "shrinks",
                f"{accumulation.updates_per_rollout} updates for each rollout, not num_ppo_epochs x num_mini_batches = {nominal}: "
                f"{accumulation.per_rollout} micro-batches, and one update after every {accumulation.window}",
            )
        )
    if accumulation.carries:
        notes.append(
            Note(
                "carries",
                f"{accumulation.per_rollout % accumulation.window} micro-batches are carried into the next rollout",
            )
        )
    if accumulation.window > 1 and not unknown:
        notes += _flush_notes(accumulation, passes, sampling)
    if rloo:
        notes.append(
            Note("unit", "total_episodes counts samples: one epoch's worth of them visits 1/rloo_k of the prompts")
        )
    if not rloo and (0, 10) <= release < (0, 17) and launch["num_mini_batches"] > 1:
        notes.append(Note("unit", "the progress bar ends at 1/num_mini_batches: max_steps counts mini-batches"))
    if passes.dropped and passes.rows is not None:
        notes.append(Note("drops", f"{passes.dropped} of {passes.rows} rows in each pass, a different set each pass"))
    return notes


def _flush_notes(accumulation: Accumulation, passes: Passes, sampling: Sampling | None) -> list[Note]:
    every = f"every micro-batch is an update, {accumulation.per_rollout} in all (accelerate without DeepSpeed)"
    if sampling is None:
        return [Note("grows", f"in the last rollout of each pass over the rows {every}")]
    if sampling.batches == 1:
        return [
            Note(
                "grows",
                "the evaluation set is one batch: from the rollout after completions were sampled from it to the end of the pass "
                f"over the rows, {every}",
            )
        ]
    undisturbed = (
        f"; in a pass without, its last rollout makes {accumulation.per_rollout}"
        if passes.rollouts is not None and passes.per_epoch and passes.rollouts > passes.per_epoch
        else ""
    )
    return [
        Note(
            "assumes",
            "completions are sampled from the evaluation set between rollouts, which keeps the last rollout of that pass over the "
            f"rows as the others{undisturbed}",
        )
    ]


def _facts(launch: Quantities, rollouts: int | None, nominal: int) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "lr_constant": (launch["lr_scheduler_type"] or "").startswith("constant"),
        "nominal_updates_per_rollout": nominal,
    }
    warmup = launch["warmup_steps"]
    if not warmup and rollouts is not None:
        warmup = launch["warmup_ratio"] * rollouts
    facts["lr_warmup"] = math.ceil(warmup)
    every = launch["save_steps"]
    if launch["save_strategy"] == "steps" and every is not None and every >= 1:
        facts["save_every"] = int(every)
    return facts
