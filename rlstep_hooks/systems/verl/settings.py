"""The settings of a verl run that the formulas need, read from its nested configuration. Imports neither verl nor omegaconf."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.declaration import Typed, count, flag, number, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.systems.quantities import Quantities
    from rlstep_hooks.systems.verl.releases import VerlRelease

Trainer = Literal["v1-sync", "v1-colocate-async", "v1-separate-async", "main-ppo-sync", "ray", "ray-legacy"]
"""Which of verl's trainers runs: those of `trainer/ppo/v1` (0.9), 0.8's `main_ppo_sync`, or RayPPOTrainer with engine workers
or with the legacy FSDP workers (up to 0.7)."""

PADDING: tuple[Trainer, ...] = ("v1-sync", "v1-colocate-async", "v1-separate-async", "main-ppo-sync")
"""Trainers that fill a rollout up until it divides."""
COALESCING: tuple[Trainer, ...] = ("v1-sync", "v1-colocate-async", "v1-separate-async")
"""Trainers that put several batches of the loader together until they have `data.train_batch_size` prompts."""

_MODES: dict[str, Trainer] = {
    "sync": "v1-sync",
    "colocate_async": "v1-colocate-async",
    "separate_async": "v1-separate-async",
}
_ALGORITHMS = {"gae": "PPO", "remax": "ReMax", "reinforce_plus_plus": "REINFORCE++"}

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_CRITIC_ENGINES = ("fsdp", "model.fsdp_config")
_ANY = -(1 << 31)

# The defaults are those of verl/trainer/config that differ from "not set", the same from 0.2 to 0.9.1 where they exist.
SETTINGS: dict[str, Typed] = {
    "data.train_batch_size": count(1024),
    "data.gen_batch_size": count(),
    "data.shuffle": flag(True),
    "data.train_max_samples": count(-1, least=-1),
    f"{_ROLLOUT}.n": count(1),
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": count(),
    f"{_ROLLOUT}.log_prob_use_dynamic_bsz": flag(None),
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": count(),
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": flag(None),
    f"{_ACTOR}.strategy": text(),
    f"{_ACTOR}.ppo_mini_batch_size": count(256),
    f"{_ACTOR}.ppo_micro_batch_size": count(),
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": count(),
    f"{_ACTOR}.use_dynamic_bsz": flag(False),
    f"{_ACTOR}.ppo_epochs": count(1),
    f"{_ACTOR}.shuffle": flag(None),
    f"{_ACTOR}.use_kl_loss": flag(False),
    f"{_ACTOR}.use_rollout_log_probs": flag(None),
    f"{_ACTOR}.ulysses_sequence_parallel_size": count(),
    f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size": count(),
    f"{_ACTOR}.optim.lr_scheduler_type": text("constant", also=(f"{_ACTOR}.optim.warmup_style",)),
    f"{_ACTOR}.optim.lr_warmup_steps": count(-1, least=-1),
    f"{_ACTOR}.optim.lr_warmup_steps_ratio": number(0.0),
    **{
        f"{role}.megatron.{name}_parallel_size": count()
        for role in (_ACTOR, "critic")
        for name in ("tensor_model", "pipeline_model", "context")
    },
    **{f"{role}.veomni.ulysses_parallel_size": count() for role in (_ACTOR, "critic")},
    **{
        f"{role}.torchtitan.data_parallel_{name}_size": count()
        for role in (_ACTOR, "critic")
        for name in ("shard", "replicate")
    },
    "critic.enable": flag(None),
    "critic.strategy": text(),
    "critic.ppo_mini_batch_size": count(),
    "critic.ppo_micro_batch_size": count(),
    "critic.ppo_micro_batch_size_per_gpu": count("${critic.ppo_micro_batch_size}"),
    "critic.use_dynamic_bsz": flag(None),
    "critic.ppo_epochs": count(),
    "critic.ulysses_sequence_parallel_size": count(),
    **{f"critic.{engine}.use_dynamic_bsz": flag(None) for engine in _CRITIC_ENGINES},
    **{f"critic.{engine}.micro_batch_size_per_gpu": count() for engine in _CRITIC_ENGINES},
    **{f"critic.{engine}.ulysses_sequence_parallel_size": count() for engine in _CRITIC_ENGINES},
    "algorithm.adv_estimator": text("gae"),
    "algorithm.use_kl_in_reward": flag(False),
    "algorithm.filter_groups.enable": flag(None),
    "algorithm.rollout_correction.bypass_mode": flag(None),
    "reward.reward_model.enable": flag(None),
    "reward.reward_model.enable_resource_pool": flag(None),
    "transfer_queue.enable": flag(None),
    "trainer.n_gpus_per_node": count(8),
    "trainer.nnodes": count(1),
    "trainer.total_epochs": count(30),
    "trainer.total_training_steps": count(),
    "trainer.critic_warmup": count(0, least=_ANY),
    "trainer.use_v1": flag(None),
    "trainer.use_legacy_worker_impl": text(),
    "trainer.v1.trainer_mode": text(),
    "trainer.v1.colocate_async.num_warmup_batches": number(),
    "trainer.v1.separate_async.parameter_sync_step": count(),
    "trainer.val_only": flag(None),
    "trainer.val_before_train": flag(None),
    "trainer.save_freq": count(-1, least=-1),
    "trainer.test_freq": count(-1, least=-1),
    f"{_ROLLOUT}.nnodes": count(least=_ANY),
    f"{_ROLLOUT}.checkpoint_engine.backend": text(),
    f"{_ROLLOUT}.agent.default_agent_loop": text(),
    f"{_ROLLOUT}.agent.agent_loop_config_path": text(),
    "trainer.v1.sampler.max_off_policy_threshold": count(),
    "trainer.v1.sampler.max_off_policy_strategy": text(),
    "trainer.v1.sampler.sync_refill_failed_groups": flag(None),
    "config_name": text(),
    "model_engine": text(),
}
"""All settings that a plan of verl reads."""

PLAN_SETTINGS = (
    "data.train_batch_size",
    "data.gen_batch_size",
    "data.shuffle",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.actor.strategy",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.ppo_micro_batch_size",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.actor.use_dynamic_bsz",
    "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.actor.shuffle",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.optim.lr",
    "critic.enable",
    "critic.ppo_mini_batch_size",
    "critic.ppo_micro_batch_size_per_gpu",
    "critic.ppo_epochs",
    "algorithm.adv_estimator",
    "algorithm.use_kl_in_reward",
    "algorithm.rollout_correction.bypass_mode",
    "algorithm.filter_groups.enable",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.critic_warmup",
    "trainer.val_only",
    "trainer.use_v1",
    "trainer.use_legacy_worker_impl",
    "trainer.v1.trainer_mode",
    "trainer.v1.colocate_async.num_warmup_batches",
    "trainer.v1.sampler.max_off_policy_threshold",
)
"""VerlSettings that appear in a plan, under verl's own names."""


class RoleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the updates of one role follow."""

    processes: int
    """W: data-parallel processes."""
    minibatch: int
    """M or Mc: prompts of a mini-batch, over all processes."""
    epochs: int
    """Passes over a rollout."""
    microbatch: int | None
    """Samples of a micro-batch on one process, as its worker reads it; None where none is set."""
    microbatch_over_all: int | None
    """The older setting, over all processes, which legacy workers prefer."""
    microbatch_given: bool
    """Whether either is set in this role's section."""
    dynamic: bool
    """Whether its worker cuts micro-batches by token counts."""
    checked_dynamic: bool
    """`use_dynamic_bsz` in this role's section; with it verl checks no sizes."""
    counts_prompts: bool = True
    """Whether the mini-batch counts prompts, and not samples."""


class VerlSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the formulas need, with verl's defaults filled in."""

    trainer: Trainer
    algorithm: str
    batch_multiple: int
    """What verl wants T*n to be a multiple of."""
    prompts: int
    """T: data.train_batch_size."""
    loader_batch: int
    """Prompts that the loader gives at a time."""
    group: int
    """n: samples of a prompt."""
    policy: RoleSettings
    critic: RoleSettings | None
    critic_warmup: int
    """K."""
    epochs: int
    total_steps: int | None
    """trainer.total_training_steps."""
    shuffle: bool
    reference: bool
    bypass: bool
    """Whether the engine's log-probs stand in for recomputed ones."""
    keeps_given_old_logprobs: bool
    """actor.use_rollout_log_probs, which legacy workers read."""
    replaces_groups: bool
    """Whether groups without signal, or that failed, are replaced by new prompts."""
    logprob_microbatches: tuple[int, ...]
    """Samples of a micro-batch on one process where log-probs are computed (policy, reference); empty by token counts."""
    updates_within_rollout: int
    """parameter_sync_step of separate_async: calls to update the policy for each rollout; 1 elsewhere."""
    prefetched: Fraction
    """Rollouts by which colocate_async generates ahead."""
    off_policy_threshold: int | None
    waits_for_stale: bool
    colocated_reward: bool
    """Whether a reward model shares the engine's GPUs, so that validation syncs weights once more."""
    evaluates_only: bool
    """Whether the run validates once and ends."""
    own_agent_loop: bool
    """Whether samples come from an agent loop that verl does not ship, which may give several for a session, or none."""
    engine_nodes: int
    """rollout.nnodes: nodes of the rollout engine's own, which separate_async needs."""
    engine_backend: str
    """rollout.checkpoint_engine.backend: how weights reach the engine."""


