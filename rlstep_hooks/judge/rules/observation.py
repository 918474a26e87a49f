"""RLS9xx: the observation itself. These compare processes, so they look at whole records and not at single events."""

from __future__ import annotations

from rlstep_hooks.judge.rules.base import Rule


class ProcessMissing(Rule):
    """A process that should have recorded did not.

    What it checks:
        As many processes left a record as the run had; each record reaches the end of training.

    Why it matters:
        What was not observed must not look as if it passed.

    What to do:
        Attach the callback in every process. Processes of other machines are not evaluated where no folder is shared.
    """

    code = "RLS901"
    title = "Process without a record"
    topics = ("ranks",)
    nothing_seen = "the run has a single process"


class RanksDisagree(Rule):
    """Processes of one run did different things.

    What it checks:
        All data-parallel processes show the same order of rollouts, refreshes, micro-batches and updates, with the same
        policy versions: their running checksums agree at each rollout.

    Why it matters:
        Data-parallel training is only defined when all processes take the same steps; a process that skips, repeats or
        regenerates makes gradients of mixed versions.

    What to do:
        Look at the first rollout at which the records part, on both processes.
    """

    code = "RLS902"
    title = "Processes disagree"
    topics = ("ranks",)
    nothing_seen = "the run has a single process"
