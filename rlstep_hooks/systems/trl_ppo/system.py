"""TRL's PPOTrainer and PPOv2Trainer, and its RLOOTrainer up to 0.21: one prompt batch a rollout, accelerate's accumulation within.

Read in the wheels of 0.9.6, 0.10.1, 0.11.4, 0.12.2, 0.13.0, 0.14.0, 0.15.2, 0.16.1, 0.17.0, 0.18.2, 0.21.0, 0.24.0
(trl/trainer/ppov2_trainer.py, ppo_trainer.py, rloo_trainer.py), 1.0.0 and 1.12.0 (trl/experimental/ppo/ppo_trainer.py): `__init__` for
the sizes, `train` for the loops. PPOTrainer 0.24.0 was run with accelerate 1.15.0 to count its updates. Defaults: TrainingArguments,
OnPolicyConfig and PPOConfig, the same in all releases.
"""

from __future__ import annotations

from rlstep_hooks.planning.accumulation import carried_lags, flushed_lags, windows_of
from rlstep_hooks.systems.engine.declaration import (
    Check,
    Demand,
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
from rlstep_hooks.systems.engine.links import limited, no, yes
from rlstep_hooks.systems.engine.remarks import ADAPTER_OFF, has_adapter
from rlstep_hooks.systems.trl.releases import FIRST
from rlstep_hooks.systems.trl_ppo.launch import flush, is_rloo, pieces, updates_of_run
from rlstep_hooks.systems.trl_ppo.releases import FIRST_UNSUPPORTED

_INIT = "{trainer} __init__"
_TRAIN = "{trainer} train"
_BUILT = "when the trainer is built"
_LOCAL = "per_device_train_batch_size * gradient_accumulation_steps"
_EVERY_MICROBATCH = "every micro-batch is an update, {microbatches_per_rollout} in all (accelerate without DeepSpeed)"


def _whole(size: str, name: str) -> Check:
    """Whole mini-batches; up to 0.16 and in RLOO they always are."""
    return Check(
        f"{size} % num_mini_batches == 0",
        f"`{name}` must be a multiple of `num_mini_batches`, inexact division: {{{size}}} / {{num_mini_batches}} = "
        f"{{decimal({size} / num_mini_batches)}}",
        fix="num_mini_batches = {nearest(min(num_mini_batches, local_batch + 1), local_batch % it == 0)}",
        when=_BUILT,
        source=_INIT,
    )


_STEPS = limited("DeepSpeed's engine steps where nobody looks, so it is not evaluated")

SYSTEM: System = System(
    name="trl_ppo",
    title="TRL PPO",
    framework="TRL",
    version="0.24.0",
    releases=("0.9", "1.13"),
    other_releases="1.13 has no PPOTrainer",
    package="trl",
    commits="trl/commits.json",
    trainers=dict.fromkeys(("PPOTrainer", "PPOv2Trainer", "RLOOTrainer"), ("get_train_dataloader", "train")),
    recognised=(
        Entry(
            "trl_ppo",
            programs=("script:scripts/ppo/*.py", "script:ppo_tldr.py", "script:rloo_tldr.py"),
            keys=(
                "num_ppo_epochs",
                "rloo_k",
                "PPOConfig.num_ppo_epochs",
                "PPOConfig.num_mini_batches",
                "PPOConfig.total_episodes",
                "PPOConfig.per_device_train_batch_size",
                "PPOv2Config.num_ppo_epochs",
                "PPOv2Config.num_mini_batches",
                "PPOv2Config.total_episodes",
                "RLOOConfig.rloo_k",
                "RLOOConfig.num_ppo_epochs",
            ),
            packages=("trl",),
        ),
    ),
    keywords_of=("PPOConfig", "PPOv2Config", "RLOOConfig"),
    settings={
        "per_device_train_batch_size": count(8),
        "per_device_eval_batch_size": count(8),
        "gradient_accumulation_steps": count(1),
        "num_mini_batches": count(1),
        "num_ppo_epochs": count(4),
        "rloo_k": count(2, where="rloo"),
        "total_episodes": count(None),
        "num_train_epochs": number(3.0),
        "num_sample_generations": count(10, least=-(1 << 30)),
        # Rows of a live trainer's evaluation set; no flag has them.
        "eval_rows": count(None, least=0),
        "whiten_rewards": flag(False),
        "eval_strategy": text("no"),
        "lr_scheduler_type": text("linear"),
        "warmup_steps": number(0),
        "warmup_ratio": number(0.0),
        "save_strategy": text("steps"),
        "save_steps": number(500),
    },
    shown=(
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_mini_batches",
        "num_ppo_epochs",
        "total_episodes",
        "num_train_epochs",
        "num_sample_generations",
        "rloo_k",
    ),
    functions={
        "has_adapter": has_adapter,
        "is_rloo": lambda launch: is_rloo(launch, SYSTEM.settings),
        "pieces": pieces,
        "windows": windows_of,
        "carried_lags": carried_lags,
        "flushed_lags": flushed_lags,
        "flush": flush,
        "updates_of_run": updates_of_run,
    },
    let={
        "rloo": "is_rloo(launch)",
        "algorithm": "'RLOO' if rloo else 'PPO'",
        "trainer": "'trl ' + version + ' trl/' + ('trainer/rloo' if rloo else 'experimental/ppo/ppo' if release >= (1, 0) "
        "else 'trainer/ppo' if release >= (0, 12) else 'trainer/ppov2') + '_trainer.py'",
        "samples_per_prompt": "rloo_k if rloo else 1",
        # One process's share of a rollout, and its mini-batches, each of which is cut into micro-batches on its own.
        "local_batch": "samples_per_rollout // world_size",
        "local_minibatch": "local_batch // num_mini_batches",
        "pieces": "pieces(local_minibatch * world_size, per_device_train_batch_size * world_size, num_mini_batches)",
        "samples_per_microbatch": "max(pieces) if max(pieces) == min(pieces) else None",
        "microbatches_per_rollout": "num_ppo_epochs * len(pieces)",
        "microbatches_per_update": "gradient_accumulation_steps",
        "reuse_epochs": "num_ppo_epochs",
        "minibatches": "windows(pieces, gradient_accumulation_steps)",
        "samples_per_update": "max(minibatches) if minibatches "
        "else samples_per_microbatch * gradient_accumulation_steps if samples_per_microbatch else None",
        "carries": "microbatches_per_rollout % gradient_accumulation_steps",
        "flushes": "gradient_accumulation_steps > 1",
        "remainder": "'carry' if carries else 'flush' if flushes else 'error'",
        # total_episodes counts samples; without it they are as many as the rows of all epochs.
        "episodes": "floor(num_train_epochs * rows) if total_episodes is None else total_episodes",
        "rows_dropped_per_epoch": "rows % prompts_per_rollout",
        # Completions are sampled for the logs between rollouts, from the evaluation set.
        "sampled": "num_sample_generations > 0 and rollouts > 0",
        "script": "'/' + program if program_kind == 'script' else ''",
        "evaluation_rows": "eval_rows if eval_rows is not None "
        "else 100 if ends(script, '/scripts/ppo/ppo.py') or ends(script, '/scripts/rloo/rloo.py') "
        "else 0 if (ends(script, '/ppo_tldr.py') or ends(script, '/rloo_tldr.py')) and eval_strategy == 'no' "
        "else unknown('the last rollout of a pass makes more updates, unless completions were sampled from the evaluation set "
        "before; the rows of that set are not known (num_sample_generations = 0 settles it)')",
        "evaluation_batches": "evaluation_rows // per_device_eval_batch_size // world_size if sampled else 0",
        "flush_of_run": "flush(rollouts_per_epoch, max(1, rollouts // max(num_sample_generations, 1)), evaluation_batches)",
        "flush": "flush_of_run if flushes and known(updates) and known(rollouts_per_epoch) and rollouts_per_epoch else None",
        "flushes_known": "flushes and known(updates)",
        "lags": "carried_lags(microbatches_per_rollout, gradient_accumulation_steps) "
        "if known(updates) and updates <= rollouts * updates_per_rollout "
        "else flushed_lags(microbatches_per_rollout, gradient_accumulation_steps)",
        "ratio_one_updates": "(1,)",
        "lr_horizon": "rollouts",
    },
    always={
        "loader": "wraps",
        "old_logprob_source": "at_rollout",
        "reference_source": "at_rollout",
        "lr_clock": "rollout",
        "step_unit": "rollout",
    },
    formulas=(
        # Up to 0.16, and in RLOO, num_mini_batches makes the rollout larger; from 0.17 on it divides it (trl PR#2531).
        Formula(
            "samples_per_rollout", f"{_LOCAL} * num_mini_batches * world_size", _INIT, where="rloo or release < (0, 17)"
        ),
        Formula("samples_per_rollout", f"{_LOCAL} * world_size", _INIT),
        Formula("prompts_per_rollout", "samples_per_rollout / rloo_k", _INIT, where="rloo"),
        Formula("prompts_per_rollout", "samples_per_rollout", _INIT),
        Formula(
            "updates_per_rollout",
            "num_ppo_epochs * num_mini_batches",
            f"{_TRAIN}; accelerate accelerator.py _do_sync",
            where="rloo or release < (0, 17)",
        ),
        Formula(
            "updates_per_rollout",
            "num_ppo_epochs * num_mini_batches * ceil(gradient_accumulation_steps / num_mini_batches) "
            "/ gradient_accumulation_steps",
            f"{_TRAIN}; accelerate accelerator.py _do_sync",
        ),
        Formula("rollouts_per_epoch", "floor(rows / prompts_per_rollout)", f"{_INIT} (drop_last)"),
        Formula("rows_reshuffled", "True", f"{_INIT} (shuffle=True)"),
        Formula("rollouts", "floor(episodes / samples_per_rollout)", _INIT, where="release < (0, 10)"),
        Formula("rollouts", "ceil(episodes / samples_per_rollout)", _INIT),
        Formula(
            "updates",
            "rollouts * updates_per_rollout",
            f"{_TRAIN}; accelerate _do_sync",
            where="not flushes or rollouts == 0",
        ),
        Formula(
            "updates",
            "rollouts * updates_per_rollout "
            "+ floor(rollouts / rollouts_per_epoch) * updates_per_rollout * (gradient_accumulation_steps - 1)",
            f"{_TRAIN}; accelerate _do_sync",
            where="not carries and evaluation_batches == 0 and known(rows)",
        ),
        Formula(
            "updates",
            "updates_of_run(microbatches_per_rollout, gradient_accumulation_steps, flush_of_run, rollouts)",
            f"{_TRAIN}; accelerate _do_sync",
        ),
        Formula("lr_ticks", "rollouts", _TRAIN),
    ),
    checks=(
        Demand(
            "release < (0, 22)",
            "RLOO of TRL {version} has no rloo_k any more: --version 0.21.0 reads this launch, --framework trl later ones",
            where="rloo",
        ),
        _whole("samples_per_rollout", "batch_size"),
        _whole("local_batch", "local_batch_size"),
        Check(
            "local_minibatch >= 8",
            "Per-rank minibatch size {local_minibatch} is insufficient for whitening",
            fix="8 samples or more for each process and mini-batch, or whiten_rewards = false",
            when=_BUILT,
            source=_INIT,
            where="whiten_rewards and (not rloo or release < (0, 10))",
        ),
        Check(
            "local_batch % rloo_k == 0",
            "`local_batch_size` must be a multiple of rloo_k, inexact division: {local_batch} / {rloo_k} = "
            "{decimal(local_batch / rloo_k)}",
            fix="rloo_k = {nearest(min(rloo_k, local_batch + 1), local_batch % it == 0)}",
            when=_BUILT,
            source=_INIT,
            where="rloo",
        ),
        Check(
            "rows >= prompts_per_rollout",
            "the run hangs: {rows} rows do not fill a batch of {prompts_per_rollout} prompts, and `repeat_generator` goes round an "
            "empty loader for ever",
            fix="at most {rows} prompts for each rollout, or {prompts_per_rollout} rows",
            when="at the first rollout",
            source=_TRAIN,
            where="rollouts > 0",
        ),
        Check(
            "evaluation_rows > 0",
            "TypeError: object of type 'NoneType' has no len(): there is no evaluation set, and num_sample_generations = "
            "{num_sample_generations} samples from it",
            fix="num_sample_generations = 0, or eval_strategy = steps",
            when="after the first rollout",
            source="{trainer} generate_completions",
            where="sampled",
        ),
    ),
    notes=(
        ADAPTER_OFF,
        program_assumed("a script with PPOTrainer", "algorithm == 'PPO'"),
        Note(
            "shrinks",
            "{updates_per_rollout} updates for each rollout, not num_ppo_epochs x num_mini_batches = "
            "{num_ppo_epochs * num_mini_batches}: {microbatches_per_rollout} micro-batches, and one update after every "
            "{gradient_accumulation_steps}",
            "updates_per_rollout != num_ppo_epochs * num_mini_batches",
        ),
        Note("carries", "{carries} micro-batches are carried into the next rollout", "carries"),
        Note(
            "grows",
            f"in the last rollout of each pass over the rows {_EVERY_MICROBATCH}",
            "flushes_known and evaluation_batches == 0",
        ),
        Note(
            "grows",
            "the evaluation set is one batch: from the rollout after completions were sampled from it to the end of the pass over "
            f"the rows, {_EVERY_MICROBATCH}",
            "flushes_known and evaluation_batches == 1",
        ),
        Note(
            "assumes",
            "completions are sampled from the evaluation set between rollouts; the last rollout of such a pass over the rows makes as "
            "many updates as the others{', that of any other pass ' + quoted(microbatches_per_rollout) "
            "if rollouts > rollouts_per_epoch else ''}",
            "flushes_known and evaluation_batches > 1",
        ),
        Note("unit", "total_episodes counts samples: one epoch's worth of them visits 1/rloo_k of the prompts", "rloo"),
        Note(
            "unit",
            "the progress bar ends at 1/num_mini_batches: max_steps counts mini-batches",
            "not rloo and release >= (0, 10) and release < (0, 17) and num_mini_batches > 1",
        ),
        # trl 0.11.4 and 0.12.2 rloo_trainer.py train; 0.13.0 and later.
        Note(
            "unit",
            "global_step adds {num_ppo_epochs * num_mini_batches + 1} for each rollout, one for each mini-batch and one more, and the "
            "logged epoch counts samples as prompts: {rloo_k} are one pass over the rows",
            "rloo and release < (0, 13)",
        ),
        Note(
            "unit",
            "the progress bar expects {rollouts * num_mini_batches // 2} steps, half of rollouts x num_mini_batches, and the run makes "
            "{rollouts}: one for each rollout",
            "rloo and release >= (0, 13) and known(rollouts) and num_mini_batches != 2",
        ),
        Note(
            "drops",
            "{rows_dropped_per_epoch} of {rows} rows in each pass, a different set each pass",
            "rows_dropped_per_epoch",
        ),
    ),
    facts={
        "lr_constant": "starts(lr_scheduler_type, 'constant')",
        "lr_warmup": "ceil(warmup_steps if warmup_steps or not known(rollouts) else warmup_ratio * rollouts)",
        "nominal_updates_per_rollout": "num_ppo_epochs * num_mini_batches",
        "save_every": "floor(save_steps) if save_strategy == 'steps' and save_steps is not None and save_steps >= 1 else None",
    },
    live="rlstep_hooks.systems.trl_ppo.plan:plan_live",
    deviations="rlstep_hooks.systems.trl_ppo.deviations:DEVIATIONS",
    knobs={
        "learning_rate": "learning_rate",
        "rate_schedule": "lr_scheduler_type",
        "warmup": "warmup_steps",
        "kl_coefficient": "kl_coef",
        "clip": "cliprange",
        "passes": "num_ppo_epochs",
        "updates": "num_mini_batches",
        "group": "rloo_k",
        "temperature": "temperature",
        "length": "total_episodes",
    },
    attaches_by="`callbacks=[StepAuditCallback()]`, or `rlstep run -- <command>` for a script that never heard of this package.",
    on_import={
        "trl.trainer.ppo_trainer": "rlstep_hooks.systems.trl_ppo.observe.injection:audit_ppo",
    },
    observed_releases=(str(FIRST), str(FIRST_UNSUPPORTED)),
    trained_releases=("0.16.1", "0.17.0", "0.18.2", "0.24.0"),
    observes=(
        "rollouts",
        "old log-probs",
        "micro-batches",
        "updates",
        "learning rate",
        "weights",
        "the logged ratio",
    ),
    links={
        "settings in force": yes(
            "those of the optimizer, when training begins and in compared updates; of advantages and loss, at each rollout"
        ),
        "completions": no("they stay inside the trainer's method"),
        "completions on the way": no("they stay inside the trainer's method"),
        "rewards on the way": no(
            "PPOTrainer computes rewards, advantages and loss in one method, and hands none of them on"
        ),
        "advantages": yes(
            "GAE from the models' own scores, log-probs and values, KL penalty, penalties and whitening, in float64",
            "not with adapters, whose reference is the policy, nor in a subclass with a loop of its own",
            often="compared",
        ),
        "advantages on the way": yes("by the gradients of the loss", often="compared"),
        "mask": yes("the tokens that are whitened, through the stop token", often="compared"),
        "mask on the way": yes("by the gradients of the loss", often="compared"),
        "loss": yes(
            "by the gradients that it sends to logits and values: log-probs, temperature, clips, masks, signs, coefficients",
            "not with a gradient scaler, sharding or DeepSpeed",
            often="compared",
        ),
        "backward": yes("the factor that arrives at the loss, against the accumulation", often="compared"),
        "gradients cleared": yes("a probe before the first forward of each update", often="probed"),
        "gradients on the way": yes(
            "eight tensors in each update, from the backward passes to the step, in one process",
            "not hooks of modules, nor of a tensor between two layers",
            often="whole",
        ),
        "reduction": no("what a rank gives and what it gets is followed in the trainers of GRPO and RLOO alone"),
        "gradient norm": no("the trainer has max_grad_norm and clips nothing"),
        "optimizer step": yes(
            "SGD, Adam, AdamW and RMSprop of torch, replayed in float64",
            "not other optimizers, nor steps of DeepSpeed's engine",
            often="compared",
        ),
        "optimizer moments": yes("between a replayed step and the next", often="compared"),
        "learning rate": yes("constant, linear and cosine of transformers", "not other schedules"),
        "reference": no("its log-probs stay inside the trainer's method"),
        "reference on the way": no("its log-probs stay inside the trainer's method"),
        "sampler": yes("settings at the call of generate"),
        "weights between updates": yes("a probe between updates", often="probed"),
        "replicas": no("what ranks hold is compared in the trainers of GRPO and RLOO alone"),
    },
    rules={
        "RLS120": yes(
            "the generator of torch, when training begins", "not that of numpy, which the trainer does not seed"
        ),
        "RLS203": _STEPS,
        "RLS204": _STEPS,
        "RLS210": _STEPS,
        "RLS309": yes("the mean ratio that it logs"),
        "RLS401": limited("the weights of DeepSpeed's engine are not read, so it is not evaluated", "probed"),
        "RLS404": yes("the policy's weights", "not those of DeepSpeed's engine", "probed"),
        "RLS407": yes("once, when training begins"),
        "RLS408": yes(
            "layers that are frozen in mid-run, and tensors without a gradient",
            "in one process without shards; not layers that are frozen from the start",
        ),
        "RLS410": yes("the settings of transformers' generate"),
        "RLS801": yes(
            "by the gradients that it sends to logits and values: log-probs, temperature, clips, masks, signs, coefficients",
            "not with a gradient scaler, sharding or DeepSpeed",
            "compared",
        ),
    },
    does_not_observe=("RLOOTrainer up to 0.21", "updates made by DeepSpeed's engine"),
)
