"""Which samples a trainer sees, from the data that verl hands it: identity, tokens and old log-probs, row by row.

verl's data carry who each sample is: the prompt's `uid` and, with V1, the `session_id` of the completion. All of this is
looked at while it is still on the CPU, before verl moves a micro-batch to its device.
"""

from __future__ import annotations

import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.events import SampleRows

if TYPE_CHECKING:
    from collections.abc import Sequence

Key = tuple[str, str, int]
"""A sample: prompt, completion, and a checksum of its tokens."""


class Row(msgspec.Struct, frozen=True):
    """What is known of one sample of a refresh."""

    number: int
    tokens: int
    """Checksum of its completion's tokens."""
    log_probs: int | None
    """Checksum of its old log-probs, over the completion; None where they could not be read."""


class RefreshedSamples:
    """The samples of one refresh on this trainer."""

    def __init__(self, number: int, version: int, keys: Sequence[Key], log_probs: Sequence[int | None]) -> None:
        self.number = number
        self.version = version
        self.size = len(keys)
        self._rows: dict[Key, list[Row]] = {}
        self._trained: Counter[int] = Counter()
        for position, (key, checksum) in enumerate(zip(keys, log_probs, strict=True)):
            self._rows.setdefault(key, []).append(Row(position, key[2], checksum))

    def find(self, key: Key, log_probs: int | None) -> Row | None:
        """The sample's row. Where only old log-probs tell samples apart (equal completions of a prompt), these do; what nothing
        tells apart is taken in turn."""
        rows = self._rows.get(key)
        if rows is None:
            return None
        same = [row for row in rows if log_probs in (None, row.log_probs)]
        row = min(same or rows, key=lambda candidate: self._trained[candidate.number])
        self._trained[row.number] += 1
        return row


class Recognised(msgspec.Struct, frozen=True):
    """What of a micro-batch could be recognised."""

    trained: tuple[SampleRows, ...] | None
    old_version: int | None
    """Version that computed the old log-probs of all its samples; None where it is not known, or not one."""
    old_intact: bool | None


def recognise(
    keys: Sequence[Key] | None, old: Sequence[int | None], refreshes: Sequence[RefreshedSamples]
) -> Recognised:
    """Find a micro-batch's samples among those of the latest refreshes, newest first.

    Args:
        keys: Its samples; None where the data do not say.
        old: Checksum of the old log-probs of each.
        refreshes: The latest refreshes, newest first.
    """
    if keys is None or not refreshes:
        return Recognised(None, None, None)
    parts: dict[int, list[int]] = {}
    versions = set()
    intact: list[bool] = []
    for key, checksum in zip(keys, old, strict=True):
        for refresh in refreshes:
            row = refresh.find(key, checksum)
            if row is not None:
                break
        else:
            return Recognised(None, None, None)
        parts.setdefault(refresh.number, []).append(row.number)
        versions.add(refresh.version)
        if checksum is not None and row.log_probs is not None:
            intact.append(checksum == row.log_probs)
    rows = tuple(SampleRows(number, tuple(found)) for number, found in sorted(parts.items()))
    return Recognised(rows, versions.pop() if len(versions) == 1 else None, all(intact) if intact else None)


def keys_of(data: Any) -> list[Key] | None:
    """The samples of a TensorDict in order; None where it does not say who they are, or where they are on a device."""
    responses = rows_of(data, "responses")
    prompts = names_of(data, "uid")
    if responses is None or prompts is None or len(prompts) != len(responses):
        return None
    sessions = names_of(data, "session_id") or [""] * len(prompts)
    return [
        (prompt, session, checksum_of(row)) for prompt, session, row in zip(prompts, sessions, responses, strict=True)
    ]


def rows_of(data: Any, name: str) -> list[Any] | None:
    """A field's rows over the completion, without padding; None where there is no such field, or it is on a device.

    V1 keeps rows of their own length, V0 pads them to the right (`attention_mask` says how far).
    """
    if name not in data.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        return None
    field = data[name]
    if field.device.type != "cpu":
        return None
    rows = list(field.unbind())
    if field.is_nested:
        return rows
    if "attention_mask" not in data.keys():  # noqa: SIM118
        return None
    lengths = data["attention_mask"][:, data["prompts"].shape[1] :].sum(1).tolist()
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def completion_rows(values: Any, lengths: list[int]) -> list[Any]:
    """Per-token output of a model over whole sequences, cut to the completions and shifted onto their tokens.

    Args:
        values: Rows of prompt + completion, one number a position (verl 0.9.1 workers/utils/padding.py:194).
        lengths: Tokens of each completion.
    """
    return [row[-length - 1 : -1] for row, length in zip(values.unbind(), lengths, strict=True)]


def names_of(data: Any, name: str) -> list[str] | None:
    """A field of plain values, as text."""
    if name not in data.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        return None
    field = data[name]
    values = field.tolist() if hasattr(field, "tolist") else list(field)
    return [str(value) for value in values]


def checksum_of(row: Any) -> int:
    """A checksum of a row of numbers, bit for bit (of a floating-point type: as float32)."""
    plain = row.detach().float() if row.is_floating_point() else row.detach()
    return zlib.crc32(plain.contiguous().numpy().tobytes())
