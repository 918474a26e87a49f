"""verl 0.1, as TinyZero and SimpleRL-Zoo carry it: the declaration of both, which each of them completes.

It is that of `rlstep_hooks.systems.verl.family`, with the lines that were read, the refusals in the order in which these trainers make
them, and a note for each known deviation that a launch meets. The plan says what the code does, also where the settings say something
else; those differences are the fork's deviations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.systems.engine.declaration import (
    Check,
    Demand,
    Formula,
    Note,
    System,
    Typed,
    count,
    flag,
    number,
    text,
)
from rlstep_hooks.systems.engine.reader import read
from rlstep_hooks.systems.verl.family import ENDS_EARLY, SHARES_ENGINE, TENSOR_PARALLEL, early_fork
from rlstep_hooks.systems.verl.launch import asked_processes
from rlstep_hooks.systems.verl.minibatches import microbatches, split_minibatches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.systems.engine.declaration import Entry
    from rlstep_hooks.systems.engine.request import Request
    from rlstep_hooks.systems.verl.early_deviations import Fact

ACTOR = "actor_rollout_ref.actor"
GROUP = "actor_rollout_ref.rollout.n"

_SHOWN: dict[str, Typed] = {
    "data.train_batch_size": count(1024),
    "data.shuffle": flag(None),
    GROUP: count(1),
    f"{ACTOR}.ppo_mini_batch_size": count(256),
    f"{ACTOR}.ppo_micro_batch_size": count(),
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": count(),
    f"{ACTOR}.use_dynamic_bsz": flag(False),
    f"{ACTOR}.ppo_epochs": count(1),
    f"{ACTOR}.use_kl_loss": flag(None),
    f"{ACTOR}.ulysses_sequence_parallel_size": count(1),
    "critic.ppo_mini_batch_size": count(),
    "critic.ppo_epochs": count(),
    "algorithm.adv_estimator": text("gae"),
    "trainer.n_gpus_per_node": count(8),
    "trainer.nnodes": count(1),
    "trainer.total_epochs": count(30),
    "trainer.total_training_steps": count(),
    "trainer.critic_warmup": count(0, least=-(1 << 31)),
}

SETTINGS: dict[str, Typed] = {
    **_SHOWN,
    "critic.ppo_micro_batch_size": count(),
    "critic.ppo_micro_batch_size_per_gpu": count(where="given(critic.ppo_micro_batch_size_per_gpu)"),
    "critic.use_dynamic_bsz": flag(None),
    "critic.ulysses_sequence_parallel_size": count(),
    "trainer.save_freq": count(-1, least=-1),
    "trainer.test_freq": count(-1, least=-1),
    TENSOR_PARALLEL: number(None),
}
"""All settings that the loop of verl 0.1 reads, with the defaults of verl/trainer/config/ppo_trainer.yaml in both forks."""

_STEP = "1 step = 1 rollout = {updates_per_rollout} update{'' if updates_per_rollout == 1 else 's'}"
_STEP_OF_CRITIC = "{' of the policy and ' + quoted(critic.updates_per_rollout) + ' of the critic' if critic else ''}"


def _microbatches(role: str, own: str, dynamic: str) -> dict[str, str]:
    """The micro-batches of a role.

    Args:
        role: "" for the policy, "critic." for the critic.
        own: Name of the samples of a micro-batch on one process.
        dynamic: Whether its worker cuts micro-batches by token counts.
    """
    name = role.replace(".", "_")
    return {
        f"{role}samples_per_microbatch": f"unknown('micro-batches are cut by token counts') if {dynamic} "
        f"else {own} * {role}world_size",
        f"{name}cut": f"microbatches({role}minibatches, {role}samples_per_microbatch)",
        f"{role}microbatches_per_rollout": f"sum({name}cut)",
        f"{role}microbatches_per_update": f"max({name}cut) if max({name}cut) == min({name}cut) "
        "else unknown('the last mini-batch of a pass is smaller')",
    }


_LET: dict[str, str] = {
    "asked": "asked_processes(launch)",
    # With `--world-size` there are as many GPUs as give the policy that many processes.
    "gpus": f"trainer.n_gpus_per_node * trainer.nnodes if asked is None else asked * {ACTOR}.ulysses_sequence_parallel_size",
    "processes": f"gpus // {ACTOR}.ulysses_sequence_parallel_size",
    # What the critic does not say is the policy's; its mini-batch is not multiplied by the samples of a prompt.
    "critic_processes": "gpus // (critic.ulysses_sequence_parallel_size or 1)",
    "critic_device": f"floor((critic.ppo_mini_batch_size or {ACTOR}.ppo_mini_batch_size) / critic.world_size)",
    "critic_dynamic": f"critic.use_dynamic_bsz if critic.use_dynamic_bsz is not None else {ACTOR}.use_dynamic_bsz",
    "minibatches": "split_minibatches(samples, device, world_size)",
    "critic.minibatches": "split_minibatches(samples, critic_device, critic.world_size)",
    **_microbatches("", "micro", f"{ACTOR}.use_dynamic_bsz"),
    **_microbatches("critic.", "critic_micro", "critic_dynamic"),
    "steps": "trainer.total_training_steps if trainer.total_training_steps is not None and known(available) else available",
    # A critic has no ratio.
    "critic.lags": "()",
    "critic.ratio_one_updates": "()",
    "critic.old_logprob_source": "old_logprob_source",
}


def _trains_something(role: str, device: str, processes: str, where: str = "") -> Check:
    return Check(
        f"{device} > 0",
        "RuntimeError in batch.split(0): a mini-batch of no samples",
        fix=f"choose {role}.ppo_mini_batch_size {{{processes}}} or larger",
        when="after the first rollout",
        source="workers/actor/dp_actor.py update_policy, workers/critic/dp_critic.py update_critic",
        where=where,
    )


def _has_processes(role: str, processes: str, where: str = "") -> Demand:
    sequence = f"{role}.ulysses_sequence_parallel_size"
    return Demand(
        f"{processes} > 0", f"{sequence} = {{{sequence}}} is more than all {{gpus}} GPUs", about=sequence, where=where
    )


def fork(
    *,
    name: str,
    title: str,
    version: str,
    recognised: tuple[Entry, ...],
    facts: tuple[Fact, ...],
    sizes: Mapping[str, str],
    let: Mapping[str, str],
    sources: Mapping[str, str],
    old_logprob_source: str,
    first: tuple[Check, ...] = (),
    of_policy: tuple[Check, ...],
    of_critic: tuple[Check, ...],
) -> System:
    """The declaration of a fork.

    Args:
        name: Name for `--framework`, and of its folder.
        title: The fork's name as people write it.
        version: The commit that was read.
        recognised: How its launches are recognised.
        facts: The deviations of the fork.
        sizes: `DIVIDED_FIRST` or `MULTIPLIED_FIRST` of the family.
        let: Quantities that it works out otherwise.
        sources: Where the fork computes "rollouts", "minibatches", "critic", "old_logprob_source" and "loader".
        old_logprob_source: Where the fork takes old log-probs from.
        first: What it refuses once it knows the algorithm.
        of_policy: What it refuses of the policy's micro-batches.
        of_critic: What it refuses of the critic's.
    """
    family = early_fork(
        name=name,
        title=title,
        version=version,
        source=f"{title} {version} verl",
        recognised=recognised,
        sizes=sizes,
        let={**_LET, **let},
        always={"step_means": _STEP + _STEP_OF_CRITIC, "critic.step_means": _STEP},
        formulas=(
            Formula("samples_per_rollout", "samples", sources["minibatches"]),
            # Where a rollout does not fill a mini-batch, it is one.
            Formula(
                "samples_per_update",
                "floor(samples / world_size) * world_size",
                sources["minibatches"],
                where="floor(samples / world_size) < device",
            ),
            Formula("samples_per_update", "device * world_size", sources["minibatches"]),
            # The FSDP workers make one pass; `ppo_epochs` is read by the Megatron workers only.
            Formula(
                "updates_per_rollout", "ceil(floor(samples_per_rollout / world_size) / device)", sources["minibatches"]
            ),
            Formula(
                "critic.samples_per_update",
                "floor(samples / critic.world_size) * critic.world_size",
                sources["critic"],
                where="floor(samples / critic.world_size) < critic_device",
            ),
            Formula("critic.samples_per_update", "critic_device * critic.world_size", sources["critic"]),
            Formula(
                "critic.updates_per_rollout",
                "ceil(floor(samples_per_rollout / critic.world_size) / critic_device)",
                sources["critic"],
            ),
            Formula("rollouts_per_epoch", "floor(rows / prompts)", sources["loader"]),
            # The counter starts at 1, is raised after a rollout and then compared, so that the last rollout never comes.
            Formula("rollouts", "min(available, max(steps - 1, 1))", sources["rollouts"]),
            Formula("lr_horizon", "steps", sources["rollouts"]),
            Formula("old_logprob_source", repr(old_logprob_source), sources["old_logprob_source"]),
        ),
    )

    def accepted_as_written(request: Request) -> bool:
        read(system, msgspec.structs.replace(request, world_size_given=None))
        return True

    system: System = msgspec.structs.replace(
        family,
        checkout=ENDS_EARLY,
        settings=SETTINGS,
        shown=tuple(_SHOWN),
        # What `--world-size` sets instead.
        resolved={
            "trainer.nnodes": "trainer.nnodes if asked is None else 1",
            "trainer.n_gpus_per_node": "trainer.n_gpus_per_node if asked is None else gpus",
        },
        functions={
            "accepted_as_written": accepted_as_written,
            "asked_processes": asked_processes,
            "microbatches": microbatches,
            "split_minibatches": split_minibatches,
        },
        # The checks of the two forks say themselves when a micro-batch must divide its mini-batch.
        let={
            key: value for key, value in family.let.items() if key not in ("old_logprob_source", "divides_microbatch")
        },
        checks=(
            # What the fork refuses of the launch as it is written is refused, whatever `--world-size` says.
            Demand(
                "accepted_as_written(launch)",
                "the launch is refused as it is written",
                where="asked is not None and not ends(program, '.sh')",
            ),
            Check(
                "algorithm.adv_estimator in ('gae', 'grpo')",
                "NotImplementedError",
                fix="choose algorithm.adv_estimator gae or grpo",
                when="at the start",
                source="trainer/ppo/ray_trainer.py RayPPOTrainer",
            ),
            *first,
            _has_processes(ACTOR, "processes"),
            *of_policy,
            _has_processes("critic", "critic_processes", where="critic"),
            *of_critic,
            SHARES_ENGINE,
            Check(
                "prompts % gpus == 0",
                "AssertionError: only support equal chunk. Got size of DataProto {prompts} and chunk {gpus}.",
                fix="choose data.train_batch_size as a multiple of {gpus}",
                when="at the first rollout",
                source="protocol.py DataProto.chunk",
            ),
            _trains_something(ACTOR, "device", "world_size"),
            Check(
                "rows >= prompts",
                "AssertionError",
                fix="{rows} rows do not fill a single rollout: choose data.train_batch_size {rows} or smaller",
                when="at the start",
                source="trainer/ppo/ray_trainer.py _create_dataloader: assert len(self.train_dataloader) >= 1",
            ),
            _trains_something("critic", "critic_device", "critic_processes", where="critic"),
        ),
        notes=tuple(
            Note(known.kind, f"{known.deviation.title}: {known.deviation.code}", known.when) for known in facts
        ),
        facts={
            # Both forks leave the learning-rate schedule constant unless warm-up is asked for.
            "lr_constant": "True",
            "minibatch_unit": "'prompts'",
            "nominal_updates_per_rollout": f"{ACTOR}.ppo_epochs * prompts / {ACTOR}.ppo_mini_batch_size",
            "save_every": "trainer.save_freq if trainer.save_freq > 0 else None",
            "eval_every": "trainer.test_freq if trainer.test_freq > 0 else None",
        },
        deviations=f"rlstep_hooks.systems.planned.{name}.deviations:DEVIATIONS",
    )
    return system
