"""A link is right only if it was compared: in part where some of it was, with its share; never where its system says that it is not."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from rlstep_hooks.cli.report import show
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.links import link_of, links_of
from rlstep_hooks.judge.ranks.reduction.outcome import Reductions
from rlstep_hooks.judge.ranks.replicas import Replicas
from rlstep_hooks.judge.rules import RANK_RULES, RULES, Progress
from rlstep_hooks.record.events import Measured, RunStarted, Unobserved
from rlstep_hooks.record.ledger import FolderLedger
from rlstep_hooks.show.markdown import report_markdown
from rlstep_hooks.show.summary import in_part, shown
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.links import RULES as RULES_OF_LINKS
from tests.scripted import make_plan, scripted_run, started

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.judge.links import LinkOutcome
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.events import AnyEvent, MicroBatchValues

PLAN = make_plan(iterations=2, max_steps=32)
"""16 rollouts of 2 updates, each of 2 micro-batches."""
OBSERVED = [system.name for system in index.observed()]


def judged(events: list[AnyEvent], **facts: Any) -> Report:
    judge = Judge()
    for event in events:
        if isinstance(event, RunStarted):
            event = msgspec.structs.replace(event, facts=event.facts | facts)
        judge.observe(event)
    return judge.report()


def link(report: Report, name: str) -> LinkOutcome:
    return next(found for found in links_of(report.rules, report.findings) if found.name == name)


def with_losses(compared: Callable[[int], bool], value: float = 1.0) -> list[AnyEvent]:
    """A run that shows the loss of the micro-batches of some rollouts, each of which has four."""

    def seen(values: MicroBatchValues) -> MicroBatchValues:
        return msgspec.structs.replace(values, loss_ratio=value) if compared(values.index // 4) else values

    return [
        msgspec.structs.replace(event, microbatches=tuple(map(seen, event.microbatches)))
        if isinstance(event, Measured)
        else event
        for event in scripted_run(PLAN)
    ]


def test_gradients_that_were_followed_say_what_lies_before_them() -> None:
    def seen(event: AnyEvent) -> AnyEvent:
        if not isinstance(event, Measured):
            return event
        followed = [msgspec.structs.replace(of, gradient_off=0.1, gradient_factor=1.0) for of in event.updates]
        return msgspec.structs.replace(event, updates=tuple(followed))

    report = judged([seen(event) for event in scripted_run(PLAN)])
    found = link(report, "gradient and optimizer")
    assert found.note == "without the backward pass inside of the layers"
    assert f"{found.name} {found.note}" in shown(report)


def test_a_link_that_is_compared_in_some_rollouts_is_right_in_part() -> None:
    whole = link(judged(with_losses(lambda rollout: True)), "loss")
    assert (whole.state, whole.share) == ("right", "")
    report = judged(with_losses(lambda rollout: rollout < 8))
    part = link(report, "loss")
    assert (part.state, part.share) == ("in part", "8 of 16 rollouts")
    assert "loss (8 of 16 rollouts)" in shown(report)
    [line] = [line for line in in_part(report) if line.startswith("loss")]
    assert "all of the first rollouts are compared, and few of the later ones" in line
    assert line in report_markdown(report).replace("\\", "")
    assert '"share": "8 of 16 rollouts"' in report.to_json()


def test_a_rule_that_finds_something_to_compare_in_few_rollouts_of_any_run_is_no_sample() -> None:
    report = judged(with_losses(lambda rollout: rollout in (0, 9)))
    assert (link(report, "loss").state, link(report, "loss").share) == ("right", "")


def test_a_fault_in_all_that_was_compared_is_not_said_to_have_ended() -> None:
    [finding] = [one for one in judged(with_losses(lambda n: n < 8, 0.25)).findings if one.code == "RLS801"]
    assert finding.repeated == "32 times, in each of the 8 rollouts that were compared"
    [finding] = [one for one in judged(with_losses(lambda n: True, 0.25)).findings if one.code == "RLS801"]
    assert finding.repeated == "64 times, in rollouts 0 to 15"


def test_a_link_of_which_a_rule_was_not_evaluated_is_right_in_part_and_says_why() -> None:
    events = scripted_run(PLAN)
    report = judged([events[0], Unobserved(what="versions", why="nobody counts updates"), *events[1:]])
    found = link(report, "counts and order")
    assert (found.state, found.reason) == ("in part", "not RLS307: nobody counts updates")
    ran, of = map(int, found.share.removesuffix(" rules").split(" of "))
    assert of == ran + 1 > 5


def test_a_link_that_was_never_proved_in_the_deployment_of_the_run_is_right_in_part_at_most() -> None:
    events = scripted_run(PLAN)
    begun = events[0]
    assert isinstance(begun, RunStarted)
    assert link(judged(events), "counts and order").state == "right"
    unproved = msgspec.structs.replace(begun, facts=begun.facts | {"not_proved": {"RLS202": "FSDP2, LoRA"}})
    report = judged([unproved, *events[1:]])
    found = link(report, "counts and order")
    assert (found.state, found.reason) == ("in part", "compared, but never proved in FSDP2, LoRA")
    proved, of = map(int, found.share.removesuffix(" rules proved here").split(" of "))
    assert (of, report.verdict) == (proved + 1, "PASS")


def test_what_the_plan_shows_makes_no_link_of_the_run_right() -> None:
    """RLS102 and RLS113 look at the plan."""
    outcome = link(judged(scripted_run(PLAN), compares_settings=False), "configuration")
    assert outcome.state == "absent"


@pytest.mark.parametrize("name", OBSERVED)
def test_a_link_that_doctor_calls_not_compared_is_never_right(name: str) -> None:
    """Even where each of its rules finds something to compare."""
    facts = index.link_facts(name)
    begun = started(PLAN)
    begun = msgspec.structs.replace(begun, facts=begun.facts | facts)
    outcomes = []
    for kind in RULES:
        if kind not in RANK_RULES:
            rule = kind(Progress(PLAN, begun))
            rule.checks = 1
            outcomes.append(rule.outcome(Counter()))
    outcomes += [*Reductions(2, begun).outcomes(0, ""), Replicas(begun).outcome()]
    states = {found.name: found for found in links_of(outcomes, [])}
    for declared, of in index.system_of(name).links.items():
        if of.compared:
            continue
        for code in RULES_OF_LINKS[declared]:
            [outcome] = [one for one in outcomes if one.code == code]
            assert (outcome.verdict, outcome.reason) == ("NOT_EVALUATED", of.not_compared)
            found = states[link_of(code).name]
            assert found.state != "right" or not of.exists, (declared, code)
            assert found.state not in ("right", "in part") or code not in found.codes


@pytest.mark.parametrize("compared", [8, 16])
def test_a_page_says_what_was_compared_in_part(tmp_path: Path, compared: int) -> None:
    ledger = FolderLedger(tmp_path, "run", "rank0")
    ledger.write(*with_losses(lambda rollout: rollout < compared))
    page = tmp_path / "page.html"
    assert show(tmp_path, run=None, form="json", strict=False, trace=None, html=page) == 0
    text = page.read_text()
    assert ("loss (8 of 16 rollouts): all of the first" in text) == (compared == 8)
    assert "Everything that this run did was observed and compared" not in text or compared == 16
