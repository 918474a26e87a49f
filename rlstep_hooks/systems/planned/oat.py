"""OAT's PPO, GRPO and Dr. GRPO: mini-batches in samples, a buffer of fixed length, gradients that DeepSpeed carries.

Read at sail-sg/oat c1a074c (2025-10-31): oat/args.py (defaults), oat/interface.py `get_program` (processes), oat/learners/base.py
`_init` and `run`, oat/algorithms/ppo.py `learn` and `learning_step`, oat/utils/deepspeed.py; and at sail-sg/understand-r1-zero
dfca49d: train_zero_math.py and examples/.
"""

from __future__ import annotations

from rlstep_hooks.planning.schedule import lag_pattern
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
    text,
)

_LEARNER = "OAT c1a074c oat/learners/base.py"
_PPO = "OAT c1a074c oat/algorithms/ppo.py"
_DEEPSPEED = "DeepSpeed runtime/config.py _batch_assertion"
_BUILT = "when the learners are built"


def lags_in(pattern: list[list[int]]) -> tuple[int, ...]:
    """The lags that occur in the windows of `lag_pattern`."""
    return tuple(sorted({lag for window in pattern for lag in window})) or (0,)


def updates_without_lag(pattern: list[list[int]]) -> tuple[int, ...]:
    """The updates (counted from 1) whose micro-batches all come before the first update on their rollout."""
    return tuple(number for number, lags in enumerate(pattern, 1) if not any(lags))


_OTHERS = ("main", "run_apl", "run_offline", "run_offline_lp", "run_offline_ppo", "run_xpo")
"""Programs of oat/experiment that do not learn with PPO from what the policy samples."""


def read_elsewhere(program: str) -> bool:
    """Whether a program is one of oat/experiment with another learner."""
    package, _, name = program.removesuffix(".py").replace("/", ".").rpartition(".")
    return package.endswith("oat.experiment") and name in _OTHERS


