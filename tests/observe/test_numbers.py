"""Columns become the fields whose names they have, and none is lost without a word."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rlstep_hooks.observe.numbers import Columns
from rlstep_hooks.record.events import MicroBatchValues, UpdateValues


def test_a_sum_is_a_mean_and_a_count_of_differences_a_truth_value() -> None:
    columns = Columns(MicroBatchValues, (3, 4), ("tokens", "sum_abs_log_ratio", "old_intact"))
    assert columns.values([10.0, 20.0, 5.0, 5.0, 0.0, 2.0]) == {
        3: {"tokens": 10, "mean_abs_log_ratio": 0.5, "old_intact": True},
        4: {"tokens": 20, "mean_abs_log_ratio": 0.25, "old_intact": False},
    }


@pytest.mark.parametrize("name", ["backward", "optimizer_off", "index_of_nothing"])
def test_a_column_that_is_no_field_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: no field of MicroBatchValues"):
        Columns(MicroBatchValues, (0,), ("tokens", name))
    assert Columns(UpdateValues, (0,), ("optimizer_off",)).values([2.0]) == {0: {"optimizer_off": 2.0}}


def test_a_name_that_cannot_be_looked_for_costs_no_finding() -> None:
    def fails() -> str:
        raise KeyError("values")

    columns = Columns(
        MicroBatchValues, (0, 1), ("loss_gap",), known=({"loss_like": fails}, {"loss_like": lambda: "another"})
    )
    assert columns.values([1e9, 1e9]) == {
        0: {"loss_gap": 1e9, "loss_like": ""},
        1: {"loss_gap": 1e9, "loss_like": "another"},
    }
