"""What an event that was read may hold: numbers that a record can have, and text that harms no terminal.

Whoever can write into the folder of records decides what a reader counts to, so each number that is counted to is bounded here, where
every record is read. A line beyond the bounds is no event, like any other damaged line.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rlstep_hooks.planning.counting import MOST
from rlstep_hooks.planning.words import printable
from rlstep_hooks.record.events import Attached, ConfigChanged, FactsRead, RunStarted

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Flush, Schedule
    from rlstep_hooks.record.events import AnyEvent

MOST_PROCESSES = 1 << 16
"""More trainers than any run has."""
LARGEST = 1 << 64
"""Above any checksum, and any count."""
DEEPEST = 60
"""Lists and objects within each other; settings and facts have a few."""
LONGEST_TEXT = 20_000
"""Characters of one text. An exception's can be long; what stands behind that is left out."""

Value = TypeVar("Value")

_OPEN = frozenset({RunStarted, Attached, FactsRead, ConfigChanged})
"""Events with values of any type."""
_LOOK_AT = b"!"
_KINDS = bytes(
    ord("0") if chr(byte).isdigit() and byte < 128
    else ord(_LOOK_AT) if byte == ord("\\") or byte > 126 or (byte < 32 and byte != ord("\n"))
    else ord(" ")
    for byte in range(256)
)  # fmt: skip
"""Each byte of a line as a digit, something to be looked at, or anything else."""
_LONG_NUMBER = b"0" * 19
_ONE_LINE = frozenset(
    (
        "framework",
        "version",
        "algorithm",
        "run",
        "process",
        "host",
        "engine",
        "name",
        "way",
        "what",
        "code",
        "title",
        "prompt",
    )
)
"""Fields whose text is a name; elsewhere a text may have several lines."""
_COUNTED_ONE_BY_ONE = {
    "rollouts_per_cycle": MOST,
    "microbatches_per_rollout": MOST,
    "microbatches_per_update": MOST,
    "max_age": 10_000,
    "max_age_updates": MOST,
}
"""Quantities of a plan that a judge counts to, and how far."""
_SWITCHES = ("regenerates", "resumed")
"""What is true or false in the position at which a run began; all else in it is counted."""
MOST_PASSES = 10_000
"""Passes over the parts of one rollout; real runs have some tens."""
_NOT_ZERO = ("world_size", "samples_per_rollout", "reuse_epochs", "rollouts_per_cycle", "parts_per_rollout", "microbatches_per_rollout",
             "microbatches_per_update", "samples_per_microbatch", "samples_per_update")  # fmt: skip
"""Quantities that something is divided by."""


class BoundError(ValueError):
    """An event holds what no record can hold."""


def checked(event: AnyEvent, line: bytes) -> AnyEvent:
    """An event of a record within the bounds, with harmless texts.

    Args:
        event: The event.
        line: The line that it was read from.

    Raises:
        BoundError: A number is beyond its bound, or something lies too deep.
    """
    # Nearly every line is short and plain; the walk would cost more than reading it did.
    if type(event) not in _OPEN and _is_plain(line):
        return event
    event = _tidied(event, 0)
    if isinstance(event, RunStarted | Attached):
        _check_processes(event.world_size, "world_size")
    if isinstance(event, RunStarted):
        _check_processes(event.local_world_size, "local_world_size")
        _check_count(event.rank, "rank")
        _check_count(event.start_updates, "start_updates")
        _check_position(event.facts.get("position", {}))
        if event.schedule is not None:
            check_schedule(event.schedule)
    return event


def _is_plain(line: bytes) -> bool:
    """Whether a line has no number and no text that must be looked at."""
    if len(line) > LONGEST_TEXT:
        return False
    kinds = line.translate(_KINDS)
    return _LOOK_AT not in kinds and _LONG_NUMBER not in kinds


