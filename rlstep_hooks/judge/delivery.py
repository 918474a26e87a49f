"""What became of one sync of weights: what the policy had, what was handed over and what the engine holds. Pure; no torch."""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.record.events import KeysReused, Probe, WeightsHeld, WeightsSent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REMEMBERED = 8
"""Syncs of which one side waits for the other."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One sync, compared. Tensors are those of which a few elements were read on both sides."""

    sent: WeightsSent
    held: WeightsHeld
    names: tuple[str, ...]
    """Tensors whose place in the engine is proved."""
    moved: int
    """Proved tensors whose value in the policy is not what the engine held before: only they can show whether anything was loaded."""
    wrong: tuple[str, ...]
    """Proved tensors of the engine that hold another value than the policy has."""
    kept: int
    """How many of the wrong tensors still hold what they held before the sync."""
    sent_wrong: int
    """Wrong tensors that were already handed over with other values than the policy has."""
    dtype: str
    """The engine's."""
    through: str
    """The dtype through which every wrong value has passed; empty if there is none."""

    @property
    def compared(self) -> int:
        """How many tensors were compared."""
        return len(self.names)


class Deliveries:
    """Joins both sides of each sync, whichever comes first."""

    def __init__(self) -> None:
        self._sent: OrderedDict[int, WeightsSent] = OrderedDict()
        self._held: OrderedDict[int, list[WeightsHeld]] = OrderedDict()
        self._ahead: dict[str, int] = {}
        """Engine -> how many syncs never came to it, or came before it was started again: it counts so many fewer than the trainer."""
        self._proved: set[str] = set()
        """Kinds of tensors that the engine has held as the policy has them: where it holds them is then known."""

    def sent(self, event: WeightsSent) -> list[Delivery]:
        """A trainer's side."""
        self._sent[event.number] = event
        _forget(self._sent)
        return [self._compare(event, held) for held in self._held.pop(event.number, [])]

    def held(self, event: WeightsHeld) -> list[Delivery]:
        """An engine's side."""
        number = event.number + self._ahead.get(event.engine, 0)
        sent = self._sent.get(number)
        if sent is None or not _holds_all(sent, event):
            later = self._later(event, number)
            if later is not None:
                self._ahead[event.engine] = later.number - event.number
                sent = later
        if sent is not None:
            return [self._compare(sent, event)]
        self._held.setdefault(number, []).append(event)
        _forget(self._held)
        return []

    def same_policy(self, event: KeysReused) -> bool:
        """Whether the oldest keys that an engine used are those of the very policy that it holds, which was synced more than once."""
        ahead = self._ahead.get(event.engine, 0)
        now = self._sent.get(event.number + ahead)
        if now is None or event.oldest < 0:  # an engine begins with the first policy
            return now is not None and now.policy_version == 0
        oldest = self._sent.get(event.oldest + ahead)
        return oldest is not None and oldest.policy_version == now.policy_version

    def _later(self, held: WeightsHeld, number: int) -> WeightsSent | None:
        """The sync after this number whose weights an engine holds: it counts it as an earlier one."""
        later = (sent for sent in sorted(self._sent, reverse=True) if sent > number)
        return next((self._sent[sent] for sent in later if _holds_all(self._sent[sent], held)), None)

    def _compare(self, sent: WeightsSent, held: WeightsHeld) -> Delivery:
        before = {probe.name: probe for probe in held.before}
        after = {probe.name: probe for probe in held.after}
        own = {probe.name: probe for probe in sent.policy}
        both = [name for name in own if name in after]
        for name in both:
            own[name], after[name] = _common(own[name], after[name])
            if name in before:
                before[name], _ = _common(before[name], after[name])
        for name in both:
            seen = (at[name] for at in (before, after) if name in at)
            if any(_holds(own[name], probe) for probe in seen):
                self._proved.add(kind_of_tensor(name))
        # Some engines transpose, reorder or transform tensors: what was never seen equal may be where it belongs. If nothing was ever
        # seen equal, nothing has arrived at all.
        known = [name for name in both if not self._proved or kind_of_tensor(name) in self._proved]
        wrong = [name for name in known if not _holds(own[name], after[name])]
        handed = {probe.name for probe in sent.sent_as}
        return Delivery(
            sent=sent,
            held=held,
            names=tuple(known),
            moved=sum(name in before and not _holds(own[name], before[name]) for name in known),
            wrong=tuple(wrong),
            kept=sum(name in before and before[name].bits == after[name].bits for name in wrong),
            sent_wrong=sum(name in handed for name in wrong),
            dtype=next(iter(after.values())).dtype if after else "",
            through=_through([(own[name], after[name]) for name in wrong]),
        )


def kind_of_tensor(name: str) -> str:
    """The name without the number of its layer: tensors of one kind are stored in one way."""
    return re.sub(r"\d+", "#", name)


def _forget(waiting: OrderedDict[int, Any]) -> None:
    while len(waiting) > REMEMBERED:
        waiting.popitem(last=False)


def _common(one: Probe, other: Probe) -> tuple[Probe, Probe]:
    """Reduce two probes to the elements that both have: an engine that counts its syncs anew reads fewer of a tensor, or more."""
    bits = min(len(one.bits), len(other.bits))
    if len(one.bits) == len(other.bits):
        return one, other
    return Probe(one.name, one.dtype, one.bits[:bits]), Probe(other.name, other.dtype, other.bits[:bits])


def _holds_all(sent: WeightsSent, held: WeightsHeld) -> bool:
    """Whether an engine holds the weights of a sync, as far as both sides looked at the same tensors."""
    after = {probe.name: probe for probe in held.after}
    own = [probe for probe in sent.policy if probe.name in after]
    return bool(own) and all(_holds(*_common(probe, after[probe.name])) for probe in own)


def _holds(own: Probe, held: Probe) -> bool:
    """Whether an engine's tensor has the policy's values, in its own dtype."""
    return own.bits == held.bits or _rounded(own.bits, held.dtype) == held.bits


def _through(pairs: Sequence[tuple[Probe, Probe]]) -> str:
    """The dtype that explains all these values."""
    if not pairs:
        return ""
    for dtype in ("bfloat16", "float16"):
        if all(_rounded(_rounded(own.bits, dtype), held.dtype) == held.bits for own, held in pairs):
            return dtype
    return ""


def _rounded(bits: tuple[int, ...], dtype: str) -> tuple[int, ...]:
    """float32 values rounded to a dtype, as float32 again."""
    round_one = _ROUND.get(dtype)
    return bits if round_one is None else tuple(map(round_one, bits))


def _to_bfloat16(bits: int) -> int:
    """Round to the nearest bfloat16, ties to even, as torch rounds."""
    if bits & 0x7F800000 == 0x7F800000:  # infinite, or not a number
        return bits & 0xFFFF0000
    return (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000


def _to_float16(bits: int) -> int:
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    try:
        (value,) = struct.unpack("<e", struct.pack("<e", value))
    except OverflowError:
        value = float("inf") if value > 0 else float("-inf")
    (rounded,) = struct.unpack("<I", struct.pack("<f", value))
    return int(rounded)


_ROUND: dict[str, Callable[[int], int]] = {"bfloat16": _to_bfloat16, "float16": _to_float16}
