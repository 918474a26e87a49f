"""A tiny loop with real torch, taken apart so that a test can break one piece of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlstep_hooks import Schedule

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.systems.own_loop.loop import LoopAudit

SAMPLES, EPOCHS, MINIBATCHES, ROLLOUTS = 16, 2, 2, 3


def plan(**changed: Any) -> Schedule:
    """The plan of a `TinyLoop`."""
    settings: dict[str, Any] = {
        "actors": 4,
        "steps": SAMPLES // 4,
        "epochs": EPOCHS,
        "minibatches": MINIBATCHES,
        "rollouts": ROLLOUTS,
    }
    return Schedule.ppo(**(settings | changed))


class TinyLoop:
    """PPO on random data: each step of the loop is a method, for subclasses to break."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.rollouts = 0
        self.pass_number = 0
        self.observations, self.actions, self.advantages, self.old = (torch.zeros(0),) * 4

    def run(self, audit: LoopAudit, rollouts: int = ROLLOUTS) -> None:
        for _ in range(rollouts):
            self.sample(audit)
            self.rollouts += 1
            for self.pass_number in range(EPOCHS):
                self.train_pass(audit)

    def sample(self, audit: LoopAudit) -> None:
        with audit.rollout(samples=SAMPLES):
            self.observations = torch.randn(SAMPLES, 3)
            self.actions = torch.randint(0, 2, (SAMPLES,))
            self.advantages = torch.randn(SAMPLES)
            self.compute_old(audit)

    def compute_old(self, audit: LoopAudit) -> None:
        with torch.no_grad():
            self.old = self.log_probs(torch.arange(SAMPLES))
        audit.refresh(self.old)

    def train_pass(self, audit: LoopAudit) -> None:
        order, size = torch.randperm(SAMPLES), SAMPLES // MINIBATCHES
        for start in range(0, SAMPLES, size):
            self.train_minibatch(audit, order[start : start + size])

    def train_minibatch(self, audit: LoopAudit, chosen: Tensor) -> None:
        new, old = self.log_probs(chosen), self.old[chosen]
        advantages = self.advantages[chosen]
        self.tell(audit, chosen, new, old, advantages)
        (-(new - old).exp() * advantages).mean().backward()
        self.update(audit)

    def tell(self, audit: LoopAudit, chosen: Tensor, new: Tensor, old: Tensor, advantages: Tensor) -> None:
        audit.microbatch(indices=chosen, old_logprobs=old, new_logprobs=new, advantages=advantages)

    def update(self, audit: LoopAudit) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def log_probs(self, chosen: Tensor) -> Tensor:
        return self.model(self.observations[chosen]).log_softmax(-1).gather(1, self.actions[chosen, None]).squeeze(1)


def errors(report: Report) -> list[str]:
    """Codes of the findings that are more than information."""
    return [finding.code for finding in report.findings if finding.severity != "info"]
