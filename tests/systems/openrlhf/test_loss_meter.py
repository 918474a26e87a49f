"""The gradient that arrives at what OpenRLHF's model gave for its loss, without a launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlstep_hooks.systems.openrlhf.observe.loss_meter import LossMeter
from tests.systems.openrlhf.test_formulas import ValueLoss, arguments, numbers


class Nobody:
    """Stands in for a record: nothing fails here."""

    def cannot(self, what: str, why: str) -> None:
        raise AssertionError(why)


def gradient_gap(taught: Any) -> float | None:
    """How far the gradient at a critic's values is from the documented one: `taught` gives what the loss gets for the values."""
    args = arguments()
    args.actor.aux_loss_coef = 0.0
    args.train = SimpleNamespace(dynamic_batch_enable=False)
    args.critic = SimpleNamespace(value_clip=0.2)
    given = numbers(0)
    totals = {"dp_size": 1, "batch_num_tokens": torch.tensor(13.0), "global_batch_size": torch.tensor(4.0)}
    values = taught(given["log_probs"].requires_grad_())
    meter = LossMeter(args, "critic", ranks=1, accumulation=1, scale=1.0, recorder=Nobody())
    meter.next_rollout()
    meter.begin(SimpleNamespace(), 0.0, 0, [], update=0)
    loss = ValueLoss(0.2)(values, given["old"], given["engine"], action_mask=given["mask"], **totals)
    named = {"values": values, "old_values": given["old"], "returns": given["engine"], "action_mask": given["mask"]}
    meter.computed(0, named | totals, loss)
    whole = loss + 0 * given["log_probs"].sum()  # a term beside it, by which the backward reaches the model
    meter.backward(whole)
    whole.backward()
    meter.send()
    (found,) = meter.arrived().values()
    assert found.loss_is_documented
    return found.gradient_gap


def test_the_gradient_of_the_loss() -> None:
    assert gradient_gap(lambda values: values) == pytest.approx(0, abs=16)


def test_a_loss_that_is_cut_off_from_what_the_model_gave_teaches_nothing() -> None:
    gap = gradient_gap(lambda values: values.detach())
    assert gap is not None
    assert gap > 1e5


def divisors(ranks: int, microbatches: int = 2) -> list[dict[str, Any]]:
    """What is told of the divisors of the micro-batches of an update, whose losses are given 20 tokens and 6 samples for each."""
    args = arguments()
    args.actor.aux_loss_coef = 0.0
    args.train = SimpleNamespace(dynamic_batch_enable=False)
    args.critic = SimpleNamespace(value_clip=None)
    totals = {"dp_size": ranks, "batch_num_tokens": torch.tensor(20.0), "global_batch_size": torch.tensor(6.0)}
    meter = LossMeter(args, "critic", ranks=ranks, accumulation=2, scale=1.0, recorder=Nobody())
    meter.next_rollout()
    for place in range(microbatches):
        given = numbers(place)
        values = given["log_probs"].requires_grad_()
        meter.begin(SimpleNamespace(), 0.0, place, [], update=3)
        loss = ValueLoss(None)(values, given["old"], given["engine"], action_mask=given["mask"], **totals)
        named = {
            "values": values, "old_values": given["old"], "returns": given["engine"], "action_mask": given["mask"],
        }  # fmt: skip
        meter.computed(place, named | totals, loss)
        meter.backward(loss)
        loss.backward()
    meter.send()
    names = (
        "divisor_tokens",
        "own_tokens",
        "divisor_samples",
        "own_samples",
        "divisor_update",
        "divisor_rollout",
        "divisor_part",
    )
    return [{name: getattr(found, name) for name in names} for found in meter.arrived().values()]


def test_several_ranks_tell_what_their_losses_were_divided_by() -> None:
    # Two micro-batches of 13 tokens; a critic's loss is a mean over tokens.
    told = {
        "divisor_tokens": 40.0, "own_tokens": 26, "divisor_samples": None, "own_samples": None, "divisor_update": 3,
        "divisor_rollout": 0, "divisor_part": 0,
    }  # fmt: skip
    assert divisors(ranks=2) == [told, told]


def test_one_rank_and_a_part_of_an_update_tell_nothing() -> None:
    assert {of["divisor_update"] for of in divisors(ranks=1)} == {None}
    assert {of["divisor_update"] for of in divisors(ranks=2, microbatches=1)} == {None}
