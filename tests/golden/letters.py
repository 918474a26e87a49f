"""Events as letters: one line that shows the order of a run.

` G` a rollout, then `o` with old log-probs or `n` without, then `r` with reference log-probs; `l` a micro-batch; `S` an update,
`x` one that was skipped. A space stands before each `G`. Works for expected and for observed events; evaluation is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.timeline import ExpectedMicroBatch, ExpectedRefresh, ExpectedRollout, ExpectedUpdate
from rlstep_hooks.record.events import MicroBatch, Refresh, Rollout, Update

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rlstep_hooks.judge.timeline import ExpectedEvent
    from rlstep_hooks.record.events import AnyEvent


def letters(events: Iterable[ExpectedEvent] | Iterable[AnyEvent]) -> str:
    """The timeline of a run, in letters."""
    return "".join(_letters(events))


def expand(parts: Sequence[tuple[str, int]]) -> str:
    """A timeline from parts and how often each repeats: `((" GollS", 2),)` is ` GollS GollS`."""
    return "".join(text * times for text, times in parts)


def _letters(events: Iterable[Any]) -> Iterator[str]:
    open_rollout: Rollout | ExpectedRollout | None = None  # its letters wait for the refresh that may follow
    for event in events:
        if isinstance(event, Rollout) and event.purpose == "evaluation":
            continue
        if not isinstance(
            event, Rollout | ExpectedRollout | Refresh | ExpectedRefresh | MicroBatch | ExpectedMicroBatch
        ) and not isinstance(event, Update | ExpectedUpdate):
            continue
        refresh = isinstance(event, Refresh | ExpectedRefresh)
        if open_rollout is not None:
            yield " G" + ("o" if refresh else "n") + ("r" if open_rollout.reference else "")
        elif refresh:
            yield "o"
        open_rollout = event if isinstance(event, Rollout | ExpectedRollout) else None
        if isinstance(event, MicroBatch | ExpectedMicroBatch):
            yield "l"
        elif isinstance(event, Update | ExpectedUpdate):
            yield "x" if isinstance(event, Update) and not event.applied else "S"
    if open_rollout is not None:
        yield " Gn" + ("r" if open_rollout.reference else "")
