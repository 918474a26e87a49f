"""Stable-Baselines3's PPO on CartPole, audited: one callback. Needs `pip install stable-baselines3`.

python examples/sb3_cartpole.py
python examples/sb3_cartpole.py --n-steps 100        # 200 timesteps in mini-batches of 64: the last has 8
python examples/sb3_cartpole.py --target-kl 0.0005   # updates are an upper bound; the report says how many were saved
"""

from __future__ import annotations

import argparse
import sys

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from rlstep_hooks import StepAuditSB3Callback


def main() -> int:
    """Train, and exit with status 1 if the run was not what its settings say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-steps", type=int, default=128)
    parser.add_argument("--target-kl", type=float)
    parser.add_argument("--timesteps", type=int, default=4096)
    given = parser.parse_args()
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=2, seed=1),
        n_steps=given.n_steps,
        batch_size=64,
        n_epochs=4,
        target_kl=given.target_kl,
        seed=1,
        device="cpu",
    )
    audit = StepAuditSB3Callback()  # prints the plan before training and the verdict after it
    model.learn(total_timesteps=given.timesteps, callback=audit)
    return 0 if audit.report.verdict == "PASS" else 1


if __name__ == "__main__":
    sys.exit(main())
