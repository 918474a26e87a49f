"""TRL's AsyncGRPOTrainer: samples come from a queue, each with the version of the weights that began its group.

An update is what the trainer takes from the queue, so a rollout here is the samples of one update. Read in the wheels of 1.0.0 and
1.16.0 and in the repository at 1.4, 1.7, 1.8 and 1.9: trl/experimental/async_grpo/async_grpo_config.py, async_grpo_trainer.py
(`RolloutQueueDataset.__iter__`, `StepIntervalCallback`, `_EpochStopCallback`, `_save_checkpoint`), async_rollout_worker.py (the version
of a group); accelerate data_loader.py `DataLoaderDispatcher.__iter__`, which fetches one micro-batch ahead. Lines are those of 1.16.0.
"""

from __future__ import annotations

from rlstep_hooks.systems.engine.declaration import Demand, Entry, Formula, Note, System, count, number, text
from rlstep_hooks.systems.engine.links import limited, no, none, yes

OBSERVED = ("1.16", "1.17")
"""The first release whose runs are observed, and the first later one whose runs are not."""

_HOME = "trl {version} trl/experimental/async_grpo/async_grpo_trainer.py"

_STEPS = limited("DeepSpeed's engine steps where nobody looks, so it is not evaluated")

SYSTEM = System(
    name="trl_async",
    title="TRL AsyncGRPOTrainer",
    framework="TRL",
    version="1.16.0",
    releases=("1.0", "1.17"),
    observed_releases=OBSERVED,
    package="trl",
    commits="trl/commits.json",
    trains=("*AsyncGRPOTrainer*",),
    trainers={"AsyncGRPOTrainer": ("_inner_training_loop", "get_train_dataloader", "train", "training_step")},
    recognised=(
        Entry(
            "trl_async",
            programs=("script:examples/scripts/async_grpo.py",),
            keys=("max_staleness", "weight_sync_steps", "max_inflight_tasks"),
            calls=("AsyncGRPOConfig", "AsyncGRPOTrainer"),
            packages=("trl",),
            before="trl",
        ),
    ),
    keywords_of=("AsyncGRPOConfig",),
    settings={
        "per_device_train_batch_size": count(8),
        "gradient_accumulation_steps": count(1),
        "num_generations": count(8),
        "max_steps": count(-1, least=-1),
        "num_train_epochs": number(3.0),
        "max_staleness": count(4, least=0),
        "weight_sync_steps": count(1),
        "token_budget": count(None, least=-(1 << 31), where="release >= (1, 8)"),
        "max_tool_calling_iterations": count(None, least=0),
        "top_p": number(1),
        "top_k": count(0, least=-1),
        "lr_scheduler_type": text("linear", since=(("1.9", "constant"),)),
        "warmup_steps": number(0),
        "save_strategy": text("steps"),
        "save_steps": number(500),
    },
    rows_from=("dataset_name",),
    let={
        "by_tokens": "release >= (1, 8) and (token_budget is None or token_budget > 0)",
        "samples_per_prompt": "num_generations",
        "prompts_per_rollout": "samples_per_rollout / num_generations",
        "samples_per_microbatch": "unknown('token_budget cuts micro-batches by their tokens') if by_tokens "
        "else per_device_train_batch_size * world_size",
        "microbatches_per_update": "gradient_accumulation_steps",
        "minibatches": "() if by_tokens else None",
        "samples_per_update": "unknown('token_budget cuts micro-batches by their tokens') if by_tokens else samples_per_rollout",
        "updates_per_rollout": "1",
        "by_groups": "release >= (1, 9) and max_steps <= 0",
        "target": "ceil(num_train_epochs * rows)",
        "updates": "rollouts",
        "syncs": "'first_and_after_updates' if weight_sync_steps == 1 else 'unseen'",
        "data_epochs": "unknown('groups that are too old are dropped, and prompts of any length fill an update') "
        "if known(rows) else None",
        "loader_epochs": "data_epochs",
        "rows_dropped_per_epoch": "0 if known(rows) else None",
        # A first micro-batch is fetched while the update before it is under way; the sample that did not fit into it, one more before.
        "ahead": "2 if by_tokens and gradient_accumulation_steps == 1 else 1",
        "correction_biased": "'top_p = ' + quoted(decimal(top_p)) if top_p < 1 else 'top_k = ' + quoted(top_k) if top_k > 0 else ''",
        # The rows of a conversation that the safety ceiling counts with.
        "rows_of_conversation": "32 if max_tool_calling_iterations is None else max_tool_calling_iterations + 1",
    },
    always={
        "algorithm": "GRPO",
        "loader": "wraps",
        "rows_bound": "data_dependent",
        "updates_bound": "exact",
        "old_logprob_source": "engine",
        "lr_clock": "update",
        "step_unit": "update",
        "step_means": "1 step = 1 update",
    },
    formulas=(
        Formula(
            "samples_per_rollout",
            "per_device_train_batch_size * gradient_accumulation_steps * world_size",
            f"{_HOME} __init__ (samples_per_step)",
        ),
        Formula("rollouts", "max_steps", f"{_HOME} (max_steps)", where="max_steps > 0"),
        Formula(
            "rollouts",
            "floor(num_train_epochs * rows * num_generations / samples_per_rollout)",
            f"{_HOME} __init__ (max_steps)",
            where="release < (1, 9)",
        ),
        Formula(
            "rollouts",
            "unknown('the run ends when ' + quoted(target) + ' prompts were trained; how many updates these make, their lengths and "
            "the samples that are dropped decide')",
            f"{_HOME}:237-260 _EpochStopCallback",
        ),
        # Versions between a group's begin and the fetch of its samples; one version is `weight_sync_steps` updates.
        Formula(
            "max_age_updates",
            "weight_sync_steps * (max_staleness + 1) - 1 + ahead",
            f"{_HOME}:372-378 RolloutQueueDataset.__iter__ (looked at when fetched, trained up to {{ahead}} later)",
        ),
        Formula("max_age", "max_age_updates", f"{_HOME} (a rollout here is the samples of one update)"),
        Formula("lr_ticks", "updates", "transformers Trainer"),
        # The ceiling, which the run does not reach.
        Formula(
            "lr_horizon",
            "ceil(num_train_epochs * rows * num_generations * rows_of_conversation / samples_per_rollout)",
            f"{_HOME} __init__ (max_steps, a safety ceiling)",
            where="by_groups",
        ),
    ),
    checks=(
        Demand(
            "num_train_epochs > 0 or max_steps > 0",
            "num_train_epochs = {num_train_epochs} without max_steps: the run ends before its first update",
            about="num_train_epochs",
        ),
    ),
    notes=(
        Note(
            "unit", "per_device_train_batch_size counts samples; a rollout here is what one update takes from the queue"
        ),
        Note(
            "assumes",
            "token_budget cuts micro-batches by tokens: {samples_per_rollout} samples is what the trainer sizes its queue by, not what "
            "an update trains; token_budget = 0 makes it exact",
            "by_tokens",
        ),
        Note(
            "drops",
            "samples more than max_staleness = {max_staleness} versions behind are dropped when they are fetched, and not generated "
            "anew; a version is "
            "{'1 update' if weight_sync_steps == 1 else quoted(weight_sync_steps) + ' updates'}",
        ),
        Note(
            "carries",
            "max_staleness is looked at when a sample is fetched, which is up to {'1 update' if ahead == 1 else '2 updates'} "
            "before it is trained: a sample may be "
            "{max_age_updates} updates old, not {max_staleness * weight_sync_steps}",
        ),
        Note(
            "carries",
            "a checkpoint keeps the first prompt that was not trained: a group that was dropped holds it there, and a resumed run "
            "trains all that came after it again",
            "release >= (1, 10) and save_strategy != 'no'",
        ),
        Note(
            "grows",
            "without max_steps the learning-rate schedule is built for a ceiling of {lr_horizon} updates, which counts "
            "{rows_of_conversation} rows for each conversation: the rate hardly falls",
            "by_groups and not starts(lr_scheduler_type, 'constant')",
        ),
    ),
    facts={
        "lr_constant": "starts(lr_scheduler_type, 'constant')",
        "lr_warmup": "floor(warmup_steps)",
        "save_every": "floor(save_steps) if save_strategy == 'steps' and save_steps >= 1 else None",
    },
    live="rlstep_hooks.systems.trl_async.plan:plan_live",
    knobs={
        "learning_rate": "learning_rate",
        "rate_schedule": "lr_scheduler_type",
        "warmup": "warmup_steps",
        "gradient_limit": "max_grad_norm",
        "clip": "epsilon_high",
        "updates": "gradient_accumulation_steps",
        "group": "num_generations",
        "temperature": "temperature",
        "length": "max_steps",
        "age": "max_staleness",
    },
    attaches_by="`callbacks=[StepAuditCallback()]`, or `rlstep run -- <command>` for a script that never heard of this package.",
    on_import={
        "trl.experimental.async_grpo.async_grpo_trainer": "rlstep_hooks.systems.trl_async.observe.injection:audit_async",
    },
    trained_releases=("1.16.0",),
    observes=(
        "samples from the queue to the loss, with the version of their group",
        "micro-batches",
        "updates",
        "the ratio to the engine's log-probs",
        "learning rate",
        "weights",
        "syncs to the engine, as far as the trainer hands the weights over",
    ),
    links={
        "settings in force": yes("those of the optimizer, when training begins and in compared updates"),
        "completions": no("they come from a server, without what tells how they were drawn"),
        "completions on the way": no("they come from a queue, and nothing stands before it"),
        "rewards on the way": no("the worker computes them in a process of its own"),
        "advantages": no("the worker computes them in a process of its own"),
        "advantages on the way": no("the worker computes them in a process of its own"),
        "mask": no("the worker makes it in a process of its own"),
        "mask on the way": no("the worker makes it in a process of its own"),
        "loss": no("only the ratio that it takes"),
        "backward": no("the loss is not followed into its backward"),
        "gradients cleared": no("the trainer clears them after its step, where nothing of this package stands"),
        "gradients on the way": no("micro-batches and steps are not seen from the beginning of a window"),
        "reduction": no("micro-batches and steps are not seen from the beginning of a window"),
        "gradient norm": no("no limit is read here"),
        "optimizer step": yes(
            "SGD, Adam, AdamW and RMSprop of torch, replayed in float64", "not other optimizers", often="compared"
        ),
        "optimizer moments": yes("between a replayed step and the next", often="compared"),
        "learning rate": yes("constant, linear and cosine of transformers", "not other schedules"),
        "reference": none("there is none"),
        "reference on the way": none("there is none"),
        "sampler": yes(
            "the version behind each group; the ratio to the engine's log-probs; what is handed over and what the "
            "engine holds, where its model is in this process",
            "not what an engine in another process does with the weights",
        ),
        "weights between updates": yes("a probe between updates", often="probed"),
        "replicas": yes("the bits of all weights and buffers that each rank holds whole", "not shards", often="whole"),
    },
    rules={
        "RLS120": yes("the generators of torch and numpy, when training begins"),
        "RLS203": _STEPS,
        "RLS204": _STEPS,
        "RLS210": _STEPS,
        "RLS401": limited("the weights of DeepSpeed's engine are not read, so it is not evaluated", "probed"),
        "RLS402": yes("the version behind each group of samples"),
        "RLS403": yes("the ratio of the loss, which is to the engine's log-probs"),
        "RLS404": yes("the policy's weights", "not those of DeepSpeed's engine", "probed"),
        "RLS407": yes("once, when training begins"),
        "RLS408": yes("tensors without a gradient", "in one process without shards"),
        "RLS415": yes("an engine whose model is in this process"),
        "RLS416": yes("an engine whose model is in this process"),
        "RLS417": yes("an engine whose model is in this process"),
    },
    does_not_observe=(
        "what an engine in another process does with the weights",
        "the samples of several processes, which one of them takes from the queue",
        "the order of micro-batches that are cut by tokens",
        "rewards and advantages, which the worker computes in a process of its own",
    ),
)
