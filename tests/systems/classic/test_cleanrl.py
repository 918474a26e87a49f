"""CleanRL's ppo.py (its loop, its buffers, its names) with the calls that docs/own-loops.md asks for, on a real environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions.categorical import Categorical

import rlstep_hooks

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report

Reset = gymnasium.vector.AutoresetMode


@dataclass(frozen=True)
class Args:
    """CleanRL's defaults, with fewer timesteps."""

    num_envs: int = 4
    num_steps: int = 64
    num_iterations: int = 4
    num_minibatches: int = 4
    update_epochs: int = 4
    learning_rate: float = 2.5e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


def layer_init(layer: Any, std: float = np.sqrt(2), bias_const: float = 0.0) -> Any:
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    """CleanRL's."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(4, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 1), 1.0),
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(4, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 2), 0.01),
        )

    def get_action_and_value(self, x: Any, action: Any = None) -> Any:
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


@dataclass
class Loop:
    """One training, and what of it is done otherwise than in CleanRL's script."""

    args: Args = Args()
    mode: Any = Reset.NEXT_STEP
    limit: int = 20
    """Steps at which an episode is cut."""
    told: str = "cleanrl"
    """The convention of the dones that the audit is told."""
    bootstraps: bool = False
    """Whether a time limit bootstraps from the last observation."""
    forgets_ends: bool = False
    from_the_next: bool = False
    """Whether an end takes the value of the next episode's first observation."""
    told_rate: Any = None
    """The rate that the audit is told."""
    rate_factor: float = 1.0
    """Of the rates from the third iteration on."""

    def train(self) -> Report:
        args = self.args
        torch.manual_seed(1)
        envs = gymnasium.vector.SyncVectorEnv(
            [lambda: gymnasium.make("CartPole-v1", max_episode_steps=self.limit) for _ in range(args.num_envs)],
            autoreset_mode=self.mode,
        )
        agent = Agent()
        optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
        schedule = rlstep_hooks.Schedule.ppo(
            actors=args.num_envs,
            steps=args.num_steps,
            epochs=args.update_epochs,
            minibatches=args.num_minibatches,
            rollouts=args.num_iterations,
        )
        with rlstep_hooks.audit(
            schedule,
            optimizer=optimizer,
            max_grad_norm=args.max_grad_norm,
            learning_rate=self.told_rate,
            log_dir=None,
            listeners=(),
        ) as audit:
            self.loop(envs, agent, optimizer, audit)
        envs.close()
        return audit.report

    def loop(self, envs: Any, agent: Agent, optimizer: Any, audit: Any) -> None:
        args, shape = self.args, (self.args.num_steps, self.args.num_envs)
        obs, actions = torch.zeros((*shape, 4)), torch.zeros(shape)
        logprobs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
        terminated, truncated, final_values = (torch.zeros(shape) for _ in range(3))
        next_obs = torch.Tensor(envs.reset(seed=1)[0])
        next_done = torch.zeros(args.num_envs)
        batch_size = args.num_envs * args.num_steps
        for iteration in range(1, args.num_iterations + 1):
            frac = 1.0 - (iteration - 1.0) / args.num_iterations
            factor = self.rate_factor if iteration > 2 else 1.0
            optimizer.param_groups[0]["lr"] = factor * frac * args.learning_rate
            with audit.rollout(samples=batch_size):
                for step in range(args.num_steps):
                    obs[step], dones[step] = next_obs, next_done
                    with torch.no_grad():
                        action, logprob, _, value = agent.get_action_and_value(next_obs)
                        values[step] = value.flatten()
                    actions[step], logprobs[step] = action, logprob
                    after, reward, terminations, truncations, infos = envs.step(action.numpy())
                    rewards[step] = torch.tensor(reward).view(-1)
                    terminated[step], truncated[step] = torch.Tensor(terminations), torch.Tensor(truncations)
                    with torch.no_grad():
                        last = after.copy()
                        for number in np.flatnonzero(truncations) if self.mode == Reset.SAME_STEP else ():
                            last[number] = infos["final_obs"][number]
                        final_values[step] = agent.critic(torch.Tensor(last)).flatten() * truncated[step]
                    next_obs = torch.Tensor(after)
                    next_done = torch.Tensor(np.logical_or(terminations, truncations))
                audit.refresh(logprobs.flatten())
            with torch.no_grad():
                next_value = agent.critic(next_obs).reshape(1, -1)
                advantages, lastgaelam = torch.zeros_like(rewards), 0
                bonus = args.gamma * final_values if self.bootstraps else torch.zeros(shape)
                for t in reversed(range(args.num_steps)):
                    if t == args.num_steps - 1:
                        nextnonterminal, nextvalues = 1.0 - next_done, next_value
                    else:
                        nextnonterminal, nextvalues = 1.0 - dones[t + 1], values[t + 1]
                    if self.forgets_ends:
                        nextnonterminal = torch.ones(args.num_envs)
                    if self.from_the_next:
                        bonus[t] = args.gamma * nextvalues * (1 - nextnonterminal)
                    delta = rewards[t] + bonus[t] + args.gamma * nextvalues * nextnonterminal - values[t]
                    advantages[t] = lastgaelam = delta + args.gamma * args.gae_lambda * nextnonterminal * lastgaelam
                returns = advantages + values
            self.tell(
                audit, advantages, rewards, values, next_value, dones, next_done, terminated, truncated, final_values
            )
            b_obs, b_actions = obs.reshape(-1, 4), actions.reshape(-1)
            b_logprobs, b_advantages, b_returns = logprobs.reshape(-1), advantages.reshape(-1), returns.reshape(-1)
            b_inds = np.arange(batch_size)
            for _ in range(args.update_epochs):
                np.random.default_rng(iteration).shuffle(b_inds)
                for start in range(0, batch_size, batch_size // args.num_minibatches):
                    mb = b_inds[start : start + batch_size // args.num_minibatches]
                    _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb], b_actions.long()[mb])
                    ratio = (newlogprob - b_logprobs[mb]).exp()
                    mb_advantages = b_advantages[mb]
                    mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
                    pg_loss1 = -mb_advantages * ratio
                    pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
                    pg_loss = torch.max(pg_loss1, pg_loss2).mean()
                    v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb]) ** 2).mean()
                    loss = pg_loss - args.ent_coef * entropy.mean() + v_loss * args.vf_coef
                    audit.microbatch(
                        indices=mb,
                        old_logprobs=b_logprobs[mb],
                        new_logprobs=newlogprob,
                        advantages=mb_advantages,
                        targets=b_returns[mb],
                    )
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                    optimizer.step()

    def tell(
        self,
        audit: Any,
        advantages: Any,
        rewards: Any,
        values: Any,
        next_value: Any,
        dones: Any,
        next_done: Any,
        terminated: Any,
        truncated: Any,
        final_values: Any,
    ) -> None:
        """The convention of dones."""
        args = self.args
        given: dict[str, Any] = {
            "cleanrl": {"dones": dones, "last_dones": next_done},
            "shifted": {"dones": dones},
            "at the end": {"dones": torch.maximum(terminated, truncated)},
            "terminated": {"dones": terminated},
            "resets left out": {"dones": dones, "last_dones": next_done, "mask": 1 - dones},
            "with final values": {"dones": torch.maximum(terminated, truncated), "final_values": final_values},
        }[self.told]
        audit.rewards(rewards)
        # What stands at timesteps that are left out does not matter.
        told = torch.where(given["mask"] != 0, advantages, 0.0) if "mask" in given else advantages
        audit.advantages(
            told, "gae", values=values, last_values=next_value, gamma=args.gamma, lam=args.gae_lambda, **given
        )


