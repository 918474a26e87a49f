"""What forks of verl 0.1 and 0.2 share: RayPPOTrainer and the FSDP workers of that time, as one declaration that a fork completes.

Read in the wheel of verl 0.2 (trainer/ppo/ray_trainer.py, workers/fsdp_workers.py, workers/actor/dp_actor.py and
workers/critic/dp_critic.py) and in each fork. A fork says what it has of its own: settings, and under the name of a quantity here
another expression.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.engine.declaration import (
    Check,
    Demand,
    Depends,
    Entry,
    Formula,
    Note,
    System,
    Typed,
    Writes,
    count,
    flag,
    number,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.systems.engine.request import Request

_ACTOR = "actor_rollout_ref.actor"
_GROUP = "actor_rollout_ref.rollout.n"
_FILES = "data.train_files"

SETTINGS: dict[str, Typed] = {
    "data.train_batch_size": count(1024),
    _GROUP: count(1),
    f"{_ACTOR}.ppo_mini_batch_size": count(256),
    f"{_ACTOR}.ppo_micro_batch_size": count(64),
    f"{_ACTOR}.use_dynamic_bsz": flag(False),
    f"{_ACTOR}.ulysses_sequence_parallel_size": count(1),
    f"{_ACTOR}.optim.warmup_style": text("constant"),
    f"{_ACTOR}.optim.lr_warmup_steps_ratio": number(0),
    "critic.ppo_mini_batch_size": count(None),
    "critic.ppo_micro_batch_size": count(64),
    "critic.ulysses_sequence_parallel_size": count(1),
    "algorithm.adv_estimator": text("gae"),
    "trainer.n_gpus_per_node": count(8),
    "trainer.nnodes": count(1),
    "trainer.total_epochs": count(30, least=0),
    "trainer.total_training_steps": count(None),
    "trainer.critic_warmup": count(0, least=-(1 << 31)),
    "trainer.save_freq": count(-1, least=-(1 << 31)),
    "trainer.test_freq": count(-1, least=-(1 << 31)),
    "trainer.val_before_train": flag(True),
    "trainer.val_only": flag(False),
    "actor_rollout_ref.rollout.tensor_model_parallel_size": number(None),
}
"""What the loop reads, with the defaults of trainer/config/ppo_trainer.yaml, the same in all of them."""

PER_GPU: dict[str, Typed] = {
    f"{_ACTOR}.ppo_micro_batch_size": count(None),
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": count(None),
    "critic.ppo_micro_batch_size": count(None),
    "critic.ppo_micro_batch_size_per_gpu": count(None),
}
"""The sizes of a process, which came with 0.2."""

DIVIDED_FIRST = {
    "device": f"floor({_ACTOR}.ppo_mini_batch_size / world_size) * {_GROUP}",
    "micro": f"floor({_ACTOR}.ppo_micro_batch_size / world_size) * {_GROUP}",
    "critic_micro": "floor(critic.ppo_micro_batch_size / critic_processes)",
}
"""0.1: sizes are divided by the processes, rounded down, and then multiplied by the samples of a prompt."""

MULTIPLIED_FIRST = {
    "device": f"floor({_ACTOR}.ppo_mini_batch_size * {_GROUP} / world_size)",
    "micro": f"{_ACTOR}.ppo_micro_batch_size_per_gpu or (floor({_ACTOR}.ppo_micro_batch_size / world_size) "
    f"if {_ACTOR}.ppo_micro_batch_size else None)",
    "critic_micro": "critic.ppo_micro_batch_size_per_gpu or (floor(critic.ppo_micro_batch_size / critic_processes) "
    "if critic.ppo_micro_batch_size else None)",
}
"""0.2: sizes are multiplied by the samples of a prompt first, and divided by the processes then; the micro-batch counts
samples."""

DIVIDES_ALWAYS = "True"
"""0.1: the first line of `update_policy` (workers/actor/dp_actor.py) asserts that the micro-batch divides the mini-batch, whether
token counts cut it or not."""
DIVIDES_WITHOUT_TOKENS = f"not {_ACTOR}.use_dynamic_bsz"
"""0.2: the micro-batch need not divide the mini-batch where token counts cut it."""

ENDS_EARLY = "rlstep_hooks.systems.verl.checkout.beside:ends_early"
"""The function that says whether a checkout's run leaves its last rollout out, for declarations of such runs: another fork may
take their settings over and end otherwise."""

REJECTS = "rlstep_hooks.systems.verl.checkout.rejection:beside"
"""The function that says whether a checkout's run ends early, for declarations of runs that can reject groups before they train."""

