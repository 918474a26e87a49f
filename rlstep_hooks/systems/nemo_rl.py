"""NeMo-RL, GRPO and PPO: rollouts in prompts, mini-batches in samples, no remainder, one learning-rate tick a train() call.

Read at commit 7ea279a (2026-08-22): examples/configs/grpo_math_1B.yaml and ppo_math_1B.yaml (defaults), nemo_rl/algorithms/grpo.py
`setup`, `grpo_train`, `async_grpo_train`, nemo_rl/algorithms/ppo.py `setup`, `ppo_train`, nemo_rl/distributed/batched_data_dict.py
`shard_by_batch_size`, nemo_rl/models/policy/workers/dtensor_policy_worker_v2.py and megatron_policy_worker.py `train`.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.phases import Passes, equal_minibatches, schedule_in_phases
from rlstep_hooks.planning.reading import Conversion, Formula, Note, Reading, multiples, nearest
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.declaration import Entry, System, Typed, count, flag, number, text

if TYPE_CHECKING:
    from rlstep_hooks.launch.settings import Settings
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.declaration import Quantities
    from rlstep_hooks.systems.request import Request

_COMMIT = "NeMo-RL 7ea279a"
_ALGORITHMS = f"{_COMMIT} nemo_rl/algorithms"
_SHARDS = f"{_COMMIT} nemo_rl/distributed/batched_data_dict.py shard_by_batch_size"
_WORKER = f"{_COMMIT} nemo_rl/models/policy/workers/dtensor_policy_worker_v2.py train"

_TITLE = "NeMo-RL"

_START_UP = "at start-up"
_FIRST_TRAINING = "after the first rollout, when its samples are shared among the processes"

SETTINGS: dict[str, Typed] = {
    "grpo.num_prompts_per_step": count(32),
    "grpo.num_generations_per_prompt": count(16),
    "grpo.max_num_epochs": count(1),
    "grpo.max_num_steps": count(1_000_000),
    "grpo.use_dynamic_sampling": flag(False),
    "grpo.batch_multiplier": number(1),
    "grpo.val_period": count(10, least=-1),
    "grpo.skip_reference_policy_logprobs_calculation": flag(False),
    "grpo.async_grpo.enabled": flag(False),
    "grpo.async_grpo.max_trajectory_age_steps": count(1),
    "ppo.num_prompts_per_step": count(32),
    "ppo.num_generations_per_prompt": count(16),
    "ppo.max_num_epochs": count(100_000),
    "ppo.max_num_steps": count(100_000),
    "ppo.ppo_epochs": count(4),
    "ppo.policy_training_start_step": count(0, least=0),
    "ppo.use_dynamic_sampling": flag(False),
    "ppo.batch_multiplier": number(1),
    "ppo.val_period": count(20, least=-1),
    "ppo.skip_reference_policy_logprobs_calculation": flag(True),
    "ppo.async_ppo.enabled": flag(False),
    "ppo.async_ppo.max_trajectory_age_steps": count(1),
    "loss_fn.reference_policy_kl_penalty": number(0.01),
    "loss_fn.force_on_policy_ratio": flag(False),
    "loss_fn.use_importance_sampling_correction": flag(False),
    "checkpointing.enabled": flag(True),
    "checkpointing.save_period": count(10),
    "policy.train_global_batch_size": count(512),
    "policy.train_micro_batch_size": count(4),
    "policy.sequence_packing.enabled": flag(True),
    "policy.dynamic_batching.enabled": flag(False),
    "policy.dtensor_cfg.tensor_parallel_size": count(1),
    "policy.dtensor_cfg.context_parallel_size": count(1),
    "policy.megatron_cfg.enabled": flag(False),
    "policy.megatron_cfg.tensor_model_parallel_size": count(1),
    "policy.megatron_cfg.pipeline_model_parallel_size": count(1),
    "policy.megatron_cfg.context_parallel_size": count(1),
    "policy.megatron_cfg.scheduler.lr_decay_style": text("constant"),
    "policy.megatron_cfg.scheduler.lr_decay_iters": count(None),
    "policy.megatron_cfg.scheduler.lr_warmup_iters": count(0, least=0),
    "policy.generation.colocated.enabled": flag(True),
    "policy.generation.colocated.resources.gpus_per_node": count(None),
    "policy.generation.colocated.resources.num_nodes": count(None),
    "value.train_global_batch_size": count("${policy.train_global_batch_size}"),
    "value.train_micro_batch_size": count("${policy.train_micro_batch_size}"),
    "value.sequence_packing.enabled": flag(False),
    "value.dynamic_batching.enabled": flag(False),
    "value.dtensor_cfg.tensor_parallel_size": count(1),
    "value.dtensor_cfg.context_parallel_size": count(1),
    "value.megatron_cfg.enabled": flag(False),
    "value.megatron_cfg.tensor_model_parallel_size": count(1),
    "value.megatron_cfg.pipeline_model_parallel_size": count(1),
    "value.megatron_cfg.context_parallel_size": count(1),
    "data.use_multiple_dataloader": flag(False),
    "data.shuffle": flag(True),
    "cluster.gpus_per_node": count(1),
    "cluster.num_nodes": count(1),
}
"""With the defaults of the configuration that each script reads when none is named."""

_EPOCHS = {"grpo": "1", "ppo": "ppo.ppo_epochs"}


def _formulas(part: str, *, endless: bool) -> tuple[Formula, ...]:
    """The formulas of GRPO or PPO.

    Args:
        part: "grpo" or "ppo", the part of the configuration with the sizes.
        endless: Whether only the number of steps ends the run as far as is known, not that of epochs.
    """
    trainer = f"{_ALGORITHMS}/{part}.py"
    per_epoch = f"floor(rows / {part}.num_prompts_per_step)"
    samples = f"{part}.num_prompts_per_step * {part}.num_generations_per_prompt"
    formulas = [
        Formula("samples_per_rollout", samples, f"{trainer} {part}_train"),
        Formula("samples_per_update", "policy.train_global_batch_size", _WORKER),
        Formula(
            "updates_per_rollout",
            f"{_EPOCHS[part]} * samples_per_rollout / policy.train_global_batch_size",
            f"{_WORKER} (num_global_batches), {trainer} {part}_train",
        ),
        Formula("updates", "max(rollouts - frozen_rollouts, 0) * updates_per_rollout", f"{trainer} {part}_train"),
        Formula(
            "lr_ticks",
            f"max(rollouts - frozen_rollouts, 0) * {_EPOCHS[part]}",
            f"{_WORKER} (scheduler.step() once a call, after all its updates)",
        ),
    ]
    if endless:
        formulas.append(Formula("rollouts", f"{part}.max_num_steps", f"{trainer} {part}_train"))
    else:
        formulas += [
            Formula("rollouts_per_epoch", per_epoch, f"{trainer} setup (StatefulDataLoader, drop_last=True)"),
            Formula(
                "rollouts", f"min({part}.max_num_epochs * {per_epoch}, {part}.max_num_steps)", f"{trainer} {part}_train"
            ),
        ]
    if part == "ppo":
        formulas.append(
            Formula(
                "critic.updates_per_rollout",
                "ppo.ppo_epochs * samples_per_rollout / value.train_global_batch_size",
                f"{trainer} ppo_train (value_model.train)",
            )
        )
    return tuple(formulas)


def read(launch: Quantities) -> Reading:
    """The Schedule; see the module for its sources."""
    request = launch.request
    settings = request.settings
    part = "ppo" if _is_ppo(request) else "grpo"
    if request.command.program.name.endswith("run_grpo_single_controller.py") or settings.has_section("async_rl"):
        raise LaunchError("run_grpo_single_controller.py has another trainer (async_rl), which is not known here")
    prompts = settings.count(f"{part}.num_prompts_per_step")
    samples_per_prompt = settings.count(f"{part}.num_generations_per_prompt")
    epochs = settings.count("ppo.ppo_epochs") if part == "ppo" else 1
    frozen = settings.count("ppo.policy_training_start_step", least=0) if part == "ppo" else 0
    samples = prompts * samples_per_prompt
    asynchronous = settings.flag(f"{part}.async_{part}.enabled")
    dynamic = settings.flag(f"{part}.use_dynamic_sampling")
    _check_settings(settings, part, samples, asynchronous=asynchronous, dynamic=dynamic)
    if request.command.program.kind != "config" and "NRL_IGNORE_TP_ACCURACY_CHECK" not in request.command.environment:
        _check_tensor_parallel(settings)
    world_size = request.world_size(_processes(settings, "policy"))
    minibatches = _minibatches(settings, "policy", samples, world_size)
    endless = settings.flag("data.use_multiple_dataloader") or (asynchronous and part == "ppo")
    written = ("grpo", "policy") if part == "grpo" else ("ppo", "policy", "value")
    passes = _passes(request, part, prompts, endless=endless, asynchronous=asynchronous, dynamic=dynamic)
    detached = settings.flag("loss_fn.force_on_policy_ratio")
    formulas = _formulas(part, endless=endless or asynchronous or passes.rows is None)
    shared: dict[str, Any] = {
        "framework": _TITLE,
        "version": request.version,
        "passes": passes,
        "prompts_per_rollout": prompts,
        "samples_per_prompt": samples_per_prompt,
        "reuse_epochs": epochs,
        "max_age": settings.count(f"{part}.async_{part}.max_trajectory_age_steps") if asynchronous else 0,
        "rows_bound": "data_dependent" if dynamic else "exact",
        "rows_reshuffled": settings.flag("data.shuffle"),
        "lr_clock": "pass" if part == "ppo" else "rollout",
    }
    critic = None
    if part == "ppo":
        critic_processes = _processes(settings, "value") if request.world_size_given is None else world_size
        critic = schedule_in_phases(
            **shared,
            algorithm="PPO",
            minibatches=_minibatches(settings, "value", samples, critic_processes),
            world_size=critic_processes,
            samples_per_microbatch=_microbatch(settings, "value", critic_processes),
        )
    schedule = schedule_in_phases(
        **shared,
        algorithm=part.upper(),
        minibatches=minibatches,
        world_size=world_size,
        samples_per_microbatch=_microbatch(settings, "policy", world_size),
        frozen_rollouts=frozen,
        syncs="first_and_after_updates",
        old_logprob_source="detach" if detached else "recompute",
        lags=(0,) if detached else None,
        reference_source="at_rollout" if _has_reference(settings, part) else "none",
        lr_horizon=_horizon(settings, part, passes.rollouts, epochs),
        critic=critic,
        settings=settings.written(*(name for name in SETTINGS if name.partition(".")[0] in written)),
        formulas=formulas,
    )
    return Reading(
        schedule=schedule,
        formulas=formulas,
        notes=_notes(settings, part, passes, dynamic=dynamic),
        facts=_facts(settings, part),
    )


def write(schedule: Schedule) -> Conversion:
    """The same schedule as a launch of NeMo-RL: PPO where there is a critic, else GRPO."""
    from rlstep_hooks.planning.writing import Target, whole_rollouts

    critic = schedule.critic
    part = "grpo" if critic is None else "ppo"
    # PPO can wait for its critic, so that is not lost.
    target = Target(msgspec.structs.replace(schedule, frozen_rollouts=0) if critic else schedule, _TITLE)
    target.whole_prompts()
    target.divides_evenly()
    if critic is None and schedule.reuse_epochs > 1:
        raise LaunchError(
            f"reuse_epochs = {schedule.reuse_epochs} cannot be kept: NeMo-RL's GRPO passes once over a rollout, and its "
            "PPO needs a critic"
        )
    if critic is not None and critic.samples_per_update is None:
        raise LaunchError("critic.samples_per_update cannot be kept: it depends on the data")
    detached = schedule.old_logprob_source == "detach" and target.samples_per_update == schedule.samples_per_rollout
    command = [
        "python", f"examples/run_{part}.py",
        f"{part}.num_prompts_per_step={target.prompts}",
        f"{part}.num_generations_per_prompt={schedule.samples_per_prompt}",
        f"policy.train_global_batch_size={target.samples_per_update}",
        *_length(schedule, part, target.prompts),
        *_microbatch_words(schedule, "policy", target.microbatch_per_process()),
        f"cluster.gpus_per_node={schedule.world_size}",
        *(["loss_fn.force_on_policy_ratio=true"] if detached else []),
    ]  # fmt: skip
    if critic is not None:
        assert critic.samples_per_update is not None
        command += [
            f"ppo.ppo_epochs={schedule.reuse_epochs}",
            f"ppo.policy_training_start_step={schedule.frozen_rollouts}",
            f"value.train_global_batch_size={critic.samples_per_update}",
            *_microbatch_words(schedule, "value", target.microbatch_per_process(critic.samples_per_update)),
        ]
    target.keeps(
        lr_clock="pass" if critic else "rollout",
        source="detach" if detached else "recompute",
        critic=critic is not None,
        loader="drops",
    )
    lost = target.lost() + whole_rollouts(schedule)
    if critic is not None and critic.world_size != schedule.world_size:
        lost += (f"critic.world_size: {critic.world_size}, here {schedule.world_size} as for the policy",)
    if critic is not None and critic.reuse_epochs != schedule.reuse_epochs:
        lost += (f"critic.reuse_epochs: {critic.reuse_epochs}, here {schedule.reuse_epochs} as for the policy",)
    return Conversion(tuple(command), lost)


def _is_ppo(request: Request) -> bool:
    """Whether the launch is one of PPO: by its script, else by its settings."""
    if request.command.program.kind == "script":
        return request.command.program.name.rpartition("/")[2].startswith("run_ppo")
    return request.settings.is_given("ppo.num_prompts_per_step", "ppo.ppo_epochs")


def _check_settings(settings: Settings, part: str, samples: int, *, asynchronous: bool, dynamic: bool) -> None:
    """The conditions of `setup` and of the scripts.

    Raises:
        PlanError: One of them does not hold.
    """
    setup = f"{_ALGORITHMS}/{part}.py setup"
    if not dynamic and settings.number(f"{part}.batch_multiplier") != 1:
        raise PlanError(
            "batch_multiplier>1 can only be used if use_dynamic_sampling=True",
            when=_START_UP,
            fix=f"{part}.batch_multiplier = 1, or {part}.use_dynamic_sampling = true",
            source=setup,
        )
    minibatch = settings.count("policy.train_global_batch_size")
    if settings.flag("loss_fn.force_on_policy_ratio") and samples != minibatch:
        raise PlanError(
            "force_on_policy_ratio requires train_global_batch_size == num_prompts_per_step * num_generations_per_prompt "
            f"({minibatch} != {samples})",
            when=_START_UP,
            fix=f"policy.train_global_batch_size = {samples}",
            source=setup,
        )
    if not asynchronous:
        return
    for name in (f"{part}.use_dynamic_sampling", "data.use_multiple_dataloader"):
        if settings.flag(name):
            raise PlanError(
                f"{name.rpartition('.')[2]} is not supported with async {part.upper()}",
                when=_START_UP,
                fix=f"{name} = false, or {part}.async_{part}.enabled = false",
                source=f"{_COMMIT} examples/run_{part}.py",
            )
    if part == "grpo" and not settings.flag("loss_fn.use_importance_sampling_correction"):
        raise PlanError(
            "Importance sampling correction must be enabled for async GRPO for good convergence due to off-policy samples!",
            when="after start-up, when training begins",
            fix="loss_fn.use_importance_sampling_correction = true",
            source=f"{_ALGORITHMS}/grpo.py async_grpo_train",
        )


def _differs_in_tensor_parallel(settings: Settings) -> bool:
    """Whether the micro-batches of log-probs and of training differ where a tensor parallelism of 4 or more makes that count."""
    part = "megatron_cfg.tensor_model" if settings.flag("policy.megatron_cfg.enabled") else "dtensor_cfg.tensor"
    if settings.count(f"policy.{part}_parallel_size") < 4 or settings.flag("loss_fn.force_on_policy_ratio"):
        return False
    own = settings.optional_count("policy.logprob_batch_size")
    return own is not None and own != settings.count("policy.train_micro_batch_size")


def _check_tensor_parallel(settings: Settings) -> None:
    """The condition of `Policy.__init__` that an environment variable turns off.

    Raises:
        PlanError: It does not hold.
    """
    if _differs_in_tensor_parallel(settings):
        raise PlanError(
            "There is a known batch-variant accuracy issue with TP>=4 for both DTensor and Megatron backend.",
            when=_START_UP,
            fix=f"policy.logprob_batch_size = {settings.count('policy.train_micro_batch_size')} (as policy.train_micro_batch_size), "
            "or NRL_IGNORE_TP_ACCURACY_CHECK=1 in the environment",
            source=f"{_COMMIT} nemo_rl/models/policy/lm_policy.py Policy.__init__",
        )


def _training_gpus(settings: Settings) -> tuple[int, int]:
    """GPUs of a node that train, and such nodes: without those of the reward model, of teachers and of generation.

    Raises:
        PlanError: None is left.
    """
    gpus, total = settings.count("cluster.gpus_per_node"), settings.count("cluster.num_nodes")
    reward = "env.reward_model.resources" if _names_environment(settings, "reward_model") else None
    reward_gpus = settings.count(f"{reward}.gpus_per_node") if reward else 0
    nodes = total if total == 1 else total - (settings.count(f"{reward}.num_nodes") if reward else 0)
    nodes -= _teacher_nodes(settings)
    apart = not settings.flag("policy.generation.colocated.enabled")
    each = settings.optional_count("policy.generation.colocated.resources.gpus_per_node", least=0) if apart else None
    if apart and nodes == 1:
        gpus -= each or 0
    elif apart:
        if each is not None and each != gpus:
            raise PlanError(
                "policy.generation.colocated.resources.gpus_per_node must be explicitly set and equal to cluster.gpus_per_node "
                f"when cluster.num_nodes > 1 and inference is non-colocated, but got {each}, {gpus}.",
                when=_START_UP,
                fix=f"policy.generation.colocated.resources.gpus_per_node = {gpus}",
                source=f"{_ALGORITHMS}/grpo.py setup",
            )
        nodes -= settings.count("policy.generation.colocated.resources.num_nodes")
    if total == 1:
        gpus -= reward_gpus
    if gpus < 1 or nodes < 1:
        raise SettingError("generation, the reward model and teachers take all GPUs: none is left for training")
    return gpus, nodes


def _names_environment(settings: Settings, name: str) -> bool:
    """Whether a part of the data is judged by this environment (data/datasets/utils.py `extract_necessary_env_names`)."""
    for key in ("train", "validation", "default"):
        value = settings.value(f"data.{key}")
        parts = [part.get("env_name") for part in value if isinstance(part, dict)] if isinstance(value, list) else []
        if name in (*parts, settings.value(f"data.{key}.env_name")):
            return True
    return False


def _teacher_nodes(settings: Settings) -> int:
    """Nodes of the teachers of on-policy distillation (models/policy/teacher_worker_group.py)."""
    section = "on_policy_distillation"
    apart = f"{section}.non_colocated_teachers"
    if not (settings.flag(f"{section}.enabled") and settings.flag(f"{apart}.enabled")):
        return 0
    models = settings.section(f"{section}.teacher_model_by_agent_name")
    once = settings.value(f"{section}.deduplicate_shared_teacher_checkpoints") is not False
    first = {model: alias for alias, model in reversed(models.items())}
    nodes = 0
    for alias, model in models.items():
        if not once or first[model] == alias:
            own = settings.optional_count(f"{apart}.teacher_overrides.{alias}.num_nodes")
            nodes += own or settings.optional_count(f"{apart}.default_teacher_cfg.num_nodes") or 1
    return nodes


def _processes(settings: Settings, role: str) -> int:
    """Data-parallel processes of the policy or the value model: GPUs that train over those that hold one copy.

    Raises:
        PlanError: The copies do not fit on the GPUs.
    """
    gpus, nodes = _training_gpus(settings)
    parallel = (
        ("megatron_cfg.pipeline_model_parallel_size", "megatron_cfg.tensor_model_parallel_size")
        if settings.flag(f"{role}.megatron_cfg.enabled")
        else ("dtensor_cfg.tensor_parallel_size",)
    )
    context = "megatron_cfg" if settings.flag(f"{role}.megatron_cfg.enabled") else "dtensor_cfg"
    sizes = [settings.count(f"{role}.{name}") for name in (*parallel, f"{context}.context_parallel_size")]
    copy = math.prod(sizes)
    total = gpus * nodes
    if total % copy:
        raise PlanError(
            f"World size ({total}) must be divisible by PP * CP * TP ({copy})",
            when=_START_UP,
            fix=f"a number of training GPUs of {multiples(total, copy)}",
            source=f"{_COMMIT} nemo_rl/models/policy/lm_policy.py Policy.__init__",
        )
    return total // copy


def _minibatches(settings: Settings, role: str, samples: int, world_size: int) -> tuple[int, ...]:
    """Samples behind each update of one pass.

    Raises:
        PlanError: `shard_by_batch_size` or the micro-batch iterator refuses the sizes.
    """
    name = f"{role}.train_global_batch_size"
    size = settings.count(name)
    if samples % world_size:
        raise PlanError(
            f"Batch size ({samples}) is not a multiple of shards ({world_size})",
            when="after the first rollout, when log-probs are computed",
            fix=f"a rollout of {multiples(samples, world_size)} samples",
            source=_SHARDS,
        )
    if samples % size:
        raise PlanError(
            f"Total batch size ({samples}) is not a multiple of batch_size ({size})",
            when=_FIRST_TRAINING,
            fix=f"{name} = {nearest(size, lambda v: samples % v == 0 and v % world_size == 0)}",
            source=_SHARDS,
        )
    if size % world_size:
        raise PlanError(
            f"Batch size ({size}) is not a multiple of shards ({world_size})",
            when=_FIRST_TRAINING,
            fix=f"{name} = {nearest(size, lambda v: samples % v == 0 and v % world_size == 0)}",
            source=_SHARDS,
        )
    share, micro = size // world_size, settings.count(f"{role}.train_micro_batch_size")
    if not _by_tokens(settings, role) and share % micro:
        raise PlanError(
            f"Data dict size ({share}) is not a multiple of the provided microbatch size ({micro})",
            when="after the first rollout, in the first update",
            fix=f"{role}.train_micro_batch_size = {nearest(micro, lambda v: share % v == 0)}",
            source=f"{_COMMIT} nemo_rl/distributed/batched_data_dict.py make_microbatch_iterator",
        )
    return equal_minibatches(samples, samples // size)


def _by_tokens(settings: Settings, role: str) -> bool:
    """Whether tokens, not samples, fill a micro-batch."""
    return settings.flag(f"{role}.sequence_packing.enabled") or settings.flag(f"{role}.dynamic_batching.enabled")


def _microbatch(settings: Settings, role: str, world_size: int) -> int | None:
    """Samples of one micro-batch over all processes; None where token counts decide."""
    return None if _by_tokens(settings, role) else settings.count(f"{role}.train_micro_batch_size") * world_size


def _passes(request: Request, part: str, prompts: int, *, endless: bool, asynchronous: bool, dynamic: bool) -> Passes:
    """What becomes of the rows.

    Raises:
        PlanError: Asynchronous GRPO runs out of rows.
    """
    settings = request.settings
    # A part of the file may be kept for validation.
    split = settings.optional_number("data.train.split_validation_size")
    rows = request.rows() if split else request.rows("data.train.data_path")
    most = settings.count(f"{part}.max_num_steps")
    if endless:
        return Passes.wrapping(rows.count, prompts, rollouts=most, why=rows.source)
    # The configurations come with a limit that stands for none.
    limited = most < SETTINGS[f"{part}.max_num_steps"].default
    if asynchronous:
        per_epoch = None if rows.count is None else rows.count // prompts
        if per_epoch is not None and most > per_epoch:
            raise PlanError(
                f"Trajectory collector stopped: dataloader exhausted at training_step={per_epoch}. The dataset ran out of data "
                "before training could complete.",
                when=f"after {per_epoch} of {most} rollouts: asynchronous GRPO goes once over the rows, whatever "
                "grpo.max_num_epochs says",
                fix=f"grpo.max_num_steps = {per_epoch}, or at least {most * prompts} rows",
                source=f"{_ALGORITHMS}/grpo.py async_grpo_train, async_utils/trajectory_collector.py _collection_loop",
            )
    limit = most if rows.count is not None or limited else None
    epochs = 1 if asynchronous else settings.count(f"{part}.max_num_epochs")
    if not dynamic:
        return Passes.dropping(rows.count, prompts, epochs=epochs, limit=limit, why=rows.source)
    generated = int(prompts * settings.number(f"{part}.batch_multiplier"))
    at_most = None if rows.count is None else min(rows.count // generated * epochs, most)
    reason = "prompts whose samples all score the same are replaced by later ones" + (
        f"; at most {at_most} rollouts" if at_most is not None else ""
    )
    names = ("rollouts_per_epoch", "rollouts", "updates", "lr_ticks", "data_epochs", "loader_epochs")
    unknown = dict.fromkeys(names, reason)
    if rows.count is None:
        return Passes(rows=None, rollouts=None, unknown={**unknown, "rows": rows.source})
    return Passes(rows=rows.count, rollouts=None, dropped=rows.count % generated, unknown=unknown)


def _has_reference(settings: Settings, part: str) -> bool:
    if settings.flag(f"{part}.skip_reference_policy_logprobs_calculation"):
        return False
    return part == "ppo" or settings.number("loss_fn.reference_policy_kl_penalty") > 0


def _horizon(settings: Settings, part: str, rollouts: int | None, epochs: int) -> int | None:
    """Length of the policy's schedule where the framework sets it; a DTensor scheduler has its own.

    Megatron's is as long as the run without a wait for the critic, unless `lr_decay_iters` is given.
    """
    if not settings.flag("policy.megatron_cfg.enabled"):
        return None
    given = settings.optional_count("policy.megatron_cfg.scheduler.lr_decay_iters")
    if given is not None:
        return given
    return None if rollouts is None else rollouts * epochs


def _facts(settings: Settings, part: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "minibatch_unit": "samples",
        "save_every": settings.count("checkpointing.save_period") if settings.flag("checkpointing.enabled") else None,
        "eval_every": max(settings.count(f"{part}.val_period", least=-1), 0),
    }
    if settings.flag("policy.megatron_cfg.enabled"):
        facts["lr_constant"] = settings.text("policy.megatron_cfg.scheduler.lr_decay_style") == "constant"
        facts["lr_warmup"] = settings.count("policy.megatron_cfg.scheduler.lr_warmup_iters", least=0)
    return facts


def _notes(settings: Settings, part: str, passes: Passes, *, dynamic: bool) -> tuple[Note, ...]:
    notes = [
        Note("unit", f"{part}.num_prompts_per_step counts prompts, policy.train_global_batch_size counts samples"),
    ]
    if dynamic:
        notes.append(
            Note(
                "drops",
                "prompts whose samples all score the same are dropped and replaced from the next batch; what is too many, and "
                "what waits when a pass over the rows ends, is dropped as well",
            )
        )
    if settings.flag("data.use_multiple_dataloader"):
        notes.append(
            Note("ignores", f"{part}.max_num_epochs: several loaders never end, only {part}.max_num_steps does")
        )
    if _differs_in_tensor_parallel(settings):
        notes.append(
            Note(
                "assumes",
                "NRL_IGNORE_TP_ACCURACY_CHECK is set: without it NeMo-RL ends a run with a tensor parallelism of 4 or more whose "
                "policy.logprob_batch_size is not policy.train_micro_batch_size",
            )
        )
    if passes.rows is None and passes.rollouts is not None:
        notes.append(Note("assumes", f"the rows last for {part}.max_num_steps = {passes.rollouts}; give --rows"))
    if settings.optional_count("ppo.policy_training_start_step", least=0) and part == "ppo":
        notes.append(
            Note("ignores", "the policy's schedule is made for all rollouts, also for those that train only the critic")
        )
    return tuple(notes)


def _length(schedule: Schedule, part: str, prompts: int) -> list[str]:
    """Epochs and steps that give the same number of rollouts.

    Raises:
        LaunchError: There is none, or the rows do not fill one.
    """
    if schedule.rollouts is None:
        return []
    per_epoch = schedule.rows // prompts if schedule.rows is not None else None
    if schedule.rollouts == 0 or per_epoch == 0:
        raise LaunchError(
            f"rollouts = {schedule.rollouts} cannot be kept: NeMo-RL makes at least one, and the rows must fill it"
        )
    epochs = -(-schedule.rollouts // per_epoch) if per_epoch else schedule.rollouts
    return [f"{part}.max_num_epochs={epochs}", f"{part}.max_num_steps={schedule.rollouts}"]


def _microbatch_words(schedule: Schedule, role: str, size: int) -> list[str]:
    """The micro-batch, where the schedule has one in samples."""
    if schedule.samples_per_microbatch is None:
        return []
    return [f"{role}.train_micro_batch_size={size}", f"{role}.sequence_packing.enabled=false"]


_MEGATRON = {
    "policy.megatron_cfg.scheduler.lr_decay_iters": 1000,
    "policy.megatron_cfg.scheduler.lr_warmup_iters": 13,
}
_OWN_CONFIGS: dict[str, dict[str, Any]] = {
    "configs/grpo_math_1B": _MEGATRON,
    "configs/ppo_math_1B": {
        **_MEGATRON,
        "policy.megatron_cfg.scheduler.lr_warmup_iters": 10,
        "loss_fn.reference_policy_kl_penalty": 0.0,
    },
    "configs/grpo_sliding_puzzle": {**_MEGATRON, "grpo.max_num_steps": 10_000, "data.shuffle": False},
    "configs/vlm_grpo_3B": {
        **_MEGATRON,
        "grpo.num_prompts_per_step": 8,
        "policy.train_global_batch_size": 128,
        "policy.train_micro_batch_size": 1,
        "policy.dynamic_batching.enabled": True,
        "policy.sequence_packing.enabled": False,
        "cluster.gpus_per_node": 2,
    },
}
"""What examples/configs sets unlike SETTINGS."""

SYSTEM = System(
    name="nemo_rl",
    title=_TITLE,
    version="7ea279a",
    recognised=(
        Entry(
            "nemo_rl",
            programs=("script:run_grpo.py", "script:run_grpo_*.py", "script:run_vlm_grpo.py", "script:run_ppo.py"),
            keys=("grpo.num_prompts_per_step", "ppo.num_prompts_per_step"),
        ),
    ),
    overrides=True,
    own_configs=_OWN_CONFIGS,
    # examples/run_*.py main: what each reads without --config.
    script_configs={
        "run_grpo.py": "configs/grpo_math_1B.yaml",
        "run_grpo_math.py": "configs/grpo_math_1B.yaml",
        "run_grpo_sliding_puzzle.py": "configs/grpo_sliding_puzzle.yaml",
        "run_vlm_grpo.py": "configs/vlm_grpo_3B.yaml",
        "run_grpo_nemo_gym.py": "grpo_workplace_assistant_nemotron_nano_v2_9b.yaml",
        "run_ppo.py": "configs/ppo_math_1B.yaml",
    },
    # nemo_rl/utils/config.py register_omegaconf_resolvers
    resolvers={"add": operator.add, "mul": operator.mul, "div": operator.truediv, "max": max},
    settings=SETTINGS,
    plan="rlstep_hooks.systems.nemo_rl:read",
    writes=write,
)
