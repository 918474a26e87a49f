"""Updates on a rollout that may end early, and a critic trained in any order with the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks import Schedule
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.record.events import MicroBatch, Refresh, Rollout, RunEnded, RunStarted, SampleRows, Update

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.schedule import CriticOrder
    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.record.values import Role

SAMPLES, EPOCHS, MINIBATCHES = 8, 2, 2
WHOLE = EPOCHS * MINIBATCHES


class Script:
    """What one process records, written down by hand."""

    def __init__(self, schedule: Schedule) -> None:
        self.events: list[AnyEvent] = [RunStarted(run="r", rank=0, world_size=1, schedule=schedule)]
        self._version = 0
        self._sampled = 0
        self._counts = {"rollout": 0, "microbatch": 0, "policy": 0, "critic": 0}

    def rollout(self) -> None:
        self._sampled = self._version
        number = self._next("rollout")
        self.events.append(Rollout(index=number, samples=SAMPLES, policy_version=self._version))
        self.events.append(Refresh(rollout=number, samples=SAMPLES, positions=SAMPLES, policy_version=self._version))

    def update(self, role: Role = "policy", *, rows: tuple[int, ...] | None = None, samples: int = 4) -> None:
        self.microbatch(role, rows=rows, samples=samples)
        self.step(role)

    def microbatch(self, role: Role = "policy", *, rows: tuple[int, ...] | None = None, samples: int = 4) -> None:
        trained = None if rows is None else (SampleRows(self._counts["rollout"] - 1, rows),)
        self.events.append(
            MicroBatch(
                index=self._next("microbatch"),
                samples=samples if rows is None else len(rows),
                role=role,
                trained=trained,
                policy_version=self._version,
                sampled_version=self._sampled,
                old_version=self._sampled,
            )
        )

    def step(self, role: Role = "policy", *, microbatches: int = 1) -> None:
        self._version += role == "policy"
        self.events.append(Update(index=self._next(role), role=role, version=self._version, microbatches=microbatches))

    def judged(self) -> Report:
        judge = Judge()
        for event in [*self.events, RunEnded(status="completed", updates=self._counts["policy"])]:
            judge.observe(event)
        return judge.report()

    def _next(self, what: str) -> int:
        self._counts[what] += 1
        return self._counts[what] - 1


def plan(*, rollouts: int | None = None, early_stop: bool = True) -> Schedule:
    return Schedule.ppo(
        actors=1, steps=SAMPLES, epochs=EPOCHS, minibatches=MINIBATCHES, rollouts=rollouts, early_stop=early_stop
    )


def errors(report: Report) -> list[str]:
    return [finding.code for finding in report.findings if finding.severity != "info"]


# Early stops


@given(made=st.lists(st.integers(1, WHOLE), min_size=1, max_size=5), known=st.booleans())
def test_any_number_of_updates_passes_where_they_may_end_early(made: list[int], known: bool) -> None:
    script = Script(plan(rollouts=len(made) if known else None))
    for updates in made:
        script.rollout()
        for _ in range(updates):
            script.update()
    report = script.judged()
    assert errors(report) == []
    assert report.verdict == "PASS"
    saved = sum(WHOLE - updates for updates in made)
    found = [finding for finding in report.findings if finding.code == "RLS212"]
    assert [finding.severity for finding in found] == (["info"] if saved else [])
    short = sum(updates < WHOLE for updates in made)
    assert [finding.observed for finding in found] == (
        [f"{saved} updates not made, on {short} of {len(made)} rollouts"] if saved else []
    )


def test_the_same_run_fails_where_the_plan_is_exact() -> None:
    script = Script(plan(early_stop=False))
    for _ in range(2):
        script.rollout()
        script.update()
    script.rollout()
    assert errors(script.judged()) == ["RLS201", "RLS206"]


def test_a_rollout_without_any_update_is_not_an_early_stop() -> None:
    script = Script(plan())
    script.rollout()
    script.rollout()
    script.update()
    assert errors(script.judged()) == ["RLS201"]


def test_an_update_too_many_is_found_where_updates_may_end_early() -> None:
    script = Script(plan())
    script.rollout()
    for _ in range(WHOLE + 1):
        script.update()
    assert errors(script.judged()) == ["RLS202"]


def test_an_early_stop_does_not_end_an_accumulation() -> None:
    schedule = Schedule.ppo(actors=1, steps=SAMPLES, epochs=2, minibatches=1, microbatches=2, early_stop=True)
    script = Script(schedule)
    script.rollout()
    script.microbatch()
    script.microbatch()
    script.step(microbatches=2)
    script.microbatch()
    script.rollout()
    assert errors(script.judged())[0] == "RLS201"


def test_samples_of_an_early_stop_differ_by_one_pass_at_most() -> None:
    script = Script(plan())
    for rows in ((0, 1, 2, 3), (4, 5, 6, 7), (0, 2, 4, 6)):
        if rows[1] == 1:
            script.rollout()
        script.update(rows=rows)
    script.rollout()
    script.update(rows=(0, 1, 2, 3))
    assert errors(script.judged()) == []


def test_a_sample_left_out_of_a_whole_pass_is_found_although_updates_may_end_early() -> None:
    schedule = Schedule.ppo(actors=1, steps=SAMPLES, epochs=3, minibatches=(4,), early_stop=True)
    script = Script(schedule)
    script.rollout()
    script.update(rows=(0, 1, 2, 3))
    script.update(rows=(0, 1, 2, 3))
    script.update(rows=(4, 5, 6, 7))
    script.rollout()
    script.update(rows=(0, 1, 2, 3))
    assert errors(script.judged()) == []
    strict = Script(plan())
    strict.rollout()
    for rows in ((0, 1, 2, 3), (0, 1, 2, 3)):
        strict.update(rows=rows)
    strict.rollout()
    strict.update(rows=(0, 1, 2, 3))
    assert errors(strict.judged()) == ["RLS502"]


# A critic with updates of its own


def with_critic(order: CriticOrder, *, early_stop: bool = False) -> Schedule:
    critic = Schedule.ppo(actors=1, steps=SAMPLES, epochs=3, minibatches=1)
    return Schedule.ppo(
        actors=1, steps=SAMPLES, epochs=1, minibatches=2, critic=critic, critic_order=order, early_stop=early_stop
    )


ROLES: dict[str, list[Role]] = {
    "before": ["critic", "critic", "critic", "policy", "policy"],
    "after": ["policy", "policy", "critic", "critic", "critic"],
    "in turn": ["policy", "critic", "policy", "critic", "critic"],
}


def played(schedule: Schedule, roles: list[list[Role]]) -> Report:
    script = Script(schedule)
    for on_rollout in roles:
        script.rollout()
        for role in on_rollout:
            script.update(role, samples=4 if role == "policy" else SAMPLES)
    return script.judged()


@pytest.mark.parametrize("order", ["before", "after", "free"])
@pytest.mark.parametrize("roles", list(ROLES))
def test_a_critic_is_trained_in_its_turn(order: CriticOrder, roles: str) -> None:
    report = played(with_critic(order), [ROLES[roles]] * 3)
    assert errors(report) == ([] if order in ("free", roles) else ["RLS211"])
    assert (report.counts.updates, report.counts.critic_updates) == (6, 9)


@given(st.lists(st.permutations(ROLES["before"]), min_size=1, max_size=4))
def test_any_order_passes_where_it_is_free(roles: list[list[Role]]) -> None:
    assert errors(played(with_critic("free"), roles)) == []


def test_forwards_of_both_roles_may_come_before_the_updates_of_both() -> None:
    script = Script(with_critic("free"))
    script.rollout()
    script.microbatch("policy")
    script.microbatch("critic", samples=SAMPLES)
    script.step("policy")
    script.step("critic")
    script.update("critic", samples=SAMPLES)
    script.update("policy")
    script.update("critic", samples=SAMPLES)
    assert errors(script.judged()) == []


@pytest.mark.parametrize(
    ("on_rollout", "found"),
    [
        (["policy", "policy", "critic", "critic"], "RLS201"),
        (["policy", "critic", "critic", "critic"], "RLS201"),
        (["policy", "policy", "critic", "critic", "critic", "critic"], "RLS202"),
    ],
)
def test_updates_of_a_role_are_counted_where_the_order_is_free(on_rollout: list[Role], found: str) -> None:
    report = played(with_critic("free"), [on_rollout, ROLES["before"]])
    assert errors(report) == [found]
    assert report.findings[0].occurrences == 1


def test_a_rollout_of_another_size_is_reported_once_although_two_roles_train_on_it() -> None:
    script = Script(msgspec.structs.replace(with_critic("free"), samples_per_rollout=16))
    script.rollout()
    for role in ROLES["before"]:
        script.update(role, samples=4 if role == "policy" else SAMPLES)
    report = script.judged()
    assert [(finding.code, finding.occurrences) for finding in report.findings] == [("RLS207", 1)]


def test_an_early_stop_of_the_policy_is_followed_by_the_critic() -> None:
    roles: list[list[Role]] = [["policy", "critic", "critic", "critic"], ROLES["after"]]
    assert errors(played(with_critic("after", early_stop=True), roles)) == []
    assert errors(played(with_critic("free", early_stop=True), roles)) == []
    assert errors(played(with_critic("after"), roles)) == ["RLS211"]
