"""Known deviations of TRL's PPOTrainer, as data. Each is reproduced in a real run (tests/systems/trl_ppo)."""

from __future__ import annotations

from rlstep_hooks.judge.deviations import Deviation, Evidence

_LAST_ROLLOUT = (
    "accelerate ends a window at every micro-batch while the loader of prompts stands on its last batch, and the loop holds it there "
    "for the whole rollout: in the last rollout of each data epoch every micro-batch is an update, its loss still divided by "
    "gradient_accumulation_steps"
)


def _minibatches_do_not_count(evidence: Evidence) -> bool:
    schedule = evidence.progress.schedule
    nominal = evidence.progress.started.facts.get("nominal_updates_per_rollout")
    return schedule.algorithm == "PPO" and nominal is not None and nominal != schedule.updates_per_rollout


LAST_ROLLOUT = Deviation(
    name="trl-ppo-last-rollout",
    title="every micro-batch of an epoch's last rollout is an update",
    since="0.9",
    document="every rollout makes as many updates as the others, each of gradient_accumulation_steps micro-batches",
    code=_LAST_ROLLOUT,
    evidence="ppo_trainer.py 0.11.4 step, 0.16.1 and 0.24.0 train, accelerate 1.15.0 _do_sync; measured in these releases",
    workaround="gradient_accumulation_steps=1",
    codes=frozenset({"RLS113"}),
    when="algorithm == 'PPO' and flush is not None",
)

DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        name="trl-ppo-accumulation-decides",
        title="gradient accumulation, and not num_mini_batches, decides when PPOTrainer steps",
        since="0.17",
        document="a rollout makes num_ppo_epochs * num_mini_batches updates, and val/ratio is their mean ratio",
        code=(
            "num_mini_batches divides the rollout, but an update comes after gradient_accumulation_steps micro-batches whatever "
            "mini-batch they belong to: num_ppo_epochs * num_mini_batches * ceil(gradient_accumulation_steps / num_mini_batches) / "
            f"gradient_accumulation_steps updates. And {_LAST_ROLLOUT}. The logs average over num_ppo_epochs x num_mini_batches x "
            "gradient_accumulation_steps places, of which only that many micro-batches are filled: val/ratio, approxkl, clipfrac, "
            "losses and entropy are logged times ceil(gradient_accumulation_steps / num_mini_batches) / gradient_accumulation_steps "
            "(0.25 for a ratio of 1 with accumulation 8 and 4 mini-batches)"
        ),
        evidence="ppo_trainer.py 0.17.0 to 0.24.0 train (TRL PR #2531), accelerate 1.15.0 _do_sync; measured: 4, 4, 32, 4, 4, 32 "
        "updates with per-device batch 4, accumulation 8, 4 mini-batches, 4 epochs, 96 rows, and val/ratio 0.25",
        workaround=(
            "gradient_accumulation_steps=1, and per_device_train_batch_size as much larger: num_mini_batches then divides it into the "
            "micro-batches, each of them an update"
        ),
        codes=frozenset({"RLS113", "RLS309"}),
        applies=_minibatches_do_not_count,
    ),
    LAST_ROLLOUT,
)
