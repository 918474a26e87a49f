"""AReaL: mini-batches by number, rollouts of a bounded age, one learning-rate tick a rollout.

Planned from commit 4aef98d (2026-05-21), and observed in areal 1.0.4, whose wheel has the same at these places:
areal/api/cli_args.py (defaults), areal/trainer/rl_trainer.py (`__init__`, `train`), areal/trainer/ppo/actor.py `_ppo_update`,
areal/utils/seqpack.py `ffd_allocate`, areal/utils/dataloader.py, areal/infra/staleness_manager.py,
areal/infra/workflow_executor.py `prepare_batch`.
"""

from __future__ import annotations

import re

from rlstep_hooks.planning.counting import countable
from rlstep_hooks.systems.engine.declaration import Check, Entry, Formula, Note, System, count, flag, number, text
from rlstep_hooks.systems.engine.links import no, none, yes
from rlstep_hooks.systems.trl.names import OF_TRL

_COMMIT = "AReaL 4aef98d"
_TRAINER = f"{_COMMIT} areal/trainer/rl_trainer.py"
_LOADER = f"{_COMMIT} areal/utils/dataloader.py create_dataloader"
_PACKING = f"{_COMMIT} areal/utils/seqpack.py ffd_allocate"


def _processes(backend: str | None, allocation: str | None) -> int | None:
    """Data-parallel processes of a role: the number behind "d" in its backend ("fsdp:d4p1t1"), or in the allocation of older releases,
    whose backend names no sizes ("fsdp")."""
    # "sglang:d4p1t1+d4p1t1": what generates, then what trains.
    for sizes in (backend or "", (allocation or "").rpartition("+")[2]):
        if match := re.search(r"(?<![a-z])d(\d+)|[ptce]\d+d(\d+)", sizes):
            return int(match.group(1) or match.group(2))
    return None


def _spread(samples: int, updates: int) -> tuple[int, ...]:
    """Samples of each update (`ffd_allocate`): the configured number of groups, since tokens are not limited here; sizes differ by
    at most one."""
    size, rest = divmod(samples, countable(updates))
    return (size + 1,) * rest + (size,) * (updates - rest)


