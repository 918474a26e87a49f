"""The queue between the process that generates and the one that trains: what went in, by name, and what came out.

`MessageQueue` of verl 0.9.1 hands prompts out in the order in which they were put in; where it is full, the oldest one goes
(message_queue.py:52-80). So a prompt that was put in before another one began to be put in must be taken no later than that one.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.record.events import Queued

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.record.events import QueueStep

REMEMBERED = 65_536
"""Prompts that were taken, and are kept to know them again."""
PATIENCE = 2
"""Rollouts in which a prompt's record may come later than the prompt."""
FULL = "the queue was full"


class Taken(msgspec.Struct, frozen=True):
    """One sample that is trained, with what it says of the weights that it was generated with."""

    prompt: str
    oldest: int | None
    """Label of the weights of its first token."""
    newest: int | None
    """Label of the weights of its last token."""


class _Prompt(msgspec.Struct):
    """What is known of a prompt."""

    submitted: int = 0
    """Syncs that had been told of when its generation began."""
    entered: int | None = None
    """Syncs that had been told of when it was about to be put into the queue; None before."""
    before: int = 0
    """Prompts that had been put into the queue by then."""
    number: int | None = None
    """The place of the prompt among all that were put into the queue; None before it is in."""


class StreamedQueue:
    """Follows the prompts of one run.

    Args:
        group: Samples of a prompt.
    """

    def __init__(self, group: int) -> None:
        self._group = group
        self.seen = False
        """Whether any step of a prompt was recorded."""
        self._labels: list[int] = []
        """Labels of the weights that were synced, in this order."""
        self._waiting: dict[str, _Prompt] = {}
        """Prompts that are not taken yet."""
        self._taken: OrderedDict[str, None] = OrderedDict()
        self._unknown: dict[str, tuple[int, list[Taken]]] = {}
        """Samples that came before the record of their prompt, and in how many rollouts it was looked for."""
        self._put = self._pushed = self._putting = 0
        """Prompts that were put into the queue, that pushed others out, and that are on their way into it."""
        self._all_before = 0
        """Prompts with a place below this one must have been taken."""
        self._missing = self._told_dropped = self._told_lost = 0
        """Prompts that should have been taken and were not, in the whole run; and as what they were told."""
        self._again = self._unasked = self._behind = self._ahead = self._lost = 0
        self._waited: Counter[int] = Counter()

    def synced(self, label: int) -> None:
        """Weights with this label were brought to the engines, of which the process that generates is told next."""
        self._labels.append(label)

    def step(self, event: QueueStep) -> None:
        """A step of a prompt on its way into the queue."""
        self.seen = True
        if event.step == "submitted":
            self._waiting[event.prompt] = _Prompt(event.syncs)
            return
        prompt = self._waiting.get(event.prompt) or _Prompt()
        if event.step == "putting":
            self._putting += 1
            prompt.entered, prompt.before = event.syncs, self._put
        elif event.step == "done":
            if prompt.entered is None and self._waiting.pop(event.prompt, None) is not None:
                self._lost += 1
        else:
            self._putting -= 1
            self._pushed += event.step == "pushed"
            prompt.number, self._put = self._put, self._put + 1

    def take(self, samples: Iterable[Taken]) -> None:
        """Samples are trained next, all samples of a prompt in one call."""
        of_prompt: dict[str, list[Taken]] = {}
        for sample in samples:
            of_prompt.setdefault(sample.prompt, []).append(sample)
        for name, its in of_prompt.items():
            if name in self._taken or name in self._unknown:
                self._again += len(its)
                continue
            self._again += max(len(its) - self._group, 0)
            if name in self._waiting:
                self._take(name, its)
            else:
                self._unknown[name] = 0, its

    def _take(self, name: str, samples: list[Taken]) -> None:
        prompt = self._waiting.pop(name)
        self._taken[name] = None
        if len(self._taken) > REMEMBERED:
            self._taken.popitem(last=False)
        entered = len(self._labels) if prompt.entered is None else prompt.entered
        self._all_before = max(self._all_before, prompt.before)
        self._waited[max(len(self._labels) - entered, 0)] += 1
        # The engines may hold the weights of a sync before the process that generates is told of it.
        first = self._labels[max(prompt.submitted - 1, 0)]
        last = self._labels[min(entered, len(self._labels) - 1)]
        for sample in samples:
            if sample.oldest is None or sample.newest is None:
                continue
            self._behind += sample.oldest < first
            self._ahead += sample.newest > last or sample.oldest > sample.newest

    def since(self) -> Queued:
        """What happened since the last call."""
        for name, (rollouts, samples) in list(self._unknown.items()):
            del self._unknown[name]
            if name in self._waiting:
                self._take(name, samples)
            elif rollouts + 1 < PATIENCE:
                self._unknown[name] = rollouts + 1, samples
            else:
                self._unasked += len(samples)
                self._taken[name] = None
        for name in [n for n, prompt in self._waiting.items() if self._passed_over(prompt)]:
            del self._waiting[name]
            self._missing += 1
        dropped = min(self._missing, self._pushed) - self._told_dropped
        # Each prompt that is on its way in may have pushed one out, which is not told yet.
        lost = max(self._missing - self._pushed - self._putting, self._told_lost) - self._told_lost
        self._told_dropped, self._told_lost = self._told_dropped + dropped, self._told_lost + lost
        queued = Queued(
            waiting=len(self._waiting),
            lost=lost + self._lost,
            again=self._again,
            unasked=self._unasked,
            behind=self._behind,
            dropped=((FULL, dropped),) if dropped else (),
            ahead=self._ahead,
            waited=tuple(sorted(self._waited.items())),
        )
        self._again = self._unasked = self._behind = self._ahead = self._lost = 0
        self._waited = Counter()
        return queued

    def _passed_over(self, prompt: _Prompt) -> bool:
        """Whether prompts that came into the queue after this one were taken before it."""
        return prompt.number is not None and prompt.number < self._all_before
