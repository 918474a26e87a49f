"""open-instruct grpo_fast: mini-batches by number over packs of tokens, so the updates of a rollout depend on the data.

Read at commit e6c3044 (2026-08-20): open_instruct/grpo_fast.py (`step`, `setup_runtime_variables`, `validate_configs`, `main`),
open_instruct/grpo_utils.py (`GRPOExperimentConfig`, `resolve_old_logprob`), open_instruct/data_loader.py (`StreamingDataLoaderConfig`,
`prepare_collated_data_for_workers`, `result_is_stale`), open_instruct/olmo_core_utils.py (`TrainingConfig`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.phases import Passes, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.planning.schedule import OldLogProbSource
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings

_COMMIT = "open-instruct e6c3044"
_FAST = f"{_COMMIT} open_instruct/grpo_fast.py"
_LOADER = f"{_COMMIT} open_instruct/data_loader.py"
_START_UP = "at start-up, when the arguments are checked"

PACKS = "data.packs_per_process"
"""With `--set`: packs of one process in a rollout, or micro-batches of packs where one holds several. A log shows their number."""

DEFAULTS: dict[str, Any] = {
    "num_unique_prompts_rollout": 16,
    "num_samples_per_prompt_rollout": 4,
    "num_mini_batches": 1,
    "num_epochs": 1,
    "total_episodes": 100_000,
    "async_steps": 8,
    "per_device_train_batch_size": 1,
    "num_learners_per_node": "1",
    "sequence_parallel_size": 1,
    "filter_zero_std_samples": True,
    "active_sampling": False,
    "load_ref_policy": True,
    "beta": Fraction(1, 20),
    "use_vllm_logprobs": False,
    "lr_scheduler_type": "linear",
    "warmup_ratio": 0,
    "save_freq": 200,
    "local_eval_every": 100,
    PACKS: None,
}


class _Packs(msgspec.Struct, frozen=True):
    """How the packs of one process become updates."""

    updates: int
    """Updates of one pass."""
    accumulation: int
    """Micro-batches of one update."""
    dropped: int
    """Micro-batches that no update gets."""

    @classmethod
    def of(cls, packs: int, minibatches: int) -> _Packs:
        """`step` in grpo_fast.py: packs for each update are rounded half down, then updates are what they fill."""
        accumulation = max(-((-2 * packs + minibatches) // (2 * minibatches)), 1)
        return cls(packs // accumulation, accumulation, packs % accumulation)


class OpenInstruct(Reader):
    """open-instruct's `grpo_fast.py`."""

    name = "open_instruct"
    title = "open-instruct"
    version = "e6c3044"

    def defaults(self, version: str) -> Mapping[str, Any]:
        """The defaults of the dataclasses, with those that grpo_fast.py sets itself."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = request.settings
        prompts = settings.count("num_unique_prompts_rollout")
        group = settings.count("num_samples_per_prompt_rollout")
        samples = prompts * group
        epochs = settings.count("num_epochs")
        minibatches = settings.count("num_mini_batches")
        _check_arguments(settings, group)
        world_size = request.world_size(_processes(settings))
        if samples < world_size:
            raise PlanError(
                "num_samples_per_prompt_rollout * num_unique_prompts_rollout must be greater than or equal to world_size // "
                f"sequence_parallel_size ({samples} < {world_size})",
                when=_START_UP,
                fix=f"a rollout of {world_size} samples or more",
                source=f"{_FAST} validate_configs",
            )
        packs = _packs(settings, minibatches)
        steps = _steps(settings, samples)
        passes = _passes(request, prompts, steps)
        old = _OldLogProbs.of(settings, packs.updates if packs else minibatches, epochs)
        formulas = _formulas(counted=settings.optional_count(PACKS) is not None)
        unknown: dict[str, str] = {}
        if minibatches > 1:
            unknown["samples_per_update"] = "an update gets packs of tokens, and a pack any number of samples"
        if packs is None:
            reason = f"num_mini_batches splits packs, whose number depends on the data; --set {PACKS}=N counts for N"
            unknown |= dict.fromkeys(("updates", "lr_ticks"), reason)
        schedule = schedule_in_phases(
            framework=self.title,
            version=request.version,
            algorithm="GRPO",
            passes=passes,
            prompts_per_rollout=prompts,
            samples_per_prompt=group,
            # Only a single update is known to get all samples.
            minibatches=(samples,) if minibatches == 1 else (),
            updates_per_rollout=Fraction(epochs * (packs.updates if packs else minibatches)),
            updates_bound="data_dependent" if packs is None or minibatches > 1 else "exact",
            world_size=world_size,
            reuse_epochs=epochs,
            microbatches_per_update=packs.accumulation if packs and minibatches > 1 else None,
            remainder="data_dependent",
            max_age=settings.count("async_steps"),
            rows_bound="data_dependent",
            syncs="first_and_after_updates",
            old_logprob_source=old.source,
            lags=old.lags,
            ratio_one_updates=old.ratio_one_updates,
            reference_source="at_rollout" if settings.flag("load_ref_policy") else "none",
            lr_horizon=steps * epochs * minibatches,
            settings=settings.written(*(name for name in DEFAULTS if name != "num_learners_per_node")),
            formulas=formulas,
            not_evaluated=unknown,
        )
        if packs is None:
            schedule = msgspec.structs.replace(schedule, updates=None, lr_ticks=None)
        return Reading(
            schedule=schedule,
            formulas=formulas,
            notes=_notes(settings, packs, minibatches),
            facts={
                "lr_constant": (settings.text("lr_scheduler_type") or "").startswith("constant"),
                "lr_warmup": int(settings.number("warmup_ratio") * steps * epochs * minibatches),
                "save_every": settings.count("save_freq", least=-1),
                "eval_every": settings.count("local_eval_every", least=-1),
                "nominal_updates_per_rollout": epochs * minibatches,
            },
        )


class _OldLogProbs(msgspec.Struct, frozen=True):
    """Where old log-probs come from, and how far they are behind."""

    source: OldLogProbSource
    lags: tuple[int, ...]
    ratio_one_updates: tuple[int, ...]

    @classmethod
    def of(cls, settings: Settings, updates: int, epochs: int) -> _OldLogProbs:
        """A forward of their own before several updates; with one, those of a pack's first visit, kept (`resolve_old_logprob`)."""
        lags = tuple(range(countable(updates * epochs)))
        if settings.flag("use_vllm_logprobs"):
            return cls("engine", lags, ())
        if updates == 1 and epochs == 1:
            return cls("detach", (0,), (1,))
        return cls("recompute", lags, (1,))


