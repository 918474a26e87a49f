"""The wire form of events: one JSON object per line. Reports and plans become JSON by the same rules."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import reduce
from operator import or_
from typing import Any, cast, get_args

import msgspec

from rlstep_hooks.planning.schedule import decode_fraction, encode_fraction
from rlstep_hooks.record.bounds import checked
from rlstep_hooks.record.columns import Columns
from rlstep_hooks.record.events import AnyEvent, Event, Measured, MicroBatchValues, RolloutValues, UpdateValues


def _encode_extension(value: Any) -> Any:
    if isinstance(value, Fraction):
        return encode_fraction(value)
    return repr(value)


def _decode_extension(kind: type, value: Any) -> Any:
    if kind is Fraction:
        return decode_fraction(value)
    return value


_VALUES: dict[str, Columns[Any]] = {
    "rollouts": Columns(RolloutValues),
    "microbatches": Columns(MicroBatchValues),
    "updates": Columns(UpdateValues),
}
_MeasuredLine: Any = msgspec.defstruct(
    "MeasuredLine",
    [(name, columns.type | None, None) for name, columns in _VALUES.items()],
    bases=(Event,),
    tag="measured",
    frozen=True,
    kw_only=True,
    gc=False,
)
"""`Measured` as it is written: in columns, because the field names would take most of the space in rows."""

_NO_ASCII = re.compile(r"[^\x00-\x7e]")

_encoder = msgspec.json.Encoder(enc_hook=_encode_extension)
_lines = [_MeasuredLine, *(kind for kind in get_args(AnyEvent) if kind is not Measured)]
_decoder = msgspec.json.Decoder(reduce(or_, _lines), dec_hook=_decode_extension)


def _to_line(event: Measured) -> Any:
    rows = {name: getattr(event, name) for name in _VALUES}
    return {"event": Measured.__struct_config__.tag, "at": event.at} | {
        name: _VALUES[name].of(rows[name]) for name in rows if rows[name]
    }


def _from_line(line: Any) -> Measured:
    columns = {name: getattr(line, name) for name in _VALUES}
    return Measured(at=line.at, **{name: _VALUES[name].rows(of) for name, of in columns.items() if of is not None})


def encode(*events: Event) -> bytes:
    """Events as lines of JSON, with their newlines."""
    return _encoder.encode_lines([_to_line(event) if isinstance(event, Measured) else event for event in events])


def decode(line: bytes) -> AnyEvent:
    """The inverse of `encode`. Whoever wrote the line: its numbers are within bounds, and its texts without control characters.

    Raises:
        ValueError: The line is not an event.
    """
    try:
        event = _decoder.decode(line)
        return checked(_from_line(event) if type(event) is _MeasuredLine else cast("AnyEvent", event), line)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def to_json(value: Any, *, indent: int = 0) -> bytes:
    """Data of this package as JSON: whole fractions as numbers, others as text such as "1/2". Only printable characters and line ends
    stand in it as themselves."""
    data = _encoder.encode(value)
    data = msgspec.json.format(data, indent=indent) if indent else data
    if data.isascii() and b"\x7f" not in data:
        return data
    return _NO_ASCII.sub(_escaped, data.decode()).encode()


def _escaped(character: re.Match[str]) -> str:
    if character.group().isprintable():
        return character.group()
    units = character.group().encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
