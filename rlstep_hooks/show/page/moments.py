"""Events as moments of the timeline, and moments as stretches of a rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.conformance import observed_lag
from rlstep_hooks.judge.timeline import (
    ExpectedEnd,
    ExpectedEpochEnd,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedRollout,
    ExpectedSync,
    ExpectedUpdate,
)
from rlstep_hooks.planning.words import number
from rlstep_hooks.record.events import EpochEnd, MicroBatch, Refresh, Rollout, Update, WeightSync, name_of
from rlstep_hooks.show.page.model import Moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rlstep_hooks.judge.conformance import Difference, OrderedEvent
    from rlstep_hooks.judge.timeline import ExpectedEvent

_STRETCH = {"rollout": 0, "refresh": 0, "microbatch": 1, "update": 1, "weight_sync": 2, "epoch_end": 2, "run_ended": 2}


def begins_stretch(stretch: list[Moment], moment: Moment) -> bool:
    """Whether a moment begins a new stretch. An update ends a stretch."""
    if not stretch:
        return False
    return stretch[-1].kind == "update" or _STRETCH[stretch[-1].kind] != _STRETCH[moment.kind]


def append_moment(stretch: list[Moment], moment: Moment) -> None:
    """Add a moment. Equal moments in a row become one; micro-batches count as equal even if their sizes differ."""
    last = stretch[-1] if stretch else None
    if last is None or moment.kind not in _REPEATED or _key(last) != _key(moment):
        stretch.append(moment)
        return
    same = last.samples == moment.samples
    stretch[-1] = msgspec.structs.replace(last, times=last.times + 1, samples=last.samples if same else None)


_REPEATED = ("microbatch", "refresh", "weight_sync", "epoch_end")


def _key(moment: Moment) -> Moment:
    return msgspec.structs.replace(moment, times=1, samples=None)


def stretches(moments: Iterable[Moment]) -> Iterator[tuple[Moment, ...]]:
    """Cut moments into stretches."""
    stretch: list[Moment] = []
    for moment in moments:
        if begins_stretch(stretch, moment):
            yield tuple(stretch)
            stretch = []
        append_moment(stretch, moment)
    if stretch:
        yield tuple(stretch)


def left_of(planned: tuple[Moment, ...], observed: tuple[Moment, ...]) -> tuple[Moment, ...]:
    """The rest of a planned stretch after as many events as were observed."""
    done = sum(moment.times for moment in observed)
    rest = []
    for moment in planned:
        taken = min(done, moment.times)
        done -= taken
        if taken < moment.times:
            rest.append(msgspec.structs.replace(moment, times=moment.times - taken))
    return tuple(rest)


def observed_moment(event: OrderedEvent, expected: str) -> Moment:
    """An observed event."""
    if isinstance(event, Rollout):
        samples = number(event.samples, "samples")
        return Moment(kind="rollout", label=samples, words=f"rollout of {samples}", expected=expected)
    if isinstance(event, MicroBatch):
        return _microbatch(observed_lag(event), event.samples, event.role == "critic", expected)
    if isinstance(event, Update):
        return _update(event.role == "critic", expected, skipped=not event.applied)
    if isinstance(event, Refresh):
        return _refresh(expected)
    if isinstance(event, WeightSync):
        return _sync(event.policy_version, expected)
    if isinstance(event, EpochEnd):
        return _epoch_end(event.epoch, expected)
    words = "training ends" if event.status == "completed" else "training raises an exception"
    return Moment(kind="run_ended", label=words, words=words, expected=expected)


def planned_moment(event: ExpectedEvent) -> Moment:
    """A planned event."""
    if isinstance(event, ExpectedRollout):
        samples = number(event.samples, "samples") if event.samples is not None else "rollout"
        return Moment(kind="rollout", label=samples, words=f"rollout of {samples}")
    if isinstance(event, ExpectedMicroBatch):
        return _microbatch(event.lag, event.samples, event.role == "critic", "")
    if isinstance(event, ExpectedUpdate):
        return _update(event.role == "critic", "")
    if isinstance(event, ExpectedRefresh):
        return _refresh("")
    if isinstance(event, ExpectedSync):
        return _sync(event.version, "")
    if isinstance(event, ExpectedEpochEnd):
        return _epoch_end(event.epoch, "")
    assert isinstance(event, ExpectedEnd)
    return Moment(kind="run_ended", label="training ends", words="training ends")


def _microbatch(lag: int | None, samples: int | None, critic: bool, expected: str) -> Moment:
    words = ("critic micro-batch" if critic else "micro-batch") + (f", lag {lag}" if lag is not None else "")
    label = "c" if critic else "" if lag is None else str(lag)
    return Moment(
        kind="microbatch", label=label, words=words, lag=lag, samples=samples, critic=critic, expected=expected
    )


def _update(critic: bool, expected: str, *, skipped: bool = False) -> Moment:
    words = ("critic update" if critic else "update") + (" (skipped)" if skipped else "")
    return Moment(kind="update", words=words, critic=critic, skipped=skipped, expected=expected)


def _refresh(expected: str) -> Moment:
    return Moment(kind="refresh", label="old log-probs", words="old log-probs computed", expected=expected)


def _sync(version: int, expected: str) -> Moment:
    words = f"weights of version {version} synced to the sampler"
    return Moment(kind="weight_sync", label=f"sync v{version}", words=words, expected=expected)


def _epoch_end(epoch: int, expected: str) -> Moment:
    words = f"end of loader pass {epoch}"
    return Moment(kind="epoch_end", label=words, words=words, expected=expected)


def expectation(difference: Difference) -> str:
    """What was expected where a difference was found, in words."""
    expected, event = difference.expected, difference.observed
    name = name_of(expected)
    if difference.aspect == "early":
        return f"{name} before it"
    if difference.aspect == "samples":
        return f"{name} of {getattr(expected, 'samples', None)} samples, not {getattr(event, 'samples', None)}"
    if difference.aspect == "lag":
        return f"{name} at lag {getattr(expected, 'lag', None)}"
    if difference.aspect == "microbatches":
        wanted, made = getattr(expected, "microbatches", None), getattr(event, "microbatches", None)
        return f"{name} after {wanted} micro-batches, not {made}"
    if difference.aspect == "version":
        wanted, made = getattr(expected, "version", None), getattr(event, "policy_version", None)
        return f"{name} of version {wanted}, not {made}"
    if difference.aspect == "reference":
        return f"{name} with{'' if getattr(expected, 'reference', False) else 'out'} reference log-probs"
    return name
