"""What the processes of agent loops found, on its way to the controller: files by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.observe.turn_records import FILES, NO_LINE, Session, TurnRecords
from rlstep_hooks.observe.turn_rows import Joined

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, process: str, *sessions: Session) -> None:
    with FILES.of(folder, "run", process).open("ab") as file:
        for session in sessions:
            file.write(msgspec.json.encode(session) + b"\n")


def found(**more: int | str) -> Joined:
    return Joined(rows=1, turns=2, sampled=10, written=4, **more)  # type: ignore[arg-type]


def test_the_sessions_of_a_rollout_are_added_up_from_all_processes(tmp_path: Path) -> None:
    records = TurnRecords(tmp_path, "run")
    write(tmp_path, "7", Session("a_0", found()), Session("b_0", found()))
    write(tmp_path, "8", Session("a_1", found(masks_wrong=1, masks_like="late", masks_at="there")))
    joined = records.take(["a_0", "a_1"], 3)
    assert (joined.rollout, joined.rows, joined.turns, joined.masks_wrong) == (3, 2, 4, 1)
    assert (joined.masks_like, joined.masks_at, joined.left_out) == ("late", "there", 0)
    # A session that was generated ahead is there when its samples are trained.
    write(tmp_path, "7", Session("c_0", found()))
    assert records.take(["b_0", "c_0"], 4).rows == 2


def test_what_was_not_compared_is_counted_with_its_reason(tmp_path: Path) -> None:
    records = TurnRecords(tmp_path, "run")
    write(tmp_path, "7", Session("a_0", found()), Session("a_1", Joined(), "a session gave several rows"))
    joined = records.take(["a_0", "a_1", "a_1"], 0)
    assert (joined.rows, joined.left_out, joined.left_out_why) == (1, 1, "a session gave several rows")
    assert records.take(["x_0"], 1).left_out_why == NO_LINE


def test_all_sessions_since_the_last_rollout_are_those_of_a_controller_that_waits(tmp_path: Path) -> None:
    records = TurnRecords(tmp_path, "run")
    write(tmp_path, "7", Session("7_0", found()), Session("7_1", found()))
    assert (records.take_all(2, 0).rows, records.take_all(0, 0).rows) == (2, 0)
    write(tmp_path, "8", Session("8_0", found()))
    joined = records.take_all(3, 1)
    assert (joined.rows, joined.left_out, joined.left_out_why) == (1, 2, NO_LINE)


def test_a_line_under_way_is_read_when_it_is_whole(tmp_path: Path) -> None:
    records, path = TurnRecords(tmp_path, "run"), FILES.of(tmp_path, "run", "7")
    line = msgspec.json.encode(Session("a_0", found())) + b"\n"
    path.write_bytes(line[:20])
    assert records.take(["b_0"], 0).rows == 0
    with path.open("ab") as file:
        file.write(line[20:])
    assert records.take(["a_0"], 1).rows == 1
