"""An audited launch, and what it left."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import MicroBatch
from rlstep_hooks.show.scalars import PREFIX
from tests.detection.outcomes import Clean, note
from tests.reports import claimed
from tests.systems.audited import Audited, audited_launch
from tests.systems.tensorboard import Points, points, split
from tests.systems.verl.launch import MAIN, launch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from tests.systems.processes import Outcome

LINKS = {"RLS101", "RLS515", "RLS516", "RLS517", "RLS605", "RLS803", "RLS805", "RLS806", "RLS807", "RLS808", "RLS810"}
"""Rules of the links from rewards to weights that every run has."""

ROOT = Path(__file__).parents[3]

OF_THE_MACHINE = ("timing", "perf/", "timestamp", "mfu", "memory")
"""Parts of the names of metrics that differ from run to run."""


def audited(
    overrides: Mapping[str, Any],
    folder: Path,
    *,
    modules: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    limit: float = 400.0,
    log: str = "log",
    program: str = MAIN,
) -> Audited:
    """Train with the audit asked for by `RLSTEP_DIR`; the entry point attaches it.

    Args:
        overrides: Overrides for verl.
        folder: Working directory of the command.
        modules: More modules that verl imports in every process.
        environment: More environment variables.
        limit: Seconds after which the run is ended.
        log: Where the records are, below the working directory.
        program: The module of verl that is run.
    """
    variables = {"RLSTEP_DIR": str(folder / log), "PYTHONPATH": str(ROOT)} | dict(environment or {})

    def attempt() -> Outcome:
        return launch(logged(overrides), folder, modules=modules, environment=variables, limit=limit, program=program)

    return audited_launch(attempt, folder / log)


def logged(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides with verl's own metrics in a file as well, at full precision, and in a tracker."""
    return {
        **overrides,
        "trainer.logger": ["console", "file", "tensorboard"],
        "trainer.project_name": "p",
        "trainer.experiment_name": "e",
    }


def metrics(outcome: Outcome) -> list[dict[str, Any]]:
    """What verl logged, step by step, without times and sizes of the machine and without what the audit adds."""
    lines = (outcome.folder / "p" / "e.jsonl").read_text().splitlines()
    left_out = (*OF_THE_MACHINE, PREFIX)
    return [
        {name: value for name, value in json.loads(line)["data"].items() if not any(p in name for p in left_out)}
        for line in lines
    ]


def shown(outcome: Outcome) -> Points:
    """What the tracker shows of the audit."""
    return split(points(outcome.folder / "tensorboard_log"), PREFIX)[0]


def problems(report: Report) -> list[str]:
    """Errors and warnings as text, for a readable assertion."""
    return [str(finding) for finding in report.findings if finding.severity != "info"]


def alarms(report: Report) -> list[Finding]:
    """Errors and warnings."""
    return [finding for finding in report.findings if finding.severity != "info"]


@dataclass(frozen=True)
class Expected:
    """What the formulas give for a run."""

    rollouts: int
    updates: int
    critic_updates: int = 0
    refreshes: int | None = None
    """As many as rollouts if left out."""
    lags: tuple[int, ...] | None = (0, 1)
    """None where they follow from what came first out of a queue."""
    not_drawn: str = ""
    """A part of the reason for which completions are not tested against the policy's distributions."""
    masks: bool = True
    """Whether masks and advantages are compared; not where a loop of one's own makes them."""

    def check(self, run: Audited) -> None:
        """A clean run: what was counted, and nothing found."""
        note(Clean(framework="verl", alarms=tuple(finding.code for finding in alarms(run.report))))
        assert run.outcome.status == 0, run.outcome.tail
        assert problems(run.report) == []
        assert run.report.verdict == "PASS"
        assert claimed(run.report, "verl") == set()
        assert run.live is not None
        assert run.live.verdict == "PASS", "judged while it ran as it is from its records"
        counts = run.report.counts
        assert counts.rollouts == self.rollouts
        assert counts.samples == self.rollouts * 16
        assert counts.updates == self.updates
        assert counts.critic_updates == self.critic_updates
        assert counts.old_logprob_refreshes == (self.rollouts if self.refreshes is None else self.refreshes)
        assert counts.weight_syncs == self.rollouts + 1, "one before the first rollout"
        if self.lags is not None:
            assert tuple(values.lag for values in run.report.lags) == self.lags
        assert all(values.clipped is not None for values in run.report.lags)
        compared = {rule.code: rule for rule in run.report.rules if rule.code in ("RLS801", "RLS804")}
        assert (compared["RLS801"].verdict, compared["RLS801"].missed) == ("PASS", 0), compared["RLS801"].reason
        of_critic = [event for event in run.record("rank0") if isinstance(event, MicroBatch) and event.role == "critic"]
        assert compared["RLS801"].checks == counts.microbatches + len(of_critic)
        drawn = {rule.code: rule for rule in run.report.rules if rule.code in ("RLS413", "RLS519")}
        for rule in drawn.values():
            expected = ("NOT_EVALUATED", 0) if self.not_drawn else ("PASS", self.rollouts)
            assert (rule.verdict, rule.checks) == expected, rule.reason
            assert self.not_drawn in rule.reason
        of_links = {rule.code: rule for rule in run.report.rules if rule.code in LINKS}
        unseen = set() if self.masks else {"RLS515", "RLS516"}
        assert {code for code, rule in of_links.items() if rule.verdict != "PASS"} == unseen, of_links
        masks = self.masks and counts.old_logprob_refreshes > 0
        assert compared["RLS804"].checks == (counts.microbatches if masks else 0)
