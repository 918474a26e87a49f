"""Stable-Baselines3 PPO and A2C: a smaller last mini-batch is kept, rollouts are whole, `n_updates` counts passes.

MaskablePPO and RecurrentPPO of sb3-contrib do the same (wheels of 2.7.0 and 2.9.2). Read in the wheels of 2.7.0 and 2.9.2, whose
training code is the same: ppo/ppo.py `__init__` and `train`, a2c/a2c.py, common/on_policy_algorithm.py `learn`, common/buffers.py
`RolloutBuffer.get`. Also read: rl-baselines3-zoo at 22e3ff2, rl_zoo3/exp_manager.py, rl_zoo3/utils.py, hyperparams/ppo.yml.
"""

from __future__ import annotations

from rlstep_hooks.systems.engine.declaration import (
    REQUIRED,
    Check,
    Demand,
    Depends,
    Entry,
    Formula,
    Note,
    System,
    count,
    flag,
    number,
    text,
)
from rlstep_hooks.systems.sb3.launch import OWN, learning_rate, settings_of
from rlstep_hooks.systems.sb3.links import LINKS, RULES
from rlstep_hooks.systems.sb3.releases import FIRST, FIRST_UNSUPPORTED

_PPO = "SB3 2.7.0 stable_baselines3/ppo/ppo.py"
_A2C = "SB3 2.7.0 stable_baselines3/a2c/a2c.py"
_LEARN = "SB3 2.7.0 stable_baselines3/common/on_policy_algorithm.py learn"
_BUILT = "when the model is built"

