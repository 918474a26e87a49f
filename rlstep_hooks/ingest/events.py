"""From samples to the events of a record. Nothing is judged here, and what an export does not show is said."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.ingest.advantages import Comparison
from rlstep_hooks.ingest.export import NO_LAUNCH, Export
from rlstep_hooks.ingest.tally import Tally
from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.record.events import NEVER_SEEN, Measured, Rewarded, Rollout, RolloutValues, RunEnded, RunStarted
from rlstep_hooks.record.values import TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.ingest.export import Asked, Header
    from rlstep_hooks.record.events import AnyEvent

REMEMBERED = 256
"""Rollouts whose samples are compared with those of later ones."""
NOT_WRITTEN = "an export holds samples, and not what updates did with them"
_WRITTEN = frozenset(
    (
        *("plan", "order", "versions", "samples", "mask"),
        *("sampler", "sampler_weights", "rewards", "advantages", "recording", "release"),
    )
)
"""Topics that an export may show."""
_NEVER_WRITTEN = tuple(topic for topic in TOPICS if topic not in _WRITTEN)
"""Topics that no export shows."""


def events_of(export: Export, asked: Asked, run: str) -> Iterator[AnyEvent]:
    """The events of an exported run, while it is read.

    Args:
        export: The opened export.
        asked: What the user said of it.
        run: The name that the record's run gets.

    Raises:
        ExportError: A line is not what the format has.
    """
    yield _started(export, asked, run)
    comparison, before = Comparison(export.estimators), _Before(export, asked)
    tally: Tally | None = None
    ends = frozenset(export.header.end_token_ids if export.header is not None else ())
    made = 0
    for sample in export.samples:
        if tally is not None and sample.rollout != tally.number:
            yield from _rollout(tally, made, before, comparison)
            tally, made = None, made + 1
        if tally is None:
            tally = Tally(sample.rollout, ends)
        tally.add(sample)
    if tally is not None:
        yield from _rollout(tally, made, before, comparison)
    yield RunEnded(status="exported", updates=0)


class _Before:
    """What is known of the rollouts before, and of what each should be."""

    def __init__(self, export: Export, asked: Asked) -> None:
        header, schedule = export.header, asked.schedule
        self.numbers = export.numbers
        each = schedule.samples_per_prompt if schedule is not None else header and header.samples_per_prompt
        self.group = each if export.whole_groups else None
        self.planned = schedule.rollouts if schedule is not None else header and header.rollouts
        self.number: int | None = None
        self.distance = 1 if export.numbers == "each" else None
        """How far the numbers of two rollouts are apart; None before that of the first two is known."""
        self.digests: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)

    def contradictions(self, tally: Tally, index: int) -> dict[str, int]:
        """What a rollout contradicts the ones before, or the plan, in."""
        found = tally.contradictions()
        if self.number is not None and self.numbers != "none":
            apart = tally.number - self.number
            if apart <= 0:
                found[f"a rollout out of order: number {tally.number} after number {self.number}"] = 0
            elif self.distance is not None and apart != self.distance:
                usual = "" if self.distance == 1 else f", and those before are {self.distance} apart"
                found[f"rollouts that are left out: number {tally.number} after number {self.number}{usual}"] = 0
            else:
                self.distance = apart
        self.number = tally.number
        if self.planned and index == self.planned:
            found[f"more rollouts than are planned: {self.planned} are"] = 0
        if self.group and not tally.nameless:
            others = {size: count for size, count in tally.sizes.items() if size % self.group}
            if others:
                size = next(iter(others))
                found[f"groups of another size: {size} samples of a prompt, and {self.group} are planned"] = sum(
                    size * count for size, count in others.items()
                )
        return found

    def repeats(self, tally: Tally, index: int) -> tuple[bool, int | None]:
        """Whether the samples can be compared with those of earlier rollouts, and the one that has the very same."""
        earlier = next((number for number, digest in self.digests if digest == tally.digest), None)
        self.digests.append((index, tally.digest))
        return (True, earlier) if tally.cannot_come_twice else (False, None)


def _rollout(tally: Tally, index: int, before: _Before, comparison: Comparison) -> Iterator[AnyEvent]:
    compared, repeats = before.repeats(tally, index)
    grouped = bool(before.group) and not tally.nameless
    whole = grouped and not any(size % (before.group or 1) for size in tally.sizes)
    yield Rollout(
        index=index,
        samples=tally.samples,
        policy_version=tally.policy_version or 0,
        sampler_version=tally.sampler_version if tally.policy_version is not None else None,
        reference=None,
        groups_intact=tally.mixed == 0 if whole else None,
        signal=tally.differs if compared else None,
        repeats=repeats,
        contradictions=before.contradictions(tally, index),
    )
    rewards = tally.rewards()
    mean = math.fsum(rewards) / len(rewards) if rewards else None
    off, fit = None, ""
    groups, advantages = tally.compared()
    if groups and comparison.known and not tally.nameless and (tally.all_known or not comparison.of_whole_rollout):
        off, fit = comparison.compare(groups, advantages)
    relative = comparison.compares_groups and bool(advantages) and not tally.nameless
    yield Rewarded(
        rollout=index,
        groups=len(tally.several) if relative else 0,
        mixed=tally.mixed if relative else 0,
        unordered=tally.unordered() if relative else 0,
        off_centre=tally.off_centre() if relative else 0,
        advantages_off=None if off is None else min(off, 1e9),
        advantages_fit=fit,
        masks_wrong=tally.masks_wrong,
        samples=tally.samples,
        reward_mean=mean,
        reward_deviation=None
        if mean is None
        else math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / len(rewards)),
        equal_groups=tally.equal_groups() if rewards else None,
    )
    gap = tally.gap
    # Without versions nobody knows whether engine and trainer had the same weights.
    comparable = bool(gap.tokens) and tally.sampler_version is not None and tally.policy_version is not None
    yield Measured(
        rollouts=(
            RolloutValues(
                index=index,
                max_abs_advantage=tally.largest_advantage(),
                sampler_gap_mean=gap.sum / gap.tokens if comparable else None,
                sampler_gap_max=gap.largest if comparable else None,
                reward_mean=mean,
            ),
        )
    )


def _started(export: Export, asked: Asked, run: str) -> RunStarted:
    never = dict.fromkeys(_NEVER_WRITTEN, NOT_WRITTEN) | export.absent
    schedule, header = asked.schedule, export.header
    if schedule is None:
        never["plan"] = "no launch command was given"
        if header is None or not (header.prompts_per_rollout and header.samples_per_prompt):
            never["order"] = NO_LAUNCH
        schedule = _of_header(export, header)
    facts: dict[str, Any] = {NEVER_SEEN: never, "export": export.title}
    not_compared = dict(export.not_compared)
    if not export.estimators:
        not_compared.setdefault("RLS516", "nothing says by which formula the advantages of this export were computed")
    if not_compared:
        facts["not_compared"] = not_compared
    if export.unproved:
        facts["not_proved"] = {"RLS516": export.unproved}
    return RunStarted(run=run, rank=0, world_size=1, schedule=schedule, facts=facts)


def _of_header(export: Export, header: Header | None) -> Schedule:
    """A plan of rollouts alone. Its updates stand for nothing: no rule that looks at them is evaluated."""
    prompts, each = (header.prompts_per_rollout, header.samples_per_prompt) if header is not None else (None, None)
    plain = Schedule.ppo(
        actors=prompts or 1,
        steps=each or 1,
        rollouts=header.rollouts if header is not None else None,
        algorithm=(header.algorithm if header is not None else "") or "an exported run",
    )
    return msgspec.structs.replace(
        plain,
        framework=export.framework,
        version=export.version,
        step_unit="rollout",
        max_age=header.max_age if header is not None else None,
        max_age_updates=None,
    )