def nested(launch: Quantities) -> dict[str, Any]:
    """The settings of a launch as the nested configuration that plans take. One without a value is left out; one of null is None."""
    config: dict[str, Any] = {}
    for name in launch.system.settings:
        value = launch[name]
        if value is not None or launch.given(name):
            place(config, name, float(value) if isinstance(value, Fraction) else value)
    return config


def place(config: dict[str, Any], name: str, value: Any) -> None:
    """Store a value under its dotted name."""
    *sections, last = name.split(".")
    for section in sections:
        config = config.setdefault(section, {})
    config[last] = value


def intervals(launch: Quantities) -> dict[str, Any]:
    """The facts about checkpoints and evaluations, in rollouts."""
    facts = (("save_every", "trainer.save_freq"), ("eval_every", "trainer.test_freq"))
    return {fact: launch[name] for fact, name in facts if launch[name] > 0}


def setting(config: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """The value under a dotted name; the default where it is missing or null."""
    value: Any = config
    for part in name.split("."):
        if not hasattr(value, "get"):
            return default
        value = value.get(part)
    return default if value is None else value


def is_config(config: Any) -> bool:
    """Whether an object is the configuration of a verl trainer: a mapping with its three sections."""
    return hasattr(config, "get") and all(name in config for name in ("actor_rollout_ref", "data", "trainer"))


def read_settings(config: Mapping[str, Any], release: VerlRelease) -> VerlSettings:
    """The settings of a nested configuration, resolved, as `OmegaConf.to_container(config, resolve=True)` gives it.

    Raises:
        TypeError: It is no configuration of verl.
    """
    if not is_config(config):
        raise TypeError("no configuration of verl: it has no actor_rollout_ref, data and trainer sections")
    trainer = _trainer(config, release)
    gpus = setting(config, "trainer.n_gpus_per_node", 8) * setting(config, "trainer.nnodes", 1)
    prompts = setting(config, "data.train_batch_size", 1024)
    filters = trainer in COALESCING and bool(setting(config, "algorithm.filter_groups.enable", False))
    refills = bool(setting(config, "trainer.v1.sampler.sync_refill_failed_groups", False)) and trainer == "v1-sync"
    # One prompt at a time, so that an exact number can be replaced (trainer_base.py 0.9.1:727-739).
    single = filters or refills or trainer in ("v1-colocate-async", "v1-separate-async")
    policy = _policy(config, release, gpus)
    separate = trainer == "v1-separate-async"
    return VerlSettings(
        trainer=trainer,
        algorithm=_algorithm(config),
        batch_multiple=_batch_multiple(config, policy, gpus),
        prompts=prompts,
        loader_batch=1
        if single
        else setting(config, "data.gen_batch_size", prompts)
        if release.has_loader_batch
        else prompts,
        group=setting(config, "actor_rollout_ref.rollout.n", 1),
        policy=policy,
        critic=_critic(config, release, trainer, gpus, policy) if _needs_critic(config) else None,
        critic_warmup=setting(config, "trainer.critic_warmup", 0),
        epochs=setting(config, "trainer.total_epochs", 30),
        total_steps=setting(config, "trainer.total_training_steps"),
        shuffle=bool(setting(config, "data.shuffle", True)),
        reference=release.always_has_reference or _uses_reference(config),
        bypass=_bypasses(config),
        keeps_given_old_logprobs=bool(setting(config, "actor_rollout_ref.actor.use_rollout_log_probs", False)),
        replaces_groups=filters or refills,
        logprob_microbatches=() if trainer == "ray-legacy" else _logprob_microbatches(config),
        updates_within_rollout=setting(config, "trainer.v1.separate_async.parameter_sync_step", 4) if separate else 1,
        prefetched=(
            Fraction(str(setting(config, "trainer.v1.colocate_async.num_warmup_batches", 1)))
            if trainer == "v1-colocate-async"
            else Fraction(0)
        ),
        # Null turns the limit off.
        off_policy_threshold=setting(config, "trainer.v1.sampler", {}).get("max_off_policy_threshold", 8),
        waits_for_stale=setting(config, "trainer.v1.sampler.max_off_policy_strategy", "drop") == "wait",
        colocated_reward=bool(
            setting(config, "reward.reward_model.enable", False)
            and not setting(config, "reward.reward_model.enable_resource_pool", False)
        ),
        evaluates_only=evaluates_only(config),
        own_agent_loop=own_agent_loop(config),
        engine_nodes=setting(config, "actor_rollout_ref.rollout.nnodes", 0),
        engine_backend=setting(config, "actor_rollout_ref.rollout.checkpoint_engine.backend", "naive"),
    )


def _trainer(config: Mapping[str, Any], release: VerlRelease) -> Trainer:
    if release.has_v1_trainer and setting(config, "trainer.use_v1", True):
        mode = setting(config, "trainer.v1.trainer_mode", "sync")
        return _MODES.get(mode, "v1-sync")
    # main_ppo_sync sets it itself; RayPPOTrainer reads it nowhere (main_ppo_sync.py 0.8.0:1853).
    if release.since("0.8") and not release.has_v1_trainer and setting(config, "transfer_queue.enable", False):
        return "main-ppo-sync"
    if release.has_legacy_workers and setting(config, "trainer.use_legacy_worker_impl", "auto") != "disable":
        return "ray-legacy"
    return "ray"


def _algorithm(config: Mapping[str, Any]) -> str:
    name = str(setting(config, "algorithm.adv_estimator", "gae"))
    return _ALGORITHMS.get(name, name.upper())


def _needs_critic(config: Mapping[str, Any]) -> bool:
    """`need_critic`, trainer/ppo/utils.py 0.9.1:96-107: `critic.enable`, or GAE where that is not set."""
    enabled = setting(config, "critic.enable")
    return bool(enabled) if enabled is not None else setting(config, "algorithm.adv_estimator", "gae") == "gae"


def _policy(config: Mapping[str, Any], release: VerlRelease, gpus: int) -> RoleSettings:
    actor = setting(config, "actor_rollout_ref.actor", {})
    dynamic = bool(setting(actor, "use_dynamic_bsz", False))
    each, over_all = setting(actor, "ppo_micro_batch_size_per_gpu"), setting(actor, "ppo_micro_batch_size")
    return RoleSettings(
        processes=_processes(actor, gpus, "fsdp_config"),
        minibatch=setting(actor, "ppo_mini_batch_size", 256),
        epochs=setting(actor, "ppo_epochs", 1) if release.reads_epochs else 1,
        microbatch=each,
        microbatch_over_all=over_all,
        microbatch_given=each is not None or over_all is not None,
        dynamic=dynamic,
        checked_dynamic=dynamic,
    )


def _critic(
    config: Mapping[str, Any], release: VerlRelease, trainer: Trainer, gpus: int, policy: RoleSettings
) -> RoleSettings:
    critic = setting(config, "critic", {})
    engine = release.critic_engine_section
    checked = bool(setting(critic, "use_dynamic_bsz", policy.checked_dynamic))
    each, over_all = setting(critic, "ppo_micro_batch_size_per_gpu"), setting(critic, "ppo_micro_batch_size")
    if trainer == "ray-legacy" or release.engine_critic_reads_microbatch_size:
        dynamic, microbatch = checked, each
    else:
        dynamic = bool(setting(critic, f"{engine}.use_dynamic_bsz", True))
        microbatch = setting(critic, f"{engine}.micro_batch_size_per_gpu")
    return RoleSettings(
        processes=_processes(critic, gpus, "model.fsdp_config" if trainer == "ray-legacy" else engine),
        minibatch=setting(critic, "ppo_mini_batch_size", policy.minibatch),
        epochs=setting(critic, "ppo_epochs", policy.epochs) if release.reads_epochs else 1,
        microbatch=microbatch,
        microbatch_over_all=over_all,
        microbatch_given=each is not None or over_all is not None,
        dynamic=dynamic,
        checked_dynamic=checked,
        counts_prompts=release.critic_counts_prompts,
    )


def evaluates_only(config: Mapping[str, Any]) -> bool:
    """Whether a run validates once and ends.

    `val_only` is read after the validation before training, and nowhere else (trainer_base.py 0.9.1:440, ray_trainer.py:1447).
    """
    return bool(setting(config, "trainer.val_only", False) and setting(config, "trainer.val_before_train", True))


SHIPPED_AGENT_LOOPS = ("single_turn_agent", "tool_agent")
"""Agent loops that give one sample for each session (experimental/agent_loop 0.9.1)."""


def own_agent_loop(config: Mapping[str, Any]) -> bool:
    """Whether the configuration names an agent loop that verl does not ship."""
    agent = setting(config, "actor_rollout_ref.rollout.agent", {})
    named = setting(agent, "default_agent_loop", SHIPPED_AGENT_LOOPS[0])
    return setting(agent, "agent_loop_config_path") is not None or named not in SHIPPED_AGENT_LOOPS


def _processes(role: Mapping[str, Any], gpus: int, engine: str) -> int:
    """W: processes that train on different samples (`get_data_parallel_size` of the engines in workers/engine 0.9.1).

    Raises:
        PlanError: There are too few GPUs for one of them.
    """
    processes = _copies(role, gpus, engine)
    if processes < 1:
        raise PlanError(
            f"{gpus} GPUs do not hold one copy of the model: no process is left that trains",
            when="when the workers are built",
            fix="choose parallel sizes whose product divides the number of GPUs",
            source="workers/engine 0.9.1 get_data_parallel_size",
        )
    return processes


def _copies(role: Mapping[str, Any], gpus: int, engine: str) -> int:
    strategy = setting(role, "strategy", "fsdp")
    if strategy == "megatron":
        shared = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        for name in shared:
            gpus //= setting(role, f"megatron.{name}", 1)
        return gpus
    if strategy == "veomni":
        return int(gpus // setting(role, "veomni.ulysses_parallel_size", 1))
    if strategy == "torchtitan":
        sizes = ("data_parallel_shard_size", "data_parallel_replicate_size")
        return int(setting(role, f"torchtitan.{sizes[0]}", 1) * setting(role, f"torchtitan.{sizes[1]}", 1))
    # The setting of the role is the older one; above 1 it replaces the engine's (workers/config/actor.py 0.9.1:328-329).
    older = setting(role, "ulysses_sequence_parallel_size", 1)
    return int(gpus // (older if older > 1 else setting(role, f"{engine}.ulysses_sequence_parallel_size", 1)))


def _batch_multiple(config: Mapping[str, Any], policy: RoleSettings, gpus: int) -> int:
    """`minimal_bsz` of `validate_config`, utils/config.py 0.9.1:103-120."""
    if setting(config, "actor_rollout_ref.actor.strategy", "fsdp") == "megatron":
        return policy.processes * (policy.microbatch or 1)
    return gpus


def _bypasses(config: Mapping[str, Any]) -> bool:
    return bool(setting(config, "algorithm.rollout_correction.bypass_mode", False))


def _logprob_microbatches(config: Mapping[str, Any]) -> tuple[int, ...]:
    roles = ([] if _bypasses(config) else ["rollout"]) + (["ref"] if _uses_reference(config) else [])
    found = []
    for role in roles:
        section = setting(config, f"actor_rollout_ref.{role}", {})
        if not setting(
            section, "log_prob_use_dynamic_bsz", setting(config, "actor_rollout_ref.actor.use_dynamic_bsz", False)
        ):
            found.append(setting(section, "log_prob_micro_batch_size_per_gpu"))
    return tuple(size for size in found if size is not None)


def _uses_reference(config: Mapping[str, Any]) -> bool:
    """`need_reference_policy`, trainer/ppo/utils.py 0.9.1:75-79."""
    return bool(
        setting(config, "algorithm.use_kl_in_reward", False)
        or setting(config, "actor_rollout_ref.actor.use_kl_loss", False)
    )


def written_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings behind a plan, under verl's own dotted names, as plain values."""
    written = {}
    for name in PLAN_SETTINGS:
        value = setting(config, name)
        if value is not None:
            written[name] = value if isinstance(value, int | float | str | bool) else str(value)
    return written


def unsupported(config: Mapping[str, Any]) -> str:
    """Why a run of this configuration cannot be audited; empty where it can. Its numbers may still be planned."""
    for section in ("actor_rollout_ref.actor", "critic"):
        strategy = setting(config, f"{section}.strategy", "fsdp")
        if strategy not in ("fsdp", "fsdp2") and (section != "critic" or _needs_critic(config)):
            return f"{section}.strategy={strategy}: only the updates of fsdp and fsdp2 were read and observed"
    separate = _separate_entry_point(config)
    if separate:
        return separate
    mode = setting(config, "trainer.v1.trainer_mode", "sync")
    if setting(config, "trainer.use_v1", True) and mode not in ("sync", "colocate_async"):
        return f"trainer.v1.trainer_mode={mode}: its rollouts overlap with several updates, which is not observed"
    if setting(config, "trainer.v1.sampler.custom_sampler.path"):
        return "trainer.v1.sampler.custom_sampler: which samples it gives is not known"
    if setting(config, "actor_rollout_ref.rollout.agent.agent_loop_manager_class"):
        return "rollout.agent.agent_loop_manager_class: which samples it generates is not known"
    return ""


def _separate_entry_point(config: Mapping[str, Any]) -> str:
    """The experimental trainers bring a section of their own (experimental/*/config 0.9.1)."""
    if "async_training" in config:
        return "fully_async_policy: rollouts and updates run apart from each other, which is not planned"
    if "rollout" in config:
        return "one_step_off_policy: the next rollout is generated during the updates, which is not planned"
    return ""