SYSTEM = System(
    name="sb3",
    title="Stable-Baselines3",
    version="2.7.0",
    package="stable-baselines3",
    recognised=(
        Entry(
            "sb3",
            programs=("module:rl_zoo3.train", "module:rl_zoo3", "script:rl_zoo3/train.py", "executable:rl_zoo3"),
            keys=(
                "PPO.n_steps",
                "PPO.n_epochs",
                "PPO.0",
                "A2C.n_steps",
                "A2C.0",
                "MaskablePPO.n_steps",
                "MaskablePPO.0",
                "RecurrentPPO.n_steps",
                "RecurrentPPO.0",
            ),
            calls=("make_vec_env", "make_atari_env"),
            packages=("stable_baselines3", "sb3_contrib"),
        ),
    ),
    config_settings=("conf_file", "conf"),
    given_of=settings_of,
    settings={
        "algo": text(REQUIRED),
        "n_envs": count(1),
        "n_steps": count(OWN["A2C"]["n_steps"]),
        "total_timesteps": number(None),
        "batch_size": count(OWN["PPO"]["batch_size"], where="ppo"),
        "n_epochs": count(OWN["PPO"]["n_epochs"], where="ppo"),
        "target_kl": text(where="ppo"),
        "normalize_advantage": flag(True, where="ppo"),
    },
    defaults_of=lambda launch: OWN[launch.settings.value("algo")],
    shown=("n_envs", "n_steps", "total_timesteps", "batch_size", "n_epochs"),
    functions={"learning_rate": learning_rate},
    let={
        "algorithm": "'PPO' if ppo else algo",
        "ppo": "algo != 'A2C'",
        "world_size": "1",
        "prompts_per_rollout": "n_envs",
        "samples_per_prompt": "n_steps",
        "total_timesteps": "floor(total_timesteps)",
        "reuse_epochs": "n_epochs if ppo else 1",
        # A2C makes one update with all samples of a rollout, and has no ratio.
        "minibatches": "slices(samples_per_rollout, batch_size) if ppo else (samples_per_rollout,)",
        "last": "samples_per_rollout % batch_size if ppo and samples_per_rollout > batch_size else 0",
        "samples_per_microbatch": "max(minibatches)",
        "microbatches_per_update": "1",
        "remainder": "'keep' if last else 'error'",
        "updates_bound": "'upper' if ppo and target_kl is not None else 'exact'",
        "old_logprob_source": "'at_rollout' if ppo else 'none'",
        "counted": "'passes, ' + quoted(n_epochs) + ' for each rollout' if ppo else 'updates'",
        "timesteps": "rollouts * samples_per_rollout",
        "learning_rate": "learning_rate(launch)",
    },
    always={
        "loader": "none",
        "lr_clock": "rollout",
        "step_unit": "timestep",
        "step_means": "1 step = 1 timestep, {samples_per_rollout} for each rollout; train/n_updates counts {counted}",
    },
    formulas=(
        Formula("samples_per_rollout", "n_steps * n_envs", f"{_PPO} __init__ buffer_size", where="ppo"),
        Formula("samples_per_rollout", "n_steps * n_envs", _A2C),
        Formula(
            "updates_per_rollout",
            "n_epochs * ceil(n_steps * n_envs / batch_size)",
            f"{_PPO} train; buffers.py RolloutBuffer.get",
            where="ppo",
        ),
        Formula("rollouts", "ceil(total_timesteps / (n_steps * n_envs))", _LEARN),
        Formula("updates", "rollouts", f"{_A2C} train", where="not ppo"),
        Formula("lr_ticks", "rollouts", f"{_PPO} train _update_learning_rate", where="ppo"),
    ),
    depends=(
        # The plan gives a bound (`updates_bound`).
        Depends(
            on="ppo and target_kl is not None",
            says="target_kl ends the passes over a rollout at the first mini-batch whose KL is 1.5 times larger",
            counts=(),
            source="stable-baselines3 {version} ppo/ppo.py train",
        ),
    ),
    checks=(
        # Of a live model the timesteps that are left, which may be none.
        Demand(
            "total_timesteps >= 1",
            "total_timesteps = {total_timesteps}: it must be at least 1",
            about="total_timesteps",
            where="program_kind != 'config'",
        ),
        Check(
            "batch_size > 1",
            "`batch_size` must be greater than 1",
            fix="batch_size = 2, or normalize_advantage = False",
            when=_BUILT,
            source=f"{_PPO} __init__",
            where="algo == 'PPO' and normalize_advantage",
        ),
        Check(
            "samples_per_rollout > 1",
            "`n_steps * n_envs` must be greater than 1. Currently n_steps={n_steps} and n_envs={n_envs}",
            fix="n_steps = 2",
            when=_BUILT,
            source=f"{_PPO} __init__",
            where="algo == 'PPO' and normalize_advantage",
        ),
    ),
    notes=(
        Note(
            "grows",
            "a truncated mini-batch of size {last} after every {len(minibatches) - 1} untruncated ones is an update of its own",
            "last",
        ),
        Note(
            "shrinks",
            "batch_size {batch_size} is above the {samples_per_rollout} timesteps of a rollout",
            "ppo and batch_size > samples_per_rollout",
        ),
        Note(
            "grows",
            "the run ends at {timesteps} timesteps, not {total_timesteps}: rollouts are whole",
            "timesteps != total_timesteps",
        ),
        Note(
            "assumes",
            "the linear learning rate is {'0' if timesteps == total_timesteps else 'below 0'} in the last rollout: progress is "
            "counted before its updates",
            "learning_rate == 'to_zero'",
        ),
        # PPO leaves `train` before the backward of that mini-batch.
        Note(
            "shrinks",
            "target_kl ends the updates on a rollout before the mini-batch whose KL is above 1.5 x target_kl",
            "updates_bound == 'upper'",
        ),
        # sb3_contrib ppo_mask/ppo_mask.py train; stable_baselines3 counts the passes that ran.
        Note(
            "unit",
            "before sb3-contrib 2.8, {algo} adds all {n_epochs} passes to train/n_updates, also those that target_kl left out "
            "(sb3-contrib issue 313)",
            "algo in ('MaskablePPO', 'RecurrentPPO') and updates_bound == 'upper'",
        ),
        Note("assumes", "A2C has no ratio and no clipping; each rollout is one update", "not ppo"),
    ),
    facts={"lr_constant": "learning_rate == 'constant' if learning_rate is not None else None"},
    knobs={
        "learning_rate": "learning_rate",
        "gradient_limit": "max_grad_norm",
        "clip": "clip_range",
        "passes": "n_epochs",
        "updates": "batch_size",
        "early_stop": "target_kl",
        "entropy_bonus": "ent_coef",
        "length": "total_timesteps",
    },
    attaches_by="`model.learn(..., callback=StepAuditSB3Callback())`, or `rlstep run -- <command>`.",
    # 2.7 to 2.9: the module with the loop of PPO and A2C.
    on_import={
        "stable_baselines3.common.on_policy_algorithm": "rlstep_hooks.systems.sb3.observe.injection:audit_sb3",
        # It has a `learn` of its own.
        "sb3_contrib.ppo_mask.ppo_mask": "rlstep_hooks.systems.sb3.observe.injection:audit_maskable",
    },
    observed_releases=(str(FIRST), str(FIRST_UNSUPPORTED)),
    trained_releases=("2.9.2",),
    observes=(
        "rollouts",
        "old log-probs, sample by sample",
        "mini-batches",
        "updates",
        "an early stop by target_kl",
    ),
    links=LINKS,
    rules=RULES,
    does_not_observe=(
        "algorithms other than PPO, A2C, MaskablePPO and RecurrentPPO (TRPO steps by a line search of its own)",
        "subclasses with a `train` of their own",
    ),
)
