"""What samples hold on their way through the controller, and what a trainer's buffer knows of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from rlstep_hooks.systems.openrlhf.observe.buffered import BufferedSamples
from rlstep_hooks.systems.openrlhf.observe.carried import CarriedSamples, part_of, sample_of, samples_of

ARGS = SimpleNamespace(algo=SimpleNamespace(kl=SimpleNamespace(use_loss=False)))


def experience(*rows: list[int], advantage: float = 1.0) -> Any:
    """A part of a rollout, padded on the right."""
    width = max(map(len, rows))
    attention = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    numbers = torch.arange(len(rows) * (width - 1)).float().view(len(rows), width - 1)
    return SimpleNamespace(
        sequences=torch.tensor([row + [0] * (width - len(row)) for row in rows]),
        attention_mask=attention,
        action_mask=attention[:, 1:],
        action_log_probs=-numbers,
        base_action_log_probs=None,
        rollout_log_probs=numbers / 8,
        advantages=advantage + numbers,
        returns=numbers + 2,
        values=numbers + 3,
        rewards=torch.ones(len(rows)),
    )


def items_of(part: Any) -> list[Any]:
    """The samples of a part as a buffer holds them, without padding."""
    found = []
    for place, length in enumerate(part.attention_mask.sum(1).tolist()):
        held = {name: None if rows is None else rows[place] for name, rows in vars(part).items()}
        cut = {
            name: row if row is None or row.dim() == 0 else row[: length - (name != "sequences")]
            for name, row in held.items()
        }
        found.append(SimpleNamespace(**cut))
    return found


def test_what_is_sent_is_what_a_buffer_holds() -> None:
    part = experience([1, 2, 3, 4], [5, 6])
    for role in ("policy", "critic"):
        sent = part_of(samples_of(part, role))
        assert sent == part_of(sample_of(item, role) for item in items_of(part))
        assert sent.samples == 2


def response(tokens: list[int], log_probs: list[float] | None) -> dict[str, Any]:
    return {"observation_tokens": tokens, "rollout_log_probs": log_probs}


def test_a_sample_is_known_by_the_tokens_that_an_engine_gave() -> None:
    seen = CarriedSamples(ARGS)
    part = experience([1, 2, 3], [4, 5])
    seen.generated(response([1, 2, 3], [0.0, *part.rollout_log_probs[0].tolist()]), 64)
    seen.generated(response([4, 5, 6], [0.0, *part.rollout_log_probs[1].tolist()]), 2)
    found = seen.asked([part], 0)
    assert found is not None
    assert (found.compared, found.names, found.altered) == (2, ("tokens", "engine log-probs"), {})
    seen.generated(response([1, 2, 3], [0.0, 9.0, 9.0]), 64)
    found = seen.asked([part], 1)
    assert found is not None
    assert found.altered == {"engine log-probs": 1, "tokens": 1}


def test_equal_samples_may_have_other_log_probs() -> None:
    seen = CarriedSamples(ARGS)
    part = experience([1, 2, 3], [1, 2, 3])
    for row in part.rollout_log_probs.tolist():
        seen.generated(response([1, 2, 3], [0.0, *row]), 64)
    found = seen.asked([part], 0)
    assert found is not None
    assert found.altered == {}


def test_what_changes_between_the_advantages_and_the_trainers_is_counted() -> None:
    seen = CarriedSamples(ARGS)
    part = experience([1, 2, 3], [4, 5, 6], [7, 8, 9])
    seen.computed([part], 0)
    part.advantages[1] += 1
    here, sent = seen.handed("policy", [part], 0)
    assert (here.compared, here.altered) == (3, {"advantages": 1})
    assert len(sent.parts) == 1
    assert seen.handed("policy", [part], 0) == [], "once for each rollout"
    here, _ = seen.handed("critic", [part], 0)
    assert here.altered == {}


def test_answers_of_models_stay_with_their_samples() -> None:
    seen = CarriedSamples(ARGS)
    part, references = experience([1, 2, 3], [4, 5, 6]), [object()]
    seen.called("critic_model_group", references)
    seen.called("reward_model_group", rewards := [object()])
    seen.answered(references, [part.values.clone()], 0)
    seen.answered(rewards, [part.rewards.clone()], 0)
    found = seen.made([part], 0)
    assert found is not None
    assert (found.names, found.altered) == (("old values", "rewards"), {})
    part.values = part.values.roll(1, 0)
    part.rewards[0] = 5
    found = seen.made([part], 0)
    assert found is not None
    assert found.altered == {"old values": 2, "rewards": 1}


def test_a_penalty_is_of_the_log_probs_of_the_answers() -> None:
    seen = CarriedSamples(ARGS)
    own, theirs = torch.randn(2, 3), torch.randn(2, 3)
    for group, answer in (("actor_model_group", own), ("reference_model_group", theirs)):
        seen.called(group, references := [object()])
        seen.answered(references, [answer], 0)
    (found,) = seen.penalised() or []
    assert torch.equal(found[0], own)
    assert torch.equal(found[1], theirs)


def test_the_distance_of_policy_and_reference_is_that_of_the_tokens_that_count() -> None:
    seen = CarriedSamples(ARGS)
    part = experience([1, 2, 3, 4], [5, 6])
    assert seen.reference_gap([part]) is None
    theirs = torch.full((2, 3), 0.5)
    theirs[1, 1:] = 9  # padding
    for group, answer in (("actor_model_group", torch.zeros(2, 3)), ("reference_model_group", theirs)):
        seen.called(group, references := [object()])
        seen.answered(references, [answer], 0)
    assert seen.reference_gap([part]) == 0.5


def test_samples_that_cannot_be_told_apart_may_have_other_advantages() -> None:
    buffer = BufferedSamples("policy")
    one, other = experience([1, 2, 3], advantage=1.0), experience([1, 2, 3], advantage=2.0)
    items = [*items_of(one), *items_of(other)]
    buffer.appended(items)
    buffer.collated(one, items)
    assert [len(came.checksums["advantages"]) for came in buffer.take(one)] == [2, 2]
