"""The formulas of verl, each with its source. What verl calls a step is one rollout with its updates."""

from __future__ import annotations

from rlstep_hooks.systems.engine.declaration import Formula
from rlstep_hooks.systems.verl.settings import ACTOR
from rlstep_hooks.systems.verl.sizes import GROUP, MINIBATCH
from rlstep_hooks.systems.verl.trainers import is_megatron

_ROLLOUTS = "{driver} {'_init_dataloader, fit' if v1 else '_create_dataloader, fit'}"
_LEGACY_WORKERS = "{workers}fsdp_workers.py ActorRolloutRefWorker.__init__, workers/actor/dp_actor.py update_policy"
_LEGACY_CRITIC = "{workers}fsdp_workers.py CriticWorker.__init__, workers/critic/dp_critic.py update_critic"
_ENGINES = "{workers}engine_workers.py train_mini_batch: prompts x rollout.n, where docs/algo/ppo.md says trajectories"
_MINIBATCHES = (
    "{workers}{'fsdp_workers.py ActorRolloutRefWorker.__init__, workers/actor/dp_actor.py update_policy' if legacy "
    "else 'engine_workers.py train_mini_batch: prompts x rollout.n, where docs/algo/ppo.md says trajectories'}"
)
_CRITIC = (
    "{workers}{'fsdp_workers.py CriticWorker.__init__, workers/critic/dp_critic.py update_critic' if legacy "
    "else 'engine_workers.py train_mini_batch'}"
)
_OLD_LOGPROBS = "{workers + 'actor/dp_actor.py update_policy' if legacy else driver + ' _compute_old_log_prob'}"
_TICKS = (
    "{workers}{'fsdp_workers.py update_actor' if legacy else 'engine_workers.py train_mini_batch'}: one tick for each call, "
    "whatever its updates"
)

PLACES = {
    "driver": "'verl ' + version + ' trainer/' + ('main_ppo_sync.py' if queued else 'ppo/v1/trainer_base.py' if v1 "
    "else 'ppo/ray_trainer.py')",
    "workers": "'verl ' + version + ' workers/'",
}
"""Where the code is."""

FORMULAS = (
    Formula("samples_per_rollout", f"prompts * {GROUP}", _ROLLOUTS),
    Formula(
        "samples_added_per_rollout",
        "ceil(part / multiple) * multiple * calls - samples_per_rollout",
        "{driver} _get_required_batch_multiple",
        where="filled",
    ),
    # Legacy workers: where a rollout does not fill a mini-batch, it is one.
    Formula(
        "samples_per_update",
        "samples_per_rollout",
        _LEGACY_WORKERS,
        where="legacy and samples_per_rollout < share * world_size",
    ),
    Formula(
        "samples_per_update", f"floor({MINIBATCH} * {GROUP} / world_size) * world_size", _LEGACY_WORKERS, where="legacy"
    ),
    Formula("samples_per_update", f"{MINIBATCH} * {GROUP}", _ENGINES),
    Formula(
        "updates_per_rollout",
        f"{ACTOR}.ppo_epochs * ceil(trained / samples_per_update)",
        _MINIBATCHES,
        where="reads_epochs",
    ),
    Formula("updates_per_rollout", "ceil(trained / samples_per_update)", _MINIBATCHES),
    Formula(
        "critic.samples_per_update",
        "samples_per_rollout",
        _LEGACY_CRITIC,
        where="legacy and samples_per_rollout < critic_share * critic.world_size",
    ),
    Formula("critic.samples_per_update", "critic_share * critic.world_size", _LEGACY_CRITIC, where="legacy"),
    Formula("critic.samples_per_update", f"critic_minibatch * {GROUP}", _ENGINES),
    Formula("critic.updates_per_rollout", "critic.reuse_epochs * ceil(trained / critic.samples_per_update)", _CRITIC),
    # The policy is updated if K <= global_steps, which starts at 1 (trainer_base.py 0.9.1:608, ray_trainer.py 0.9.1:1684).
    Formula(
        "frozen_rollouts",
        "max(trainer.critic_warmup - 1, 0)",
        "{driver} {'_step_once' if v1 else 'fit'}: critic_warmup <= global_steps, which starts at 1",
    ),
    # Recomputed before the updates, or the engine's own in bypass mode (trainer_base.py 0.9.1:1640-1649, ray_trainer.py 0.9.1:1576).
    # Legacy workers take the detached current log-probs where a rollout makes a single update, unless told to keep the given ones
    # (dp_actor.py 0.6.1:406-451, 0.7.1:550-599). Those of Megatron take the given ones always (megatron_actor.py 0.6.1:444, 0.7.0:482).
    Formula(
        "old_logprob_source",
        "'detach'",
        _OLD_LOGPROBS,
        where="legacy and detaches_single_update and updates_per_rollout == 1 "
        f"and not {ACTOR}.use_rollout_log_probs and not {is_megatron('policy_strategy')}",
    ),
    Formula("old_logprob_source", "'engine'", _OLD_LOGPROBS, where="bypass"),
    Formula("old_logprob_source", "'recompute'", _OLD_LOGPROBS),
    Formula(
        "rows_dropped_per_epoch",
        "unknown('no row of the training set is used: trainer.val_only')",
        "{driver} fit: it ends after the validation",
        where="evaluates_only",
    ),
    Formula("rows_dropped_per_epoch", "any_number", "{driver} _create_dataloader", where="filtered"),
    Formula("rows_dropped_per_epoch", "rows - loader_rows", "{driver}: drop_last=True in batches of {loader_batch}"),
    Formula("rollouts", "0", "{driver} fit: it ends after the validation", where="evaluates_only"),
    Formula("rollouts", "min(available, max(lr_horizon - 1, 1))", _ROLLOUTS, where="leaves_last_rollout_out"),
    Formula("rollouts", "available", _ROLLOUTS, where="trainer.total_training_steps is None"),
    Formula("rollouts", "min(available, trainer.total_training_steps)", _ROLLOUTS, where="v1"),
    Formula("rollouts", "min(available, max(trainer.total_training_steps, 1))", _ROLLOUTS),
    Formula("updates", "max(rollouts - frozen_rollouts, 0) * updates_per_rollout", _ROLLOUTS),
    # `update_lr_scheduler` is set on the last mini-batch of a call only (engine_workers.py 0.9.1:308, fsdp_workers.py 0.7.1:1027).
    Formula("lr_ticks", "max(rollouts - frozen_rollouts, 0) * calls", _TICKS, where="separate"),
    Formula("lr_ticks", "max(rollouts - frozen_rollouts, 0)", _TICKS),
    # total_training_steps, as verl tells the learning-rate schedulers.
    Formula("lr_horizon", "unknown('nothing is trained: trainer.val_only')", "{driver} fit", where="evaluates_only"),
    Formula("lr_horizon", "trainer.total_training_steps or batches", "{driver} _create_dataloader", where="filtered"),
    Formula("lr_horizon", "steps * calls", _ROLLOUTS, where="separate"),
    Formula("lr_horizon", "steps", _ROLLOUTS),
)

OF_CRITIC = {
    # Padding depends on who is trained in a rollout (trainer_base.py 0.9.1:1589-1606).
    "critic.updates": "critic.reuse_epochs * (rollouts * len(critic.minibatches) "
    "+ min(frozen_rollouts, rollouts) * (len(critic_warmup_minibatches) - len(critic.minibatches)))",
    "critic.lr_ticks": "rollouts * calls",
}
"""The critic's totals: it has the same rollouts, with its own updates."""
