"""PPO on CartPole in the style of CleanRL (one file, one loop, nothing hidden), audited.

    python -m pip install torch gymnasium
    python examples/cleanrl_ppo.py
    python examples/cleanrl_ppo.py --target-kl 0.01     # passes over a rollout may then end early: reported, and no error

Written for this repository; only the style is CleanRL's. The lines marked with an arrow are all that an audit adds to such a file.
"""

from __future__ import annotations

import argparse

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import rlstep_hooks  # <-


def parse_args() -> argparse.Namespace:
    """The settings of CleanRL's ppo.py, with a shorter run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-timesteps", type=int, default=50_000)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--num-steps", type=int, default=128)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--update-epochs", type=int, default=4)
    parser.add_argument("--clip-coef", type=float, default=0.2)
    parser.add_argument("--ent-coef", type=float, default=0.01)
    parser.add_argument("--vf-coef", type=float, default=0.5)
    parser.add_argument("--max-grad-norm", type=float, default=0.5)
    parser.add_argument("--target-kl", type=float, default=None)
    args = parser.parse_args()
    args.batch_size = args.num_envs * args.num_steps
    args.minibatch_size = args.batch_size // args.num_minibatches
    args.num_iterations = args.total_timesteps // args.batch_size
    return args


def layer(inputs: int, outputs: int, std: float = 2**0.5) -> nn.Linear:
    """A linear layer with orthogonal weights."""
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, std)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    """Actor and critic, side by side."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(layer(observations, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))
        self.actor = nn.Sequential(
            layer(observations, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, actions, 0.01)
        )

    def get_value(self, x: torch.Tensor) -> torch.Tensor:
        """(B, observations) -> (B,)."""
        return self.critic(x).flatten()

    def get_action_and_value(self, x: torch.Tensor, action: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """Actions, their log-probs, the entropy of the policy, and values; each (B,)."""
        policy = Categorical(logits=self.actor(x))
        action = policy.sample() if action is None else action
        return action, policy.log_prob(action), policy.entropy(), self.get_value(x)


if __name__ == "__main__":
    args = parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)

    autoreset = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    envs = gym.make_vec("CartPole-v1", args.num_envs, vectorization_mode="sync", vector_kwargs=autoreset)
    agent = Agent(int(np.prod(envs.single_observation_space.shape)), int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    schedule = rlstep_hooks.Schedule.ppo(  # <-
        actors=args.num_envs,
        steps=args.num_steps,
        epochs=args.update_epochs,
        minibatches=args.num_minibatches,
        rollouts=args.num_iterations,
        early_stop=args.target_kl is not None,
    )
    audit = rlstep_hooks.audit(schedule, optimizer=optimizer)  # <-
    audit.begin()  # <-

    shape = (args.num_steps, args.num_envs)
    obs = torch.zeros((*shape, *envs.single_observation_space.shape))
    actions, logprobs, rewards, dones, values = (torch.zeros(shape) for _ in range(5))
    episode, episode_returns = np.zeros(args.num_envs), []

    global_step = 0
    next_obs = torch.as_tensor(envs.reset(seed=args.seed)[0])
    for iteration in range(args.num_iterations):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1.0 - iteration / args.num_iterations)

        with audit.rollout(samples=args.batch_size):  # <-
            for step in range(args.num_steps):
                global_step += args.num_envs
                obs[step] = next_obs
                with torch.no_grad():
                    action, logprob, _, value = agent.get_action_and_value(next_obs)
                actions[step], logprobs[step], values[step] = action, logprob, value
                observation, reward, terminated, truncated, _ = envs.step(action.numpy())
                done = np.logical_or(terminated, truncated)
                rewards[step], dones[step] = torch.as_tensor(reward), torch.as_tensor(done)
                next_obs = torch.as_tensor(observation)
                episode += reward
                episode_returns += episode[done].tolist()
                episode[done] = 0.0
            audit.refresh(logprobs.reshape(-1))  # <-

        with torch.no_grad():
            advantages, lastgaelam = torch.zeros_like(rewards), torch.zeros(args.num_envs)
            for t in reversed(range(args.num_steps)):
                following = agent.get_value(next_obs) if t == args.num_steps - 1 else values[t + 1]
                delta = rewards[t] + args.gamma * following * (1.0 - dones[t]) - values[t]
                advantages[t] = lastgaelam = delta + args.gamma * args.gae_lambda * (1.0 - dones[t]) * lastgaelam
            returns = advantages + values

        b_obs, b_actions, b_logprobs = obs.flatten(0, 1), actions.reshape(-1), logprobs.reshape(-1)
        b_advantages, b_returns = advantages.reshape(-1), returns.reshape(-1)

        b_inds = np.arange(args.batch_size)
        for _ in range(args.update_epochs):
            np.random.shuffle(b_inds)
            for start in range(0, args.batch_size, args.minibatch_size):
                mb_inds = b_inds[start : start + args.minibatch_size]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb_inds], b_actions[mb_inds])
                logratio = newlogprob - b_logprobs[mb_inds]
                ratio = logratio.exp()
                with torch.no_grad():
                    approx_kl = ((ratio - 1) - logratio).mean()

                mb_advantages = b_advantages[mb_inds]
                mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
                clipped = torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = torch.max(-mb_advantages * ratio, -mb_advantages * clipped).mean()
                v_loss = 0.5 * ((newvalue - b_returns[mb_inds]) ** 2).mean()
                loss = pg_loss - args.ent_coef * entropy.mean() + args.vf_coef * v_loss

                audit.microbatch(  # <-
                    indices=mb_inds,
                    old_logprobs=b_logprobs[mb_inds],
                    new_logprobs=newlogprob,
                    advantages=mb_advantages,
                    targets=b_returns[mb_inds],
                )
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
            if args.target_kl is not None and approx_kl > args.target_kl:
                break

        if iteration % 10 == 9:
            print(
                f"global_step={global_step} mean return of the latest 20 episodes {np.mean(episode_returns[-20:]):.0f}"
            )

    envs.close()
    audit.end()  # <-
    raise SystemExit(audit.report.verdict == "FAIL")  # <-
