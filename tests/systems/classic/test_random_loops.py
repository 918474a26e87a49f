"""Random legal loops, trained for real: none of them has a finding; each broken by one missing or one more update has one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rlstep_hooks
from rlstep_hooks import Schedule
from tests.systems.classic.tiny import errors

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.values import Role
    from rlstep_hooks.systems.own_loop.loop import LoopAudit

ROLLOUTS = 3


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A loop, and how its plan is told."""

    samples: int
    epochs: int
    minibatches: int
    microbatches: int
    critic_epochs: int
    """0 where one optimizer trains both."""
    early_stop: bool
    adam: bool
    known_length: bool
    seed: int

    @property
    def schedule(self) -> Schedule:
        own: dict[str, Any] = {"actors": 1, "steps": self.samples, "rollouts": ROLLOUTS if self.known_length else None}
        critic = Schedule.ppo(**own, epochs=self.critic_epochs) if self.critic_epochs else None
        return Schedule.ppo(
            **own,
            epochs=self.epochs,
            minibatches=self.minibatches,
            microbatches=self.microbatches,
            early_stop=self.early_stop,
            critic=critic,
        )


@st.composite
def cases(draw: st.DrawFn, *, early_stop: bool | None = None) -> Case:
    minibatches, microbatches = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return Case(
        samples=minibatches * microbatches * draw(st.integers(1, 3)),
        epochs=draw(st.integers(1, 3)),
        minibatches=minibatches,
        microbatches=microbatches,
        critic_epochs=draw(st.integers(0, 2)),
        early_stop=draw(st.booleans()) if early_stop is None else early_stop,
        adam=draw(st.booleans()),
        known_length=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


class RandomLoop:
    """Trains as its case says; `missing` or `surplus` says on which rollout one mini-batch of the policy is."""

    def __init__(self, case: Case, *, missing: int = -1, surplus: int = -1) -> None:
        torch.manual_seed(case.seed)
        self.case = case
        self.missing, self.surplus = missing, surplus
        self.chance = random.Random(case.seed)
        self.models: dict[Role, torch.nn.Linear] = {"policy": torch.nn.Linear(3, 2), "critic": torch.nn.Linear(3, 1)}
        kind: Any = torch.optim.Adam if case.adam else torch.optim.SGD
        self.optimizers: dict[Role, Any] = {
            role: kind(model.parameters(), lr=0.05) for role, model in self.models.items()
        }

    def audited(self) -> Report:
        critic = self.optimizers["critic"] if self.case.critic_epochs else None
        optimizers = {"optimizer": self.optimizers["policy"], "critic_optimizer": critic}
        with rlstep_hooks.audit(self.case.schedule, **optimizers, listeners=()) as audit:
            for rollout in range(ROLLOUTS):
                self.train_rollout(audit, rollout)
        return audit.report

    def train_rollout(self, audit: LoopAudit, rollout: int) -> None:
        case = self.case
        with audit.rollout(samples=case.samples):
            self.inputs = torch.randn(case.samples, 3)
            self.actions = torch.randint(0, 2, (case.samples,))
            with torch.no_grad():
                self.old = self.log_probs(torch.arange(case.samples))
            audit.refresh(self.old)
        work: list[Role] = ["policy"] * (case.epochs * case.minibatches)
        if case.early_stop:
            work = work[: self.chance.randint(1, len(work))]
        if rollout == self.missing:
            work = work[1:]
        if rollout == self.surplus:
            work.append("policy")
        work += ["critic"] * case.critic_epochs
        self.chance.shuffle(work)
        size, cut = case.samples // case.minibatches, []
        for role in work:
            if role == "critic":
                self.train_minibatch(audit, role, torch.arange(case.samples), microbatches=1)
                continue
            cut = cut or list(torch.randperm(case.samples).split(size))
            self.train_minibatch(audit, role, cut.pop(0), microbatches=case.microbatches)

    def train_minibatch(self, audit: LoopAudit, role: Role, rows: torch.Tensor, *, microbatches: int) -> None:
        for chosen in rows.chunk(microbatches):
            if role == "policy":
                new, old = self.log_probs(chosen), self.old[chosen]
                audit.microbatch(indices=chosen, old_logprobs=old, new_logprobs=new)
                loss = -(new - old).exp().mean()
            else:
                audit.microbatch(role="critic", indices=chosen, targets=self.inputs[chosen, 0])
                loss = (self.models["critic"](self.inputs[chosen])[:, 0] - self.inputs[chosen, 0]).square().mean()
            loss.backward()
        self.optimizers[role].step()
        self.optimizers[role].zero_grad()

    def log_probs(self, chosen: torch.Tensor) -> torch.Tensor:
        scores = self.models["policy"](self.inputs[chosen]).log_softmax(-1)
        return scores.gather(1, self.actions[chosen, None]).squeeze(1)


SOME = settings(max_examples=40, deadline=None)


@SOME
@given(cases())
def test_a_loop_as_planned_has_no_finding(case: Case) -> None:
    report = RandomLoop(case).audited()
    assert errors(report) == []
    assert report.verdict == "PASS"


@SOME
@given(cases(early_stop=False), st.integers(0, ROLLOUTS - 2))
def test_one_missing_update_is_found_on_its_rollout(case: Case, rollout: int) -> None:
    report = RandomLoop(case, missing=rollout).audited()
    assert report.verdict == "FAIL"
    assert report.findings[0].code == "RLS201"
    assert report.findings[0].where.rollout in (rollout, rollout + 1)  # seen when the next rollout comes


@SOME
@given(cases(early_stop=False), st.integers(0, ROLLOUTS - 1))
def test_one_update_too_many_is_found_on_its_rollout(case: Case, rollout: int) -> None:
    report = RandomLoop(case, surplus=rollout).audited()
    assert report.verdict == "FAIL"
    assert {finding.code for finding in report.findings if finding.where.rollout == rollout} & {"RLS202", "RLS206"}
