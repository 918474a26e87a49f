"""CleanRL's PPO scripts: the size of a mini-batch is rounded down, and samples left over make an extra mini-batch.

Read at commit fe8d8a0 (2026-04-20): cleanrl/ppo.py and its variants (dataclass `Args`, the loop under `__main__`). A local copy is
read for its own defaults.
"""

from __future__ import annotations

from typing import Any

from rlstep_hooks.systems.engine.declaration import (
    Check,
    Demand,
    Depends,
    Entry,
    Formula,
    Note,
    System,
    count,
    flag,
    text,
)

_LOOP = "CleanRL fe8d8a0 cleanrl/"

_ATARI = {
    "total_timesteps": 10_000_000,
    "num_envs": 8,
    "num_steps": 128,
    "num_minibatches": 4,
    "update_epochs": 4,
    "anneal_lr": True,
}
SCRIPTS: dict[str, dict[str, Any]] = {
    "ppo": {**_ATARI, "total_timesteps": 500_000, "num_envs": 4},
    "ppo_atari": _ATARI,
    "ppo_atari_envpool": _ATARI,
    "ppo_atari_lstm": _ATARI,
    "ppo_atari_multigpu": _ATARI,
    "ppo_continuous_action": {
        "total_timesteps": 1_000_000, "num_envs": 1, "num_steps": 2048, "num_minibatches": 32, "update_epochs": 10, "anneal_lr": True,
    },
    "ppo_pettingzoo_ma_atari": {**_ATARI, "total_timesteps": 20_000_000, "num_envs": 16},
    "ppo_procgen": {
        "total_timesteps": 25_000_000, "num_envs": 64, "num_steps": 256, "num_minibatches": 8, "update_epochs": 3, "anneal_lr": False,
    },
    "ppo_rnd_envpool": {**_ATARI, "total_timesteps": 2_000_000_000, "num_envs": 128},
}  # fmt: skip
"""Defaults of each script."""


def _script_of(program: str) -> str:
    """Name of the script, without its folder and ending."""
    return program.rpartition("/")[2].removesuffix(".py")


