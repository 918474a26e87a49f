"""Numbers of the critic's micro-batches are judged by the rules of the policy's, and said to be the critic's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from rlstep_hooks.record.events import FactsRead, Measured, MicroBatch, MicroBatchValues, Update, UpdateValues
from tests.scripted_phases import Live, PhaseCase, Script, phase_plan, scripted_phases

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Finding

RUN = scripted_phases(
    PhaseCase(schedule=phase_plan(critic=phase_plan(samples=8, minibatches=(8,), microbatch=4, reuse=1)))
)


def found_in(script: Script) -> list[Finding]:
    return [finding for finding in Live().play(script).findings if finding.severity != "info"]


def with_numbers(**values: Any) -> Script:
    """The run, with these numbers of the critic's fourth micro-batch right after it."""
    of_critic = [event for _, event in RUN if isinstance(event, MicroBatch) and event.role == "critic"]
    script: Script = []
    for process, event in RUN:
        script.append((process, event))
        if event is of_critic[3]:
            numbers = MicroBatchValues(index=event.index, tokens=8, role="critic", **values)
            script.append((process, Measured(microbatches=(numbers,))))
    return script


@pytest.mark.parametrize(
    ("values", "code", "said"),
    [
        (
            {"loss_gap": 1e6, "loss_like": "that without the clip of values"},
            "RLS801",
            "the critic's loss is that without",
        ),
        ({"backward_ratio": 2.0}, "RLS805", "for the critic"),
        ({"gradient_gap": 1e6}, "RLS805", "values of the critic"),
        ({"mask_intact": False}, "RLS804", "the critic's loss"),
        ({"targets_intact": False}, "RLS517", "the critic's targets"),
        ({"values_intact": False}, "RLS517", "the critic's old values"),
    ],
)
def test_a_wrong_number_is_found_at_its_rollout(values: dict[str, Any], code: str, said: str) -> None:
    (finding,) = found_in(with_numbers(**values))
    assert (finding.code, finding.where.rollout) == (code, 1)
    assert said in f"{finding.expected} {finding.observed} {finding.why}"


def test_right_numbers_are_no_finding() -> None:
    right = {
        "loss_gap": 1.0,
        "backward_ratio": 1.0,
        "gradient_gap": 1.0,
        "mask_intact": True,
        "targets_intact": True,
        "values_intact": True,
    }
    assert found_in(with_numbers(**right)) == []


def test_the_critics_rate_is_that_of_its_own_schedule() -> None:
    schedule = {"kind": "constant", "base": 1e-3, "horizon": 0, "warmup": 0, "least": 0.0}

    def rated(rate: float, *, stands: bool = False) -> Script:
        script: Script = []
        for process, event in RUN:
            if isinstance(event, Update) and event.role == "critic":
                tick = 0 if stands else event.index
                script.append((process, msgspec.structs.replace(event, learning_rate=rate, lr_tick=tick)))
                continue
            script.append((process, event))
            if type(event).__name__ == "Attached" and process == "rank0":
                script.append((process, FactsRead(facts={"critic_lr_schedule": schedule})))
        return script

    assert found_in(rated(1e-3)) == []
    (finding,) = found_in(rated(5e-4))
    assert finding.code == "RLS605"
    assert finding.observed == "0.0005, of the critic"
    (finding,) = found_in(rated(1e-3, stands=True))
    assert finding.code == "RLS602"
    assert finding.observed == "0 ticks of the critic's"


@pytest.mark.parametrize(("steps", "found"), [(1, []), (2, ["RLS807"])])
def test_steps_of_its_optimizer_are_compared_with_its_own_updates(steps: int, found: list[str]) -> None:
    """The version that an update of the critic carries is the policy's."""
    (place,) = [i for i, (_, e) in enumerate(RUN) if isinstance(e, Update) and (e.role, e.index) == ("critic", 1)]
    numbers = Measured(
        updates=(
            UpdateValues(index=1, probed=8, changed=8, with_gradient=8, visible=8, role="critic", steps_idle=steps),
        )
    )
    script = [*RUN[: place + 1], (RUN[place][0], numbers), *RUN[place + 1 :]]
    assert [finding.code for finding in found_in(script)] == found
