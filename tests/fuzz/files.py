"""Records with damage of every kind."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from rlstep_hooks.cli.report import Form, show
from rlstep_hooks.record.ledger import read_lines
from rlstep_hooks.record.wire import encode
from tests.fuzz.limits import time_limit
from tests.scripted import make_plan, scripted_run
from tests.scripted_phases import PhaseCase, phase_plan, scripted_phases

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 20
FORMS: tuple[Form, ...] = ("text", "json", "markdown")
PIECES = (
    b"\n", b'"', b"{", b"}", b"[", b"]", b",", b"\x00", b"\xff\xfe", b"null", b"true", b"-1", b"0", b"9" * 25, b"1e300", b'"1/0"',
    b"[" * 3000, b'{"event":"run_started"', b'"at":', b"\\ud800", b'"world_size":', b'"samples":99999999999,',
)  # fmt: skip


def _records() -> list[dict[str, bytes]]:
    """Whole records by process: of a loader's run, and of a controller with its trainers."""
    of_loader = b"".join(map(encode, scripted_run(make_plan(iterations=2, max_steps=8))))
    critic = phase_plan(world_size=2, samples=8, minibatches=(4, 4))
    of_phases: dict[str, bytes] = {}
    for process, event in scripted_phases(PhaseCase(schedule=phase_plan(world_size=2, critic=critic))):
        of_phases[process] = of_phases.get(process, b"") + encode(event)
    return [{"rank0": of_loader}, of_phases]


RECORDS = _records()


@st.composite
def damage(draw: st.DrawFn, whole: bytes) -> tuple[int, bytes]:
    """A record with pieces of it changed, repeated, moved or cut off: the first place, and what is left."""
    first = len(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(whole) - 1, 0)))
        end = draw(st.integers(at, min(at + draw(st.sampled_from([1, 8, 300])), len(whole))))
        put = draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=4), st.just(whole[at:end] * 2), st.just(b"")))
        rest = draw(st.sampled_from([whole[end:], whole[end:], whole[end:], b""]))
        whole, first = whole[:at] + put + rest, min(first, at)
    return first, whole


@st.composite
def damaged_records(draw: st.DrawFn) -> tuple[dict[str, bytes], str, int]:
    """The records of a run, the process whose record is damaged, and where its damage begins."""
    whole = draw(st.sampled_from(RECORDS))
    process = draw(st.sampled_from(sorted(whole)))
    first, left = draw(damage(whole[process]))
    return {**whole, process: left}, process, first


def check_records(folder: Path, left: dict[str, bytes], process: str, first: int) -> None:
    """What stands before the damage is read as it was; the report, its page and its trace are made of whatever is left."""
    for path in folder.glob("*.jsonl"):
        path.unlink()
    for name, content in left.items():
        (folder / f"run.{name}.jsonl").write_bytes(content)
    before = left[process][:first].count(b"\n")
    with time_limit(SECONDS):
        read = list(read_lines(folder / f"run.{process}.jsonl"))
        assert not any(problem for _, problem in read[:before])
        assert b"".join(encode(event) for event, _ in read[:before] if event) == b"".join(
            left[process].splitlines(keepends=True)[:before]
        )
        files = {"trace": folder / "trace.json", "html": folder / "page.html"}
        for form in FORMS:
            with contextlib.redirect_stdout(io.StringIO()):
                status = show(folder, run=None, form=form, strict=False, **(files if form == "text" else {}))
            assert status in (0, 1, 2)
