"""What TRL asks of the batches that it evaluates: the processes together hold whole groups of samples, or the run ends as it starts.

Read in the wheels of 0.14 to 0.24, 0.26.2, 0.29.1, 1.0.0, 1.8.0 and 1.16.0: from 0.15 to 0.17 grpo_trainer.py `__init__`, in 0.18 and
0.19 and from 0.22 on grpo_config.py and rloo_config.py `__post_init__`. 0.14, 0.20 and 0.21 ask for nothing. Where `eval_strategy` is
not "no", transformers sets `do_eval` itself (training_args.py `__post_init__`).
"""

from __future__ import annotations

from rlstep_hooks.systems.engine.declaration import Check, count

SETTINGS = {
    "per_device_eval_batch_size": count(8, where="eval_strategy != 'no'"),
    "num_generations_eval": count(None, where="eval_strategy != 'no' and release >= (0, 26)"),
}

_SIZE = "{world_size} x {per_device_eval_batch_size}"
_GROUPS = "the valid values for the number of generations are: {valid_groups(per_device_eval_batch_size * world_size)}."


def _whole_groups(first: str, end: str, says: str, *, when: str, source: str, group: str = "num_generations") -> Check:
    return Check(
        f"per_device_eval_batch_size * world_size % ({group}) == 0",
        says,
        fix=f"per_device_eval_batch_size = {{nearest(per_device_eval_batch_size, it * world_size % ({group}) == 0)}}, or "
        "eval_strategy = no",
        when=when,
        source=f"trl {{version}} trl/trainer/{source}",
        where=f"eval_strategy != 'no' and release >= ({first}) and release < ({end})",
    )


CHECKS = (
    *(
        _whole_groups(
            first,
            end,
            f"The {size} eval batch size ({_SIZE}) must be evenly divisible by the number of generations per prompt "
            f"({{num_generations}}). Given the current {given} batch size, {_GROUPS}",
            when=when,
            source=source,
        )
        for first, end, size, given, when, source in (
            ("0, 15", "0, 17", "global", "eval", "when the trainer is built", "grpo_trainer.py __init__"),
            ("0, 17", "0, 18", "effective", "effective eval", "when the trainer is built", "grpo_trainer.py __init__"),
            (
                "0, 18",
                "0, 20",
                "global",
                "global eval",
                "when the configuration is built",
                "grpo_config.py __post_init__",
            ),
        )
    ),
    *(
        _whole_groups(
            first,
            end,
            f"The global eval batch size ({{per_device_eval_batch_size}} * {{world_size}}) must be divisible by {by} "
            f"({{{group}}}).",
            when="when the configuration is built",
            source="grpo_config.py __post_init__",
            group=group,
        )
        for first, end, by, group in (
            ("0, 22", "0, 26", "num_generations", "num_generations"),
            (
                "0, 26",
                "99,",
                "the number of generations used for evaluation",
                "num_generations_eval or num_generations",
            ),
        )
    ),
)
