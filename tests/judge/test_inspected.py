"""What a controller sees of samples, and what is judged of it: composed with the records of trainers, rollout by rollout."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from rlstep_hooks.judge.report import ends_training
from rlstep_hooks.judge.rules.learning_rate.ticks import ScheduleHorizon
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.record.events import (
    Generated,
    Inspected,
    Measured,
    MicroBatch,
    Phase,
    PhaseEnded,
    Received,
    RunStarted,
    SampleRows,
)
from rlstep_hooks.record.ledger import CONTROLLER
from tests.scripted_phases import Live, PhaseCase, phase_plan, scripted_phases

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.record.events import AnyEvent
    from tests.scripted_phases import Script

PLAN = phase_plan(world_size=1, samples=8, minibatches=(4, 4), microbatch=2, rollouts=5, per_epoch=5)
RUN = PhaseCase(schedule=PLAN)
TOP_P = 0.9


def play(script: Script) -> list[Finding]:
    report = Live().play(script).run.report()
    return [finding for finding in report.findings if finding.severity != "info"]


def changed(change: Callable[[AnyEvent], AnyEvent], script: Script | None = None) -> Script:
    return [(process, change(event)) for process, event in script or scripted_phases(RUN)]


def with_facts(**facts: Any) -> Script:
    def change(event: AnyEvent) -> AnyEvent:
        return msgspec.structs.replace(event, facts=event.facts | facts) if isinstance(event, RunStarted) else event

    return changed(change)


def inspected(rollout: int, seen: Inspected) -> Script:
    """A run whose controller looked at one rollout."""
    script = scripted_phases(RUN)
    index = next(i for i, (_, e) in enumerate(script) if isinstance(e, Generated) and e.index == rollout)
    calls = [i for i, (p, e) in enumerate(script) if p == CONTROLLER and isinstance(e, Phase) and i > index]
    first = next(i for i in calls if script[i][1].name == "refresh")  # type: ignore[union-attr]
    return [*script[: first + 1], (CONTROLLER, seen), *script[first + 1 :]]


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (Inspected(groups_intact=False), "RLS501"),
        (Inspected(rewards_intact=False), "RLS515"),
        (Inspected(repeats=1, signal=True), "RLS514"),
        (Inspected(reference_intact=False), "RLS411"),
        (Inspected(copied=(3, 200.0)), "RLS519"),
        (Inspected(filtered=(8, 1, 0)), "RLS502"),
        (Inspected(filtered=(8, 0, 1)), "RLS502"),
    ],
)
def test_what_the_controller_saw_is_judged_at_its_rollout(seen: Inspected, code: str) -> None:
    (finding,) = play(inspected(3, seen))
    assert (finding.code, finding.severity, finding.where.rollout) == (code, "error", 3)


def test_healthy_samples_are_no_finding() -> None:
    whole = Inspected(groups_intact=True, rewards_intact=True, reference_intact=True, signal=True)
    # Short and certain answers come twice.
    for seen in (
        whole,
        Inspected(copied=(0, 0.0)),
        Inspected(copied=(5, 12.0)),
        Inspected(filtered=(8, 0, 0)),
        Inspected(filtered=(0, 0, 0)),
    ):
        assert play(inspected(3, seen)) == []


@pytest.mark.parametrize(
    ("rollout", "seen", "code"),
    [
        (0, Inspected(reference_gap=6.0), "RLS414"),
        (1, Inspected(reference_gap=6.0), ""),
        (
            2,
            Inspected(reference_clean_gap=0.4, reference_clean_max=1.0, reference_clean_like="something else"),
            "RLS315",
        ),
        (2, Inspected(reference_clean_gap=1e-5, reference_clean_max=1e-4), ""),
    ],
)
def test_a_reference_is_the_first_policy_and_gives_what_it_gives_alone(
    rollout: int, seen: Inspected, code: str
) -> None:
    found = play(inspected(rollout, seen))
    assert [(finding.code, finding.where.rollout) for finding in found] == ([(code, rollout)] if code else [])


def with_values(rollout: int, script: Script, **values: Any) -> Script:
    def change(event: AnyEvent) -> AnyEvent:
        if not isinstance(event, Measured):
            return event
        own = [msgspec.structs.replace(v, **values) if v.index == rollout else v for v in event.rollouts]
        return msgspec.structs.replace(event, rollouts=tuple(own))

    return changed(change, script)


@pytest.mark.parametrize(("signal", "codes"), [(True, ["RLS505"]), (False, []), (None, [])])
def test_advantages_of_0_are_an_error_where_rewards_differ(signal: bool | None, codes: list[str]) -> None:
    found = play(with_values(2, inspected(2, Inspected(signal=signal)), max_abs_advantage=0.0))
    assert [finding.code for finding in found if finding.severity == "error"] == codes


# Whether tokens were drawn from the policy, where their entropies come with old log-probs

SURPRISING = {"drawn_tokens": 1024, "surprise": -717.0, "surprise_squares": 1130.0, "surprise_largest": 5.1}
COPIED = {"copied": 3, "copied_nats": 212.0}


def drawn(*, all_drawn: bool = True, label: int | None = None, **values: Any) -> Script:
    def change(event: AnyEvent) -> AnyEvent:
        return msgspec.structs.replace(event, all_drawn=all_drawn) if isinstance(event, Generated) else event

    script = changed(change, with_values(2, with_facts(surprise_cap=12.2, vocabulary=512), **values))
    return script if label is None else relabelled(2, label, script)


@pytest.mark.parametrize(("values", "code"), [(SURPRISING, "RLS413"), (COPIED, "RLS519")])
def test_text_that_was_not_drawn_is_found_at_its_rollout(values: dict[str, Any], code: str) -> None:
    (finding,) = play(drawn(**values))
    assert (finding.code, finding.severity, finding.where.rollout) == (code, "error", 2)


@pytest.mark.parametrize(("largest", "mean", "found"), [(35.0, 0.3, False), (0.1, 0.001, True), (None, None, True)])
def test_copies_are_as_probable_as_the_engine_may_have_found_them(
    largest: float | None, mean: float | None, found: bool
) -> None:
    """At a learning rate of 1 the trainer gave one token exp(-36) in bfloat16, and the engine gave it nearly 1."""
    gaps = {"sampler_gap_max": largest, "sampler_gap_mean": mean, "sampler_gap_tokens": 1024}
    findings = play(drawn(**(COPIED | gaps)))
    assert ("RLS519" in {finding.code for finding in findings}) == found


@pytest.mark.parametrize("values", [SURPRISING, COPIED])
def test_text_of_a_truncated_sampler_or_of_old_weights_is_not_tested(values: dict[str, Any]) -> None:
    assert play(drawn(all_drawn=False, **values)) == []
    of_old_weights = play(drawn(label=1, **values))
    assert not {finding.code for finding in of_old_weights} & {"RLS413", "RLS519"}


@pytest.mark.parametrize(("moved", "codes"), [(5, ["RLS404"]), (0, []), (None, [])])
def test_a_model_that_something_wrote_to_is_found_at_its_rollout(moved: int | None, codes: list[str]) -> None:
    found = play(with_values(2, scripted_phases(RUN), model_moved=moved))
    assert [(finding.code, finding.where.rollout) for finding in found] == [(code, 2) for code in codes]


# Labels that are the weights themselves


def relabelled(rollout: int, label: int, script: Script) -> Script:
    def change(event: AnyEvent) -> AnyEvent:
        own = isinstance(event, Generated) and event.index == rollout
        return msgspec.structs.replace(event, labels=((label, 8),)) if own else event  # type: ignore[call-arg]

    return changed(change, script)


def test_an_engine_with_weights_of_no_sync_is_found_where_labels_are_the_weights() -> None:
    (finding,) = play(relabelled(2, 99, with_facts(labels_are_weights=True)))
    assert (finding.code, finding.severity, finding.where.rollout) == ("RLS402", "error", 2)
    assert "weights are those of no sync" in finding.observed
    assert play(relabelled(2, 99, with_facts())) == [], "a name says nothing of weights"


# Samples that are dealt to the trainers anew


def test_samples_that_came_from_another_trainer_count_as_its_own() -> None:
    """Eight samples were refreshed here, of which two go elsewhere: six are handed over, and these are trained."""
    script: Script = []
    for process, event in scripted_phases(PhaseCase(schedule=PLAN)):
        if isinstance(event, MicroBatch) and event.trained is not None:
            rows = tuple(row for part in event.trained for row in part.rows)
            event = msgspec.structs.replace(
                event, trained=(SampleRows(event.trained[0].rollout, tuple(row for row in rows if row < 6)),)
            )
        script.append((process, event))
        if process != CONTROLLER and isinstance(event, PhaseEnded) and event.name == "refresh":
            script.append((process, Received(samples=6)))
    assert "RLS502" not in [finding.code for finding in play(script)]
    without = [(process, event) for process, event in script if not isinstance(event, Received)]
    assert "RLS502" in [finding.code for finding in play(without)]


# Distance of engine and trainer


def gaps(*measured: float, **facts: Any) -> list[Finding]:
    script = with_facts(compute_dtype="bfloat16", engine_dtype="bfloat16", **facts)
    for rollout, gap in enumerate(measured):
        script = with_values(rollout, script, sampler_gap_mean=gap, sampler_gap_max=gap)
    return [finding for finding in play(script) if finding.code == "RLS403"]


def test_a_distance_that_jumps_is_found_below_the_published_bound() -> None:
    (finding,) = gaps(0.001, 0.0012, 0.0011, 0.03, 0.001)
    assert (finding.severity, finding.where.rollout, finding.occurrences) == ("warning", 3, 1)


def test_a_distance_that_grows_or_is_mere_rounding_is_none() -> None:
    assert gaps(0.001, 0.004, 0.01, 0.02, 0.04) == []
    assert gaps(1e-5, 1e-5, 1e-5, 4e-3, 1e-3) == []
    assert gaps(0.001, 0.02, 0.02, 0.02, 0.02) == [], "one rollout says too little of what is usual"


def test_a_distance_that_top_p_explains_is_named_after_it() -> None:
    gap = -math.log(TOP_P) * 0.98
    sampling = {"temperature": 1.0, "top_p": TOP_P, "top_k": 0.0}
    (named,) = gaps(gap, gap, gap, gap, gap, configured_sampling=sampling)
    assert "-ln 0.9" in named.observed
    (bare,) = gaps(gap, gap, gap, gap, gap)
    assert "-ln" not in bare.observed


def test_settings_of_the_sampler_are_compared_with_the_configuration() -> None:
    configured = {"temperature": 1.0, "top_p": 1.0, "top_k": 0.0}

    def sample(event: AnyEvent) -> AnyEvent:
        if not isinstance(event, Generated):
            return event
        used = (configured, configured | {"temperature": 0.3}) if event.index == 2 else (configured,)
        return msgspec.structs.replace(event, sampling=used)

    (finding,) = play(changed(sample, with_facts(configured_sampling=configured)))
    assert (finding.code, finding.where.rollout) == ("RLS410", 2)
    assert (finding.expected, finding.observed) == ("temperature 1", "temperature 0.3")


# What ends training


def test_only_an_error_about_what_happened_ends_training() -> None:
    error = Finding(code="RLS204", severity="error", title="", expected="", observed="", where=Where(), why="", fix="")
    planned = msgspec.structs.replace(error, code=ScheduleHorizon.code, planned=True)
    warning = msgspec.structs.replace(error, severity="warning")
    assert ends_training([planned, warning]) is None
    assert ends_training([planned, warning, error]) is error


def test_what_the_plan_alone_shows_says_so() -> None:
    schedule = msgspec.structs.replace(PLAN, lr_horizon=3, lr_ticks=10, lr_clock="update")
    run = Live().play(scripted_phases(PhaseCase(schedule=schedule)))
    (horizon,) = [finding for finding in run.findings if finding.code == "RLS601"]
    assert horizon.severity == "error"
    assert horizon.planned
    assert ends_training(run.findings) is None
