"""The rules of one run: shows each event and each number to those that look at it, and takes what they find."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.judge.conformance import Difference
from rlstep_hooks.judge.deviations import Evidence, explain
from rlstep_hooks.judge.rules.base import HANDLERS, disabled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rlstep_hooks.judge.delivery import Delivery
    from rlstep_hooks.judge.deviations import Deviation
    from rlstep_hooks.judge.rules.base import Rule
    from rlstep_hooks.judge.rules.progress import Place, Progress
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import AnyEvent


class AskedRules:
    """The rules that look at one process of one run.

    Args:
        rules: The rules.
        progress: How far the run is; None before it begins, when no rule is asked.
        deviations: The known deviations of its framework, which explain findings.
        before: The rules that were asked so far, whose errors and warnings are counted on.
    """

    def __init__(
        self,
        rules: Sequence[Rule] = (),
        progress: Progress | None = None,
        deviations: Sequence[Deviation] = (),
        before: AskedRules | None = None,
    ) -> None:
        self.rules = rules
        self._progress = progress
        self._deviations = deviations
        self._handlers: dict[str, list[tuple[Rule, Callable[..., None], list[Finding]]]] = {
            name: [] for name in HANDLERS
        }
        self.failed: bool = before is not None and before.failed
        """Whether an error was found so far."""
        self.problems: int = before.problems if before is not None else 0
        """How many errors and warnings were found so far."""

    def subscribe(self, unobserved: Mapping[str, str]) -> None:
        """Find for each handler the rules that implement it and can be evaluated, so that other rules cost nothing.

        Args:
            unobserved: The topics that cannot be observed, each with the reason.
        """
        for rule in self.rules:
            for what, why in unobserved.items():
                if what in rule.topics or (what == "plan" and rule.seen_in != "run"):
                    disabled(rule, why)
        self._handlers = {name: [] for name in HANDLERS}
        for rule in self.rules:
            for name in () if rule.disabled else rule.handled:
                self._handlers[name].append((rule, getattr(rule, name), rule.fresh))

    def show(self, handler: str, shown: AnyEvent | Difference | Delivery) -> list[Finding]:
        """Show an event, or a difference from the plan, to the rules with this handler. Returns what they find."""
        findings: list[Finding] = []
        progress = self._progress
        assert progress is not None, "nothing is shown before a run begins"
        progress.shown, progress.place_shown = shown, progress.place
        for rule, method, fresh in self._handlers[handler]:
            before = rule.checks
            method(shown)
            if rule.checks != before and progress.rollouts > rule.looked_at:
                rule.look(progress.rollouts)
            if fresh:
                findings += self._taken(rule, shown if isinstance(shown, Difference) else None)
        return findings

    def show_each(self, handler: str, arrived: list[tuple[Any, Any, Place]]) -> list[Finding]:
        """Show numbers that arrived together to the rules, rule by rule (the cheapest order).

        Args:
            handler: The method of the rules that takes them.
            arrived: The numbers, each with its event and the place of that.

        Returns:
            What they find, in the order of the numbers.
        """
        found: list[tuple[int, Finding]] = []
        progress = self._progress
        assert progress is not None, "numbers are taken for a run that has begun"
        # The busiest loop of the judge: of a long run it runs for each rule and each number that arrives, so it calls nothing in vain.
        measured = {name for values, _, _ in arrived for name in msgspec.to_builtins(values)}
        for rule, method, fresh in self._handlers[handler]:
            needed = rule.needed.get(handler)
            if needed is not None and measured.isdisjoint(needed):
                continue
            before = rule.checks
            for values, event, where in arrived:
                progress.shown, progress.place_shown = event, where
                method(values, event)
                if rule.checks != before:
                    before = rule.checks
                    if where[0] > rule.looked_at:
                        rule.look(where[0])
                if fresh:
                    place = arrived.index((values, event, where))
                    found += ((place, finding) for finding in self._taken(rule))
        return [finding for _, finding in sorted(found, key=itemgetter(0))]

    def _taken(self, rule: Rule, difference: Difference | None = None) -> list[Finding]:
        """Take the new findings of a rule, each explained by a known deviation if there is one."""
        fresh = rule.fresh.copy()
        rule.fresh.clear()
        return [self._explain(rule, finding, difference) for finding in fresh]

    def _explain(self, rule: Rule, finding: Finding, difference: Difference | None) -> Finding:
        explained = self._explained(rule, finding, difference)
        if rule.seen_in != "run":
            bare, explained = explained, msgspec.structs.replace(explained, planned=True)
            rule.replace(bare, explained)
        self.failed = self.failed or explained.severity == "error"
        self.problems += explained.severity != "info"
        return explained

    def _explained(self, rule: Rule, finding: Finding, difference: Difference | None) -> Finding:
        assert self._progress is not None, "there are no findings before a run begins"
        evidence = Evidence(finding, self._progress, difference)
        for deviation in self._deviations:
            if deviation.explains(evidence):
                explained = explain(finding, deviation)
                rule.replace(finding, explained)
                return explained
        return finding
