"""The smallest changes of a launch's settings after which a finding of its plan is gone.

Nothing is known here of any finding or framework: each setting that counts something is given other values, nearest first, and the
launch is planned again with each. A change that takes the finding away, and brings no other error or warning, mends it. What is wrong
beside a refusal shows only once the framework accepts the launch: then it is named (`Mend.left`), and such a change comes last.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.settings import MISSING, Setting
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.finding import Finding, kind_of
from rlstep_hooks.planning.launched import Plan
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.keys import key_list
from rlstep_hooks.systems.engine.launches import planned_again, request_of
from rlstep_hooks.systems.engine.parts import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rlstep_hooks.planning.launched import Options
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.engine.launch import Launch

KEPT = {
    "world_size": "the number of processes",
    "samples_per_prompt": "the samples of a prompt",
    "samples_per_rollout": "the size of a rollout",
    "samples_per_update": "the size of an update",
    "updates_per_rollout": "the updates of a rollout",
    "rollouts": "the number of rollouts",
    "updates": "the number of updates",
}
"""What a change may keep, in the order of its weight, in words."""

_MOST_OFFERS = 3
_MOST_PLANS = 1500
"""Plans that are made for one finding at most; one takes about 2 ms."""
_FARTHEST = 64
"""A size is made at most so many times larger or smaller, but for numbers that the finding names."""
_MOST_FIRST = 8
"""First changes of two that are gone on with."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one setting: another value, or another name."""

    setting: Setting
    """The setting as the launch has it, or with the default's value and no place."""
    name: str
    """The name that the changed launch gives; another one if the setting was misspelt."""
    after: Any

    @property
    def added(self) -> bool:
        """Whether the launch does not write the setting: its default is changed."""
        return not self.setting.written


class Mend(msgspec.Struct, frozen=True, kw_only=True):
    """Changes after which a finding is gone."""

    changes: tuple[Change, ...]
    plan: Plan
    """The plan of the changed launch."""
    kept: tuple[str, ...]
    """Names in `KEPT` of what is as before."""
    lost: tuple[str, ...]
    """Names in `KEPT` of what is no longer as before."""
    left: tuple[Finding, ...]
    """Errors and warnings of the new plan that the plan before could not show, because the framework refuses the launch."""


def mends_of(launch: Launch, plan: Plan, finding: Finding, options: Options) -> list[Mend]:
    """The smallest changes that take a finding away; none if no change of one or two settings does.

    Args:
        launch: The launch.
        plan: Its plan.
        finding: One of the plan's findings.
        options: What completes the launch.
    """
    search = _Search(launch, plan, finding, options)
    found = list(search.renamed()) or search.of_one() or search.of_two()
    ranked = sorted(found, key=lambda each: (search.weight(each), search.distance(each)))
    offers: dict[tuple[str, ...], Mend] = {}
    for mend in ranked:
        offers.setdefault(tuple(change.name for change in mend.changes), mend)
    return list(offers.values())[:_MOST_OFFERS]


