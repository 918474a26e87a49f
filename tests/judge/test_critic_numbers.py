"""Numbers of a critic are judged under the rules of the policy's, and told apart; and gradients that are reduced on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from rlstep_hooks.record.events import Measured, MicroBatch, MicroBatchValues, RunStarted, Update
from tests.scripted_phases import Live, PhaseCase, Script, phase_plan, scripted_phases

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import AnyEvent

RUN = scripted_phases(
    PhaseCase(schedule=phase_plan(critic=phase_plan(samples=8, minibatches=(8,), microbatch=4, reuse=1)))
)
"""Each rollout: one update of the critic, two of the policy."""


def found_in(script: Script) -> list[Finding]:
    return [finding for finding in Live().play(script).findings if finding.severity != "info"]


def of_critic(rollout: int, **fields: Any) -> Script:
    """A run with these numbers for the micro-batches of the critic's update on a rollout."""
    done, seen = -1, []
    script: Script = []
    for process, event in RUN:
        script.append((process, event))
        if isinstance(event, MicroBatch) and event.role == "critic":
            seen.append(event.index)
        if isinstance(event, Update) and event.role == "critic":
            done += 1
            if done == rollout:
                values = tuple(MicroBatchValues(index=index, tokens=9, **fields) for index in seen[-2:])
                script.append((process, Measured(microbatches=values)))
    return script


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"loss_ratio": 2.0, "loss_gap": 1e6, "loss_like": "that without a clip of the values"}, "RLS801"),
        ({"backward_ratio": 0.5}, "RLS805"),
        ({"advantages_intact": False}, "RLS517"),
    ],
)
def test_a_wrong_number_of_the_critic_is_found_at_its_rollout(fields: dict[str, Any], code: str) -> None:
    (finding,) = found_in(of_critic(2, **fields))
    assert (finding.code, finding.where.rollout) == (code, 2)
    assert "critic's" in finding.expected


def test_right_numbers_of_the_critic_are_no_finding() -> None:
    assert found_in(of_critic(2, loss_ratio=1.0, loss_gap=0.5, backward_ratio=1.0, advantages_intact=True)) == []


@pytest.mark.parametrize(("rate", "codes"), [(1e-3, []), (2e-3, ["RLS605"])])
def test_the_critics_rate_has_a_schedule_of_its_own(rate: float, codes: list[str]) -> None:
    schedule = {"kind": "constant_with_warmup", "base": 1e-3, "horizon": 9, "warmup": 0, "least": 0.0}

    def change(event: AnyEvent) -> AnyEvent:
        if isinstance(event, RunStarted):
            return msgspec.structs.replace(event, facts=event.facts | {"critic_lr_schedule": schedule})
        if isinstance(event, Update) and event.role == "critic":
            return msgspec.structs.replace(event, learning_rate=rate, lr_tick=0)
        return event

    found = found_in([(process, change(event)) for process, event in RUN])
    assert [finding.code for finding in found] == codes


@pytest.mark.parametrize(("ranks", "factor", "codes"), [(1, 0.5, ["RLS810"]), (2, 0.5, []), (2, 1.5, ["RLS810"])])
def test_one_of_several_processes_knows_a_part_of_the_norm(ranks: int, factor: float, codes: list[str]) -> None:
    """The clip acts on the norm of all, so a common factor below 1 is explained there."""

    def change(event: AnyEvent) -> AnyEvent:
        if not isinstance(event, Measured):
            return event
        fields = {"gradient_off": 0.1, "gradient_factor": factor, "gradient_norm": 0.6, "gradient_limit": 1.0}
        updates = tuple(msgspec.structs.replace(values, **fields) for values in event.updates)
        return msgspec.structs.replace(event, updates=updates)

    script = scripted_phases(PhaseCase(schedule=phase_plan(world_size=ranks)))
    found = found_in([(process, change(event)) for process, event in script])
    assert sorted({finding.code for finding in found}) == codes
