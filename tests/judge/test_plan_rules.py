"""Rules on a plan: each finds its mistake and is silent on plans without it."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from rlstep_hooks.judge.rules.plan_checks import PLAN_RULES, REPORTS, check_plan, refused
from rlstep_hooks.planning.reading import Reading
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.planning.shape import schedule_in_phases
from rlstep_hooks.systems.deepspeed_engine.faults import concerning, told
from tests.golden.reading import planned
from tests.passes import passes_of
from tests.scripted import RELEASES, make_plan

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.base import Rule
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule


def make(**changes: Any) -> Schedule:
    """A healthy plan: 64 prompts x 8 samples, 4 updates of 128 samples, 10 rollouts."""
    plain: dict[str, Any] = {
        "framework": "made up", "version": "1", "algorithm": "GRPO", "passes": passes_of(640, 64),
        "prompts_per_rollout": 64, "samples_per_prompt": 8, "minibatches": (128,) * 4,
    }  # fmt: skip
    return schedule_in_phases(**(plain | changes))


def found(schedule: Schedule, **facts: Any) -> dict[str, Finding]:
    return {finding.code: finding for finding in check_plan(Reading(schedule=schedule, facts=facts))}


def test_a_healthy_plan_is_silent() -> None:
    assert found(make()) == {}


WRONG = [
    ("RLS102", "info", make(minibatches=(512,)), {}),
    ("RLS111", "info", make(minibatches=(1024,), updates_per_rollout=Fraction(1, 2)), {}),
    ("RLS112", "warning", make(minibatches=(1024,), samples_added=512), {}),
    ("RLS112", "info", make(minibatches=(512,), reuse_epochs=2), {}),
    ("RLS113", "warning", make(), {"nominal_updates_per_rollout": Fraction(24)}),
    ("RLS113", "warning", make(), {"nominal_updates_per_rollout": 1}),
    ("RLS114", "info", make(step_unit="update"), {"save_every": 10}),
    ("RLS114", "info", make(step_unit="update"), {"save_every": 4, "eval_every": 6}),
    ("RLS115", "info", make(minibatches=(64,) * 8), {"minibatch_unit": "samples"}),
    ("RLS117", "warning", make(max_age=1, correction="none"), {}),
    ("RLS117", "warning", make(max_age=None, correction="none", not_evaluated={"max_age": "no bound"}), {}),
    ("RLS117", "warning", make(max_age=2, correction="none", old_logprob_source="detach", lags=(0,)), {"correct_by": "--it"}),
    ("RLS117", "warning", make(max_age=1, correction="token weights", correction_inert="there are no log-probs"), {}),
    ("RLS118", "warning", make(), {"unread": "custom_reward_function.path (now reward.custom_reward_function.path)"}),
    ("RLS119", "warning", make(), {"release_faults": told(concerning("0.18.2")[:1], "0.18.2")}),
    ("RLS506", "info", make(passes=passes_of(650, 64)), {}),
    ("RLS506", "warning", make(passes=passes_of(650, 64), rows_reshuffled=False), {}),
    ("RLS510", "error", make(passes=passes_of(63, 64, epochs=3)), {}),
    ("RLS510", "error", make_plan(release=RELEASES[0], accumulation=2, rows=1), {}),
    ("RLS510", "warning", make(passes=passes_of(63, 64, epochs=3, loader="keeps")), {}),
    ("RLS511", "error", make(updates=0), {}),
    ("RLS511", "error", make(frozen_rollouts=20), {}),
    ("RLS512", "warning", make(minibatches=(150,) * 3, samples_dropped=62, remainder="drop"), {}),
    ("RLS601", "error", make(lr_horizon=20), {}),
    ("RLS604", "warning", make(), {"lr_warmup": 40}),
    ("RLS610", "info", make(lr_clock="rollout"), {"lr_constant": False}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "severity", "schedule", "facts"), WRONG, ids=[f"{w[0]}-{i}" for i, w in enumerate(WRONG)]
)
def test_each_mistake_is_found(code: str, severity: str, schedule: Schedule, facts: dict[str, Any]) -> None:
    finding = found(schedule, **facts)[code]
    assert finding.severity == severity
    assert all((finding.expected, finding.observed, finding.why, finding.fix))


RIGHT = [
    ("RLS112", make(minibatches=(512,)), {}),
    ("RLS113", make(minibatches=(128,) * 3 + (64,)), {"nominal_updates_per_rollout": Fraction(7, 2)}),
    ("RLS114", make(step_unit="update"), {"save_every": 8, "eval_every": 4}),
    ("RLS114", make(step_unit="update"), {"save_every": 500}),  # longer than the run
    ("RLS114", make(step_unit="rollout"), {"save_every": 3}),
    ("RLS115", make(minibatches=(64,) * 8), {}),
    ("RLS115", make(minibatches=(128,) * 4), {"minibatch_unit": "samples"}),
    ("RLS102", make(max_age=1, correction="none", minibatches=(512,)), {}),
    ("RLS117", make(correction="none"), {}),
    ("RLS117", make(max_age=1), {}),  # no plan said what corrects
    ("RLS117", make(max_age=1, correction="token weights"), {}),
    ("RLS117", make(max_age=1, old_logprob_source="engine"), {}),
    ("RLS118", make(), {}),
    ("RLS119", make(), {"release_faults": None}),
    ("RLS119", make(), {"release_faults": []}),
    ("RLS510", make(passes=passes_of(64, 64)), {}),
    ("RLS510", make_plan(release=RELEASES[0], accumulation=2, rows=2), {}),
    ("RLS511", make(passes=passes_of(None, 64)), {}),
    ("RLS601", make(lr_horizon=20), {"lr_constant": True}),
    ("RLS604", make(), {"lr_warmup": 39}),
    ("RLS610", make(lr_clock="rollout", minibatches=(512,)), {"lr_constant": False}),
    ("RLS610", make(lr_clock="rollout"), {"lr_constant": True}),
]


@pytest.mark.parametrize(("code", "schedule", "facts"), RIGHT, ids=[f"{r[0]}-{i}" for i, r in enumerate(RIGHT)])
def test_what_is_right_is_not_reported(code: str, schedule: Schedule, facts: dict[str, Any]) -> None:
    assert code not in found(schedule, **facts)


def test_an_interval_names_the_nearest_that_meets_the_rollouts() -> None:
    assert "8 or 12 updates" in found(make(step_unit="update"), save_every=10)["RLS114"].fix


def test_errors_come_first() -> None:
    findings = check_plan(Reading(schedule=make(passes=passes_of(650, 64), lr_horizon=1)))
    assert [finding.severity for finding in findings] == ["error", "info"]


@pytest.mark.parametrize(
    "launch",
    [
        "trl grpo",
        "trl rloo",
        "python -m skyrl.train.entrypoints.main_base",
    ],
)
def test_a_default_launch_has_no_error_and_no_warning(launch: str) -> None:
    findings = planned(launch, rows=8192).findings
    assert {finding.severity for finding in findings} <= {"info"}


@pytest.mark.parametrize("rule", PLAN_RULES, ids=lambda rule: rule.code)
def test_every_rule_that_looks_at_a_plan_names_a_report(rule: type[Rule]) -> None:
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", rule.report)


def test_every_finding_of_a_plan_has_a_report() -> None:
    assert {code for code, *_ in WRONG} | {"RLS110", "RLS116"} == set(REPORTS)


def test_every_finding_of_a_plan_says_that_the_plan_shows_it() -> None:
    refusal = PlanError("sizes do not divide", when="at start", fix="64", source="nowhere")
    findings = [finding for _, _, schedule, facts in WRONG for finding in found(schedule, **facts).values()]
    assert all(finding.planned for finding in [*findings, refused(refusal, "it")])


def test_schedules_of_the_tests_are_whole() -> None:
    """The made-up plans hold together: a pass is cut into the mini-batches that it says."""
    schedule = make()
    assert schedule.updates == 40
    assert schedule.lags == (0, 1, 2, 3)
    assert schedule.ratio_one_updates == (1,)
    assert (schedule.lr_ticks, schedule.lr_horizon, schedule.data_epochs) == (40, 40, 1)
    assert msgspec.structs.replace(schedule, rows=1).rows == 1