EPISODES = "rlstep_hooks.systems.verl.checkout.episodes:beside"
"""The function that says how a checkout's run ends, for verl-agent, whose runs leave no rollout out."""
TENSOR_PARALLEL = "actor_rollout_ref.rollout.tensor_model_parallel_size"
SHARES_ENGINE = Check(
    f"{TENSOR_PARALLEL} > 0 and gpus % {TENSOR_PARALLEL} == 0",
    f"AssertionError: rollout world_size: {{gpus}} is not divisible by infer_tp: {{{TENSOR_PARALLEL}}}",
    fix=f"choose {TENSOR_PARALLEL} so that it divides {{gpus}}",
    when="when the workers are built",
    source="workers/fsdp_workers.py ActorRolloutRefWorker._build_rollout",
    where=f"given({TENSOR_PARALLEL})",
)
"""What all of them refuse of the engine. Their defaults differ, so that only what a launch gives is looked at."""

_BY_TOKENS = "unknown('micro-batches are cut by token counts')"
_NOT_GIVEN = "unknown('the launch gives no micro-batch size')"
_LET: dict[str, str] = {
    "processes": f"max(trainer.nnodes * trainer.n_gpus_per_node // {_ACTOR}.ulysses_sequence_parallel_size, 1)",
    "gpus": f"world_size * {_ACTOR}.ulysses_sequence_parallel_size",
    "critic_processes": "max(gpus // critic.ulysses_sequence_parallel_size, 1)",
    "prompts": "data.train_batch_size",
    "group": _GROUP,
    "samples": "prompts * group",
    "passes": "1",
    "critic_device": f"floor((critic.ppo_mini_batch_size or {_ACTOR}.ppo_mini_batch_size) / critic_processes)",
    "critic": "algorithm.adv_estimator == 'gae'",
    "critic.world_size": "critic_processes",
    "critic.reuse_epochs": "passes",
    "reuse_epochs": "passes",
    "algorithm": "'PPO' if critic else upper(algorithm.adv_estimator)",
    "samples_per_microbatch": f"{_BY_TOKENS} if {_ACTOR}.use_dynamic_bsz else {_NOT_GIVEN} if micro is None else micro * world_size",
    "critic.samples_per_microbatch": f"{_BY_TOKENS} if {_ACTOR}.use_dynamic_bsz else {_NOT_GIVEN} if critic_micro is None "
    "else critic_micro * critic_processes",
    "reference_source": "'at_rollout'",
    "old_logprob_source": "'recompute'",
    "available": "rollouts_per_epoch * trainer.total_epochs",
    "syncs": "unknown('weights go to the engine whenever it wakes to generate, validation included')",
}

_ALWAYS: dict[str, Any] = {
    "loader": "drops",
    "remainder": "keep",
    "lr_clock": "rollout",
    "step_unit": "rollout",
}


def _rows_are_written(launch: Request) -> bool:
    """Whether the rows are those that another command of the script writes, and no others are known."""
    return launch.rows_written is not None and launch.rows(_FILES) == launch.rows_written


def _gives_microbatch(role: str, micro: str, where: str, trainer: str) -> Check:
    """0.2 and later demand the micro-batch of a role that has no default there."""
    own = f"{role}.ppo_micro_batch_size_per_gpu"
    return Check(
        f"{_ACTOR}.use_dynamic_bsz or {micro} is not None",
        f"ValueError: [{role}] Please set at least one of '{role}.micro_batch_size' or '{role}.micro_batch_size_per_gpu'.",
        fix=f"{own} = N",
        when="when the trainer is built",
        source=f"{trainer} _validate_config",
        where=where,
    )