def _check_arguments(settings: Settings, group: int) -> None:
    """The conditions of the dataclasses.

    Raises:
        PlanError: One of them does not hold.
    """
    config = f"{_LOADER} StreamingDataLoaderConfig.__post_init__"
    filtered = settings.flag("filter_zero_std_samples")
    steps = settings.count("async_steps", least=0)
    if settings.flag("active_sampling") and steps <= 1:
        raise PlanError(
            "With active_sampling, you should set async_steps > 1 to account for filtering of the first batch.",
            when=_START_UP,
            fix="--async_steps 2 or more",
            source=config,
        )
    if settings.flag("active_sampling") and not filtered:
        raise PlanError(
            "filter_zero_std_samples must be True when active_sampling is True.",
            when=_START_UP,
            fix="--filter_zero_std_samples True",
            source=config,
        )
    if group == 1 and filtered:
        raise PlanError(
            "`filter_zero_std_samples` cannot be True when `num_samples_per_prompt_rollout` is 1, as the reward standard "
            "deviation will always be 0, causing all samples to be filtered.",
            when=_START_UP,
            fix="--filter_zero_std_samples False, or --num_samples_per_prompt_rollout 2",
            source=config,
        )
    if steps < 1:
        raise PlanError(
            "`async_steps` must be greater than 0. Fully synchronous training is not supported.",
            when=_START_UP,
            fix="--async_steps 1",
            source=config,
        )
    if not settings.flag("load_ref_policy") and settings.number("beta") != 0:
        raise PlanError(
            f"When load_ref_policy=False, beta must be 0.0. Got beta={float(settings.number('beta'))}.",
            when=_START_UP,
            fix="--beta 0.0",
            source=f"{_COMMIT} open_instruct/grpo_utils.py GRPOExperimentConfig.__post_init__",
        )


