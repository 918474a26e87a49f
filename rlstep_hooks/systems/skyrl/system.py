"""SkyRL: sizes in prompts, mini-batches contiguous and in order, one learning-rate tick an update.

Planned from commit a956457 (2026-08-21), and observed in skyrl 0.3.0, whose wheel has the same at these places:
skyrl/train/config/config.py (defaults), skyrl/train/utils/utils.py `validate_batch_sizes`, skyrl/train/trainer.py (`train`,
`_execute_training_step`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.planning.reading import Conversion
from rlstep_hooks.systems.engine.declaration import (
    Check,
    Demand,
    Depends,
    Entry,
    Formula,
    Note,
    System,
    count,
    flag,
    number,
    program_assumed,
    text,
)
from rlstep_hooks.systems.engine.links import no, none, yes

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

_CONFIG = "SkyRL a956457 skyrl/train/config/config.py"
_TRAINER = "SkyRL a956457 skyrl/train/trainer.py"
_FULLY = "SkyRL a956457 skyrl/train/fully_async_trainer.py"
_ONE_AHEAD = "SkyRL a956457 examples/train/async/async_trainer.py:56-80,172-209 (one rollout is generated ahead)"
_CORRECTION = "trainer.algorithm.off_policy_correction"
_LOSS = "trainer.algorithm.policy_loss_type"


def _write(schedule: Schedule) -> Conversion:
    """A schedule as a launch of SkyRL."""
    from rlstep_hooks.planning.writing import Target

    target = Target(schedule, "SkyRL")
    target.whole_prompts()
    target.divides_evenly()
    minibatch = target.prompts_per_update()
    command = [
        "python", "-m", "skyrl.train.entrypoints.main_base",
        f"trainer.train_batch_size={target.prompts}",
        f"generator.n_samples_per_prompt={schedule.samples_per_prompt}",
        f"trainer.policy_mini_batch_size={minibatch}",
        f"trainer.update_epochs_per_batch={schedule.reuse_epochs}",
        f"trainer.micro_train_batch_size_per_gpu={target.microbatch_per_process()}",
        f"trainer.placement.policy_num_gpus_per_node={schedule.world_size}",
        *(f"trainer.epochs={epochs}" for epochs in [target.passes_of_rows()] if epochs),
        *(f"trainer.max_training_steps={schedule.rollouts}" for _ in [0] if schedule.rollouts),
    ]  # fmt: skip
    target.keeps(lr_clock="update", source="recompute", critic=False, loader="drops")
    return Conversion(tuple(command), target.lost())


def _sizes(role: str, where: str) -> tuple[Check | Demand, ...]:
    """What `validate_batch_sizes` requires of the sizes of a role. Before that, the GPUs must hold whole copies of the model."""
    size, micro = f"trainer.{role}_mini_batch_size", "trainer.micro_train_batch_size_per_gpu"
    prompts = "trainer.train_batch_size"
    when = "at start-up, when the configuration is checked"
    source = "SkyRL a956457 skyrl/train/utils/utils.py validate_batch_sizes"
    return (
        Demand(
            f"{role}_gpus % {role}_copy == 0",
            f"{{{role}_gpus}} GPUs of the {role} cannot be shared by copies of the model on {{{role}_copy}} each",
            about=f"trainer.placement.{role}_num_gpus_per_node",
            where=where,
        ),
        Check(
            f"{prompts} >= {size}",
            f"assert cfg.{prompts} >= cfg.{size} ({{{prompts}}} < {{{size}}})",
            fix=f"{size} counts prompts, not samples; the largest that is accepted is {{{prompts}}}",
            when=when,
            source=source,
            where=where,
        ),
        Check(
            f"{prompts} % {size} == 0",
            f"train_batch_size {{{prompts}}} should be divisible by {role}_mini_batch_size {{{size}}}",
            fix=f"{size} = {{nearest({size}, it <= {prompts} and {prompts} % it == 0)}}",
            when=when,
            source=source,
            where=where,
        ),
        Check(
            f"by_tokens or {role}_share > 0 and {role}_share % {micro} == 0",
            f"normalized {role}_mini_batch_size_per_gpu {{{role}_share}} should be divisible by "
            f"micro_train_batch_size_per_gpu {{{micro}}}",
            fix=f"{micro} = {{nearest({micro}, gcd(it, {role}_share) == it)}}",
            when=when,
            source=source,
            where=where,
        ),
    )


def _fully_asynchronous(holds: str, says: str, fix: str, line: int) -> Check:
    """What `FullyAsyncRayPPOTrainer.__init__` asserts."""
    return Check(
        holds, says, fix=fix, when="at start-up, when the trainer is made", source=f"{_FULLY}:{line}", where="fully"
    )


_WORKERS = "trainer.fully_async.num_parallel_generation_workers"
_AHEAD = "trainer.policy_mini_batch_size * (trainer.fully_async.max_staleness_steps + 1)"
_OF_FULLY_ASYNCHRONOUS = (
    _fully_asynchronous(
        f"trainer.policy_mini_batch_size <= {_WORKERS} and {_WORKERS} <= {_AHEAD}",
        "Invalid num_parallel_generation_workers, the following must hold: mini_batch_size <= num_parallel_generation_workers <= "
        f"mini_batch_size * (max_staleness_steps + 1). Got: {{trainer.policy_mini_batch_size}}, {{{_WORKERS}}}",
        f"{_WORKERS} = {{{_AHEAD}}}",
        353,
    ),
    _fully_asynchronous(
        "trainer.fully_async.enabled",
        "trainer.fully_async.enabled must be True when using the fully async trainer.",
        "trainer.fully_async.enabled=true",
        374,
    ),
    _fully_asynchronous(
        "trainer.train_batch_size == trainer.policy_mini_batch_size",
        "train_batch_size must equal policy_mini_batch_size for fully async training",
        "trainer.train_batch_size = {trainer.policy_mini_batch_size}",
        377,
    ),
    _fully_asynchronous(
        "not generator.batched",
        "batched is not supported for fully async training since a batched generate() call does not support pause/continue.",
        "generator.batched=false",
        388,
    ),
    _fully_asynchronous(
        "not trainer.placement.colocate_all",
        "colocate_all is not supported for async training yet.",
        "trainer.placement.colocate_all=false",
        392,
    ),
    _fully_asynchronous(
        "to_sampler",
        f"Found trainer.algorithm.policy_loss_type={{{_LOSS}}}: Fully async training should use rollout logprobs (i.e. rollout_is, "
        "dppo, or cispo with cispo.cispo_anchor='rollout') instead of recomputing logprobs",
        f"{_LOSS} = rollout_is",
        399,
    ),
)

SYSTEM = System(
    name="skyrl",
    title="SkyRL",
    version="0.3.0",
    trains=("*Exp", "*PPOTrainer", "main_base"),
    recognised=(
        Entry(
            "skyrl",
            programs=(
                "module:skyrl_train.entrypoints.*",
                "module:skyrl.train.entrypoints.*",
                "module:examples.*.main_*",
            ),
            keys=(
                "trainer.policy_mini_batch_size",
                "trainer.update_epochs_per_batch",
                "generator.n_samples_per_prompt",
            ),
        ),
    ),
    overrides=True,
    checkout="rlstep_hooks.systems.skyrl.checkout.beside:beside",
    rows_from=("data.train_data",),
    settings={
        "trainer.train_batch_size": count(1024),
        "trainer.policy_mini_batch_size": count(256),
        "trainer.critic_mini_batch_size": count(256, where="critic"),
        "trainer.micro_train_batch_size_per_gpu": count(1),
        "trainer.update_epochs_per_batch": count(1),
        "trainer.epochs": count(1),
        "trainer.max_training_steps": count(None),
        "trainer.max_tokens_per_microbatch": count(-1, least=-1),
        "trainer.ckpt_interval": count(10, least=-1),
        "trainer.eval_interval": count(5, least=-1),
        "trainer.algorithm.advantage_estimator": text("grpo"),
        "trainer.algorithm.use_kl_loss": flag(True),
        "trainer.algorithm.use_kl_in_reward": flag(False),
        "trainer.policy.optimizer_config.scheduler": text("constant_with_warmup"),
        "trainer.policy.optimizer_config.num_warmup_steps": count(0, least=0),
        "trainer.policy.sequence_parallel_size": count(1),
        "trainer.critic.sequence_parallel_size": count(1, where="critic"),
        "trainer.placement.policy_num_nodes": count(1),
        "trainer.placement.policy_num_gpus_per_node": count(1),
        "trainer.placement.critic_num_nodes": count(1, where="critic"),
        "trainer.placement.critic_num_gpus_per_node": count(1, where="critic"),
        "trainer.policy.megatron_config.tensor_model_parallel_size": count(1),
        "trainer.policy.megatron_config.pipeline_model_parallel_size": count(1),
        "trainer.policy.megatron_config.context_parallel_size": count(1),
        "trainer.critic.megatron_config.tensor_model_parallel_size": count(where="critic"),
        "trainer.critic.megatron_config.pipeline_model_parallel_size": count(where="critic"),
        "trainer.critic.megatron_config.context_parallel_size": count(where="critic"),
        "trainer.critic.model.path": text(None),
        "generator.n_samples_per_prompt": count(5),
        "generator.step_wise_trajectories": flag(False),
        "trainer.fully_async.max_staleness_steps": count(4, least=0, where="fully"),
        "trainer.fully_async.num_parallel_generation_workers": count(768, where="fully"),
        "trainer.fully_async.enabled": flag(where="fully"),
        "trainer.fully_async.sample_full_batch": flag(where="fully"),
        "trainer.algorithm.dynamic_sampling.type": text(None, where="not fully"),
        "trainer.placement.colocate_all": flag(True, where="fully or one_ahead"),
        "generator.batched": flag(where="fully"),
        _LOSS: text("regular"),
        "trainer.algorithm.cispo.cispo_anchor": text("old", where="trainer.algorithm.policy_loss_type == 'cispo'"),
        f"{_CORRECTION}.tis_ratio_type": text(None),
        f"{_CORRECTION}.token_tis_ratio_clip_high": number(2, where="tis == 'token'"),
        f"{_CORRECTION}.sequence_tis_ratio_clip_high": number(5, where="tis == 'sequence'"),
        f"{_CORRECTION}.sequence_mask_metric": text(None),
        # Older names: a type of "token", with its bound.
        "trainer.algorithm.use_tis": flag(),
        "trainer.algorithm.tis_imp_ratio_cap": number(-1, where="trainer.algorithm.use_tis"),
        "generator.sampling_params.top_p": number(),
    },
    let={
        **{
            f"{role}_gpus": f"trainer.placement.{role}_num_nodes * trainer.placement.{role}_num_gpus_per_node"
            for role in ("policy", "critic")
        },
        # GPUs that hold one copy of the model.
        **{
            f"{role}_copy": f"trainer.{role}.sequence_parallel_size"
            f" * (trainer.{role}.megatron_config.tensor_model_parallel_size or 1)"
            f" * (trainer.{role}.megatron_config.pipeline_model_parallel_size or 1)"
            f" * (trainer.{role}.megatron_config.context_parallel_size or 1)"
            for role in ("policy", "critic")
        },
        "processes": "policy_gpus // policy_copy",
        "critic.world_size": "critic_gpus // critic_copy",
        "policy_share": "samples_per_update // world_size",
        "critic_share": "critic.samples_per_update // critic.world_size",
        "by_tokens": "trainer.max_tokens_per_microbatch > 0",
        "critic": "trainer.critic.model.path is not None",
        "critic.algorithm": "upper(trainer.algorithm.advantage_estimator)",
        "algorithm": "'PPO' if critic else critic.algorithm",
        "prompts_per_rollout": "trainer.train_batch_size",
        "samples_per_prompt": "generator.n_samples_per_prompt",
        "reuse_epochs": "trainer.update_epochs_per_batch",
        "samples_per_microbatch": "None if by_tokens else trainer.micro_train_batch_size_per_gpu * world_size",
        "critic.samples_per_microbatch": "None if by_tokens else trainer.micro_train_batch_size_per_gpu * critic.world_size",
        "fully": "'fully_async' in program",
        "one_ahead": "ends(program, '.main_async')",
        # Losses whose ratio is taken to the sampler's log-probs (`rollout_is`, `dppo`; ppo_utils.py:464-476, 755-776).
        "to_sampler": f"{_LOSS} in ('rollout_is', 'dppo') or {_LOSS} == 'cispo' "
        "and trainer.algorithm.cispo.cispo_anchor == 'rollout'",
        "old_logprob_source": "'engine' if to_sampler else 'recompute'",
        "tis": f"'token' if trainer.algorithm.use_tis else {_CORRECTION}.tis_ratio_type",
        "cap": "trainer.algorithm.tis_imp_ratio_cap if trainer.algorithm.use_tis "
        f"else {_CORRECTION}.token_tis_ratio_clip_high if tis == 'token' else {_CORRECTION}.sequence_tis_ratio_clip_high",
        "mask": f"{_CORRECTION}.sequence_mask_metric",
        "correction": "'' if to_sampler or tis is None and mask is None and max_age == 0 "
        "else tis + ' importance weights, at most ' + quoted(decimal(cap)) if tis is not None "
        "else 'sequences masked by the ' + mask + ' of their weights' if mask is not None else 'none'",
        "correction_inert": "'trainer.algorithm.tis_imp_ratio_cap = ' + quoted(decimal(cap)) + ' makes every weight that number' "
        "if tis is not None and cap <= 0 else ''",
        "correction_biased": "'generator.sampling_params.top_p = ' + quoted(decimal(generator.sampling_params.top_p)) "
        "if given(generator.sampling_params.top_p) "
        "and generator.sampling_params.top_p < 1 and (to_sampler or correction not in ('', 'none')) else ''",
        "samples_again": "not fully and trainer.algorithm.dynamic_sampling.type is not None",
        "refills": "fully and trainer.fully_async.sample_full_batch",
        "rows_bound": "'data_dependent' if samples_again or refills else 'exact'",
        "reference_source": "'at_rollout' if trainer.algorithm.use_kl_loss or trainer.algorithm.use_kl_in_reward else 'none'",
    },
    always={"loader": "drops", "syncs": "first_and_after_updates"},
    formulas=(
        Formula(
            "samples_per_rollout",
            "trainer.train_batch_size * generator.n_samples_per_prompt",
            f"{_CONFIG} GeneratorConfig.n_samples_per_prompt",
        ),
        *(
            formula
            for role, of in (("policy", ""), ("critic", "critic."))
            for formula in (
                Formula(
                    f"{of}updates_per_rollout",
                    f"trainer.update_epochs_per_batch * trainer.train_batch_size / trainer.{role}_mini_batch_size",
                    f"{_TRAINER} _execute_training_step",
                ),
                Formula(
                    f"{of}samples_per_update",
                    f"trainer.{role}_mini_batch_size * generator.n_samples_per_prompt",
                    f"{_CONFIG} TrainerConfig.{role}_mini_batch_size",
                ),
            )
        ),
        Formula(
            "rows_reshuffled",
            "True",
            "SkyRL a956457 skyrl/train/utils/trainer_utils.py:855 build_dataloader (shuffle=True)",
        ),
        Formula("rollouts_per_epoch", "floor(rows / trainer.train_batch_size)", f"{_TRAINER} train (drop_last)"),
        Formula(
            "rollouts", "limited(trainer.epochs * rollouts_per_epoch, trainer.max_training_steps)", f"{_TRAINER} train"
        ),
        Formula("updates", "rollouts * updates_per_rollout", f"{_TRAINER} train"),
        # At most (max_staleness_steps + current step) * mini-batch groups are under way; no group is dropped because of its age.
        Formula(
            "max_age", "trainer.fully_async.max_staleness_steps", f"{_FULLY}:118-130,184 (a capacity)", where="fully"
        ),
        Formula("max_age", "1", _ONE_AHEAD, where="one_ahead"),
        Formula("max_age", "0", f"{_TRAINER} train (generates with the weights that train)"),
    ),
    checks=(
        # skyrl-train 0.2 cuts what comes of it into updates of a fixed size, so their number depends on the run too
        # (skyrl_train/workers/worker.py ppo_train); SkyRL a956457 cuts by prompts (dataset/preprocess.py).
        Demand(
            "not generator.step_wise_trajectories",
            "with generator.step_wise_trajectories each turn of a conversation is a sample of its own "
            "(generators/skyrl_gym_generator.py generate): how many samples a rollout and its updates have, only the run knows",
            about="generator.step_wise_trajectories",
        ),
        *_sizes("policy", where=""),
        *_sizes("critic", where="critic"),
        *_OF_FULLY_ASYNCHRONOUS,
        Check(
            "not trainer.placement.colocate_all",
            "assert not self.colocate_all, 'colocate_all is not supported for async training'",
            fix="trainer.placement.colocate_all=false",
            when="at the beginning of training",
            source="SkyRL a956457 examples/train/async/async_trainer.py train",
            where="one_ahead",
        ),
    ),
    depends=(
        Depends(
            on="samples_again",
            says="trainer.algorithm.dynamic_sampling: a rollout takes as many batches of the loader as it needs prompts whose rewards "
            "differ",
            counts=("rollouts_per_epoch", "rollouts"),
            source=f"{_TRAINER}:372-377 train (continue), skyrl/train/utils/trainer_utils.py handle_dynamic_sampling",
        ),
        Depends(
            on="refills",
            says="trainer.fully_async.sample_full_batch: groups that all score the same are dropped, and a pass over the rows may end "
            "early",
            counts=("rollouts_per_epoch", "rollouts"),
            source=f"{_FULLY}:512-527",
        ),
    ),
    notes=(
        program_assumed("main_base", "not fully and not one_ahead"),
        Note("unit", "train_batch_size and policy_mini_batch_size count prompts, not samples"),
        Note(
            "assumes",
            "a group that takes longer than max_staleness_steps = {trainer.fully_async.max_staleness_steps} to generate is trained all "
            "the same: the setting limits how many groups are under way, and drops none",
            "fully",
        ),
        Note(
            "drops",
            "sample_full_batch: groups that all score the same are dropped and replaced; a pass over the rows has fewer rollouts",
            "refills",
        ),
    ),
    facts={
        "more_updates": "'trainer.update_epochs_per_batch above 1, or trainer.policy_mini_batch_size below trainer.train_batch_size,'",
        "lr_constant": "starts(trainer.policy.optimizer_config.scheduler, 'constant')",
        "lr_warmup": "trainer.policy.optimizer_config.num_warmup_steps",
        "save_every": "trainer.ckpt_interval",
        "eval_every": "trainer.eval_interval",
        "correct_by": "'trainer.algorithm.off_policy_correction.tis_ratio_type=token'",
    },
    writes=_write,
    package="skyrl",
    deviations="rlstep_hooks.systems.skyrl.deviations:DEVIATIONS",
    attaches_by="`with StepAuditSkyRL(trainer) as audit:` around `asyncio.run(trainer.train())`.",
    observed_releases=("0.3.0", "0.3.1"),
    trained_releases=("0.3.0",),
    observes=(
        "rollouts with the weights that sampled them",
        "old log-probs",
        "micro-batches, row by row",
        "updates",
        "syncs of weights",
        "learning rate",
    ),
    does_not_observe=(
        "several policy workers, devices, bfloat16",
        "fully asynchronous training, dynamic sampling, turns as samples of their own",
        "the critic, LoRA, Megatron and JAX",
        "the engine and its environments: what the generator hands over is taken as it is",
    ),
    links={
        "settings in force": yes(
            "of the policy's optimizer: its type, betas, decay and what else it steps with, at each step",
            "not others: each number is compared with what the configuration gives",
        ),
        "completions": no("tokens are not tested against the distributions of the engine that draws them"),
        "completions on the way": yes(
            "tokens of prompts and completions, from what the generator hands over to the loss", often="compared"
        ),
        "rewards on the way": yes(
            "from what the generator hands over to the advantages", "not with use_kl_in_reward", often="compared"
        ),
        "advantages": yes(
            "from the rewards, by GRPO, RLOO and REINFORCE++, with the KL penalty of use_kl_in_reward, in float64",
            "not by maxrl, nor with an adaptive coefficient of the penalty",
            often="compared",
        ),
        "advantages on the way": yes(
            "from compute_advantages_and_returns to the loss, divided by any documented loss_reduction: that it is the configured one "
            "shows in the loss",
            "not with advantage_batch_normalize",
            often="compared",
        ),
        "mask": yes(
            "that it counts the tokens that the engine drew",
            "in SkyRLGymGenerator with one turn alone, and not with filters",
            often="compared",
        ),
        "mask on the way": yes("to the loss", often="compared"),
        "loss": yes(
            "its value over each micro-batch, with the KL term and each loss_reduction",
            "not with off_policy_correction, use_entropy_loss or advantage_batch_normalize",
            often="compared",
        ),
        "backward": yes("by the gradients at the loss, and, where the loss is compared, at the log-probs of tokens"),
        "gradients cleared": yes("a probe before the first backward of an update"),
        "gradients on the way": yes(
            "eight tensors an update, from each backward pass to the step, as FSDP2 brings them to the optimizer",
            often="whole",
        ),
        "reduction": no("one process trains"),
        "gradient norm": yes("against max_grad_norm", often="whole"),
        "optimizer step": yes("AdamW of torch, replayed in float64", often="compared"),
        "optimizer moments": yes("between a replayed step and the next", often="compared"),
        "learning rate": yes("that of the configured schedule, which ticks once an update"),
        "reference": yes(
            "a probe of its weights, and before the first update its log-probs beside the policy's, where both are of one path",
            "later its log-probs are not recomputed",
            often="compared",
        ),
        "reference on the way": yes("log-probs of the reference, to the loss with use_kl_loss", often="compared"),
        "sampler": yes(
            "SkyRL's number of the engine's weights, and the engine's log-probs beside the recomputed ones of the same weights",
            "not the engine's weights",
        ),
        "weights between updates": yes("a probe between updates, and all weights in some cycles"),
        "replicas": none("one process"),
    },
    rules={
        "RLS306": yes(
            "tokens of prompts and completions, from what the generator hands over to the loss", often="compared"
        ),
        "RLS402": yes("by SkyRL's number of the engine's weights, and by what was sent"),
        "RLS403": yes(
            "the engine's log-probs beside those that the same weights recompute",
            "not with sampling_params.logprobs left out; no logits are read, so that no cause is told from another",
            often="compared",
        ),
        "RLS404": yes("the policy's weights"),
        "RLS411": yes("a probe of its weights", often="compared"),
        "RLS414": yes("the first rollout of a run, where policy and reference are of one path"),
        "RLS509": yes("rows by the names that PromptDataset gives them", "not data sets of one's own"),
        "RLS801": yes(
            "its value over each micro-batch, with the KL term and each loss_reduction",
            "not with off_policy_correction, use_entropy_loss or advantage_batch_normalize",
            often="compared",
        ),
    },
    knobs={
        "learning_rate": "trainer.policy.optimizer_config.lr",
        "gradient_limit": "trainer.policy.optimizer_config.max_grad_norm",
        "clip": "trainer.algorithm.eps_clip_low",
        "updates": "trainer.policy_mini_batch_size",
        "group": "generator.n_samples_per_prompt",
        "temperature": "generator.sampling_params.temperature",
        "length": "trainer.max_training_steps",
    },
)
