"""How TRL's sampler and transformers' Trainer use the rows: expressions that TRL and ms-swift share.

TRL's sampler gives each prompt `num_generations` times, takes the prompts in chunks of whole rollouts and repeats each chunk for
every micro-batch that is trained on it; a remainder of the rows is dropped. transformers counts the run in updates. The
expressions name the settings of TRL, `steps` (micro-batches of one process in one generation) and `transformers` (its release).
"""

from __future__ import annotations

from rlstep_hooks.planning import lags
from rlstep_hooks.systems.engine.declaration import Formula

_TRAINER = "transformers {transformers} Trainer"


def microbatches_of(updates: int, window: int, microbatches_per_epoch: int) -> int:
    """Micro-batches of one process in a number of updates. The last, shorter window of a pass is an update too.

    transformers Trainer `_inner_training_loop`: the end of the loader ends a window.
    """
    per_epoch = -(-microbatches_per_epoch // window)
    full, rest = divmod(updates, per_epoch) if per_epoch else (0, 0)
    return full * microbatches_per_epoch + min(rest * window, microbatches_per_epoch)


FUNCTIONS = {**lags.FUNCTIONS, "microbatches_of": microbatches_of}

LET: dict[str, str] = {
    "samples_per_prompt": "num_generations",
    "reuse_epochs": "num_iterations",
    "microbatch": "per_device_train_batch_size * world_size",
    "samples_per_microbatch": "microbatch",
    "microbatches_per_update": "gradient_accumulation_steps",
    "microbatches_per_rollout": "steps * num_iterations",
    "rollouts_per_cycle": "1",
    "pattern": "lags_of_updates(microbatches_per_rollout, gradient_accumulation_steps, rollouts_per_cycle, num_iterations)",
    "lags": "lags_in(pattern)",
    "ratio_one_updates": "ratio_one_updates(pattern, old_logprob_source)",
    # A pass over a stream ends with the stream; transformers makes no update for a window that this cuts short.
    "partial_window": "'flush' if known(rows) else 'carry'",
    "prompts_per_chunk": "floor(prompts_per_rollout)",
    "chunks": "floor(rows / prompts_per_chunk)",
    "loader_length": "microbatches_per_epoch",
    # The updates of a pass as transformers counts them, and as many as the rows really give.
    "updates_counted": "max(ceil(loader_length / gradient_accumulation_steps), 1)",
    "updates_possible": "ceil(microbatches_per_epoch / gradient_accumulation_steps)",
    "passes": "ceil(max_steps / updates_counted) if max_steps > 0 else ceil(num_train_epochs)",
    "microbatches": "microbatches_of(updates, gradient_accumulation_steps, microbatches_per_epoch) if known(rows) "
    "else updates * gradient_accumulation_steps",
    "lr_ticks": "updates",
    "data_epochs": "prompts_per_rollout / rows * rollouts if rows else None",
    "loader_epochs": "microbatches / microbatches_per_epoch if microbatches_per_epoch "
    "else unknown('the rows do not fill a single rollout')",
}
"""Quantities; a system may override some of them."""

FACTS = {
    "lr_constant": "starts(lr_scheduler_type, 'constant')",
    "lr_warmup": "ceil(warmup_steps if not known(lr_horizon) or warmup_steps >= 1 else (warmup_steps or warmup_ratio) * lr_horizon)",
    "save_every": "floor(save_steps) if save_strategy == 'steps' and save_steps is not None and save_steps >= 1 else None",
}
"""transformers 5 reads warmup_steps below 1 as a share of the run; 4 refuses it."""


def formulas(*, sampler: str, generation: str) -> tuple[Formula, ...]:
    """The formulas of the run's length.

    Args:
        sampler: Where the sampler of prompts is.
        generation: Where a rollout is generated.
    """
    return (
        Formula("microbatches_per_epoch", "chunks * steps * num_iterations", sampler),
        Formula("rollouts_per_epoch", "chunks * rollouts_per_cycle", generation),
        Formula(
            "lr_horizon",
            "max_steps if max_steps > 0 else ceil(num_train_epochs * updates_counted)",
            f"{_TRAINER}.set_initial_training_values",
            where="known(rows)",
        ),
        Formula("lr_horizon", "updates", f"{_TRAINER}.set_initial_training_values"),
        Formula(
            "updates",
            "min(lr_horizon, passes * updates_possible)",
            f"{_TRAINER}.set_initial_training_values",
            where="known(rows)",
        ),
        Formula(
            "updates",
            "max_steps if max_steps > 0 else unknown('neither the rows nor max_steps are known')",
            f"{_TRAINER}.set_initial_training_values",
        ),
        Formula("rollouts", "ceil(microbatches / microbatches_per_rollout)", generation),
    )