def loud(report: Report) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in report.findings if finding.severity != "info"]


@pytest.mark.parametrize("mode", [Reset.NEXT_STEP, Reset.SAME_STEP])
@pytest.mark.parametrize("told", ["cleanrl", "at the end"])
def test_a_correct_loop_passes(mode: Any, told: str) -> None:
    report = Loop(mode=mode, told=told).train()
    assert (report.verdict, loud(report)) == ("PASS", [])
    assert (report.counts.rollouts, report.counts.updates) == (4, 64)
    assert {rule.code: rule.verdict for rule in report.rules}["RLS516"] == "PASS"


def finding(report: Report) -> Any:
    [found] = [finding for finding in report.findings if finding.code == "RLS516"]
    return found


@pytest.mark.parametrize("mode", [Reset.NEXT_STEP, Reset.SAME_STEP])
def test_a_time_limit_that_keeps_the_value_of_the_last_observation(mode: Any) -> None:
    report = Loop(mode=mode, bootstraps=True, told="with final values").train()
    assert (report.verdict, loud(report)) == ("PASS", [])
    assert {rule.code: rule.verdict for rule in report.rules}["RLS516"] == "PASS"


@pytest.mark.parametrize(
    ("told", "bootstraps", "word"),
    [
        ("shifted", False, "last_dones"),
        ("terminated", False, "terminated | truncated"),
        ("at the end", True, "final_values"),
    ],
)
def test_another_reading_of_the_ends_is_named_and_no_error(told: str, bootstraps: bool, word: str) -> None:
    report = Loop(told=told, bootstraps=bootstraps, mode=Reset.SAME_STEP).train()
    assert (report.verdict, loud(report)) == ("PASS", [("RLS516", "warning")])
    assert word in finding(report).fix


