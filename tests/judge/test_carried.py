"""What a controller hands over against what comes to its trainers, and what is said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.judge.controlled.carried import arrived
from rlstep_hooks.record.events import Carried, CarriedPart, Generated, Phase, Refresh
from rlstep_hooks.record.ledger import CONTROLLER
from rlstep_hooks.record.wire import decode, encode
from tests.scripted_phases import Live, PhaseCase, Script, phase_plan, scripted_phases

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import AnyEvent

RUN = scripted_phases(
    PhaseCase(schedule=phase_plan(critic=phase_plan(samples=8, minibatches=(8,), microbatch=4, reuse=1)))
)
TO = "from the controller to the buffer of the trainer"


def part(tokens: int, **held: int) -> CarriedPart:
    return CarriedPart(4, {"tokens": tokens} | {name.replace("_", " "): value for name, value in held.items()})


def carried(rollout: int, *parts: CarriedPart, role: Any = "policy") -> Carried:
    return Carried(way=TO, rollout=rollout, role=role, parts=parts)


def test_parts_are_recognised_by_their_tokens_in_any_order() -> None:
    handed = [carried(3, part(1, advantages=5), part(2, advantages=6))]
    found = arrived(carried(0, part(2, advantages=6), part(1, advantages=5)), handed, 3)
    assert (found.rollout, found.compared, found.altered, found.parts) == (3, 8, {}, ())
    assert found.names == ("tokens", "advantages")


def test_what_differs_is_named_with_its_samples() -> None:
    handed = [carried(3, part(1, advantages=5, mask=7), part(2, advantages=6, mask=8))]
    found = arrived(carried(0, part(1, advantages=5, mask=0), part(9, advantages=6, mask=8)), handed, 3)
    assert found.altered == {"mask": 4, "tokens": 4}


def test_of_two_parts_of_equal_tokens_the_more_similar_one_counts() -> None:
    handed = [carried(3, part(1, advantages=5, mask=7), part(1, advantages=6, mask=8))]
    assert arrived(carried(0, part(1, advantages=6, mask=8)), handed, 3).altered == {}


@pytest.mark.parametrize(("rollout", "role"), [(2, "policy"), (None, "policy"), (3, "critic")])
def test_nothing_is_compared_with_another_rollout_or_another_role(rollout: int | None, role: Any) -> None:
    handed = [carried(3, part(1, advantages=5), role=role)]
    found = arrived(carried(0, part(1, advantages=6)), handed, rollout)
    assert (found.compared, found.altered) == (0, {})


def test_it_is_written_and_read() -> None:
    event = carried(3, part(1, old_values=5))
    assert decode(encode(event)) == event


def with_carried(rollout: int, before: CarriedPart, after: CarriedPart, role: Any = "policy") -> Script:
    """The run, with these parts handed over by the controller and taken by the trainer of one rollout."""
    script: Script = []
    generated, number = -1, -1
    handed = False
    for process, event in RUN:
        generated += process == CONTROLLER and isinstance(event, Generated)
        number += isinstance(event, Refresh)
        first = isinstance(event, Phase) and event.name in ("critic_updates", "policy_updates")
        if first and not handed and generated == rollout:
            handed = True
            script.append((CONTROLLER, carried(generated, before, role=role)))
            script.append(("rank0", carried(number, after, role=role)))
        script.append((process, event))
    assert handed
    return script


def found_in(script: Script) -> list[Finding]:
    return [finding for finding in Live().play(script).findings if finding.severity != "info"]


@pytest.mark.parametrize(
    ("role", "name", "code"),
    [
        ("policy", "tokens", "RLS306"),
        ("policy", "mask", "RLS804"),
        ("policy", "old log-probs", "RLS305"),
        ("policy", "reference log-probs", "RLS311"),
        ("policy", "advantages", "RLS517"),
        ("critic", "targets", "RLS517"),
        ("critic", "old values", "RLS517"),
    ],
)
def test_each_has_its_rule(role: Any, name: str, code: str) -> None:
    before = CarriedPart(4, {"tokens": 1, name: 5} if name != "tokens" else {"tokens": 5})
    after = CarriedPart(4, before.checksums | {name: 6})
    (finding,) = found_in(with_carried(1, before, after, role))
    assert (finding.code, finding.where.rollout) == (code, 1)
    assert "in 4 of 4 samples, on the way from the controller" in finding.observed


def test_nothing_altered_is_no_finding() -> None:
    one = part(1, advantages=5, mask=6)
    assert found_in(with_carried(2, one, one)) == []


def test_what_a_controller_saw_itself_is_taken_as_it_is() -> None:
    seen = Carried(way="here", rollout=1, compared=8, names=("rewards", "labels"), altered={"labels": 3})
    script: list[tuple[str, AnyEvent]] = []
    for process, event in RUN:
        script.append((process, event))
        if process == CONTROLLER and isinstance(event, Generated) and event.index == 1:
            script.append((CONTROLLER, seen))
    (finding,) = found_in(script)
    assert (finding.code, finding.where.rollout) == ("RLS515", 1)
    assert finding.observed == "others in 3 of 8 samples, on the way here"