class _Search:
    def __init__(self, launch: Launch, plan: Plan, finding: Finding, options: Options) -> None:
        self._launch = launch
        self._plan = plan
        self._finding = finding
        self._options = msgspec.structs.replace(options, version=plan.version)
        self._system, self._given = _read_as(launch, plan, self._options)
        self._before = {each.code for each in plan.findings if each.severity != "info"}
        self._plans = 0
        self._steps: list[Change] = []
        """Changes after which the framework refuses the launch for another reason."""

    # Which changes are tried.

    def renamed(self) -> Iterator[Mend]:
        """A misspelt setting under the name that the framework has."""
        keys = self._system.keys
        if keys is None:
            return
        known = key_list(keys.file)
        for name, setting in self._launch.given.items():
            near = (
                None
                if known.ever(name) or name not in self._finding.observed
                else known.nearest(name, self._plan.version)
            )
            if near is not None and near not in self._launch.given:
                yield from self._tried((Change(setting=setting, name=near, after=setting.value),))

    def of_one(self) -> list[Mend]:
        """Changes of one setting."""
        return self._after(())

    def of_two(self) -> list[Mend]:
        """Changes of two settings, the first of which leads to another refusal of the framework than before."""
        found: list[Mend] = []
        for first in self._steps[:_MOST_FIRST]:
            found += self._after((first,))
        return found

    def _after(self, changes: tuple[Change, ...]) -> list[Mend]:
        """Mends that consist of some changes and another one."""
        taken = {change.setting.name for change in changes}
        found: list[Mend] = []
        for setting in self._settings():
            if setting.name in taken:
                continue
            for side in self._candidates(setting):
                more = (Change(setting=setting, name=setting.name, after=value) for value in side)
                found += self._first((*changes, change) for change in more)
        return found

    def _settings(self) -> list[Setting]:
        """The settings that have a whole number or are on or off: those that the launch writes first."""
        system, given = self._system, self._given
        defaults = system.defaults(self._plan.version)
        found: list[Setting] = []
        for name, typed in system.settings.items():
            names = (name, *typed.also, *(f"{callee}.{name}" for callee in system.keywords_of))
            written = next((given[each] for each in names if each in given), None)
            if written is None and defaults.get(name) not in (None, NOTHING, MISSING):
                written = Setting(name, defaults[name])
            if written is None or written.unknown or written.deleted:
                continue
            if (typed.kind == "count" and _whole(written.value)) or (
                typed.kind == "flag" and written.written and _is_on(written)
            ):
                found.append(written)
        return sorted(found, key=lambda setting: not setting.written)

    def _candidates(self, setting: Setting) -> tuple[list[Any], list[Any]]:
        """Other values of a setting, smaller ones and larger ones, the nearest first; for what is on: off."""
        if not _whole(setting.value):
            return [False], []
        value = int(setting.value)
        if value < 1:
            return [], []
        said = set(self._numbers())
        sizes = {int(each.value) for each in self._settings() if _whole(each.value) and int(each.value) > 1} | said
        tried = {*range(max(1, value - 12), value + 13)}
        tried |= {value * factor for factor in range(2, 9)} | {value // factor for factor in range(2, 9)}
        tried |= {2**power for power in range(24)}
        for size in sizes:
            tried |= {value // size * size, -(-value // size) * size, *_divisors_near(size, value)}
        fitting = said | {each for each in tried if each >= 1 and value / _FARTHEST <= each <= value * _FARTHEST}
        below = sorted((each for each in fitting if each < value), reverse=True)
        return below, sorted(each for each in fitting if each > value)

    def _numbers(self) -> Iterator[int]:
        """The whole numbers that the finding speaks of, and the schedule's own."""
        said = " ".join((self._finding.expected, self._finding.observed, self._finding.fix))
        yield from (number for text in re.findall(r"\d+", said) if 1 < (number := int(text)) < 10**7)
        schedule = self._plan.shown
        if schedule is not None:
            for name in (
                "rows",
                "rollouts",
                "updates",
                "lr_ticks",
                "lr_horizon",
                "samples_per_rollout",
                "samples_per_update",
            ):
                value = getattr(schedule, name)
                if value is not None and int(value) == value and value > 1:
                    yield int(value)

    # Whether a change mends.

    def _first(self, several: Iterable[tuple[Change, ...]]) -> list[Mend]:
        """Find the first changes that mend; and the first that mend and leave nothing to be said, if these are others."""
        found: list[Mend] = []
        for changes in several:
            mends = list(self._tried(changes))
            found += mends if not found else [mend for mend in mends if _is_clean(mend)]
            if found and _is_clean(found[-1]):
                break
        return found

    def _tried(self, changes: tuple[Change, ...]) -> Iterator[Mend]:
        if self._plans >= _MOST_PLANS:
            return
        self._plans += 1
        given = dict(self._launch.given)
        for change in changes:
            # A keyword of a Python file stands under its own name and under that of its class; a positional argument under a number.
            place = change.setting.place
            names = [name for name, each in given.items() if place.column and each.place == place]
            for name in {change.setting.name, *names}:
                given.pop(name, None)
            new = names if change.name == change.setting.name and names else [change.name]
            given |= {name: Setting(name, change.after, place, change.setting.written or name) for name in new}
        try:
            plan = planned_again(msgspec.structs.replace(self._launch, given=given), self._plan, self._options)
        except PlanError as refusal:
            if len(changes) == 1 and kind_of(refusal.message) != kind_of(self._finding.observed):
                self._steps.append(changes[0])
            return
        except (LaunchError, ArithmeticError):
            return
        left = tuple(each for each in plan.findings if each.severity != "info" and each.code not in self._before)
        if self._finding.code in {each.code for each in plan.findings} or (left and self._plan.schedule is not None):
            return
        assert plan.schedule is not None
        kept, lost = _compared(self._plan.shown, plan.schedule)
        yield Mend(changes=changes, plan=plan, kept=kept, lost=lost, left=left)

    @staticmethod
    def weight(mend: Mend) -> int:
        """How much a change alters, the number of processes weighing most: those are rented."""
        rented = 4 * ("world_size" in mend.lost)
        return 10 * len(mend.left) + len(mend.lost) + rented + 2 * len(mend.changes) + 2 * _silent_effects(mend.plan)

    @staticmethod
    def distance(mend: Mend) -> float:
        """How far the new values are from the old ones, by their ratios."""
        return sum(
            abs(math.log(change.after / int(change.setting.value)))
            for change in mend.changes
            if _whole(change.after) and int(change.after) > 0
        )


def _read_as(launch: Launch, plan: Plan, options: Options) -> tuple[System, Mapping[str, Setting]]:
    """The declaration that a launch is read by, and what it sets under the names that are declared there."""
    system = index.system_of(launch.framework)
    request = request_of(launch, system, plan.version, options)
    other = system.instead(request) if system.instead is not None else None
    system = other or system
    return system, system.given_of(request) if system.given_of is not None else launch.given


def _is_on(setting: Setting) -> bool:
    return str(setting.value).lower() == "true"


def _is_clean(mend: Mend) -> bool:
    return not mend.left and not _silent_effects(mend.plan)


def _silent_effects(plan: Plan) -> int:
    """How many ways there are in which the plan loses or adds samples or updates without a word."""
    return sum(note.kind in ("drops", "pads", "carries", "shrinks", "grows") for note in plan.notes)


def _whole(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and int(value) == float(value)
    except (TypeError, ValueError):
        return False


def _divisors_near(number: int, value: int) -> Iterator[int]:
    """The divisors of a number nearest to a value, two on each side."""
    divisors = {
        each
        for low in range(1, min(math.isqrt(number), 5000) + 1)
        if number % low == 0
        for each in (low, number // low)
    }
    yield from sorted((each for each in divisors if each < value), reverse=True)[:2]
    yield from sorted(each for each in divisors if each > value)[:2]


def _compared(before: Schedule | None, after: Schedule) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if before is None:
        return (), ()
    known = [name for name in KEPT if getattr(before, name) is not None and getattr(after, name) is not None]
    kept = tuple(name for name in known if getattr(before, name) == getattr(after, name))
    return kept, tuple(name for name in known if name not in kept)