def _processes(settings: Settings) -> int:
    """Data-parallel processes: learners of all nodes over those that share a sequence.

    Raises:
        SettingError: The learners are no whole numbers.
    """
    learners = settings.files("num_learners_per_node")
    try:
        total = sum(int(count) for count in learners)
    except ValueError:
        raise SettingError(
            f"num_learners_per_node = {' '.join(learners)}: not whole numbers", settings.place("num_learners_per_node")
        ) from None
    return max(total // settings.count("sequence_parallel_size"), 1)


def _packs(settings: Settings, minibatches: int) -> _Packs | None:
    """How packs become updates, where that is known: one mini-batch takes them all."""
    packs = settings.optional_count(PACKS)
    if packs is None:
        return _Packs(1, 1, 0) if minibatches == 1 else None
    return _Packs.of(-(-packs // settings.count("per_device_train_batch_size")), minibatches)


def _steps(settings: Settings, samples: int) -> int:
    """Rollouts of the run.

    Raises:
        PlanError: There is none.
    """
    episodes = settings.count("total_episodes")
    if episodes < samples:
        raise PlanError(
            f"Training didn't run since resume_training_step=1 > args.num_training_steps=0 ({episodes} // {samples})",
            when="after start-up",
            fix=f"--total_episodes {samples} or more",
            source=f"{_FAST} setup_runtime_variables, run_training",
        )
    return episodes // samples


def _passes(request: Request, prompts: int, steps: int) -> Passes:
    """What becomes of the rows: prompts go round, shuffled anew.

    Raises:
        PlanError: There are fewer rows than are asked for at once.
    """
    rows = request.rows()
    if rows.count is None:
        return Passes.wrapping(None, prompts, rollouts=steps, why=rows.source)
    ahead = request.settings.count("async_steps")
    if rows.count < ahead * prompts:
        raise PlanError(
            f"Train dataset is too small! Is {rows.count} prompts, but {ahead * prompts} are needed to have enough prompts for bsz "
            "and prefill.",
            when="at start-up, when the data set is loaded",
            fix=f"--async_steps {rows.count // prompts}"
            if rows.count >= prompts
            else f"--num_unique_prompts_rollout {rows.count // ahead or 1} or less",
            source=f"{_FAST} main",
        )
    reason = "results that are too old, or all alike with active_sampling, are replaced by those of later prompts"
    unknown = dict.fromkeys(("data_epochs", "loader_epochs"), reason)
    return Passes(rows=rows.count, rollouts=steps, dropped=0, unknown=unknown)


def _formulas(*, counted: bool) -> tuple[Formula, ...]:
    samples = "num_unique_prompts_rollout * num_samples_per_prompt_rollout"
    packs = f"ceil({PACKS} / per_device_train_batch_size)"
    per_update = f"max(ceil({packs} / num_mini_batches - 1 / 2), 1)"
    updates = f"num_epochs * floor({packs} / {per_update})" if counted else "num_epochs * num_mini_batches"
    return (
        Formula("samples_per_rollout", samples, f"{_FAST} setup_runtime_variables"),
        Formula(
            "updates_per_rollout", updates, f"{_FAST} step" + ("" if counted else " (exact for 1; else packs decide)")
        ),
        Formula("rollouts", f"floor(total_episodes / ({samples}))", f"{_FAST} setup_runtime_variables"),
        Formula("lr_ticks", "rollouts * updates_per_rollout", f"{_FAST} step (model.step)"),
        Formula(
            "lr_horizon",
            f"floor(total_episodes / ({samples})) * num_epochs * num_mini_batches",
            f"{_FAST} PolicyTrainerRayProcess.from_pretrained",
        ),
        Formula("max_age", "async_steps", f"{_LOADER} result_is_stale"),
    )


def _notes(settings: Settings, packs: _Packs | None, minibatches: int) -> tuple[Note, ...]:
    notes = [Note("unit", "num_mini_batches divides packs of tokens of one process, not samples")]
    if settings.flag("filter_zero_std_samples") and not settings.flag("active_sampling"):
        notes.append(
            Note(
                "drops",
                "samples of a prompt that all score the same are dropped and not replaced: rollouts are smaller",
            )
        )
    if packs is None:
        notes.append(
            Note(
                "assumes",
                f"{minibatches} updates a pass is what the setting says; packs may make fewer, or nearly twice as many",
            )
        )
    elif packs.dropped:
        notes.append(
            Note(
                "drops",
                f"{packs.dropped} micro-batches of packs of each process do not fill an update of {packs.accumulation}",
            )
        )
    return tuple(notes)


READER = OpenInstruct()
