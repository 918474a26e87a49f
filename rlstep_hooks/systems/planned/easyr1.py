"""EasyR1: a fork of an early verl. Sizes count prompts, shares of processes are rounded down, and splits must be even.

Read at hiyouga/EasyR1 b44b311 (2026-07-30, 0.3.3.dev0), below `verl/`: trainer/config.py, workers/actor/config.py and
workers/critic/config.py (defaults), trainer/ray_trainer.py (`RayPPOTrainer.__init__`, `_make_batch_data`, `fit`),
trainer/data_loader.py, workers/fsdp_workers.py (`_init_dist_mesh`, `update_actor`, `update_critic`), workers/actor/dp_actor.py and
workers/critic/dp_critic.py, protocol.py.
"""

from rlstep_hooks.systems.engine.declaration import Check, Entry, Formula, Note, System, count, flag, number, text
from rlstep_hooks.systems.engine.remarks import other_shapes

_COMMIT = "EasyR1 b44b311 verl"
_BUILT = "at start-up, when the trainer is built"
_MESH = f"{_COMMIT}/workers/fsdp_workers.py:118-157 FSDPWorker._init_dist_mesh"
_SETTINGS = {"actor": "worker.actor", "critic": "worker.critic"}
_WARMUP = f"{_COMMIT}/workers/fsdp_workers.py:345-348"


def _checks_of(role: str, where: str) -> tuple[Check, ...]:
    """What the trainer and the workers require of one role's sizes."""
    own, device = f"worker.{role}", f"{role}_device"
    micro = f"{own}.micro_batch_size_per_device_for_update"
    experience = f"{own}.micro_batch_size_per_device_for_experience"
    return (
        Check(
            f"data.rollout_batch_size % {own}.global_batch_size == 0",
            f"Rollout batch size must be divisible by {role} global batch size.",
            fix=f"{own}.global_batch_size = {{nearest({own}.global_batch_size, it <= data.rollout_batch_size and "
            "data.rollout_batch_size % it == 0)} (prompts)",
            when=_BUILT,
            source=f"{_COMMIT}/trainer/ray_trainer.py:{'211' if role == 'actor' else '222'}",
            where=where,
        ),
        Check(
            f"samples % {experience} == 0",
            f"Rollout batch size * rollout.n must be divisible by {role} micro batch size for experience.",
            fix=f"{experience} = {{nearest({experience}, gcd(it, samples) == it)}}",
            when=_BUILT,
            source=f"{_COMMIT}/trainer/ray_trainer.py:{'214' if role == 'actor' else '225'}",
            where=where,
        ),
        Check(
            f"{device} > 0",
            f"{role} global batch size * ulysses size must be larger than num gpus.",
            fix=f"{own}.global_batch_size = {{ceil({role}_processes / worker.rollout.n)}} or more",
            when="when the workers are built",
            source=_MESH,
            where=where,
        ),
        Check(
            f"{device} % {micro} == 0",
            f"{role} global batch size per device must be divisible by the micro batch size.",
            fix=f"{micro} = {{nearest({micro}, gcd(it, {device}) == it)}} ({{{device}}} samples for each process)",
            when="when the workers are built",
            source=_MESH,
            where=where,
        ),
        Check(
            f"not {own}.fsdp.enable_cpu_offload or {device} == {micro}",
            f"{role} cannot use FSDP's CPU offload when gradient accumulation is enabled.",
            fix=f"{own}.fsdp.enable_cpu_offload = false, or {micro} = {{{device}}}",
            when="when the workers are built",
            source=_MESH,
            where=where,
        ),
        Check(
            f"samples * {own}.ulysses_size % gpus == 0 and samples // {role}_processes % {device} == 0",
            f"AssertionError: only support equal split. Got size of DataProto {{samples // {role}_processes}} and split "
            f"{{{device}}}.",
            fix=f"{own}.global_batch_size, times rollout.n, as a multiple of the {{{role}_processes}} processes",
            when="after the first rollout, in the first update",
            source=f"{_COMMIT}/protocol.py:583 DataProto.split",
            where=where,
        ),
    )


