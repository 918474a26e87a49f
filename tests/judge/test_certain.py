"""When a value beyond its tolerance is an error: where nothing but a fault explains it, and never where noise may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.rules import RULES
from rlstep_hooks.judge.rules.certain import ValueRule
from rlstep_hooks.record.events import Measured, RunStarted
from tests.scripted import make_plan, scripted_run

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Finding

PLAN = make_plan(iterations=2, max_steps=32)
"""16 rollouts of 2 updates, each of 2 micro-batches; those of the first pass have lag 0."""


def found(code: str, numbers: dict[int, dict[str, Any]], kind: str = "microbatches", **facts: Any) -> list[Finding]:
    """The findings of a rule in a run whose micro-batches have these numbers instead."""
    judge = Judge()
    for event in scripted_run(PLAN):
        if isinstance(event, RunStarted):
            event = msgspec.structs.replace(event, facts=event.facts | facts)
        if isinstance(event, Measured):
            others = [msgspec.structs.replace(one, **numbers.get(one.index, {})) for one in getattr(event, kind)]
            event = msgspec.structs.replace(event, **{kind: tuple(others)})
        judge.observe(event)
    return [finding for finding in judge.report().findings if finding.code == code]


def severities(findings: list[Finding]) -> set[str]:
    return {finding.severity for finding in findings}


@pytest.mark.parametrize(("times", "ratio", "like", "expected"), [
    (3, 0.98, "without its KL term", "error"),
    (2, 0.98, "without its KL term", "warning"),
    (3, 0.9985, "without its KL term", "warning"),
    (3, 0.98, "", "warning"),
    (3, 0.85, "", "error"),
])  # fmt: skip
def test_a_loss_that_one_known_mistake_explains_in_three_micro_batches_is_an_error(
    times: int, ratio: float, like: str, expected: str
) -> None:
    numbers = {4 * rollout: {"loss_ratio": ratio, "loss_like": like} for rollout in range(times)}
    assert severities(found("RLS801", numbers)) == {expected}


def test_three_micro_batches_that_three_mistakes_explain_are_a_warning() -> None:
    names = ("without its KL term", "over all tokens", "that of another clip")
    numbers = {4 * n: {"loss_ratio": 0.98, "loss_like": name} for n, name in enumerate(names)}
    assert severities(found("RLS801", numbers)) == {"warning"}


@pytest.mark.parametrize(("mean", "tokens", "facts", "expected"), [
    (0.2, 64, {}, "error"),
    (0.2, 8, {}, "warning"),
    (0.1, 64, {}, "warning"),
    (0.2, 64, {"dropout_modules": 4}, "warning"),
    (3.0, 64, {"embedding_noise": 5.0}, "warning"),
])  # fmt: skip
def test_a_ratio_far_from_1_at_lag_0_in_bfloat16(
    mean: float, tokens: int, facts: dict[str, Any], expected: str
) -> None:
    numbers = {
        4 * rollout + first: {"mean_abs_log_ratio": mean, "max_abs_log_ratio": 2 * mean, "tokens": tokens}
        for rollout in range(1, 4)
        for first in (0, 1)
    }
    findings = found("RLS301", numbers, compute_dtype="bfloat16", **facts)
    assert severities(findings) == {expected}


@pytest.mark.parametrize(("healthy", "expected"), [(8, "error"), (0, "warning")])
def test_a_ratio_stuck_at_1_in_bfloat16_is_certain_where_others_moved(healthy: int, expected: str) -> None:
    """Weights change by 0.005, which the ratio of the first rollouts shows, or never shows."""
    stuck = {"mean_abs_log_ratio": 0.0, "max_abs_log_ratio": 0.0, "tokens": 64}
    numbers = {4 * rollout + later: stuck for rollout in range(healthy, 16) for later in (2, 3)}

    judge = Judge()
    for event in scripted_run(PLAN):
        if isinstance(event, RunStarted):
            event = msgspec.structs.replace(event, facts=event.facts | {"compute_dtype": "bfloat16"})
        if isinstance(event, Measured):
            values = tuple(
                msgspec.structs.replace(one, **({"tokens": 64} | numbers.get(one.index, {})))
                for one in event.microbatches
            )
            updates = tuple(msgspec.structs.replace(one, max_change=0.005) for one in event.updates)
            event = msgspec.structs.replace(event, microbatches=values, updates=updates)
        judge.observe(event)
    findings = [finding for finding in judge.report().findings if finding.code == "RLS302"]
    assert severities(findings) == {expected}


def test_no_value_rule_decides_its_severity_by_itself() -> None:
    """What is compared with a tolerance in roundings becomes an error in one way."""
    value_rules = {rule.code for rule in RULES if issubclass(rule, ValueRule)}
    assert value_rules >= {"RLS301", "RLS302", "RLS312", "RLS313", "RLS403", "RLS414", "RLS516"}
    assert value_rules >= {"RLS801", "RLS805", "RLS806", "RLS807", "RLS810"}
