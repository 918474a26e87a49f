"""A complete PPO on CartPole in one file, audited by `rlstep_hooks.audit`. It learns: the return rises from 20 to some hundreds.

    python -m pip install torch gymnasium
    python examples/ppo_loop.py
    python examples/ppo_loop.py --fault overlapping_minibatches     # a mistake, and what the audit says of it

The lines marked with an arrow are the audit; the rest is a loop as anybody would write it. It exits with status 1 if it did not do
what its plan says.
"""

from __future__ import annotations

import argparse
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gymnasium
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

import rlstep_hooks  # <-
from rlstep_hooks import Schedule  # <-

if TYPE_CHECKING:
    from rlstep_hooks.systems.own_loop.loop import LoopAudit

ACTORS, STEPS, EPOCHS, MINIBATCHES = 8, 128, 4, 4
SAMPLES = ACTORS * STEPS
GAMMA, LAMBDA, CLIP, RATE, ENTROPY = 0.99, 0.95, 0.2, 2.5e-3, 0.01

FAULTS = {
    "old_logprobs_every_epoch": "the old log-probs are computed again at the beginning of each epoch",
    "one_update": "gradients of all mini-batches add up, and the optimizer steps once a rollout",
    "target_not_detached": "the critic's one-step target carries a gradient",
    "overlapping_minibatches": "neighbouring mini-batches share half of their samples",
}


