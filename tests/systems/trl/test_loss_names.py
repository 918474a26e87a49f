"""What a loss is called that is not the documented one: no coincidence, and first what was seen to be other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from rlstep_hooks.record.events import MicroBatchValues
from rlstep_hooks.systems.trl.observe.loss_inputs import LossSettings, loss_batch
from rlstep_hooks.systems.trl.observe.microbatch_values import LossColumns
from rlstep_hooks.systems.trl.observe.other_losses import mistakes

NAMES = ("tokens", "max_abs_advantage", "loss", "documented", "terms")


def named(*losses: float) -> list[Any]:
    """What two losses are called whose documented values are 1 and 1.5, where two mistakes are known."""
    known = [("by coincidence", torch.tensor([2.0, 9.0])), ("by its cause", torch.tensor([2.0, 4.0]))]
    formula: Any = SimpleNamespace(settings=SimpleNamespace(precision="float32"), mistaken=lambda batch: known)
    compared: Any = (
        formula,
        SimpleNamespace(mask=torch.ones(2), tensors={}),
    )  # no input that may have been changed
    columns = LossColumns(MicroBatchValues, (4, 5), NAMES, losses=compared)
    values = columns.values([8.0, 8.0, 1.0, 1.0, *losses, 1.0, 1.5, 1.0, 1.5])
    return [values[index].get("loss_like") for index in (4, 5)]


def test_a_mistake_is_named_that_gives_all_losses_that_are_wrong() -> None:
    assert named(2.0, 4.0) == ["by its cause", "by its cause"]
    assert named(2.0, 1.5) == ["by coincidence", None]
    assert named(2.0, 5.0) == ["", ""]
    assert named(1.0, 1.5) == [None, None]


def test_a_number_of_tokens_that_was_seen_to_be_another_is_tried_first() -> None:
    settings = LossSettings(
        loss_type="dapo",
        epsilon_low=0.2,
        epsilon_high=0.2,
        max_completion_length=2,
        processes=1,
        steps_per_generation=2,
        includes_accumulation=True,
    )
    log_ratio = torch.zeros(1, 1, 2)
    batch = loss_batch(log_ratio - 1, log_ratio, torch.ones(1, 1, 2, dtype=torch.int), torch.ones(1, 1, 1), [], [])
    words, _, other = next(mistakes(settings, batch.with_tensors(given_tokens=torch.tensor([8.0]))))
    assert words == "divided by another number of tokens than the masks of its rollout count"
    assert other.tokens is not None
    assert other.tokens.tolist() == [8.0]