SYSTEM = System(
    name="areal",
    title="AReaL",
    version="1.0.4",
    trains=("*PPO*Trainer*", "*GRPO*Trainer*", "*PPOActor*"),
    recognised=(
        Entry(
            "areal",
            programs=(
                "module:areal.launcher.*",
                "module:areal.infra.launcher.*",
                "script:gsm8k_grpo.py",
                "script:boba_grpo.py",
                "script:gsm8k_rl.py",
            ),
            keys=("actor.ppo_n_minibatches", "gconfig.n_samples"),
            never=OF_TRL,
        ),
    ),
    overrides=True,
    checkout="rlstep_hooks.systems.areal.checkout.beside:beside",
    rows_from=("train_dataset.path",),
    settings={
        "train_dataset.batch_size": count(1),
        "train_dataset.drop_last": flag(True),
        "train_dataset.shuffle": flag(True),
        "gconfig.n_samples": count(1),
        "actor.ppo_n_minibatches": count(4),
        "actor.recompute_logprob": flag(False),
        "actor.use_decoupled_loss": flag(False),
        "actor.prox_logp_method": text("recompute"),
        "actor.kl_ctl": number(0.1),
        "actor.optimizer.lr_scheduler_type": text("constant"),
        "actor.optimizer.warmup_steps_proportion": number(0.001),
        "actor.backend": text(),
        "critic.ppo_n_minibatches": count(4, where="critic"),
        "critic.backend": text(),
        "critic.path": text(),
        "ref.path": text(),
        "allocation_mode": text(),
        "rollout.max_head_offpolicyness": count(0, least=0),
        "actor.rejection_sampling.level": text("token"),
        "actor.rejection_sampling.action": text("mask"),
        "actor.rejection_sampling.metric": text("ratio"),
        "actor.rejection_sampling.lower": number(None),
        "actor.rejection_sampling.upper": number(5),
        "gconfig.top_p": number(1),
        "rollout.consumer_batch_size": count(1),
        "total_train_epochs": count(1),
        "total_train_steps": count(None),
        "dynamic_bs": flag(False),
        "saver.freq_steps": count(None),
        "evaluator.freq_steps": count(None),
    },
    functions={
        "processes_of": _processes,
        "spread": _spread,
        "world_size_given": lambda launch: launch.world_size_given is not None,
    },
    let={
        "prompts": "train_dataset.batch_size",
        "prompts_per_rollout": "prompts",
        "samples_per_prompt": "gconfig.n_samples",
        "processes": "processes_of(actor.backend, allocation_mode)",
        "critic": "given(critic.path) or given(critic.backend) or given(critic.ppo_n_minibatches)",
        "critic.world_size": "world_size if world_size_given(launch) "
        "else processes_of(critic.backend, allocation_mode) or world_size",
        "algorithm": "'PPO' if critic else 'GRPO'",
        "minibatches": "spread(samples_per_rollout, actor.ppo_n_minibatches)",
        "critic.minibatches": "spread(samples_per_rollout, critic.ppo_n_minibatches)",
        "fewest": "prompts // world_size * gconfig.n_samples",
        "fewest_of_critic": "prompts // critic.world_size * gconfig.n_samples",
        # The loader counts a smaller last batch, but each rollout waits for a full one: it takes the rest from the next pass.
        "loader": "'drops' if train_dataset.drop_last else 'wraps'",
        "batches": "floor(rows / train_dataset.batch_size) if train_dataset.drop_last else ceil(rows / train_dataset.batch_size)",
        "by_steps": "total_train_steps is not None and not known(rows)",
        "rows_reshuffled": "train_dataset.shuffle",
        "ahead": "(rollout.max_head_offpolicyness + 1) * rollout.consumer_batch_size",
        # `apply_rejection_sampling`: without it the decoupled loss has no weight to the sampler at all.
        "weighs": "given(actor.rejection_sampling.level) or given(actor.rejection_sampling.action) "
        "or given(actor.rejection_sampling.metric) or given(actor.rejection_sampling.lower) "
        "or given(actor.rejection_sampling.upper)",
        "correction": "'' if not actor.use_decoupled_loss and not actor.recompute_logprob "
        "else 'none' if not weighs else 'decoupled loss, ' + actor.rejection_sampling.action + ' by ' "
        "+ actor.rejection_sampling.level + ' ' + actor.rejection_sampling.metric + ' at most ' "
        "+ quoted(decimal(actor.rejection_sampling.upper))",
        "correction_inert": "'both log-probs are the recomputed ones without actor.use_decoupled_loss' "
        "if weighs and actor.recompute_logprob and not actor.use_decoupled_loss else ''",
        "correction_biased": "'gconfig.top_p = ' + quoted(decimal(gconfig.top_p)) "
        "if gconfig.top_p < 1 and correction != 'none' else ''",
        "max_age": "rollout.max_head_offpolicyness if rollout.consumer_batch_size == prompts "
        "else unknown('rollout.consumer_batch_size = ' + quoted(rollout.consumer_batch_size) + ' is not the ' + quoted(prompts) "
        "+ ' prompts of a rollout, so its bound does not hold')",
        # The clipped ratio is taken to the proximal policy of the decoupled loss, else to the sampler or a forward of its own.
        "own_forward": "actor.prox_logp_method != 'loglinear' if actor.use_decoupled_loss else actor.recompute_logprob",
        "old_logprob_source": "'recompute' if own_forward else 'engine'",
        "reference_source": "'at_rollout' if given(ref.path) and actor.kl_ctl > 0 else 'none'",
    },
    always={"remainder": "spread", "lr_clock": "rollout", "syncs": "after_updates"},
    formulas=(
        Formula(
            "samples_per_rollout",
            "train_dataset.batch_size * gconfig.n_samples",
            f"{_TRAINER} train (prepare_batch)",
        ),
        Formula(
            "updates_per_rollout",
            "actor.ppo_n_minibatches",
            f"{_COMMIT} areal/trainer/ppo/actor.py _ppo_update; {_PACKING}",
        ),
        Formula(
            "samples_per_update",
            "ceil(train_dataset.batch_size * gconfig.n_samples / actor.ppo_n_minibatches)",
            f"{_PACKING} (the largest; samples are spread)",
        ),
        Formula("rollouts", "limited(total_train_epochs * batches, total_train_steps)", f"{_TRAINER} train"),
        Formula("lr_ticks", "rollouts", f"{_TRAINER} train (step_lr_scheduler once a rollout)"),
        Formula("rollouts_per_epoch", "batches", _LOADER, where="train_dataset.drop_last"),
        # The horizon covers all epochs, even if the run ends earlier.
        Formula(
            "lr_horizon",
            "total_train_epochs * batches",
            f"{_TRAINER} __init__ (FinetuneSpec)",
            where="not by_steps",
        ),
        Formula(
            "critic.updates_per_rollout",
            "critic.ppo_n_minibatches",
            f"{_COMMIT} areal/trainer/ppo/critic.py _ppo_update",
        ),
    ),
    checks=(
        # Under a launcher each process has its own loader.
        Check(
            "prompts % world_size == 0",
            "batch size({prompts}) must be divisible by world_size({world_size})!",
            fix="train_dataset.batch_size = {multiples(prompts, world_size)}",
            when="at start-up, when the loader is made",
            source=_LOADER,
            where="'launcher' in program",
        ),
        *(
            Check(
                f"{fewest} >= {role}.ppo_n_minibatches",
                f"Number of values {{{fewest}}} is smaller than min_groups {{{role}.ppo_n_minibatches}}",
                fix=f"{{'{role}.ppo_n_minibatches = ' + quoted({fewest}) + ' or less' if {fewest} "
                f"else 'train_dataset.batch_size = ' + quoted({processes}) + ' or more'}}",
                when="after the first rollout, in the first update",
                source=_PACKING,
                where=where,
            )
            for role, fewest, processes, where in (
                ("actor", "fewest", "world_size", ""),
                ("critic", "fewest_of_critic", "critic.world_size", "critic"),
            )
        ),
    ),
    notes=(
        Note("unit", "ppo_n_minibatches is the number of updates of a rollout, not a size"),
        Note("carries", "up to {(max_age + 1) * prompts} prompts are sampled before the first update", "max_age"),
        Note(
            "assumes",
            "rollout.consumer_batch_size = {rollout.consumer_batch_size} is meant to be train_dataset.batch_size = {prompts}"
            "{': with ' + quoted(ahead) + ' prompts at a time the first rollout never gets full' if ahead < prompts else ''}",
            "not known(max_age)",
        ),
        Note(
            "shrinks",
            "samples do not divide: updates differ in size, in an order that depends on their lengths",
            "prompts % world_size or fewest % actor.ppo_n_minibatches",
        ),
        Note(
            "shrinks",
            "dynamic_bs: samples that are rejected are not replaced, so a rollout may be smaller",
            "dynamic_bs",
        ),
        Note(
            "carries",
            "a last batch that is smaller is filled with prompts of the next pass",
            "not train_dataset.drop_last",
        ),
    ),
    facts={
        "more_updates": "'actor.ppo_n_minibatches above 1'",
        "lr_constant": "actor.optimizer.lr_scheduler_type == 'constant'",
        "lr_warmup": "floor(actor.optimizer.warmup_steps_proportion * (rollouts if by_steps else lr_horizon))",
        "save_every": "saver.freq_steps",
        "eval_every": "evaluator.freq_steps",
    },
    package="areal",
    attaches_by="`with StepAuditAReaL(trainer) as audit:` around `trainer.train(...)`.",
    observed_releases=("1.0.4", "1.0.5"),
    trained_releases=("1.0.4",),
    observes=(
        "rollouts with the weights that drew each token",
        "old log-probs",
        "mini-batches, row by row",
        "updates",
        "syncs of weights",
        "learning rate",
    ),
    does_not_observe=(
        "engines in processes of their own (the single controller), several processes, devices",
        "the critic, the teacher, LoRA, Megatron and Archon",
        "weights that are sent otherwise than by files",
    ),
    links={
        "settings in force": yes(
            "of the policy's optimizer: its type, betas, epsilon, decay and what else it steps with, at each step",
            "not others: each number is compared with what the configuration gives; not adam_bf16",
        ),
        "completions": no("tokens are not tested against the distributions of the engine that draws them"),
        "completions on the way": yes(
            "tokens of prompts and completions, from what the rollout engine hands over to the loss", often="compared"
        ),
        "rewards on the way": yes(
            "from what the rollout engine hands over to the advantages",
            often="compared",
        ),
        "advantages": yes(
            "from the rewards, with reward_norm, the KL penalty of a reference, gae_lambda and adv_norm, in float64",
            "not with kl_ctl and no reference, overlong_reward_penalty, mask_no_eos_with_zero, nor where mean and deviation are of "
            "other levels, or prompts have other numbers of samples than their groups",
            often="compared",
        ),
        "advantages on the way": yes("from compute_advantages to the loss", often="compared"),
        "mask": yes(
            "that it counts the tokens that the engine drew",
            "in RLVRWorkflow alone",
            often="compared",
        ),
        "mask on the way": yes("to the loss", often="compared"),
        "loss": yes(
            "its value over the mini-batch",
            "not with rejection_sampling, m2_threshold, use_sapo_loss, ratios of sequences, or prox_logp_method=loglinear",
            often="compared",
        ),
        "backward": yes("by the gradients at the loss, and, where the loss is compared, at the log-probs of tokens"),
        "gradients cleared": yes("a probe after zero_grad"),
        "gradients on the way": yes(
            "eight tensors an update, from each backward pass to the step, as FSDP2 brings them to the optimizer",
            often="whole",
        ),
        "reduction": no("one process trains"),
        "gradient norm": yes("against gradient_clipping", often="whole"),
        "optimizer step": yes("AdamW and SGD of torch, replayed in float64", "not adam_bf16", often="compared"),
        "optimizer moments": yes("between a replayed step and the next", often="compared"),
        "learning rate": yes("that of the configured schedule, which ticks once a rollout"),
        "reference": yes(
            "a probe of its weights, and before the first update its log-probs beside the policy's, where both are of one path",
            "later its log-probs are not recomputed",
            often="compared",
        ),
        "reference on the way": no("they go into the advantages, which are compared"),
        "sampler": yes(
            "AReaL's number of the weights that drew each token, and, where log-probs are recomputed, the engine's beside those of "
            "the same weights",
            "not the engine's weights",
        ),
        "weights between updates": yes("a probe between updates, and all weights in some cycles"),
        "replicas": none("one process"),
    },
    rules={
        "RLS306": yes(
            "tokens of prompts and completions, from what the rollout engine hands over to the loss", often="compared"
        ),
        "RLS402": yes("by AReaL's number of the weights that drew each token"),
        "RLS403": yes(
            "the engine's log-probs beside those that the same weights recompute",
            "not without recomputed log-probs; no logits are read, so that no cause is told from another",
            often="compared",
        ),
        "RLS404": yes("the policy's weights"),
        "RLS411": yes("a probe of its weights", often="compared"),
        "RLS414": yes(
            "the first rollout of a run, where policy and reference are of one path, with recomputed log-probs"
        ),
        "RLS801": yes(
            "its value over the mini-batch",
            "not with rejection_sampling, m2_threshold, use_sapo_loss, ratios of sequences, or prox_logp_method=loglinear",
            often="compared",
        ),
    },
    knobs={
        "learning_rate": "actor.optimizer.lr",
        "gradient_limit": "actor.optimizer.gradient_clipping",
        "clip": "actor.eps_clip",
        "updates": "actor.ppo_n_minibatches",
        "group": "gconfig.n_samples",
        "temperature": "gconfig.temperature",
        "length": "total_train_steps",
        "age": "rollout.max_head_offpolicyness",
    },
)
