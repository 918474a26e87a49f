"""SimpleRL's `train_grpo_math_tune_ray.sh` at cf1c785: its flags, and what it passes to `verl.trainer.main_ppo`, as a declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.systems.engine.declaration import NOTHING, Check, Demand, Note, Typed, count

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.engine.request import Request

SETTINGS: dict[str, Typed] = {
    "train_batch_size": count(256),
    "ppo_mini_batch_size": count(256),
    "ppo_micro_batch_size": count(2),
    "rollout_n": count(8),
    "total_epochs": count(20),
    "save_freq": count(20, least=-1),
    "test_freq": count(5, least=-1),
}
"""The flags that the plan needs, with their defaults."""

_FLAGS = (
    "train_batch_size", "val_batch_size", "max_prompt_length", "max_response_length", "learning_rate", "ppo_mini_batch_size",
    "ppo_micro_batch_size", "kl_loss_coef", "entropy_coeffient", "clip_ratio", "kl_loss_type", "temperature",
    "log_prob_micro_batch_size", "rollout_n", "rollout_gpu_memory_util", "rollout_tp", "micro_rollout_batch_size", "kl_coef",
    "total_epochs", "save_freq", "test_freq", "remove_clip", "remove_previous_ckpt", "dataset_name", "model_name", "suffix",
)  # fmt: skip
"""All flags that it knows."""

_PASSED = {
    "data.train_batch_size": "train_batch_size",
    "actor_rollout_ref.rollout.n": "rollout_n",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "ppo_mini_batch_size",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "ppo_micro_batch_size",
    "actor_rollout_ref.actor.use_kl_loss": "True",
    "algorithm.adv_estimator": "'grpo'",
    "trainer.n_gpus_per_node": "8",
    # ARNOLD_WORKER_NUM, which the script leaves to be filled in.
    "trainer.nnodes": "written_nodes(launch) or 1",
    "trainer.total_epochs": "total_epochs",
    "trainer.critic_warmup": "0",
}
"""Settings of the trainer that the plan needs, as the script passes them on."""


def scripted(system: System) -> System:
    """The declaration of launches of the script, from that of the command that it runs."""
    read = {name: system.settings[name] for name in ("trainer.save_freq", "trainer.test_freq")}
    unset = {name: typed for name, typed in system.settings.items() if name not in (*_PASSED, *SETTINGS, *read)}
    return msgspec.structs.replace(
        system,
        instead=None,
        rows_from=(),
        settings={**SETTINGS, **read},
        functions={**system.functions, "unknown_flag": unknown_flag, "written_nodes": written_nodes},
        shown=tuple(name for name in system.shown or () if name in _PASSED),
        let={
            **system.let,
            **{name: "None" if typed.default is NOTHING else repr(typed.default) for name, typed in unset.items()},
            **_PASSED,
        },
        checks=(
            Check(
                "unknown_flag(launch) is None",
                "Unknown option: --{unknown_flag(launch)}",
                fix=f"the script knows {', '.join(f'--{flag}' for flag in _FLAGS)}",
                when="at the start",
                source="train_grpo_math_tune_ray.sh",
            ),
            Demand(
                "asked is None or asked % trainer.n_gpus_per_node == 0",
                "--world-size {asked}: the script starts {trainer.n_gpus_per_node} processes on each node",
            ),
            *system.checks,
        ),
        notes=(
            Note(
                "assumes",
                "1 node of {trainer.n_gpus_per_node} GPUs: ARNOLD_WORKER_NUM is not known; --world-size says it",
                "asked is None and written_nodes(launch) is None",
            ),
            *system.notes,
        ),
        facts={
            **system.facts,
            "save_every": f"save_freq if save_freq > 0 else {system.facts['save_every']}",
            "eval_every": f"test_freq if test_freq > 0 else {system.facts['eval_every']}",
        },
    )


def unknown_flag(request: Request) -> str | None:
    """The first flag that the script does not know."""
    given = (setting.name for setting in request.settings.unused)
    return next((name for name in given if name not in _FLAGS and "." not in name), None)


def written_nodes(request: Request) -> int | None:
    """Nodes as ARNOLD_WORKER_NUM says; None where it is not known."""
    written = request.command.environment.get("ARNOLD_WORKER_NUM")
    return int(written.text) or None if written is not None and written.text.isdigit() else None
