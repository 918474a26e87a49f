"""A rule that says which numbers a handler needs does nothing without them, whatever else was measured."""

from __future__ import annotations

import copy
from types import UnionType
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from rlstep_hooks.judge.rules.catalogue import RULES
from rlstep_hooks.judge.rules.progress import Progress
from rlstep_hooks.record.events import MicroBatch, MicroBatchValues, Rollout, RolloutValues, Update, UpdateValues
from tests.scripted import make_plan, started

SHOWN: dict[str, tuple[type[msgspec.Struct], Any]] = {
    "rollout_values": (
        RolloutValues,
        Rollout(index=0, samples=8, policy_version=0, sampler_version=0, all_drawn=True),
    ),
    "microbatch_values": (
        MicroBatchValues,
        MicroBatch(index=0, samples=4, policy_version=1, sampled_version=1, old_version=1, old_source="engine"),
    ),
    "critic_microbatch_values": (
        MicroBatchValues,
        MicroBatch(index=0, samples=4, policy_version=1, sampled_version=0, old_version=0, role="critic"),
    ),
    "update_values": (UpdateValues, Update(index=0, version=1, microbatches=2, learning_rate=1e-3)),
}
DECLARED = [(rule, handler) for rule in RULES for handler in rule.needed]


def _measured(kind: type[msgspec.Struct], without: frozenset[str], *, high: bool) -> Any:
    """Numbers of which all were measured but these; far too high, or 0."""
    hints = get_type_hints(kind)
    filled: dict[str, object] = {}
    for name in kind.__struct_fields__:
        kinds = get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],)
        for simple in (bool, int, float):
            if simple in kinds and name not in without:
                filled[name] = simple(1000 if high else 0)
                break
    return kind(**filled)


def _state(rule: Any) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in vars(rule).items() if name not in ("progress", "schedule")}


@pytest.mark.parametrize(("rule", "handler"), DECLARED, ids=lambda part: getattr(part, "code", part))
@pytest.mark.parametrize("high", [False, True])
def test_nothing_happens_without_what_a_handler_needs(rule: Any, handler: str, high: bool) -> None:
    kind, event = SHOWN[handler]
    defaults = dict(
        zip(kind.__struct_fields__[-len(kind.__struct_defaults__) :], kind.__struct_defaults__, strict=True)
    )
    assert [defaults[name] for name in rule.needed[handler]] == [None] * len(rule.needed[handler])
    assert handler in rule.handled

    begun = started(make_plan())
    facts = begun.facts | {"engine_log_probs_are_old": True, "kl_limit": 0.1}
    judged = rule(Progress(make_plan(), msgspec.structs.replace(begun, facts=facts)))
    before = _state(judged)
    getattr(judged, handler)(_measured(kind, rule.needed[handler], high=high), event)
    assert _state(judged) == before


def test_most_handlers_of_numbers_say_what_they_need() -> None:
    """Else the test above looks at nothing, and the judge asks every rule about every number."""
    assert len(DECLARED) >= 30