def test_ends_that_are_forgotten_are_an_error() -> None:
    report = Loop(forgets_ends=True).train()
    assert report.verdict == "FAIL"
    assert "go on over" in finding(report).observed


def test_the_value_of_the_next_episode_is_an_error_with_its_name() -> None:
    """The usual mistake with environments that reset in the same step."""
    report = Loop(from_the_next=True, mode=Reset.SAME_STEP).train()
    assert report.verdict == "FAIL"
    assert "the next episode's first observation" in finding(report).observed


def outcomes(report: Report) -> dict[str, str]:
    return {rule.code: rule.verdict for rule in report.rules}


def test_a_rate_is_compared_with_the_one_that_the_loop_means() -> None:
    iterations, base = Args().num_iterations, Args().learning_rate
    report = Loop(told_rate=lambda rollout, update: (1.0 - rollout / iterations) * base).train()
    assert (report.verdict, loud(report), outcomes(report)["RLS605"]) == ("PASS", [], "PASS")
    assert outcomes(Loop().train())["RLS605"] == "NOT_EVALUATED"


def test_a_rate_that_is_another_is_found_at_its_update() -> None:
    iterations, base = Args().num_iterations, Args().learning_rate
    report = Loop(told_rate=lambda rollout, update: (1.0 - rollout / iterations) * base, rate_factor=0.5).train()
    assert loud(report) == [("RLS605", "error")]
    [found] = [finding for finding in report.findings if finding.code == "RLS605"]
    assert (found.where.rollout, found.where.update) == (2, 32)


def test_a_rate_that_cannot_be_computed_is_said() -> None:
    report = Loop(told_rate=lambda rollout, update: 1 / 0).train()
    assert (report.verdict, loud(report), outcomes(report)["RLS605"]) == ("PASS", [], "NOT_EVALUATED")


def test_a_reference_that_nobody_sees_is_not_called_right() -> None:
    [rule] = [rule for rule in Loop().train().rules if rule.code == "RLS308"]
    assert (rule.verdict, rule.idle, rule.reason) == (
        "NOT_EVALUATED",
        False,
        "the observer sees no reference log-probs",
    )


def test_timesteps_that_are_no_samples_are_left_out() -> None:
    """With gymnasium's NEXT_STEP the timestep after an end is a reset, and its advantage is nothing."""
    report = Loop(told="resets left out").train()
    assert (report.verdict, loud(report), outcomes(report)["RLS516"]) == ("PASS", [], "PASS")
