"""ROLL, RLVR and agentic: mini-batches in samples of each process, the critic passes once, one learning-rate tick an update.

Read at commit 8eb27cc (2026-08-19): roll/configs/base_config.py (`PPOConfig`), roll/utils/config_utils.py, roll/pipeline/base_worker.py
(`ActorWorker.train_step`, `CriticWorker.train_step`, `get_old_log_probs_with_cache`), roll/pipeline/rlvr/rlvr_pipeline.py,
roll/pipeline/agentic/agentic_pipeline.py (`adjust_batch`), roll/distributed/strategy/megatron_strategy.py (`train_step`, horizon),
roll/distributed/scheduler/generate_scheduler.py (rows, ages).
"""

from __future__ import annotations

import ast
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.settings import MISSING
from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.phases import Passes, equal_minibatches, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading, multiples, nearest
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.planning.schedule import OldLogProbSource
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings

_COMMIT = "ROLL 8eb27cc"
_CONFIG = f"{_COMMIT} roll/configs/base_config.py"
_WORKER = f"{_COMMIT} roll/pipeline/base_worker.py"
_AGENTIC = f"{_COMMIT} roll/pipeline/agentic/agentic_pipeline.py"
_START_UP = "at start-up, when the configuration is checked"

_STEP_ESTIMATORS = ("step_reinforce", "gigpo")

DEFAULTS: dict[str, Any] = {
    "rollout_batch_size": 128,
    "num_return_sequences_in_group": 1,
    "ppo_epochs": 1,
    "max_steps": 500,
    "save_steps": 50,
    "eval_steps": 10,
    "async_generation_ratio": 0,
    "adv_estimator": "gae",
    "critic_warmup": 0,
    "init_kl_coef": Fraction(1, 5),
    "batch_adjust_mode": "copy",
    "train_env_manager.group_size": 1,
    **{
        f"{role}.{name}": value
        for role in ("actor_train", "critic")
        for name, value in {
            "training_args.per_device_train_batch_size": 8,
            "training_args.gradient_accumulation_steps": 1,
            "training_args.lr_scheduler_type": "linear",
            "training_args.warmup_steps": 0,
            "infer_batch_size": 16,
        }.items()
    },
    "reference.infer_batch_size": 16,
    **{
        f"{role}.{name}": value
        for role in ("actor_train", "critic", "reference")
        for name, value in {
            "device_mapping": MISSING,
            "num_gpus_per_worker": 1,
            "model_args.ulysses_size": 1,
            "strategy_args.strategy_name": None,
            "strategy_args.strategy_config.tensor_model_parallel_size": 1,
            "strategy_args.strategy_config.pipeline_model_parallel_size": 1,
            "strategy_args.strategy_config.context_parallel_size": 1,
        }.items()
    },
}

_SHOWN = tuple(name for name, value in DEFAULTS.items() if value is not MISSING and not name.startswith("reference."))


