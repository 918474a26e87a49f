"""slime: rollouts in prompts, mini-batches in samples; what does not fill a mini-batch is dropped, prompts go round.

Read at commit 624b824 (2026-08-21): slime/utils/arguments.py (defaults, `slime_validate_args`), slime/utils/dp_schedule.py
`build_dp_schedule`, slime/backends/megatron_utils/model.py (`train_one_step`, scheduler), actor.py `train_actor`,
slime/rollout/data_source.py `get_samples`, train.py and train_async.py. Megatron-LM checks the global batch as well
(num_microbatches_calculator.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.phases import Passes, minibatches_of, schedule_in_phases
from rlstep_hooks.planning.reading import Conversion, Formula, Note, Reading, multiples, nearest
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings
    from rlstep_hooks.planning.schedule import OldLogProbSource, Schedule

_ARGUMENTS = "slime 624b824 slime/utils/arguments.py"
_SCHEDULE = "slime 624b824 slime/utils/dp_schedule.py build_dp_schedule"
_MODEL = "slime 624b824 slime/backends/megatron_utils/model.py"
_ACTOR = "slime 624b824 slime/backends/megatron_utils/actor.py train_actor"
_START_UP = "at start-up, when the arguments are checked"

DEFAULTS: dict[str, Any] = {
    "n_samples_per_prompt": 1,
    "global_batch_size": None,
    "num_steps_per_rollout": None,
    "micro_batch_size": 1,
    "num_rollout": None,
    "num_epoch": None,
    "over_sampling_batch_size": None,
    "update_weights_interval": 1,
    "actor_num_nodes": 1,
    "actor_num_gpus_per_node": 8,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "advantage_estimator": "grpo",
    "loss_type": "policy_loss",
    "num_critic_only_steps": 0,
    "kl_coef": 0,
    "lr_decay_style": "linear",
    "lr_decay_iters": None,
    "lr_warmup_iters": 0,
    "lr_warmup_fraction": None,
}

_DROPPED = Formula("samples_dropped_per_rollout", "samples_per_rollout % samples_per_update", _SCHEDULE)


class Slime(Reader):
    """slime's `train.py` and `train_async.py`."""

    name = "slime"
    title = "slime"
    version = "624b824"
    config_settings = ("custom_config_path",)

    def defaults(self, version: str) -> Mapping[str, Any]:
        """The defaults of slime/utils/arguments.py, and Megatron-LM's for the schedule of the rate."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = request.settings
        prompts = settings.count("rollout_batch_size")
        samples_per_prompt = settings.count("n_samples_per_prompt")
        samples = prompts * samples_per_prompt
        estimator = settings.text("advantage_estimator") or "grpo"
        asynchronous = request.command.program.name.endswith("train_async.py")
        _check_arguments(settings, prompts, asynchronous=asynchronous)
        world_size = request.world_size(_processes(settings))
        size = _minibatch(settings, samples, world_size)
        minibatches = minibatches_of(samples, size, keep=False)
        passes = _passes(request, prompts)
        ages, age_unknown = _ages(settings, asynchronous=asynchronous)
        source = _old_logprob_source(settings, len(minibatches), estimator)
        formulas = _formulas(settings)
        by_tokens = settings.flag("use_dynamic_batch_size")
        shared: dict[str, Any] = {
            "framework": self.title,
            "version": request.version,
            "passes": passes,
            "prompts_per_rollout": prompts,
            "samples_per_prompt": samples_per_prompt,
            "minibatches": minibatches,
            "world_size": world_size,
            "samples_per_microbatch": None if by_tokens else settings.count("micro_batch_size") * world_size,
            "remainder": "drop",
            "samples_dropped": samples - sum(minibatches),
            "max_age": ages,
            "rows_bound": "data_dependent" if _picks_prompts(settings, prompts) else "exact",
            "rows_reshuffled": settings.flag("rollout_shuffle"),
            "lr_horizon": _horizon(settings, passes.rollouts, samples, size),
            "not_evaluated": age_unknown,
        }
        schedule = schedule_in_phases(
            **shared,
            algorithm=estimator.upper(),
            frozen_rollouts=settings.count("num_critic_only_steps", least=0) if estimator == "ppo" else 0,
            syncs="first_and_after_updates",
            old_logprob_source=source,
            lags=_lags(settings, source, len(minibatches)),
            ratio_one_updates=() if source == "at_rollout" else None,
            reference_source=(
                "at_rollout" if settings.flag("use_kl_loss") or settings.number("kl_coef") != 0 else "none"
            ),
            critic=schedule_in_phases(**shared, algorithm="PPO") if estimator == "ppo" else None,
            settings=settings.written("rollout_batch_size", *DEFAULTS),
            formulas=formulas,
        )
        return Reading(
            schedule=schedule,
            formulas=formulas,
            notes=_notes(settings, schedule, size, source),
            facts=_facts(settings, schedule),
        )

    def write(self, schedule: Schedule) -> Conversion:
        """The same schedule as a launch of slime."""
        from rlstep_hooks.planning.writing import Target, whole_rollouts

        # slime can train asynchronously and wait for a critic, so neither is lost.
        kept = msgspec.structs.replace(schedule, frozen_rollouts=0 if schedule.critic else schedule.frozen_rollouts)
        target = Target(msgspec.structs.replace(kept, max_age=0) if schedule.max_age else kept, self.title)
        target.equal_updates()
        size = target.samples_per_update
        if schedule.reuse_epochs > 1:
            raise LaunchError(
                f"reuse_epochs = {schedule.reuse_epochs} cannot be kept: slime passes once over a rollout"
            )
        if schedule.updates_per_rollout != schedule.samples_per_rollout // size:
            raise LaunchError(
                f"updates_per_rollout = {schedule.updates_per_rollout} cannot be kept: slime makes whole updates of each "
                "rollout and drops the rest"
            )
        if schedule.rollouts is None:
            raise LaunchError("rollouts cannot be kept: they are not known, and slime needs a number; give --rows")
        engine = schedule.old_logprob_source == "engine"
        command = [
            "python", "train_async.py" if schedule.max_age else "train.py",
            "--actor-num-nodes", "1",
            "--actor-num-gpus-per-node", str(schedule.world_size),
            "--rollout-batch-size", str(target.prompts),
            "--n-samples-per-prompt", str(schedule.samples_per_prompt),
            "--global-batch-size", str(size),
            "--micro-batch-size", str(target.microbatch_per_process()),
            "--num-rollout", str(schedule.rollouts),
            *(["--update-weights-interval", str(schedule.max_age)] if schedule.max_age else []),
            *(["--use-rollout-logprobs"] if engine else []),
            *(["--advantage-estimator", "ppo"] if schedule.critic else []),
            *(["--num-critic-only-steps", str(schedule.frozen_rollouts)] if schedule.critic else []),
            *(["--rollout-shuffle"] if schedule.rows_reshuffled else []),
        ]  # fmt: skip
        alone = schedule.updates_per_rollout == 1 and schedule.critic is None
        target.keeps(
            lr_clock="update",
            source="engine" if engine else "detach" if alone else "recompute",
            critic=schedule.critic is not None,
            loader="wraps",
        )
        lost = target.lost() + whole_rollouts(schedule)
        if schedule.critic is not None and schedule.critic.minibatches != schedule.minibatches:
            lost += (f"critic.minibatches: {list(schedule.critic.minibatches)}, here those of the policy",)
        return Conversion(tuple(command), lost)


def _check_arguments(settings: Settings, prompts: int, *, asynchronous: bool) -> None:
    """The conditions of `slime_validate_args` and of train_async.py that do not need the number of processes.

    Raises:
        PlanError: One of them does not hold.
    """
    sampled = settings.optional_count("over_sampling_batch_size")
    if sampled is not None and sampled < prompts:
        raise PlanError(
            f"over_sampling_batch_size {sampled} should be greater than or equal to rollout_batch_size {prompts}",
            when=_START_UP,
            fix=f"--over-sampling-batch-size = {prompts} or more",
            source=f"{_ARGUMENTS} slime_validate_args",
        )
    if settings.optional_count("num_rollout", least=0) is None and settings.optional_count("num_epoch") is None:
        raise PlanError(
            "num_epoch is not set, but num_rollout is not set, please set --num-rollout or --num-epoch",
            when=_START_UP,
            fix="--num-rollout N or --num-epoch N",
            source=f"{_ARGUMENTS} slime_validate_args",
        )
    if asynchronous and settings.flag("colocate"):
        raise PlanError(
            "Colocation is not supported for async training.",
            when="at start-up",
            fix="train.py, or no --colocate",
            source="slime 624b824 train_async.py train",
        )


def _processes(settings: Settings) -> int:
    """Data-parallel processes: GPUs that train over those that hold one copy of the model.

    Raises:
        PlanError: The copies do not fit on the GPUs.
    """
    gpus = settings.count("actor_num_nodes") * settings.count("actor_num_gpus_per_node")
    copy = 1
    for parallel in ("tensor_model", "pipeline_model", "context"):
        copy *= settings.count(f"{parallel}_parallel_size")
    if gpus % copy:
        raise PlanError(
            f"world size ({gpus}) is not divisible by total_model_size ({copy})",
            when=_START_UP,
            fix=f"actor_num_nodes * actor_num_gpus_per_node = {multiples(gpus, copy)}",
            source="Megatron-LM megatron/training/arguments.py validate_args",
        )
    return gpus // copy


def _minibatch(settings: Settings, samples: int, world_size: int) -> int:
    """Samples behind one update.

    Raises:
        PlanError: slime or Megatron-LM refuses the size.
    """
    given = settings.optional_count("global_batch_size")
    steps = settings.optional_count("num_steps_per_rollout")
    micro = settings.count("micro_batch_size")
    size = given if given is not None else micro * world_size
    if steps is not None:
        size = samples // steps
        if given is not None and given != size:
            raise PlanError(
                f"global_batch_size {given} is not equal to rollout_batch_size {settings.count('rollout_batch_size')} * "
                f"n_samples_per_prompt {settings.count('n_samples_per_prompt')} // num_steps_per_rollout {steps}",
                when=_START_UP,
                fix=f"--global-batch-size {size}, or no --num-steps-per-rollout",
                source=f"{_ARGUMENTS} slime_validate_args",
            )
        if size == 0:
            raise PlanError(
                f"assert args.global_batch_size > 0 ({samples} samples // {steps} steps is 0)",
                when=_START_UP,
                fix=f"--num-steps-per-rollout {samples} or fewer",
                source="Megatron-LM megatron/training/arguments.py validate_args",
            )
    if size % (micro * world_size) and not settings.flag("decrease_batch_size_if_needed"):
        raise PlanError(
            f"global batch size ({size}) is not divisible by micro batch size ({micro}) times data parallel size ({world_size})",
            when="at start-up, when the trainer is initialised; also with --use-dynamic-batch-size",
            fix=_fitting(samples, size, micro * world_size, steps),
            source="Megatron-LM megatron/core/num_microbatches_calculator.py ConstantNumMicroBatchesCalculator",
        )
    if size > samples:
        raise PlanError(
            f"num_rollouts ({samples}) < global_batch_size ({size}); need at least one rollout per step.",
            when="after the first rollout",
            fix=f"--global-batch-size = {nearest(size, lambda v: v <= samples and v % (micro * world_size) == 0)}",
            source=_SCHEDULE,
        )
    return size


def _fitting(samples: int, size: int, unit: int, steps: int | None) -> str:
    """The nearest sizes that the processes share, in the setting that the user wrote."""
    if steps is None:
        return f"--global-batch-size = {multiples(size, unit)}"
    choices = nearest(steps, lambda v: samples // v > 0 and samples // v % unit == 0)
    return f"--num-steps-per-rollout = {choices}" if choices else f"a rollout of {multiples(samples, unit)} samples"


def _picks_prompts(settings: Settings, prompts: int) -> bool:
    """Whether the data decide how many prompts a rollout consumes."""
    sampled = settings.optional_count("over_sampling_batch_size") or prompts
    return (
        sampled > prompts
        or settings.text("dynamic_sampling_filter_path") is not None
        or settings.flag("partial_rollout")
    )


def _passes(request: Request, prompts: int) -> Passes:
    """What becomes of the rows: they go round, and `num_epoch` counts floor(rows / prompts) rollouts.

    Raises:
        PlanError: There are fewer rows than one rollout takes.
    """
    settings = request.settings
    rows = request.rows("prompt_data")
    rollouts = settings.optional_count("num_rollout", least=0)
    epochs = settings.optional_count("num_epoch")
    if rollouts is None and epochs is not None and rows.count is not None:
        rollouts = rows.count // prompts * epochs
        if rollouts == 0:
            raise PlanError(
                f"assert args.num_rollout > 0 ({rows.count} rows // {prompts} prompts is 0)",
                when="at start-up, when the rollout manager is made",
                fix=f"--rollout-batch-size {rows.count} or less",
                source="slime 624b824 slime/ray/placement_group.py create_rollout_manager",
            )
    if rows.count is None or not _picks_prompts(settings, prompts):
        return Passes.wrapping(rows.count, prompts, rollouts=rollouts, why=rows.source)
    reason = "prompts are dropped and replaced as the run goes"
    return Passes(
        rows=rows.count,
        rollouts=rollouts,
        dropped=0,
        unknown=dict.fromkeys(("data_epochs", "loader_epochs"), reason),
    )


def _ages(settings: Settings, *, asynchronous: bool) -> tuple[int | None, dict[str, str]]:
    """Rollouts by which the sampler's weights may be behind; None, with the reason, where a user's function decides.

    train_async.py starts the next rollout before it trains the last one: ages 0, 1, ..., K, 1, ..., K with a sync every K.
    """
    function = settings.text("rollout_function_path") or ""
    if "fully_async" in function:
        return None, {"max_age": f"{function} samples as fast as it can"}
    if not asynchronous:
        return 0, {}
    return 1 if settings.flag("release_train") else settings.count("update_weights_interval"), {}


def _old_logprob_source(settings: Settings, updates: int, estimator: str) -> OldLogProbSource:
    """Where the denominator comes from: `train_actor`, and `policy_loss_function` where it finds none."""
    if settings.flag("use_rollout_logprobs"):
        return "engine"
    if settings.flag("disable_compute_advantages_and_returns"):
        return "detach"
    replay = settings.flag("use_routing_replay") and not settings.flag("use_rollout_routing_replay")
    own_forward = (
        updates > 1
        or settings.text("loss_type") != "policy_loss"
        or settings.number("kl_coef") != 0
        or estimator in ("ppo", "gspo")
        or replay
        or any(settings.flag(name) for name in ("get_mismatch_metrics", "use_opd"))
    )
    if settings.flag("keep_old_actor"):
        return "at_rollout"
    return "recompute" if own_forward else "detach"


def _lags(settings: Settings, source: OldLogProbSource, updates: int) -> tuple[int, ...] | None:
    """Lags where they are not those of one rollout: `keep_old_actor` keeps weights of an earlier sync."""
    if source == "detach":
        return (0,)
    if source != "at_rollout":
        return None
    interval = settings.count("update_weights_interval")
    # With an interval of 1 the kept weights are those before the last sync (update_weights in actor.py).
    return tuple(range(countable((2 if interval == 1 else interval) * updates, "updates between two syncs")))


def _horizon(settings: Settings, rollouts: int | None, samples: int, size: int) -> int | None:
    """Length of the schedule in updates."""
    given = settings.optional_count("lr_decay_iters")
    if given is not None:
        return given
    return None if rollouts is None else rollouts * samples // size


def _formulas(settings: Settings) -> tuple[Formula, ...]:
    samples = "rollout_batch_size * n_samples_per_prompt"
    checks = f"{_ARGUMENTS} slime_validate_args"
    if settings.optional_count("num_steps_per_rollout") is not None:
        update = Formula("samples_per_update", f"floor({samples} / num_steps_per_rollout)", checks)
    elif settings.optional_count("global_batch_size") is not None:
        update = Formula("samples_per_update", "global_batch_size", f"{_ARGUMENTS} (samples, not prompts)")
    else:
        source = "Megatron-LM megatron/training/arguments.py validate_args (no --global-batch-size)"
        update = Formula("samples_per_update", "micro_batch_size * world_size", source)
    if settings.optional_count("num_rollout", least=0) is not None:
        rollouts = Formula("rollouts", "num_rollout", "slime 624b824 train.py train")
    else:
        source = "slime 624b824 slime/ray/placement_group.py create_rollout_manager"
        rollouts = Formula("rollouts", "num_epoch * floor(rows / rollout_batch_size)", source)
    horizon = "lr_decay_iters" if settings.optional_count("lr_decay_iters") is not None else None
    return (
        Formula("samples_per_rollout", samples, f"{_ARGUMENTS} --rollout-batch-size"),
        update,
        Formula("updates_per_rollout", "floor(samples_per_rollout / samples_per_update)", _SCHEDULE),
        _DROPPED,
        rollouts,
        Formula("updates", "max(rollouts - frozen_rollouts, 0) * updates_per_rollout", "slime 624b824 train.py train"),
        Formula(
            "lr_horizon",
            horizon or "floor(rollouts * samples_per_rollout / samples_per_update)",
            f"{_MODEL} get_optimizer_param_scheduler",
        ),
    )


def _facts(settings: Settings, schedule: Schedule) -> dict[str, Any]:
    warmup = settings.optional_count("lr_warmup_iters", least=0)
    fraction = settings.optional_number("lr_warmup_fraction")
    if fraction is not None:
        warmup = None if schedule.lr_horizon is None else int(fraction * schedule.lr_horizon)
    facts: dict[str, Any] = {
        "minibatch_unit": "samples",
        "lr_constant": settings.text("lr_decay_style") == "constant",
        "lr_warmup": warmup,
        "save_every": settings.optional_count("save_interval"),
        "eval_every": settings.optional_count("eval_interval"),
    }
    steps = settings.optional_count("num_steps_per_rollout")
    if steps is not None:
        facts["nominal_updates_per_rollout"] = steps
    return facts


def _notes(settings: Settings, schedule: Schedule, size: int, source: OldLogProbSource) -> tuple[Note, ...]:
    notes = [Note("unit", "rollout_batch_size counts prompts, global_batch_size counts samples")]
    samples, updates = schedule.samples_per_rollout, schedule.updates_per_rollout
    steps = settings.optional_count("num_steps_per_rollout")
    if steps is not None and updates != steps:
        notes.append(
            Note(
                "grows",
                f"num_steps_per_rollout = {steps} makes mini-batches of {samples} // {steps} = {size} samples, and these make "
                f"{updates} updates",
            )
        )
    if schedule.samples_dropped_per_rollout:
        notes.append(
            Note(
                "drops",
                f"{schedule.samples_dropped_per_rollout} of {samples} samples of each rollout do not fill a mini-batch of {size}",
            )
        )
    if steps is None and settings.optional_count("global_batch_size") is None:
        notes.append(
            Note("assumes", f"without global_batch_size Megatron-LM takes one micro-batch a process: {size} samples")
        )
    if settings.optional_count("num_epoch") is not None and settings.optional_count("num_rollout", least=0) is not None:
        notes.append(Note("ignores", "num_epoch: num_rollout is given as well"))
    if source == "at_rollout" and schedule.max_age == 0:
        notes.append(
            Note(
                "carries",
                "keep_old_actor keeps the weights before the last sync: here one rollout older than the sampler's",
            )
        )
    return tuple(notes)


READER = Slime()
