"""The queue between generation and training: what goes in comes out once, is dropped for a reason, or waits."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import SAMPLES, Effects
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.record.events import Queued, Rollout


class QueueConserved(Rule):
    """Samples were lost in the queue, taken twice, or never asked for.

    What it checks:
        Where a queue lies between generation and training: by name, each prompt that was submitted is taken for training once, is
        dropped for a reason that the framework states, or is still in the queue; nothing else is taken. Exact, at each rollout.

    Why it matters:
        Counts stay right: training takes as many samples as it needs, whichever they are. A prompt that vanishes is never
        trained, and prompts that take long vanish more often, so the data lose their hard part. A sample that is taken
        again is trained as new.

    Example:
        ERROR RLS520 Samples lost or taken twice in the queue · data epoch 0,
        rollout 2, update 4
          expected  each prompt taken once, dropped for a reason, or waiting
          observed  2 prompts lost
          why       what was generated and what is trained are no longer the same
                    samples, and no count shows it
          fix       look at the code that takes samples out of the queue, evicts
                    them, and restores the queue on resume

    What to do:
        Look at the code that takes samples out of the queue, evicts them, and restores the queue on resume.

    Known limits:
        - A prompt that the framework drops is no finding. How many were, and why, stands beside the verdict.
        - It looks when samples are taken: what is lost after the last rollout is not seen.

    Sources:
        - https://github.com/areal-project/AReaL/issues/1388: what a resume does to samples under way
        - https://github.com/OpenRLHF/OpenRLHF/issues/1296: samples dropped to balance the processes
    """

    code = "RLS520"
    title = "Samples lost or taken twice in the queue"
    topics = ("queue",)
    nothing_seen = "no queue between generation and training was observed"
    produces = (Effects(("RLS207", *SAMPLES), last=2),)

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._dropped: Counter[str] = Counter()

    def rollout(self, event: Rollout) -> None:
        """Look at what became of the prompts since the rollout before."""
        queue = event.queue
        if queue is None or event.purpose != "training":
            return
        self.checks += 1
        self._dropped.update(dict(queue.dropped))
        observed = _observed(queue)
        if not observed:
            return
        self.fail(
            expected="each prompt taken once, dropped for a reason, or waiting",
            observed=observed,
            why="what was generated and what is trained are no longer the same samples, and no count shows it",
            fix="look at the code that takes samples out of the queue, evicts them, and restores the queue on resume",
        )

    def note(self) -> str:
        """What the framework dropped."""
        return ", ".join(f"{number(count, 'prompts')} dropped: {why}" for why, count in self._dropped.items())


def _observed(queue: Queued) -> str:
    """What is wrong, in words; empty if nothing is."""
    parts = (
        (queue.lost, "prompts", "lost"),
        (queue.again, "samples", "taken a second time"),
        (queue.unasked, "samples", "taken of prompts that were not in the queue"),
    )
    return ", ".join(f"{number(count, unit)} {what}" for count, unit, what in parts if count)