class Roll(Reader):
    """ROLL's `start_rlvr_pipeline.py` and `start_agentic_pipeline.py`."""

    name = "roll"
    title = "ROLL"
    version = "8eb27cc"
    overrides = True

    def defaults(self, version: str) -> Mapping[str, Any]:
        """The defaults of roll/configs."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = request.settings
        agentic = _is_agentic(request)
        batch = settings.count("rollout_batch_size")
        group = settings.count("train_env_manager.group_size" if agentic else "num_return_sequences_in_group")
        if agentic and batch % group:
            raise PlanError(
                f"rollout_batch_size ({batch}) must be a multiple of train_env_manager.group_size ({group}).",
                when=_START_UP,
                fix=f"rollout_batch_size = {multiples(batch, group)}",
                source=f"{_COMMIT} roll/pipeline/agentic/agentic_config.py AgenticConfig.__post_init__",
            )
        samples = batch if agentic else batch * group
        prompts = batch // group if agentic else batch
        epochs = settings.count("ppo_epochs")
        estimator = settings.text("adv_estimator") or "gae"
        with_critic = estimator == "gae"
        given = request.world_size_given
        world_size = given if given is not None else _processes(settings, "actor_train")
        critic_processes = world_size if not with_critic or given is not None else _processes(settings, "critic")
        _check_megatron(settings, batch, world_size)
        adjusted = samples
        if agentic:
            adjusted = _adjusted(settings, samples, world_size, critic_processes if with_critic else None)
        minibatches = _minibatches(settings, "actor_train", adjusted, world_size)
        rollouts = settings.count("max_steps")
        passes = _passes(request, prompts, rollouts, agentic=agentic)
        ages = _ages(settings, agentic=agentic)
        by_tokens = settings.flag("actor_train.use_dynamic_batching_in_train")
        data_dependent = by_tokens or (agentic and _turn_by_turn(settings))
        shared: dict[str, Any] = {
            "framework": self.title,
            "version": request.version,
            "passes": passes,
            "prompts_per_rollout": prompts,
            "samples_per_prompt": group,
            "samples_per_rollout": samples,
            "max_age": ages,
            "rows_bound": "data_dependent" if _picks_prompts(settings) else "exact",
            "updates_bound": "data_dependent" if data_dependent else "exact",
            "samples_added": max(adjusted - samples, 0),
            "samples_dropped": max(samples - adjusted, 0),
            "remainder": "error" if not agentic else "pad" if adjusted >= samples else "drop",
        }
        critic = None
        if with_critic:
            critic = schedule_in_phases(
                **shared,
                algorithm="PPO",
                minibatches=_minibatches(settings, "critic", adjusted, critic_processes),
                world_size=critic_processes,
                samples_per_microbatch=_microbatch(settings, "critic", critic_processes),
                lr_horizon=_horizon(settings, "critic", rollouts * samples, critic_processes),
            )
        old = _OldLogProbs.of(settings, estimator, samples // world_size, len(minibatches))
        formulas = _formulas(agentic=agentic, with_critic=with_critic)
        schedule = schedule_in_phases(
            **shared,
            algorithm="PPO" if with_critic else estimator.upper(),
            minibatches=minibatches,
            world_size=world_size,
            reuse_epochs=epochs,
            samples_per_microbatch=None if by_tokens else _microbatch(settings, "actor_train", world_size),
            frozen_rollouts=settings.count("critic_warmup", least=0),
            syncs="first_and_after_updates",
            old_logprob_source=old.source,
            lags=old.lags,
            ratio_one_updates=old.ratio_one_updates,
            reference_source="at_rollout" if _has_reference(settings) else "none",
            lr_horizon=_horizon(settings, "actor_train", rollouts * samples * epochs, world_size),
            critic=critic,
            settings=settings.written(*_SHOWN),
            formulas=formulas,
        )
        return Reading(
            schedule=schedule,
            formulas=formulas,
            notes=_notes(settings, agentic=agentic, added=adjusted - samples, epochs=epochs, with_critic=with_critic),
            facts={
                "lr_constant": (settings.text("actor_train.training_args.lr_scheduler_type") or "").startswith(
                    "constant"
                ),
                "lr_warmup": settings.count("actor_train.training_args.warmup_steps", least=0),
                "save_every": settings.count("save_steps"),
                "eval_every": settings.count("eval_steps"),
            },
        )


class _OldLogProbs(msgspec.Struct, frozen=True):
    """Where old log-probs come from, and how far they are behind."""

    source: OldLogProbSource
    lags: tuple[int, ...]
    ratio_one_updates: tuple[int, ...]

    @classmethod
    def of(cls, settings: Settings, estimator: str, share: int, minibatches: int) -> _OldLogProbs:
        """From the settings: a forward of their own before the updates, or those of a sample's first visit, kept.

        Args:
            settings: The settings.
            estimator: The advantage estimator.
            share: Samples of one process, before a batch is adjusted.
            minibatches: Updates of one pass.
        """
        epochs = settings.count("ppo_epochs")
        updates = tuple(range(countable(epochs * minibatches)))
        if _recomputes(settings, estimator, share):
            return cls("recompute", updates, (1,))
        first_pass = tuple(range(1, minibatches + 1))
        if epochs == 1:
            return cls("detach", (0,), first_pass)
        # Each pass has an order of its own: the first visit of a sample may be anywhere in the first pass.
        return cls("recompute", updates, first_pass)


def _recomputes(settings: Settings, estimator: str, share: int) -> bool:
    """`PPOConfig.__post_init__` and `set_old_logprobs_status`."""
    if settings.flag("force_disable_old_logprobs_recompute"):
        return False
    if estimator in _STEP_ESTIMATORS:
        return True
    return (
        settings.flag("enable_old_logprobs_recompute")
        or share // _backward(settings, "actor_train") > 1
        or settings.number("init_kl_coef") > 0
    )


def _is_agentic(request: Request) -> bool:
    """Whether trajectories of environments are trained: by the script, else by the settings."""
    if request.command.program.kind in ("script", "module"):
        return "agentic" in request.command.program.name
    return request.settings.is_given("train_env_manager.group_size", "train_env_manager.num_env_groups")


def _named(settings: Settings, ending: str) -> list[str]:
    """The values that the user gave to settings whose name ends so."""
    return [str(s.value) for s in (*settings.used, *settings.unused) if s.name.endswith(ending)]


def _turn_by_turn(settings: Settings) -> bool:
    """Whether each turn of a trajectory is a sample of its own."""
    return any("step" in name.rpartition(".")[2].lower() for name in _named(settings, "env_manager_cls"))


def _picks_prompts(settings: Settings) -> bool:
    """Whether the data decide how many prompts a rollout consumes."""
    filters = [name for name in _named(settings, "query_filter_config.type") if name != "no_filter"]
    return bool(filters) or settings.flag("is_use_additional_prompts") or settings.number("async_generation_ratio") > 0


def _passes(request: Request, prompts: int, rollouts: int, *, agentic: bool) -> Passes:
    """What becomes of the rows: RLVR goes round and shuffles anew, environments have none."""
    if agentic:
        return Passes.without_rows(rollouts)
    rows = request.rows("actor_train.data_args.file_name")
    if rows.count is None or not _picks_prompts(request.settings):
        return Passes.wrapping(rows.count, prompts, rollouts=rollouts, why=rows.source)
    reason = "prompts are dropped and replaced as the run goes"
    unknown = dict.fromkeys(("data_epochs", "loader_epochs"), reason)
    return Passes(rows=rows.count, rollouts=rollouts, dropped=0, unknown=unknown)


def _ages(settings: Settings, *, agentic: bool) -> int:
    """Rollouts by which the sampler's weights may be behind.

    Raises:
        PlanError: RLVR refuses a part of a rollout.
    """
    ratio = settings.number("async_generation_ratio")
    if not agentic and 0 < ratio < 1:
        raise PlanError(
            "async_generation_ratio must be >= 1.0",
            when=_START_UP,
            fix="async_generation_ratio = 0 or 1",
            source=f"{_COMMIT} roll/pipeline/rlvr/rlvr_config.py RLVRConfig.__post_init__",
        )
    return math.ceil(ratio)


def _has_reference(settings: Settings) -> bool:
    return settings.flag("enable_reference") or settings.flag("use_kl_loss") or settings.number("init_kl_coef") > 0


def _devices(settings: Settings, role: str) -> int:
    """Devices of a role; `device_mapping` is a list, or Python text such as "list(range(0,8)) + [9]".

    Raises:
        SettingError: It is something else.
    """
    name = f"{role}.device_mapping"
    value = settings.value(name)
    if isinstance(value, list | tuple):
        return len(value)
    try:
        return _length(ast.parse(str(value).strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, OverflowError, RecursionError):
        raise SettingError(f"{name} = {value} is no list of devices", settings.place(name)) from None


def _length(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _length(node.left) + _length(node.right)
    if isinstance(node, ast.List | ast.Tuple):
        return len(node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id == "list" and len(node.args) == 1:
            return _length(node.args[0])
        if node.func.id == "range":
            return len(range(*(int(ast.literal_eval(argument)) for argument in node.args)))
    raise ValueError("no list")


def _processes(settings: Settings, role: str) -> int:
    """Data-parallel processes of a role: its devices over those that hold one copy of the model.

    Raises:
        PlanError: The copies do not fit on the devices.
    """
    devices, each = _devices(settings, role), settings.count(f"{role}.num_gpus_per_worker")
    if not devices or devices % each:
        raise PlanError(
            f"len(device_mapping)={devices} must be divisible by num_gpus_per_worker={each}.",
            when=_START_UP,
            fix=f"{role}.device_mapping of {multiples(devices, each)} devices",
            source=f"{_COMMIT} roll/configs/worker_config.py WorkerConfig.__post_init__",
        )
    workers = devices // each
    if "megatron" not in (settings.text(f"{role}.strategy_args.strategy_name") or "megatron"):
        sequence = settings.optional_count(f"{role}.model_args.ulysses_size") or 1
        if workers % sequence:
            raise SettingError(f"{workers} workers of {role} cannot share sequences by {sequence}")
        return workers // sequence
    sizes = [
        settings.count(f"{role}.strategy_args.strategy_config.{name}_parallel_size")
        for name in ("tensor_model", "pipeline_model", "context")
    ]
    copy = math.prod(sizes)
    if workers % copy:
        raise PlanError(
            f"Total GPUs ({workers}) must be divisible by model parallel size ({copy} = TP:{sizes[0]} x PP:{sizes[1]} x "
            f"CP:{sizes[2]})",
            when=_START_UP,
            fix=f"{role}.device_mapping of {multiples(workers, copy)} devices",
            source=f"{_COMMIT} roll/utils/config_utils.py calculate_megatron_dp_size",
        )
    return workers // copy


def _check_megatron(settings: Settings, batch: int, world_size: int) -> None:
    """Megatron strategies demand that the processes share `rollout_batch_size`, although it counts prompts.

    Raises:
        PlanError: They do not.
    """
    if "megatron" in (settings.text("actor_train.strategy_args.strategy_name") or "") and batch % world_size:
        raise PlanError(
            f"Rollout Batch Size ({batch}) must be divisible by data parallel size ({world_size}) to ensure equal distribution "
            "across DP workers.",
            when=_START_UP,
            fix=f"rollout_batch_size = {multiples(batch, world_size)}",
            source=f"{_COMMIT} roll/utils/config_utils.py validate_megatron_batch_size",
        )


def _backward(settings: Settings, role: str) -> int:
    """Samples of one process behind one update."""
    return settings.count(f"{role}.training_args.per_device_train_batch_size") * settings.count(
        f"{role}.training_args.gradient_accumulation_steps"
    )


def _microbatch(settings: Settings, role: str, world_size: int) -> int | None:
    """Samples of one micro-batch over all processes; None where tokens decide."""
    if settings.flag(f"{role}.use_dynamic_batching_in_train") or settings.flag(f"{role}.use_sequence_packing"):
        return None
    return settings.count(f"{role}.training_args.per_device_train_batch_size") * world_size


def _minibatches(settings: Settings, role: str, samples: int, world_size: int) -> tuple[int, ...]:
    """Samples behind each update of one pass.

    Raises:
        PlanError: `make_iterator` or `get_seqlen_balanced_partitions` refuses the sizes.
    """
    backward = _backward(settings, role)
    share, rest = divmod(samples, world_size)
    if rest:
        raise PlanError(
            f"{samples} % {world_size} != 0",
            when="after the first rollout, when its samples are shared among the processes",
            fix=f"a rollout of {multiples(samples, world_size)} samples",
            source=f"{_COMMIT} roll/utils/functionals.py get_seqlen_balanced_partitions",
        )
    if share % backward:
        device = settings.count(f"{role}.training_args.per_device_train_batch_size")
        steps = settings.count(f"{role}.training_args.gradient_accumulation_steps")
        fix = nearest(steps, lambda v: share % (device * v) == 0)
        raise PlanError(
            f"{share} % {backward} != 0",
            when="after the first rollout, in the first training step",
            fix=f"{role}.training_args.gradient_accumulation_steps = {fix}"
            if fix
            else f"{role}.training_args.per_device_train_batch_size = {nearest(device, lambda v: share % v == 0)}",
            source=f"{_COMMIT} roll/distributed/scheduler/protocol.py DataProto.make_iterator",
        )
    return equal_minibatches(samples, share // backward)


def _adjusted(settings: Settings, samples: int, world_size: int, critic_processes: int | None) -> int:
    """Samples of a rollout after `adjust_batch` of the agentic pipeline: copied, or taken away, so that all sizes divide.

    Raises:
        SettingError: There is no such mode.
    """
    sizes = [
        _backward(settings, "actor_train") * world_size,
        settings.count("actor_train.infer_batch_size") * world_size,
    ]
    if _has_reference(settings) and not settings.is_given("actor_train.model_args.lora_target"):
        processes = _processes(settings, "reference") if settings.is_given("reference.device_mapping") else world_size
        sizes.append(settings.count("reference.infer_batch_size") * processes)
    if critic_processes is not None:
        sizes.append(_backward(settings, "critic") * critic_processes)
        sizes.append(settings.count("critic.infer_batch_size") * critic_processes)
    unit = math.lcm(*sizes)
    rest = samples % unit
    mode = settings.text("batch_adjust_mode") or "copy"
    if rest == 0:
        return samples
    if mode == "auto":
        mode = "copy" if 2 * rest >= samples or samples < unit else "delete"
    if mode == "copy" or samples < unit:
        return samples + unit - rest
    if mode == "delete":
        return samples - rest
    if mode == "random_sample":
        return unit
    raise SettingError(f"batch_adjust_mode = {mode}: there is no such mode", settings.place("batch_adjust_mode"))


def _horizon(settings: Settings, role: str, visits: int, world_size: int) -> int:
    """Length of a role's schedule in updates: `set_max_steps`, then divided by the processes in the strategy."""
    return max(1, visits // _backward(settings, role)) // world_size


def _formulas(*, agentic: bool, with_critic: bool) -> tuple[Formula, ...]:
    group = "" if agentic else " * num_return_sequences_in_group"
    trained = "(samples_per_rollout + samples_added_per_rollout - samples_dropped_per_rollout)"
    backward = (
        "{role}.training_args.per_device_train_batch_size * {role}.training_args.gradient_accumulation_steps".format
    )
    pipeline = _AGENTIC if agentic else f"{_COMMIT} roll/pipeline/rlvr/rlvr_pipeline.py"
    actor = backward(role="actor_train")
    formulas = [
        Formula("samples_per_rollout", f"rollout_batch_size{group}", f"{pipeline} run"),
        Formula("samples_per_update", f"{actor} * world_size", f"{_WORKER} ActorWorker.train_step"),
        Formula(
            "updates_per_rollout",
            f"ppo_epochs * {trained} / samples_per_update",
            f"{_WORKER} ActorWorker.train_step" + (f", {_AGENTIC} adjust_batch" if agentic else ""),
        ),
        Formula("rollouts", "max_steps", f"{pipeline} run"),
        Formula(
            "updates", "max(rollouts - frozen_rollouts, 0) * updates_per_rollout", f"{pipeline} run (critic_warmup)"
        ),
        Formula(
            "lr_horizon",
            f"floor(max(1, floor(max_steps * samples_per_rollout * ppo_epochs / ({actor}))) / world_size)",
            f"{_CONFIG} set_max_steps; {_COMMIT} roll/distributed/strategy/megatron_strategy.py initialize",
        ),
    ]
    if with_critic:
        formulas += [
            Formula(
                "critic.samples_per_update",
                f"{backward(role='critic')} * critic.world_size",
                f"{_WORKER} CriticWorker.train_step",
            ),
            Formula(
                "critic.updates_per_rollout",
                f"{trained} / critic.samples_per_update",
                f"{_WORKER} CriticWorker.train_step (epochs=1)",
            ),
        ]
    return tuple(formulas)


def _notes(settings: Settings, *, agentic: bool, added: int, epochs: int, with_critic: bool) -> tuple[Note, ...]:
    what = "trajectories" if agentic else "prompts"
    notes = [
        Note(
            "unit",
            f"rollout_batch_size counts {what}; per_device_train_batch_size * gradient_accumulation_steps counts samples of one "
            "process",
        )
    ]
    if added > 0:
        notes.append(
            Note("pads", f"{added} samples of each rollout are copied, and trained twice, so that all sizes divide")
        )
    if added < 0:
        notes.append(Note("drops", f"{-added} samples of each rollout are taken away so that all sizes divide"))
    if with_critic and epochs > 1:
        notes.append(Note("ignores", f"the critic passes once over a rollout; ppo_epochs = {epochs} is the policy's"))
    if settings.count("critic_warmup", least=0) and not with_critic:
        notes.append(Note("drops", "critic_warmup holds without a critic as well: its rollouts train nothing"))
    if agentic and _turn_by_turn(settings):
        notes.append(
            Note(
                "grows",
                "each turn of a trajectory is a sample of its own: the counts hold for trajectories of one turn",
            )
        )
    return tuple(notes)


READER = Roll()
