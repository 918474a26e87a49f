"""open-instruct's trainers of Tülu 3, which generate in a thread of the trainer: GRPO and PPO with sizes of one process.

Read at commit ebae1d1 (2025-07): open_instruct/grpo_vllm_thread_ray_gtrl.py (`Args`, `main`, `PolicyTrainerRayProcess.train`,
`ShufflingIterator`); ppo_vllm_thread_ray_gtrl.py has the same sizes, and a value model. `grpo_fast.py` took their place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.systems.engine.declaration import (
    Beside,
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
from rlstep_hooks.systems.engine.own_source import Fields, checkout_of, defaults_in, with_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.request import Request

_GRPO, _PPO = "grpo_vllm_thread_ray_gtrl", "ppo_vllm_thread_ray_gtrl"
_PACKAGE = "open_instruct/utils.py"
"""A file that open-instruct has with these trainers, and after them."""
_SOURCE = "open-instruct ebae1d1 open_instruct/{program_name}.py"
_MAIN, _TRAIN = f"{_SOURCE} main", f"{_SOURCE} PolicyTrainerRayProcess.train"
_START_UP = "at start-up, when the sizes are computed"


def _is_ppo(launch: Request) -> bool:
    return _PPO in launch.command.program.name


def _learners(launch: Request) -> int:
    """Learners of all nodes: `actor_num_gpus_per_node` is a list with one number for each.

    Raises:
        SettingError: They are no whole numbers.
    """
    learners = launch.settings.files("actor_num_gpus_per_node")
    try:
        return sum(int(each) for each in learners)
    except ValueError:
        place = launch.settings.place("actor_num_gpus_per_node")
        raise SettingError(f"actor_num_gpus_per_node = {' '.join(learners)}: not whole numbers", place) from None


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """The defaults of the trainer in the checkout; None where there is none.

    Args:
        system: These trainers.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: A default that decides the plan is not a plain value, or the checkout does not have the trainer any more.
    """
    file = f"{_PPO if _PPO in command.program.name else _GRPO}.py"
    checkout = checkout_of(system, f"open_instruct/{file}", folder)
    if checkout is None:
        if checkout_of(system, _PACKAGE, folder) is not None:
            raise LaunchError(
                f"the launch starts {command.program.name}, which is not in the open_instruct/ beside it: the run cannot start there",
                command.place,
                remedy=f"--version {system.version} plans it as the program of that commit, which an image may have",
            )
        return None
    read, notes = with_defaults(system, defaults_in(checkout, [Fields(file, ("Args",))]), given)
    return Beside(read, notes=notes)


SYSTEM = System(
    name="open_instruct_threads",
    title="open-instruct (thread)",
    version="ebae1d1",
    recognised=(
        Entry(
            "open_instruct_threads",
            programs=tuple(
                pattern
                for name in (_GRPO, _PPO)
                for pattern in (f"script:open_instruct/{name}.py", f"script:{name}.py", f"module:open_instruct.{name}")
            ),
        ),
    ),
    checkout="rlstep_hooks.systems.planned.open_instruct_threads:beside",
    settings={
        "local_rollout_batch_size": count(64),
        "number_samples_per_prompt": count(1),
        "local_mini_batch_size": count(64),
        "per_device_train_batch_size": count(1),
        "num_epochs": count(4),
        "total_episodes": count(100_000),
        "async_mode": flag(True),
        "actor_num_gpus_per_node": text(),
        "lr_scheduler_type": text("linear"),
        "warmup_ratio": number(0),
        "warm_up_steps": count(0, least=0),
        "save_freq": count(-1, least=-1),
    },
    functions={"is_ppo": _is_ppo, "learners": _learners, "one_to": lambda last: tuple(range(1, last + 1))},
    let={
        "program_name": f"'{_PPO}' if is_ppo(launch) else '{_GRPO}'",
        "algorithm": "'PPO' if is_ppo(launch) else 'GRPO'",
        "processes": "learners(launch) if given(actor_num_gpus_per_node) else 1",
        "critic": "is_ppo(launch)",
        "prompts_per_rollout": "local_rollout_batch_size * world_size",
        "samples_per_prompt": "number_samples_per_prompt",
        "reuse_epochs": "num_epochs",
        "mini_batch_size": "local_mini_batch_size * world_size",
        "samples_per_microbatch": "per_device_train_batch_size * world_size",
        # GRPO keeps the log-probs of the first pass's own forwards; PPO computes them before the first update.
        "old_logprob_source": "'recompute' if is_ppo(launch) or num_epochs > 1 else 'detach'",
        "lags": "(0,) if old_logprob_source == 'detach' else None",
        "ratio_one_updates": "None if is_ppo(launch) else one_to(len(minibatches))",
        "minibatches": "parts(samples_per_rollout, samples_per_rollout // mini_batch_size)",
        "reference_source": "'at_rollout'",
        "max_age": "1 if async_mode else 0",
        "correction": "'none' if async_mode else ''",
    },
    always={"loader": "wraps", "remainder": "error", "syncs": "after_updates"},
    formulas=(
        Formula("samples_per_rollout", "local_rollout_batch_size * world_size * number_samples_per_prompt", _MAIN),
        Formula("samples_per_update", "mini_batch_size", f"{_MAIN} (the train_batch_size of DeepSpeed)"),
        Formula("updates_per_rollout", "num_epochs * samples_per_rollout / mini_batch_size", _TRAIN),
        Formula("rollouts", "floor(total_episodes / samples_per_rollout)", _MAIN),
        Formula("lr_ticks", "updates", f"{_TRAIN} (model.step)"),
        Formula(
            "lr_horizon",
            "rollouts * num_epochs * samples_per_rollout // mini_batch_size",
            f"{_SOURCE} PolicyTrainerRayProcess.from_pretrained",
        ),
    ),
    checks=(
        Check(
            "local_mini_batch_size % per_device_train_batch_size == 0",
            "`local_mini_batch_size` must be a multiple of `per_device_train_batch_size`, inexact division: "
            "{local_mini_batch_size} / {per_device_train_batch_size}",
            fix="--per_device_train_batch_size {nearest(per_device_train_batch_size, local_mini_batch_size % it == 0)}",
            when=_START_UP,
            source=_MAIN,
        ),
        Check(
            "samples_per_rollout % mini_batch_size == 0",
            "inexact division: {samples_per_rollout} / {mini_batch_size}",
            fix="--local_mini_batch_size "
            "{nearest(local_mini_batch_size, local_rollout_batch_size * number_samples_per_prompt % it == 0)}",
            when=_START_UP,
            source=f"{_MAIN} (num_mini_batches)",
        ),
        Demand(
            "rollouts >= 1",
            "total_episodes = {total_episodes} are fewer than the {samples_per_rollout} samples of a rollout: the run trains nothing",
            about="total_episodes",
        ),
    ),
    notes=(
        Note("unit", "local_rollout_batch_size counts prompts, local_mini_batch_size samples, both of one process"),
        Note("carries", "the second rollout takes the prompts of the first again", "async_mode"),
    ),
    facts={
        "more_updates": "'num_epochs above 1, or a smaller local_mini_batch_size,'",
        "lr_constant": "starts(lr_scheduler_type, 'constant')",
        "lr_warmup": "floor(warmup_ratio * lr_horizon) if warmup_ratio > 0 else warm_up_steps",
        "save_every": "save_freq",
    },
)