class ActorCritic(nn.Module):
    """A policy and a critic for small observations; one optimizer trains both."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(
            nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, actions)
        )
        self.critic = nn.Sequential(
            nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )

    def policy(self, observations: Tensor) -> Categorical:
        """(B, observations) -> a distribution over actions for each."""
        return Categorical(logits=self.actor(observations))

    def values(self, observations: Tensor) -> Tensor:
        """(B, observations) -> (B,), the return expected from each."""
        return self.critic(observations).squeeze(-1)


@dataclass
class Rollout:
    """One rollout, all of shape (steps * actors, ...)."""

    observations: Tensor
    next_observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    over: Tensor
    advantages: Tensor
    returns: Tensor


class Sampler:
    """Steps the environments, from one rollout to the next."""

    def __init__(self, seed: int) -> None:
        same_step = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        self.envs = gymnasium.make_vec("CartPole-v1", ACTORS, vectorization_mode="sync", vector_kwargs=same_step)
        self.observations = torch.as_tensor(self.envs.reset(seed=seed)[0])
        self.episode = torch.zeros(ACTORS)
        self.episode_returns: deque[float] = deque(maxlen=50)

    @torch.no_grad()
    def sample(self, model: ActorCritic) -> Rollout:
        """The next rollout, with the log-probs of the weights that sample it."""
        steps: list[tuple[Tensor, ...]] = []
        for _ in range(STEPS):
            policy = model.policy(self.observations)
            actions = policy.sample()
            observations, rewards, terminated, truncated, _ = self.envs.step(actions.numpy())
            over = torch.as_tensor(terminated | truncated)
            rewards, observations = torch.as_tensor(rewards, dtype=torch.float32), torch.as_tensor(observations)
            steps.append((self.observations, observations, actions, policy.log_prob(actions), rewards, over))
            self.observations = observations
            self.episode += rewards
            self.episode_returns.extend(self.episode[over].tolist())
            self.episode[over] = 0.0
        before, after, actions, log_probs, rewards, over = (torch.stack(part) for part in zip(*steps, strict=True))
        advantages = generalised_advantages(rewards, model.values(before), model.values(after), over)
        returns = advantages + model.values(before)
        parts = (before, after, actions, log_probs, rewards, over, advantages, returns)
        return Rollout(*(part.flatten(0, 1) for part in parts))


def generalised_advantages(rewards: Tensor, values: Tensor, next_values: Tensor, over: Tensor) -> Tensor:
    """Schulman et al. 2016, arXiv:1506.02438; an episode that ends is worth nothing after its end."""
    goes_on = 1.0 - over.float()
    errors = rewards + GAMMA * next_values * goes_on - values
    advantages = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[0])
    for step in reversed(range(len(rewards))):
        running = advantages[step] = errors[step] + GAMMA * LAMBDA * goes_on[step] * running
    return advantages


def train(
    sampler: Sampler,
    model: ActorCritic,
    optimizer: torch.optim.Optimizer,
    rollouts: int,
    audit: LoopAudit,
    fault: str = "",
) -> list[float]:
    """Train for some rollouts; returns the mean return of the latest 50 episodes after each."""
    history = []
    for number in range(rollouts):
        optimizer.param_groups[0]["lr"] = RATE * (1 - number / rollouts)
        with audit.rollout(samples=SAMPLES):  # <-
            rollout = sampler.sample(model)
            audit.refresh(rollout.log_probs)  # <- where old log-probs are computed
        for _ in range(EPOCHS):
            if fault == "old_logprobs_every_epoch":
                with torch.no_grad():
                    rollout.log_probs = model.policy(rollout.observations).log_prob(rollout.actions)
                audit.refresh(rollout.log_probs)  # <- where old log-probs are computed
            order, size = torch.randperm(SAMPLES), SAMPLES // MINIBATCHES
            for start in range(0, SAMPLES, size):
                first = start // 2 if fault == "overlapping_minibatches" else start
                minibatch_loss(model, rollout, order[first : first + size], audit, fault).backward()
                if fault != "one_update":
                    update(model, optimizer)
        if fault == "one_update":
            update(model, optimizer)
        history.append(sum(sampler.episode_returns) / max(len(sampler.episode_returns), 1))
    return history


def update(model: ActorCritic, optimizer: torch.optim.Optimizer) -> None:
    """One optimizer step; the audit sees it by itself."""
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()


def minibatch_loss(model: ActorCritic, rollout: Rollout, chosen: Tensor, audit: LoopAudit, fault: str) -> Tensor:
    """PPO's clipped loss of the policy, the critic's squared error, and an entropy bonus."""
    observations, old = rollout.observations[chosen], rollout.log_probs[chosen]
    policy = model.policy(observations)
    log_probs = policy.log_prob(rollout.actions[chosen])
    advantages = rollout.advantages[chosen]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    targets = rollout.returns[chosen]
    if fault == "target_not_detached":
        goes_on = 1.0 - rollout.over[chosen].float()
        targets = rollout.rewards[chosen] + GAMMA * goes_on * model.values(rollout.next_observations[chosen])
    audit.microbatch(  # <- what the loss is computed from; only the number of samples is needed
        indices=chosen, old_logprobs=old, new_logprobs=log_probs, advantages=advantages, targets=targets
    )
    ratio = (log_probs - old).exp()
    clipped = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return (
        functional.mse_loss(model.values(observations), targets) * 0.5
        - clipped.mean()
        - ENTROPY * policy.entropy().mean()
    )


def main() -> int:
    """Train, and exit with status 1 if the run was not what its plan says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rollouts", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--fault", choices=FAULTS, default="", help="; ".join(f"{n}: {what}" for n, what in FAULTS.items())
    )
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    sampler, model = Sampler(given.seed), ActorCritic(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, eps=1e-5)
    schedule = Schedule.ppo(  # <- the plan
        actors=ACTORS, steps=STEPS, epochs=EPOCHS, minibatches=MINIBATCHES, rollouts=given.rollouts
    )
    with rlstep_hooks.audit(schedule, optimizer=optimizer) as audit:  # <- prints the plan, and at its end the verdict
        history = train(sampler, model, optimizer, given.rollouts, audit, given.fault)
    shown = {0, *range(9, len(history), 10), len(history) - 1}
    print("mean return:", ", ".join(f"{history[n]:.0f} after rollout {n + 1}" for n in sorted(shown)))
    return 1 if audit.report.verdict == "FAIL" else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    raise SystemExit(main())
