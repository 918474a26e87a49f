"""PPO on CartPole with torchrl's own collector, replay buffer, advantage estimator and loss, audited.

    python -m pip install torch gymnasium torchrl
    python examples/torchrl_ppo.py

torchrl's parts are used as they are, so a loop around them needs the same few lines as any other: those with an arrow.
"""

from __future__ import annotations

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs import GymEnv, RewardSum, SerialEnv, TransformedEnv
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import rlstep_hooks  # <-

ENVIRONMENTS, STEPS, EPOCHS, MINIBATCHES, ROLLOUTS = 4, 128, 4, 4, 40
SAMPLES = ENVIRONMENTS * STEPS


def cartpole() -> GymEnv:
    """One environment."""
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def main() -> int:
    """Train, and exit with status 1 if the run was not what its plan says."""
    torch.manual_seed(1)
    environments = TransformedEnv(SerialEnv(ENVIRONMENTS, cartpole), RewardSum())
    environments.set_seed(1)
    layers = {"in_features": 4, "num_cells": (64, 64), "activation_class": nn.Tanh}
    actor = ProbabilisticActor(
        TensorDictModule(MLP(out_features=2, **layers), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(out_features=1, **layers), in_keys=["observation"])
    loss_module = ClipPPOLoss(
        actor, critic, clip_epsilon=0.2, entropy_coeff=0.01, critic_coeff=0.5, normalize_advantage=True
    )
    advantages = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=2.5e-3, eps=1e-5)
    collector = Collector(
        environments,
        actor,
        frames_per_batch=SAMPLES,
        total_frames=ROLLOUTS * SAMPLES,
        auto_register_policy_transforms=False,
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(SAMPLES), sampler=SamplerWithoutReplacement(), batch_size=SAMPLES // MINIBATCHES
    )

    schedule = rlstep_hooks.Schedule.ppo(  # <-
        actors=ENVIRONMENTS, steps=STEPS, epochs=EPOCHS, minibatches=MINIBATCHES, rollouts=ROLLOUTS
    )
    frames = iter(collector)
    returns: list[float] = []
    with rlstep_hooks.audit(schedule, optimizer=optimizer) as audit:  # <-
        for rollout in range(ROLLOUTS):
            optimizer.param_groups[0]["lr"] = 2.5e-3 * (1 - rollout / ROLLOUTS)
            with audit.rollout(samples=SAMPLES):  # <-
                data = next(frames)
                audit.refresh(data["action_log_prob"].reshape(-1))  # <- the collector keeps the log-probs of its policy
            with torch.no_grad():
                advantages(data)
            returns += data["next", "episode_reward"][data["next", "done"]].tolist()
            buffer.extend(data.reshape(-1))
            for _ in range(EPOCHS * MINIBATCHES):
                batch = buffer.sample()
                losses = loss_module(batch)
                audit.microbatch(  # <- the new log-probs stay inside ClipPPOLoss: ratios are not evaluated
                    indices=batch["index"],
                    old_logprobs=batch["action_log_prob"],
                    advantages=batch["advantage"],
                    targets=batch["value_target"],
                )
                (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss_module.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            if rollout % 10 == 9:
                print(f"rollout {rollout + 1}: mean return of the latest 20 episodes {sum(returns[-20:]) / 20:.0f}")
        collector.shutdown()
    return 1 if audit.report.verdict == "FAIL" else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    raise SystemExit(main())