def _knows_estimator(estimators: tuple[str, ...], trainer: str) -> Check:
    """The trainer decides by the estimator whether there is a critic, and knows no other one."""
    return Check(
        "algorithm.adv_estimator in estimators",
        "NotImplementedError: algorithm.adv_estimator={algorithm.adv_estimator}",
        fix=f"algorithm.adv_estimator = {' or '.join(estimators)}",
        when="when the workers are built",
        source=f"{trainer} init_workers",
    )


def early_fork(
    *,
    name: str,
    title: str,
    version: str,
    source: str,
    recognised: tuple[Entry, ...],
    sizes: Mapping[str, str],
    has_critic: bool = True,
    settings: Mapping[str, Typed] | None = None,
    let: Mapping[str, str] | None = None,
    always: Mapping[str, Any] | None = None,
    formulas: tuple[Formula, ...] = (),
    checks: tuple[Check | Demand, ...] = (),
    depends: tuple[Depends, ...] = (),
    notes: tuple[Note, ...] = (),
    estimators: tuple[str, ...] = (),
    checkout: str = ENDS_EARLY,
    rows_written: Writes | None = None,
) -> System:
    """The declaration of a fork.

    Args:
        name: Name for `--framework`, and of its module.
        title: The fork's name as people write it.
        version: The commit that was read.
        source: Where the fork's `verl` folder is, for sources: "Search-R1 a14dc3a verl".
        recognised: How its launches are recognised.
        sizes: `DIVIDED_FIRST` or `MULTIPLIED_FIRST`.
        has_critic: Whether it can train one.
        settings: Settings that it has of its own, or with other defaults.
        let: Quantities that it works out otherwise.
        always: Quantities that are always the same in it, and otherwise than here.
        formulas: Formulas that come before those here: with a condition, or in their place.
        checks: What it refuses of its own, before what is refused here.
        depends: What makes counts depend on the run.
        notes: Notes of its own.
        estimators: The values of `algorithm.adv_estimator` that it knows; empty where they were not read.
        checkout: The function that reads the fork beside a launch; none does where a formula of its own says how long a run is.
        rows_written: Its own program that writes the training set.
    """
    trainer, workers = f"{source}/trainer/ppo/ray_trainer.py", f"{source}/workers"
    update = f"{workers}/fsdp_workers.py __init__, {workers}/actor/dp_actor.py update_policy"
    own = {*(let or {}), *(formula.quantity for formula in formulas if not formula.where)}
    shared: tuple[Formula, ...] = (
        Formula("prompts_per_rollout", "prompts", f"{trainer} fit"),
        Formula("samples_per_prompt", "group", f"{trainer} fit"),
        Formula("samples_per_update", "device * world_size", update),
        Formula("updates_per_rollout", "passes * ceil(samples / samples_per_update)", update),
        Formula(
            "critic.samples_per_update", "critic_device * critic_processes", f"{workers}/fsdp_workers.py CriticWorker"
        ),
        Formula(
            "critic.updates_per_rollout",
            "passes * ceil(samples / (critic_device * critic_processes))",
            f"{workers}/critic/dp_critic.py update_critic",
        ),
        Formula("rollouts_per_epoch", "floor(rows / prompts)", f"{trainer} _create_dataloader (drop_last)"),
        Formula("rows_reshuffled", "True", f"{trainer} _create_dataloader (shuffle=True)"),
        Formula(
            "rollouts",
            "min(available, max((trainer.total_training_steps or available) - 1, 1))",
            f"{trainer} fit: the step is counted up before it is compared with the total, so the last rollout never comes",
        ),
        Formula(
            "frozen_rollouts",
            "max(trainer.critic_warmup - 1, 0)",
            f"{trainer} fit: critic_warmup <= global_steps, from 1",
        ),
        Formula("lr_horizon", "trainer.total_training_steps or available", f"{trainer} _create_dataloader"),
        Formula("lr_ticks", "max(rollouts - frozen_rollouts, 0)", f"{workers}/fsdp_workers.py update_actor"),
        Formula("critic.lr_ticks", "rollouts", f"{workers}/fsdp_workers.py update_critic"),
    )
    if not has_critic:
        shared = tuple(formula for formula in shared if not formula.quantity.startswith("critic."))

    def kept(of: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in of.items() if has_critic or not key.startswith("critic")}

    return System(
        name=name,
        title=title,
        version=version,
        recognised=recognised,
        overrides=True,
        config_settings=(),
        checkout="" if "rollouts" in own and checkout == ENDS_EARLY else checkout,
        rows_from=(_FILES,),
        rows_written=rows_written,
        functions={"rows_are_written": _rows_are_written},
        settings=kept({**SETTINGS, **(settings or {})}),
        let={
            **kept({**_LET, **sizes}),
            "divides_microbatch": DIVIDES_WITHOUT_TOKENS if "per_gpu" in sizes["micro"] else DIVIDES_ALWAYS,
            **({"estimators": repr(estimators)} if estimators else {}),
            **({} if has_critic else {"algorithm": "upper(algorithm.adv_estimator)"}),
            **(let or {}),
        },
        always={**_ALWAYS, **(always or {})},
        formulas=(*formulas, *(formula for formula in shared if formula.quantity not in own)),
        depends=depends,
        checks=(
            # `fit` returns after the validation before training, in all of them.
            Demand(
                "not (trainer.val_only and trainer.val_before_train)",
                "trainer.val_only=True: the launch validates once and ends, nothing is trained",
                about="trainer.val_only",
            ),
            Demand(
                "trainer.total_epochs > 0",
                "trainer.total_epochs=0: the launch validates at most and ends, nothing is trained",
                about="trainer.total_epochs",
            ),
            *checks,
            SHARES_ENGINE,
            *([_knows_estimator(estimators, trainer)] if estimators else []),
            Check(
                "samples % gpus == 0",
                "AssertionError: {samples} samples of a rollout are not a multiple of {gpus} GPUs",
                fix=f"data.train_batch_size * {_GROUP} = {{multiples(samples, gpus)}}",
                when="at the first rollout",
                source=f"{source}/protocol.py DataProto.chunk",
            ),
            *(
                _gives_microbatch(role, micro, where, trainer)
                for role, micro, where in (
                    ("actor_rollout_ref.actor", "micro", ""),
                    *([("critic", "critic_micro", "critic")] if has_critic else []),
                )
            ),
            Check(
                "device > 0",
                "RuntimeError in batch.split(0): a mini-batch of no samples",
                fix=f"{_ACTOR}.ppo_mini_batch_size = {{world_size}} or more",
                when="after the first rollout",
                source=update,
            ),
            Check(
                "not divides_microbatch or micro is None or (micro > 0 and device % micro == 0)",
                "AssertionError: a mini-batch of {device} samples of one process is not a multiple of a micro-batch of {micro}",
                fix="a micro-batch whose share of one process divides {device}",
                when="when the workers are built",
                source=update,
            ),
            Check(
                "rows >= prompts",
                "AssertionError: assert len(self.train_dataloader) >= 1 ({rows} rows, {prompts} prompts)",
                fix="data.train_batch_size = {rows} or less",
                when="at the start",
                source=f"{trainer} _create_dataloader",
            ),
        ),
        notes=(
            Note(
                "unit",
                "train_batch_size and ppo_mini_batch_size count prompts, where the samples of a prompt are `rollout.n`",
            ),
            *notes,
            Note(
                "assumes",
                "the training set has {rows} rows, as the script has a program write them before it trains",
                "rows_are_written(launch)",
            ),
            Note(
                "shrinks", "the last of {available} rollouts never comes", "known(rows) and rollouts == available - 1"
            ),
            Note("assumes", "the rows are those left after the filter by prompt length", "known(rows)"),
        ),
        facts={
            "minibatch_unit": "'prompts'",
            "nominal_updates_per_rollout": f"passes * max(samples / ({_ACTOR}.ppo_mini_batch_size * {_GROUP}), 1)",
            "lr_constant": f"{_ACTOR}.optim.warmup_style == 'constant'",
            "lr_warmup": f"floor({_ACTOR}.optim.lr_warmup_steps_ratio * lr_horizon)",
            "save_every": "trainer.save_freq if trainer.save_freq > 0 else None",
            "eval_every": "trainer.test_freq if trainer.test_freq > 0 else None",
        },
    )
