"""What `dones` means in a loop of one's own: CleanRL keeps them one timestep later than the ends of episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import rlstep_hooks

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.judge.report import Report

STEPS, ACTORS, ROLLOUTS, GAMMA, LAM = 12, 3, 4, 0.97, 0.9


def gae_of_cleanrl(rewards: Tensor, values: Tensor, dones: Tensor, next_done: Tensor, next_value: Tensor) -> Tensor:
    """GAE as CleanRL's ppo.py computes it: `dones[t]` says that the episode ended before timestep t."""
    advantages, last = torch.zeros_like(rewards), torch.zeros(ACTORS)
    for t in reversed(range(STEPS)):
        goes_on = 1.0 - (next_done if t == STEPS - 1 else dones[t + 1])
        following = next_value if t == STEPS - 1 else values[t + 1]
        delta = rewards[t] + GAMMA * following * goes_on - values[t]
        advantages[t] = last = delta + GAMMA * LAM * goes_on * last
    return advantages


def trained(*, gives_last_dones: bool, wrong: bool = False) -> Report:
    """The report of a small loop whose environment is drawn at random.

    Args:
        gives_last_dones: Whether the loop says that its `dones` are CleanRL's.
        wrong: Whether its advantages go on over the ends of episodes.
    """
    torch.manual_seed(5)
    policy = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    schedule = rlstep_hooks.Schedule.ppo(actors=ACTORS, steps=STEPS, epochs=2, minibatches=1, rollouts=ROLLOUTS)
    next_done = torch.zeros(ACTORS)
    with rlstep_hooks.audit(schedule, optimizer=optimizer, log_dir=None, listeners=()) as audit:
        for _ in range(ROLLOUTS):
            with audit.rollout(samples=STEPS * ACTORS):
                observations, dones = torch.randn(STEPS, ACTORS, 4), torch.zeros(STEPS, ACTORS)
                for t in range(STEPS):
                    dones[t] = next_done
                    next_done = (torch.rand(ACTORS) < 0.25).float()
                sampled = torch.distributions.Categorical(logits=policy(observations).detach())
                actions = sampled.sample()
                old = sampled.log_prob(actions).flatten()
                rewards, values, next_value = (
                    torch.randn(STEPS, ACTORS),
                    torch.randn(STEPS, ACTORS),
                    torch.randn(ACTORS),
                )
                audit.refresh(old)
            ends = (0 * dones, 0 * next_done) if wrong else (dones, next_done)
            advantages = gae_of_cleanrl(rewards, values, *ends, next_value)
            audit.rewards(rewards)
            more = {"last_dones": next_done} if gives_last_dones else {}
            audit.advantages(
                advantages, "gae", values=values, last_values=next_value, dones=dones, gamma=GAMMA, lam=LAM, **more
            )
            for _ in range(2):
                new = torch.distributions.Categorical(logits=policy(observations)).log_prob(actions).flatten()
                loss = -((new - old).exp() * advantages.flatten()).mean()
                audit.microbatch(
                    indices=torch.arange(len(old)), old_logprobs=old, new_logprobs=new, advantages=advantages.flatten()
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return audit.report


def loud(report: Report) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in report.findings if finding.severity != "info"]


def test_a_correct_loop_of_cleanrls_kind() -> None:
    report = trained(gives_last_dones=True)
    assert (report.verdict, loud(report)) == ("PASS", [])
    assert {rule.code: rule.verdict for rule in report.rules}["RLS516"] == "PASS"


def test_dones_of_another_convention_are_named_and_no_error() -> None:
    report = trained(gives_last_dones=False)
    assert (report.verdict, loud(report)) == ("PASS", [("RLS516", "warning")])
    [finding] = [finding for finding in report.findings if finding.code == "RLS516"]
    assert "last_dones" in finding.fix
    assert "before a timestep" in finding.observed


@pytest.mark.parametrize("gives_last_dones", [True, False])
def test_advantages_over_the_ends_of_episodes_are_an_error(gives_last_dones: bool) -> None:
    report = trained(gives_last_dones=gives_last_dones, wrong=True)
    assert report.verdict == "FAIL"
    assert ("RLS516", "error") in loud(report)


def test_last_dones_need_dones() -> None:
    from rlstep_hooks.systems.own_loop.advantages import Asked, compared_with

    some = torch.randn(STEPS, ACTORS)
    with pytest.raises(ValueError, match="last_dones"):
        compared_with(Asked("gae", values=some, last_dones=torch.zeros(ACTORS)), some, some)