def _tidied(value: Value, depth: int, name: str = "") -> Value:
    """A value with harmless texts."""
    if depth > DEEPEST:
        raise BoundError("nested too deeply")
    found: Any = value
    if isinstance(value, str):
        found = printable(
            value if len(value) <= LONGEST_TEXT else f"{value[:LONGEST_TEXT]} ... ({len(value)} characters)"
        )
        if name in _ONE_LINE:
            found = found.replace("\n", "\\n")
    elif isinstance(value, bool | float | None):
        return value
    elif isinstance(value, int):
        if not -LARGEST <= value <= LARGEST:
            raise BoundError(f"{name or 'a number'} is beyond 2**64")
    elif isinstance(value, msgspec.Struct):
        changed = {}
        for field in value.__struct_fields__:
            old = getattr(value, field)
            new = _tidied(old, depth + 1, field)
            if new is not old:
                changed[field] = new
        found = msgspec.structs.replace(value, **changed) if changed else value
    elif isinstance(value, dict):
        found = {_tidied(key, depth, "name"): _tidied(inner, depth + 1) for key, inner in value.items()}
        found = value if found == value else found
    elif isinstance(value, list | tuple):
        each = [_tidied(inner, depth + 1) for inner in value]
        found = value if all(map(_same, each, value)) else type(value)(each)
    result: Value = found
    return result


def _same(one: Any, other: Any) -> bool:
    return one is other


def _check_processes(count: int, name: str) -> None:
    if not 1 <= count <= MOST_PROCESSES:
        raise BoundError(f"{name} is {_number(count)}, and a run has 1 to {MOST_PROCESSES} processes")


def _check_count(count: int, name: str) -> None:
    if not 0 <= count <= MOST * MOST:
        raise BoundError(f"{name} is {_number(count)}, and no run counts so far")


def _check_position(position: Any) -> None:
    """Check where in its plan a resumed run says that it began."""
    if not isinstance(position, dict):
        raise BoundError("the position is no object")
    for name, value in position.items():
        if name in _SWITCHES:
            fits = isinstance(value, bool)
        elif name == "sampled":
            fits = isinstance(value, list) and len(value) <= MOST and all(map(_is_count, value))
        else:
            fits = _is_count(value)
        if not fits:
            raise BoundError(f"the position has no {name} that can be")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST * MOST


def check_schedule(schedule: Schedule) -> None:
    """Check that a plan is one that could be followed.

    Raises:
        BoundError: It counts further than any run does, or would have something divided by 0.
    """
    values = {name: getattr(schedule, name) for name in schedule.__struct_fields__}
    for name, value in values.items():
        of_one = value if isinstance(value, tuple) else (value,)
        for each in of_one:
            if type(each) is int:
                _check_count(each, name)
            elif isinstance(each, Fraction):
                _check_count(math.ceil(each), name)
    _check_processes(schedule.world_size, "world_size")
    for name in _NOT_ZERO:
        if values[name] == 0:
            raise BoundError(f"{name} is 0")
    for name, most in _COUNTED_ONE_BY_ONE.items():
        if (values[name] or 0) > most:
            raise BoundError(f"{name} is {_number(values[name])}, and no run has more than {most}")
    if schedule.reuse_epochs * schedule.parts_per_rollout > MOST_PASSES:
        raise BoundError(f"a rollout has more than {MOST_PASSES} passes")
    if schedule.flush is not None:
        _check_flush(schedule.flush)
    if (schedule.microbatches_per_rollout or 1) * schedule.rollouts_per_cycle > MOST:
        raise BoundError(f"a cycle has more than {MOST} micro-batches")
    if schedule.microbatches_per_rollout is not None and schedule.slots_per_cycle == 0:
        raise BoundError("a rollout has fewer micro-batches than passes")
    if schedule.critic is not None:
        if schedule.critic.critic is not None:
            raise BoundError("a critic has a critic")
        check_schedule(schedule.critic)


def _check_flush(flush: Flush) -> None:
    every = 1 if flush.sampling is None else flush.sampling.every
    if flush.rollouts_per_epoch < 1 or every < 1:
        raise BoundError("rollouts between two flushes are below 1")


def _number(value: int) -> str:
    return str(value) if abs(value) < LARGEST else "a number beyond 2**64"
