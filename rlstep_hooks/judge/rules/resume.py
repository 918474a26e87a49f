"""RLS7xx: resuming from a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import RunEnded, RunStarted


class ResumeFailed(Rule):
    """A resumed run raised before it trained anything.

    What it checks:
        A run that begins from a checkpoint trains at least one micro-batch.

    Why it matters:
        Samples of the rollout that the checkpoint interrupted are not saved. A framework that expects them fails with an
        error that names neither the cause nor the checkpoint.

    What to do:
        Resume from a checkpoint at the boundary of a rollout's cycle; save at multiples of it.
    """

    code = "RLS701"
    title = "Resume failed"
    topics = ("order",)
    nothing_seen = "the run did not resume from a checkpoint"

    def started(self, event: RunStarted) -> Finding | None:
        """Count the check of a resumed run."""
        self.checks += event.start_updates > 0
        return None

    def ended(self, event: RunEnded) -> Finding | None:
        """Look at how a resumed run ended."""
        if not self.progress.resumed or event.status != "raised" or self.progress.trained:
            return None
        return self.fail(
            expected=f"training goes on from update {self.progress.started.start_updates}",
            observed=event.error,
            why="the run needs something that the checkpoint does not hold",
            fix="resume from a checkpoint at the boundary of a rollout's cycle",
        )
