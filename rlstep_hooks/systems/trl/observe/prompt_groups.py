"""Whether the rows that are handed to generation come in whole groups of one prompt, in training and in evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.trl.observe.limits import own_evaluation_loader

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule


def in_whole_groups(rows: Any, samples: int, group: int) -> bool | None:
    """Whether each prompt stands `group` times in a row; None where rows do not say it.

    Args:
        rows: What the trainer handed to generation: a list with a row for each sample, if it is TRL's.
        samples: The samples of the rollout on this process.
        group: The samples of a prompt.
    """
    if not isinstance(rows, list) or samples % group or len(rows) != samples:
        return None
    prompts = [row.get("prompt", row.get("messages")) for row in rows]
    return all(
        prompts[start] == prompt for start in range(0, samples, group) for prompt in prompts[start + 1 : start + group]
    )


def group_of_evaluation(trainer: Any, schedule: Schedule, *, read: bool) -> int | None:
    """The samples of a prompt in an evaluation, whose sampler repeats each row so often (`_get_eval_sampler`, trainer/grpo_trainer.py
    0.16.1 and 1.16.0:1319); None where that does not say how rows come.

    With several processes accelerate fills the last batch with rows from the beginning of the set, which may break a group. A set
    without a length has no sampler.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer when training begins.
        schedule: The plan of the run.
        read: Whether its rollouts are made by TRL's own code.
    """
    sets = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {"": trainer.eval_dataset}
    by_sampler = all(hasattr(rows, "__len__") for rows in sets.values() if rows is not None)
    if not read or schedule.world_size > 1 or not by_sampler or own_evaluation_loader(trainer):
        return None
    return int(getattr(trainer.args, "num_generations_eval", None) or trainer.args.num_generations)
