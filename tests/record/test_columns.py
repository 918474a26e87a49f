"""Rows written as columns: nothing is lost, and names and shared values are written once."""

from __future__ import annotations

import msgspec
import pytest

from rlstep_hooks.record.columns import Columns
from rlstep_hooks.record.events import Measured, MicroBatchValues, UpdateValues
from rlstep_hooks.record.wire import decode, encode


class Values(msgspec.Struct, frozen=True):
    index: int
    tokens: int
    intact: bool | None = None
    gap: float | None = None


COLUMNS = Columns(Values)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ([Values(3, 8)], {"index": (3,), "tokens": 8}),
        ([Values(3, 8), Values(4, 8)], {"index": (3, 4), "tokens": 8}),
        ([Values(3, 8), Values(4, 9, True)], {"index": (3, 4), "tokens": (8, 9), "intact": (None, True)}),
        (
            [Values(3, 8, False, 0.5), Values(3, 8, False)],
            {"index": (3, 3), "tokens": 8, "intact": False, "gap": (0.5, None)},
        ),
    ],
)
def test_what_rows_share_is_written_once_and_all_of_it_comes_back(
    rows: list[Values], columns: dict[str, object]
) -> None:
    assert COLUMNS.of(rows) == columns
    line = msgspec.json.encode(COLUMNS.of(rows))
    assert COLUMNS.rows(msgspec.json.decode(line, type=COLUMNS.type)) == tuple(rows)


@pytest.mark.parametrize(
    "line", [b'{"index":[1,2],"tokens":[8]}', b'{"index":[],"tokens":[8]}', b'{"index":1,"tokens":8}', b'{"index":[1]}']
)
def test_columns_that_do_not_fit_are_an_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"different lengths|Expected|required"):
        COLUMNS.rows(msgspec.json.decode(line, type=COLUMNS.type))


def test_numbers_of_a_healthy_run_take_few_bytes() -> None:
    microbatches = tuple(
        MicroBatchValues(index, 32, 0.193897, 0.0674214, clipped=0.03125, old_intact=True, tokens_intact=True)
        for index in range(100, 124)
    )
    updates = tuple(UpdateValues(index, 320, 320, 320, 315, max_change=0.00791728) for index in range(50, 62))
    event = Measured(at=12.345678, microbatches=microbatches, updates=updates)
    line = encode(event)
    assert decode(line) == event
    assert line.count(b"max_abs_log_ratio") == line.count(b"old_intact") == line.count(b"probed") == 1
    assert len(line) < 20 * (len(microbatches) + len(updates))