SYSTEM = System(
    name="easyr1",
    title="EasyR1",
    version="b44b311",
    recognised=(
        Entry(
            "easyr1",
            programs=("module:verl.trainer.main", "script:verl/trainer/main.py"),
            keys=("worker.actor.global_batch_size", "data.rollout_batch_size"),
            before="verl",
        ),
    ),
    checkout="rlstep_hooks.systems.planned.easyr1_checkout:beside",
    overrides=True,
    home="verl/trainer/main.py",
    own_configs={
        "examples/config": {
            "worker.actor.global_batch_size": 128,
            "worker.actor.micro_batch_size_per_device_for_update": 1,
            "worker.actor.micro_batch_size_per_device_for_experience": 2,
            "worker.rollout.n": 5,
            "trainer.val_freq": 5,
            "trainer.save_freq": 5,
        }
    },
    rows_from=("data.train_files",),
    settings={
        "data.rollout_batch_size": count(512),
        "data.mini_rollout_batch_size": count(None),
        "data.shuffle": flag(True),
        "data.filter_overlong_prompts": flag(True),
        "algorithm.adv_estimator": text("grpo"),
        "algorithm.disable_kl": flag(False),
        "algorithm.online_filtering": flag(False),
        "worker.rollout.n": count(1),
        **{
            f"{own}.{name}": setting
            for own in _SETTINGS.values()
            for name, setting in {
                "global_batch_size": count(256),
                "micro_batch_size_per_device_for_update": count(4),
                "micro_batch_size_per_device_for_experience": count(16),
                "ppo_epochs": count(1),
                "dynamic_batching": flag(True),
                "ulysses_size": count(1),
                "fsdp.enable_cpu_offload": flag(False),
            }.items()
        },
        "worker.actor.optim.lr_scheduler_type": text("constant"),
        "worker.actor.optim.lr_warmup_steps": count(None, least=0),
        "worker.actor.optim.lr_warmup_ratio": number(0),
        "trainer.total_epochs": count(15),
        "trainer.max_steps": count(None),
        "trainer.critic_warmup": count(0, least=0),
        "trainer.nnodes": count(1),
        "trainer.n_gpus_per_node": count(8),
        "trainer.val_freq": count(-1, least=-1),
        "trainer.save_freq": count(-1, least=-1),
    },
    let={
        "gpus": "trainer.nnodes * trainer.n_gpus_per_node",
        "processes": "gpus // worker.actor.ulysses_size",
        "actor_processes": "world_size",
        "critic_processes": "max(world_size * worker.actor.ulysses_size // worker.critic.ulysses_size, 1)",
        "samples": "data.rollout_batch_size * worker.rollout.n",
        "actor_device": "floor(worker.actor.global_batch_size * worker.rollout.n / world_size)",
        "critic_device": "floor(worker.critic.global_batch_size * worker.rollout.n / critic_processes)",
        "reuse_epochs": "worker.actor.ppo_epochs",
        "critic": "algorithm.adv_estimator == 'gae'",
        "critic.reuse_epochs": "worker.critic.ppo_epochs",
        "critic.world_size": "critic_processes",
        "algorithm": "'PPO' if critic else upper(algorithm.adv_estimator)",
        "samples_per_microbatch": "unknown('micro-batches are cut by token counts') if worker.actor.dynamic_batching "
        "else worker.actor.micro_batch_size_per_device_for_update * world_size",
        "critic.samples_per_microbatch": "unknown('micro-batches are cut by token counts') if worker.critic.dynamic_batching "
        "else worker.critic.micro_batch_size_per_device_for_update * critic_processes",
        "reference_source": "'none' if algorithm.disable_kl else 'at_rollout'",
        "rows_reshuffled": "data.shuffle",
        "rows_bound": "'data_dependent' if algorithm.online_filtering else 'exact'",
        # With mini_rollout_batch_size a rollout takes whole smaller batches of the loader and cuts off the surplus.
        "batch": "data.mini_rollout_batch_size or data.rollout_batch_size",
        "batches_per_rollout": "ceil(data.rollout_batch_size / batch)",
        "batches_per_pass": "floor(rows / batch)",
        "rows_dropped_per_epoch": "rows - batches_per_pass * batch",
        "rows_per_rollout": "unknown('prompts are filtered and replaced as the run goes') if algorithm.online_filtering "
        "else batches_per_rollout * batch",
        "data_epochs": "rollouts * rows_per_rollout / rows",
        "loader_epochs": "rollouts * rows_per_rollout / (batches_per_pass * batch)",
        "epoch_ends_between_rollouts": "not algorithm.online_filtering and batches_per_pass % batches_per_rollout == 0 "
        "if known(rows) else True",
    },
    always={"loader": "drops", "remainder": "error", "lr_clock": "rollout", "step_unit": "rollout"},
    formulas=(
        Formula(
            "prompts_per_rollout", "data.rollout_batch_size", f"{_COMMIT}/trainer/ray_trainer.py:559 _make_batch_data"
        ),
        Formula("samples_per_prompt", "worker.rollout.n", f"{_COMMIT}/trainer/ray_trainer.py:515 _make_batch_data"),
        Formula("samples_per_update", "actor_device * world_size", _MESH),
        Formula(
            "updates_per_rollout",
            "worker.actor.ppo_epochs * samples_per_rollout / samples_per_update",
            f"{_COMMIT}/workers/actor/dp_actor.py:229-232 update_policy",
        ),
        Formula("critic.samples_per_update", "critic_device * critic_processes", _MESH),
        Formula(
            "critic.updates_per_rollout",
            "worker.critic.ppo_epochs * samples_per_rollout / (critic_device * critic_processes)",
            f"{_COMMIT}/workers/critic/dp_critic.py update_critic",
        ),
        Formula(
            "rollouts_per_epoch",
            "floor(batches_per_pass * batch / data.rollout_batch_size)",
            f"{_COMMIT}/trainer/ray_trainer.py:240-244, trainer/data_loader.py:65 (drop_last)",
        ),
        Formula(
            "rollouts",
            "trainer.max_steps or rollouts_per_epoch * trainer.total_epochs",
            f"{_COMMIT}/trainer/ray_trainer.py:238-244",
        ),
        Formula(
            "frozen_rollouts",
            "max(trainer.critic_warmup - 1, 0)",
            f"{_COMMIT}/trainer/ray_trainer.py:659 (global_step begins at 1)",
        ),
        Formula("lr_horizon", "rollouts", f"{_COMMIT}/trainer/ray_trainer.py:246"),
        Formula(
            "lr_ticks", "max(rollouts - frozen_rollouts, 0)", f"{_COMMIT}/workers/fsdp_workers.py:584 update_actor"
        ),
        Formula("critic.lr_ticks", "rollouts", f"{_COMMIT}/workers/fsdp_workers.py:744 update_critic"),
    ),
    checks=(
        Check(
            "algorithm.adv_estimator in ('gae', 'grpo', 'grpo_passk', 'reinforce_plus_plus', 'remax', 'rloo')",
            "Unknown advantage estimator: {algorithm.adv_estimator}.",
            fix="algorithm.adv_estimator = gae, grpo, grpo_passk, reinforce_plus_plus, remax or rloo",
            when=_BUILT,
            source=f"{_COMMIT}/trainer/ray_trainer.py:208",
        ),
        *_checks_of("actor", "")[:2],
        *_checks_of("critic", "critic")[:2],
        Check(
            "algorithm.adv_estimator not in ('grpo', 'rloo') or worker.rollout.n > 1",
            "GRPO and RLOO algorithm need `config.worker.rollout.n > 1`.",
            fix="worker.rollout.n = 2 or more",
            when=_BUILT,
            source=f"{_COMMIT}/trainer/ray_trainer.py:232-236",
        ),
        Check(
            "rows >= batch",
            "AssertionError: assert len(train_dataloader) >= 1 ({rows} rows do not fill a batch of {batch})",
            fix="data.{'mini_' if data.mini_rollout_batch_size else ''}rollout_batch_size = {rows} or less",
            when="at start-up, when the data is loaded",
            source=f"{_COMMIT}/trainer/data_loader.py:101 create_dataloader",
        ),
        *_checks_of("actor", "")[2:5],
        *_checks_of("critic", "critic")[2:5],
        Check(
            "batch % gpus == 0",
            "AssertionError: only support equal chunk. Got size of DataProto {batch} and chunk {gpus}.",
            fix="data.{'mini_' if data.mini_rollout_batch_size else ''}rollout_batch_size = {multiples(batch, gpus)}",
            when="at the first rollout",
            source=f"{_COMMIT}/protocol.py:555 DataProto.chunk",
        ),
        Check(
            "samples % gpus == 0",
            "AssertionError: {samples} % {gpus} != 0",
            fix="data.rollout_batch_size * worker.rollout.n = {multiples(samples, gpus)}",
            when="after the first rollout, when its samples are balanced",
            source=f"{_COMMIT}/utils/seqlen_balancing.py:105",
        ),
        *_checks_of("critic", "critic")[5:],
        *_checks_of("actor", "")[5:],
    ),
    notes=(
        other_shapes(
            "worker.actor.micro_batch_size_per_device_for_experience",
            "worker.actor.micro_batch_size_per_device_for_update",
            "not worker.actor.dynamic_batching",
        ),
        Note(
            "unit",
            "rollout_batch_size and global_batch_size count prompts, micro_batch_size_per_device_... samples of one process",
        ),
        Note(
            "grows",
            "a mini-batch of {worker.actor.global_batch_size * worker.rollout.n} samples on {world_size} processes is rounded down to "
            "{samples_per_update}: {updates_per_rollout} updates",
            "samples_per_update < worker.actor.global_batch_size * worker.rollout.n",
        ),
        Note(
            "drops",
            "{rows_per_rollout - data.rollout_batch_size} of the {rows_per_rollout} prompts generated for each rollout are cut off: "
            "mini_rollout_batch_size does not divide rollout_batch_size",
            "rows_per_rollout > data.rollout_batch_size",
        ),
        Note(
            "ignores",
            "total_epochs: max_steps = {trainer.max_steps} is given",
            "trainer.max_steps is not None and given(trainer.total_epochs)",
        ),
        Note(
            "assumes",
            "the rows are those left after data.filter_overlong_prompts",
            "known(rows) and data.filter_overlong_prompts",
        ),
    ),
    facts={
        "more_updates": "'worker.actor.ppo_epochs above 1, or worker.actor.global_batch_size below data.rollout_batch_size,'",
        "minibatch_unit": "'prompts'",
        "nominal_updates_per_rollout": "worker.actor.ppo_epochs * data.rollout_batch_size / worker.actor.global_batch_size",
        "lr_constant": "worker.actor.optim.lr_scheduler_type == 'constant'",
        "lr_warmup": "floor(worker.actor.optim.lr_warmup_ratio * lr_horizon) if worker.actor.optim.lr_warmup_steps is None "
        "else worker.actor.optim.lr_warmup_steps",
        "save_every": "trainer.save_freq if trainer.save_freq > 0 else None",
        "eval_every": "trainer.val_freq if trainer.val_freq > 0 else None",
    },
)
