"""What is said of a run whose processes are silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from rlstep_hooks.judge.stillness import Silence, Stillness


def stillness_lines(found: Stillness) -> list[str]:
    """One line for the run, one for each process, and whom they wait for."""
    head = f"nothing was recorded for {duration(found.seconds)}"
    if found.is_long:
        head = f"the run stands still: {head}"
    lines = [head, *(f"  {_line(of)}" for of in found.processes)]
    if found.waited_for:
        lines.append(f"  the others wait for {', '.join(found.waited_for)}")
    return lines


def duration(seconds: float) -> str:
    """A length of time, to two figures or so: "0.4 s", "41 s", "5 min 12 s", "2 h 5 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 2:
        return f"{round(seconds)} s"
    hours, left = divmod(minutes, 60)
    return f"{minutes} min {rest} s" if hours < 2 else f"{hours} h {left} min"


def _line(of: Silence) -> str:
    where = f"rollouts: {number(of.rollouts)}, updates: {number(of.updates)}"
    did = f"the last event is {of.last}, {duration(of.seconds)} ago ({where})"
    if not of.last:
        did = f"it began {duration(of.seconds)} ago, and nothing came of it yet"
    if of.gone:
        return f"{of.process}: its process is gone, and its record has no end; {did}"
    call = f"; it is within the call {of.within}" if of.within else ""
    return f"{of.process}: {did}{call}{_next(of)}"


def _next(of: Silence) -> str:
    if not of.last:
        return ""
    if not of.next or of.usual is None or of.longest is None:
        return "; what comes next is new in this run"
    return f"; {of.next} comes next, which took {duration(of.usual)} before, and {duration(of.longest)} at most"
