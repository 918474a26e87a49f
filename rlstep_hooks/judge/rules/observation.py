"""RLS9xx: the observation itself. These compare processes, so they look at whole records and not at single events."""

from __future__ import annotations

from rlstep_hooks.judge.effects import Effects
from rlstep_hooks.judge.outcome import RuleOutcome
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.finding import Finding, Where


class ProcessMissing(Rule):
    """A process that should have recorded did not.

    What it checks:
        As many processes left a record as the run had, and each record reaches the end of training.

    Why it matters:
        What was not observed must not look as if it passed.

    Example:
        ERROR RLS901 Process without a record · rank 1
          expected  records of 2 trainers, of every call
          observed  no record of trainer 1
          why       what a process did without a record cannot be judged
          fix       attach the audit in every process, and look at how that process
                    ended

    What to do:
        Attach the audit in every process, and look at how that process ended.

    Known limits:
        - Processes of other machines are not evaluated where no folder is shared.
        - A process that the framework never told of is not missed: of engines and reward models the rule knows nothing.

    Sources:
        - https://docs.pytorch.org/docs/stable/elastic/run.html: what torchrun does when a process dies
    """

    code = "RLS901"
    title = "Process without a record"
    topics = ("ranks",)
    nothing_seen = "the run has a single process"
    produces = (Effects(("RLS902",), first=None),)

    @classmethod
    def missing(
        cls, expected: str, observed: list[str], rank: int, fix: str, checks: int
    ) -> tuple[Finding, RuleOutcome]:
        """The finding and the outcome where records are missing.

        Args:
            expected: The records that there should be.
            observed: What is missing, by kinds.
            rank: The first process without its record.
            fix: What to do.
            checks: How many records were looked for.
        """
        finding = Finding(
            code=cls.code,
            severity="error",
            title=cls.title,
            expected=expected,
            observed="; ".join(observed),
            where=Where(rank=rank),
            why="what a process did without a record cannot be judged",
            fix=fix,
        )
        return finding, RuleOutcome(code=cls.code, title=cls.title, verdict="FAIL", checks=checks)


class RanksDisagree(Rule):
    """Processes of one run did different things.

    What it checks:
        All data-parallel processes show the same order of rollouts, refreshes, micro-batches and updates, with the same
        policy versions: their running checksums agree at each rollout. In TRL they also train by the same settings, the same seed of
        the sampler, and (a warning) the same rows of the data set, by when training begins.

    Why it matters:
        Data-parallel training is only defined if all processes take the same steps. A process that skips, repeats or
        regenerates makes gradients of mixed versions.

    Example:
        ERROR RLS902 Processes disagree · rank 1, rollout 3
          expected  rank 1 does what rank 0 does: update applied after 2
                    micro-batches
          observed  update skipped after 2 micro-batches
          why       data-parallel processes must take the same steps; here they do
                    not
          fix       look at this rollout on ranks 0 and 1

    What to do:
        Look at the first rollout at which the records part, on both processes.

    Known limits:
        - Of the data set the number of rows and 32 prompts are compared, and no other column.
        - Of what is done, order, versions and sizes are compared, not values. That two processes hold the same weights is RLS419's.
        - It needs the records of all processes: processes of other machines are not evaluated where no folder is
          shared.
        - Runs with more than two trainers were not tested.

    Sources:
        - https://docs.pytorch.org/docs/stable/notes/ddp.html: what data-parallel processes must have in common
    """

    code = "RLS902"
    title = "Processes disagree"
    topics = ("ranks",)
    nothing_seen = "the run has a single process"
