"""Stable-Baselines3 PPO and A2C: a smaller last mini-batch is kept, rollouts are whole, `n_updates` counts passes.

The formulas are those of a live model (`rlstep_hooks.systems.sb3.plan`). Read besides: rl-baselines3-zoo at 22e3ff2,
rl_zoo3/exp_manager.py, rl_zoo3/utils.py, hyperparams/ppo.yml.
"""

from __future__ import annotations

from rlstep_hooks.systems.declaration import Entry, System, count, text
from rlstep_hooks.systems.sb3.releases import FIRST, FIRST_UNSUPPORTED

SYSTEM = System(
    name="sb3",
    title="Stable-Baselines3",
    version="2.7.0",
    package="stable-baselines3",
    recognised=(
        Entry(
            "sb3",
            programs=("module:rl_zoo3.train", "module:rl_zoo3", "script:rl_zoo3/train.py", "executable:rl_zoo3"),
            keys=("PPO.n_steps", "PPO.n_epochs", "PPO.0", "A2C.n_steps", "A2C.0"),
            calls=("make_vec_env", "make_atari_env"),
        ),
    ),
    config_settings=("conf_file", "conf"),
    # Those of the zoo's command line; PPO and A2C have their own, under the names of their parameters.
    settings={
        "algo": text("ppo"),
        "env": text("CartPole-v1"),
        "n_timesteps": count(-1, least=-1, also=("n",)),
    },
    plan="rlstep_hooks.systems.sb3.launch:read",
    attaches_by="`model.learn(..., callback=StepAuditSB3Callback())`, or `rlstep run -- <command>`.",
    # 2.7 to 2.9: the module with the loop of PPO and A2C.
    on_import={
        "stable_baselines3.common.on_policy_algorithm": "rlstep_hooks.systems.sb3.observe.injection:audit_sb3",
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
    does_not_observe=("algorithms other than PPO and A2C", "subclasses with a `train` of their own"),
)