SYSTEM = System(
    name="cleanrl",
    title="CleanRL",
    version="fe8d8a0",
    trains=("ratio", "logratio"),
    checkout="rlstep_hooks.systems.planned.cleanrl_checkout:beside",
    recognised=(
        Entry(
            "cleanrl",
            programs=(
                "script:cleanrl/ppo*.py",
                "script:ppo_atari_*.py",
                "script:ppo_continuous_action.py",
                "script:ppo_continuous_action_*.py",
                "script:ppo_pettingzoo_ma_atari.py",
                "script:ppo_procgen.py",
                "script:ppo_rnd_envpool.py",
            ),
            # The names `ppo.py` and `ppo_atari.py` alone do not identify CleanRL.
            keys=("num_minibatches", "update_epochs", "Args.num_minibatches", "Args.update_epochs"),
        ),
    ),
    keywords_of=("Args",),
    defaults_of=lambda launch: SCRIPTS.get(_script_of(launch.command.program.name), {}),
    settings={
        "num_envs": count(also=("local_num_envs",)),
        "num_steps": count(),
        "num_minibatches": count(),
        "update_epochs": count(),
        "total_timesteps": count(),
        "target_kl": text(),
        "norm_adv": flag(True, off="no_norm_adv"),
        "anneal_lr": flag(True, off="no_anneal_lr"),
        "anneal_steps": count(None, least=0),
    },
    shown=("num_envs", "num_steps", "num_minibatches", "update_epochs", "total_timesteps"),
    functions={"script_of": _script_of},
    let={
        "script": "script_of(program)",
        "world_size": "world_size if script == 'ppo_atari_multigpu' else 1",
        "prompts_per_rollout": "num_envs * world_size",
        "samples_per_prompt": "num_steps",
        "each": "num_envs * num_steps",
        "minibatch": "floor(each / num_minibatches)",
        "minibatches": "() if rollouts == 0 else parts(samples_per_rollout, num_minibatches) if script == 'ppo_atari_lstm' "
        "else slices(samples_per_rollout, minibatch * world_size)",
        "last": "each % minibatch",
        "reuse_epochs": "update_epochs",
        "remainder": "'keep' if len(minibatches) > 1 and last and script != 'ppo_atari_lstm' else 'error'",
        "updates_bound": "'exact' if target_kl is None else 'upper'",
        "source": f"'{_LOOP}' + (script if known_script else 'ppo') + '.py'",
        "known_script": f"script in {tuple(SCRIPTS)}",
        "microbatches_per_update": "1",
    },
    always={
        "algorithm": "PPO",
        "loader": "none",
        "old_logprob_source": "at_rollout",
        "lr_clock": "rollout",
        "step_unit": "timestep",
        "step_means": "1 step (global_step) = 1 timestep, {samples_per_rollout} for each rollout",
    },
    formulas=(
        Formula("samples_per_rollout", "num_envs * num_steps * world_size", "{source} batch_size"),
        Formula("samples_per_update", "minibatch * world_size", "{source} minibatch_size", where="rollouts"),
        Formula(
            "updates_per_rollout",
            "update_epochs * ceil(each / minibatch)",
            "{source} loop over range(0, batch_size, minibatch_size)",
            where="rollouts and script != 'ppo_atari_lstm'",
        ),
        Formula(
            "updates_per_rollout",
            "update_epochs * num_minibatches",
            "{source} loop over range(0, batch_size, minibatch_size)",
            where="rollouts",
        ),
        Formula("rollouts", "floor(total_timesteps / samples_per_rollout)", "{source} num_iterations"),
        Formula("lr_ticks", "rollouts", "{source} anneal_lr", where="rollouts"),
        Formula(
            "lr_horizon",
            "unknown('the learning rate falls to final_lr within anneal_steps timesteps')",
            "{source} do_anneal",
            where="anneal_steps is not None",
        ),
    ),
    depends=(
        # The plan gives a bound (`updates_bound`).
        Depends(
            on="target_kl is not None",
            says="target_kl ends the passes over a rollout after one whose KL is larger",
            counts=(),
            source="CleanRL fe8d8a0 cleanrl/ppo.py",
        ),
    ),
    checks=(
        Demand(
            "script != 'ppg_procgen'",
            "{script}.py trains in two phases (PPG), which is not read",
            about="program",
        ),
        Demand(
            "known_script or given(num_steps)",
            "{script}.py is not one of CleanRL's PPO scripts that are read: " + ", ".join(SCRIPTS),
        ),
        Check(
            "num_envs % num_minibatches == 0",
            "AssertionError: assert args.num_envs % args.num_minibatches == 0 ({num_envs} % {num_minibatches})",
            fix="num_minibatches = {nearest(min(num_minibatches, num_envs + 1), num_envs % it == 0)}",
            when="after the first rollout",
            source="{source}",
            where="rollouts and script == 'ppo_atari_lstm'",
        ),
        Check(
            "each >= num_minibatches",
            "ValueError: range() arg 3 must not be zero (minibatch_size = {each} // {num_minibatches} = 0)",
            fix="num_minibatches = {each} or less",
            when="after the first rollout",
            source="{source}",
            where="rollouts",
        ),
        Check(
            "last != 1 and minibatch != 1 or not norm_adv",
            "the policy becomes nan: the last mini-batch has 1 sample ({each} = {ceil(each / minibatch) - 1} x {minibatch} + 1), "
            "and advantages are divided by the standard deviation of a single one",
            fix="num_minibatches = {nearest(num_minibatches, each % it == 0)}",
            when="in the first pass over the first rollout",
            source="{source}",
            where="rollouts and script != 'ppo_atari_lstm'",
        ),
    ),
    notes=(
        Note(
            "grows",
            "{ceil(each / minibatch)} updates a pass, not num_minibatches = {num_minibatches}: {minibatch} samples each by floor "
            "division, and {last or minibatch} in the last",
            "len(minibatches) > num_minibatches",
        ),
        Note(
            "drops",
            "the last {total_timesteps % samples_per_rollout} of {total_timesteps} timesteps are not run; "
            "{'they do not fill a rollout' if rollouts else 'nothing is trained: they do not fill one rollout'}",
            "total_timesteps % samples_per_rollout",
        ),
        Note(
            "shrinks",
            "target_kl ends the passes over a rollout after one whose last mini-batch has a larger KL",
            "target_kl is not None",
        ),
    ),
    facts={"lr_constant": "not anneal_lr", "nominal_updates_per_rollout": "update_epochs * num_minibatches"},
)