SYSTEM = System(
    name="oat",
    title="OAT",
    version="c1a074c",
    trains=("*Learner",),
    recognised=(
        Entry(
            "oat",
            programs=("script:train_zero_math.py", "module:oat.experiment.*", "script:oat/experiment/*.py"),
            keys=("pi_buffer_maxlen_per_device",),
        ),
    ),
    rows_from=("prompt_data",),
    settings={
        "gpus": count(8),
        "num_groups": count(1),
        "collocate": flag(False),
        "asynchronous": flag(False),
        "algo": text(),
        "critic_type": text("drgrpo"),
        "rollout_batch_size": count(128),
        "rollout_batch_size_per_device": count(16),
        "pi_buffer_maxlen_per_device": count(16),
        "train_batch_size": count(128),
        "train_batch_size_per_device": count(1),
        "num_samples": count(2),
        "num_ppo_epochs": count(1),
        "max_epochs": count(1),
        "num_prompt_epoch": count(1),
        "max_train": count(50000),
        "max_queries": count(-1, least=-1),
        "sync_params_every": count(1),
        "buffer_clear_every": number(None),
        "max_step_adjustment": number(1),
        "critic_max_step_adjustment": number(1),
        "beta": number(0.1),
        "kl_penalty_coef": number(0),
        "lr_scheduler": text("cosine_with_min_lr"),
        "lr_warmup_ratio": number(0.03),
        "save_steps": count(-1, least=-1),
        "eval_steps": count(20, least=-1),
    },
    functions={
        "lag_pattern": lag_pattern,
        "read_elsewhere": read_elsewhere,
        "lags_in": lags_in,
        "updates_without_lag": updates_without_lag,
        "spelled": lambda launch, name: launch.settings.spelled(name),
    },
    let={
        # Learners: all GPUs where actors share them, else half of them (oat/interface.py get_program).
        "processes": "(gpus if collocate else gpus - gpus // 2) * num_groups",
        "critic": "critic_type == 'ppo'",
        "algorithm": "'Dr. GRPO' if critic_type == 'drgrpo' else upper(critic_type)",
        "prompts_per_rollout": "rollout_batch_size",
        "samples_per_prompt": "num_samples",
        "reuse_epochs": "num_ppo_epochs",
        # Batches of the loader, of which `interval` make one rollout.
        "batch": "world_size * rollout_batch_size_per_device",
        "interval": "rollout_batch_size // batch",
        # Samples on one process: those of a rollout, and those of the full buffer. A deque that is never emptied keeps older rollouts.
        "generated": "rollout_batch_size // world_size * num_samples",
        "trained": "min(generated, pi_buffer_maxlen_per_device) if buffer_clear_every == 1 else pi_buffer_maxlen_per_device",
        "micro": "train_batch_size_per_device",
        "window": "train_batch_size // micro // world_size",
        "microbatches_of_pass": "trained // micro",
        "microbatches": "num_ppo_epochs * microbatches_of_pass",
        "samples_per_microbatch": "micro * world_size",
        "microbatches_per_update": "window",
        "microbatches_per_rollout": "microbatches",
        "critic.microbatches_per_rollout": "microbatches",
        "minibatches": "parts(trained * world_size, microbatches_of_pass // window) if microbatches_of_pass % window == 0 else ()",
        "updates_bound": "'upper' if trained > generated else 'exact'",
        "pattern": "lag_pattern(microbatches, window, 1, num_ppo_epochs)",
        "lags": "lags_in(pattern)",
        "ratio_one_updates": "updates_without_lag(pattern)",
        "reference_source": "'at_rollout' if beta > 0 or kl_penalty_coef > 0 else 'none'",
        "syncs": "'after_updates' if sync_params_every == 1 else unknown(syncs_rarely)",
        "max_age": "sync_params_every - 1 + asynchronous",
        "rows": "min(rows, max_train)",
        "batches_of_pass": "rows // world_size // rollout_batch_size_per_device",
        "rows_dropped_per_epoch": "rows - batches_of_pass * batch",
        "loader_epochs": "rollouts / rollouts_per_epoch if rollouts_per_epoch else None",
        # The asynchronous collector returns nothing at its first call.
        "batches_given": "max(num_prompt_epoch * batches_of_pass - asynchronous, 0)",
        "most_samples": "min(max_queries, max_train) if max_queries > 0 else max_train",
    },
    always={
        "loader": "drops",
        "remainder": "carry",
        "critic.lags": (),
        "critic.ratio_one_updates": (),
        "critic.max_age": 0,
        "syncs_rarely": "weights go to the engine after every {sync_params_every}th rollout only (sync_params_every)",
        "ends_within": "a pass of {batches_of_pass} batches ends within a rollout of {interval}",
        "steps_of_rollout": "1 batch of the loader; {interval} steps = 1 rollout",
        "step_means": "1 step = {'1 rollout' if interval == 1 else steps_of_rollout} = {updates_per_rollout} "
        "{'update' if updates_per_rollout == 1 else 'updates'}",
    },
    formulas=(
        Formula("samples_per_rollout", "rollout_batch_size * num_samples", f"{_LEARNER} run"),
        Formula("samples_per_update", "train_batch_size", "OAT c1a074c oat/utils/deepspeed.py grad_acc_step"),
        Formula(
            "updates_per_rollout", "num_ppo_epochs * trained * world_size / train_batch_size", f"{_PPO} learning_step"
        ),
        Formula(
            "samples_dropped_per_rollout",
            "samples_per_rollout - trained * world_size",
            f"{_LEARNER} deque(maxlen=...)",
            where="trained < generated",
        ),
        Formula(
            "rollouts_per_epoch",
            "unknown(ends_within) if batches_of_pass % interval or asynchronous else batches_of_pass // interval",
            f"{_LEARNER} run",
        ),
        Formula("rows_reshuffled", "True", f"{_LEARNER}:313 prepare_data (shuffle=True), 346-348 run (set_epoch)"),
        # Training ends with the first batch that makes more samples than max_queries, which is max_train unless it is set.
        Formula(
            "rollouts",
            "min(batches_given, most_samples // (batch * num_samples) + 1) // interval",
            f"{_LEARNER} run",
        ),
        # num_samples and num_ppo_epochs do not enter it.
        Formula(
            "lr_horizon",
            "ceil(num_prompt_epoch * floor(rows * max_epochs / train_batch_size) * max_step_adjustment)",
            f"{_LEARNER} _init",
        ),
        Formula(
            "critic.lr_horizon",
            "ceil(num_prompt_epoch * floor(rows * max_epochs / train_batch_size) * critic_max_step_adjustment)",
            f"{_LEARNER} _init",
        ),
    ),
    checks=(
        # `algo` is set by the PPO programs themselves.
        Demand(
            "not read_elsewhere(program) and (algo is None or upper(algo) == 'PPO')",
            "{program} learns from preferences or from given texts; PPO, GRPO and Dr. GRPO (oat.experiment.run_math_rl, "
            "train_zero_math.py) are read",
            about="program",
        ),
        Demand(
            "critic_type in ('ppo', 'grpo', 'drgrpo')",
            "critic_type = {quoted(critic_type)} is none of ppo, grpo, drgrpo",
            about="critic_type",
        ),
        Check(
            "not (asynchronous and collocate)",
            "AssertionError: async training needs to disable collocation",
            fix="leave asynchronous or collocate out",
            when="at the start",
            source="OAT c1a074c oat/args.py default_args_validation",
        ),
        Check(
            "rollout_batch_size % batch == 0",
            "AssertionError: rollout_batch_size must be divisible by the number of actors and the number of GPUs per actor",
            fix="rollout_batch_size = {multiples(rollout_batch_size, batch)} ({world_size} learners x rollout_batch_size_per_device "
            "{rollout_batch_size_per_device}), or rollout_batch_size_per_device = "
            "{nearest(rollout_batch_size_per_device, rollout_batch_size % (world_size * it) == 0)}",
            when=_BUILT,
            source=f"{_LEARNER} _init",
        ),
        Check(
            "window > 0",
            "AssertionError: Gradient accumulation steps: {window} has to be greater than 0",
            fix="train_batch_size = {multiples(train_batch_size, micro * world_size)}",
            when=_BUILT,
            source=_DEEPSPEED,
        ),
        Check(
            "train_batch_size == micro * window * world_size",
            "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
            "gradient_acc_step * world_size {train_batch_size} != {micro} * {window} * {world_size}",
            fix="train_batch_size = {multiples(train_batch_size, micro * world_size)}",
            when=_BUILT,
            source=_DEEPSPEED,
        ),
        Check(
            "trained % micro == 0",
            "IndexError: index {trained} is out of bounds for dimension 0 with size {trained}",
            fix="train_batch_size_per_device = {nearest(micro, trained % it == 0)}",
            when="after the first rollout, where old log-probs are computed",
            source=f"{_PPO} learning_step: torch.arange(i, i + train_batch_size_per_device)",
        ),
    ),
    notes=(
        Note("unit", "train_batch_size counts samples, rollout_batch_size counts prompts, both over all learners"),
        Note(
            "drops",
            "{spelled(launch, 'pi_buffer_maxlen_per_device')} = {trained} is below the {generated} samples that a rollout gives each "
            "learner: the first {generated - trained} of them are pushed out, {samples_dropped_per_rollout} in all",
            "trained < generated",
        ),
        Note(
            "grows",
            "{spelled(launch, 'pi_buffer_maxlen_per_device')} = {trained} keeps samples of older rollouts beside the {generated} new "
            "ones of each learner, and all are trained; buffer_clear_every = 1 empties it",
            "trained > generated",
        ),
        Note(
            "carries",
            "gradients that do not fill an update are applied in the next rollout; those left at the end of the run are never applied",
            "microbatches % window",
        ),
        Note(
            "assumes",
            "max_train = 50000 limits the rows, and also the samples after which training ends",
            "not given(max_train) and not given(max_queries)",
        ),
        Note(
            "drops",
            "{rows_dropped_per_epoch} rows of each pass do not fill a batch of the learners",
            "rows_dropped_per_epoch",
        ),
    ),
    facts={
        "lr_constant": "lr_scheduler == 'constant'",
        "lr_warmup": "ceil(lr_horizon * lr_warmup_ratio)",
        "minibatch_unit": "'samples'",
        "nominal_updates_per_rollout": "num_ppo_epochs * samples_per_rollout / train_batch_size",
        "save_every": "save_steps // interval if save_steps > 0 and save_steps % interval == 0 else None",
        "eval_every": "eval_steps // interval if eval_steps > 0 and eval_steps % interval == 0 else None",
    },
)
