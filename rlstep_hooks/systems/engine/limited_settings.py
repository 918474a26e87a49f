"""Settings that some releases of a framework do not have, for a framework without a list of all its settings.

With such a list (`engine.keys`) the settings themselves show the release; without one, these few do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.plan.configuration import Refused
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.planned_release import Release
from rlstep_hooks.systems.engine.request import release_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.engine.parts import Limited
    from rlstep_hooks.systems.engine.planned_release import Pinned


class LimitedSettings:
    """The settings of one launch that some releases of its framework do not take.

    Args:
        system: The framework.
        given: What the launch sets.
    """

    def __init__(self, system: System, given: Mapping[str, Setting]) -> None:
        self._title = system.title
        self._given = given
        self._limited: dict[str, Limited] = {
            name: limited
            for name, limited in system.limited.items()
            if name in given and not given[name].unknown and limited.unless not in given
        }

    @property
    def newest(self) -> tuple[str, tuple[Note, ...]] | None:
        """The newest release that takes all of them, with the note that says so; None where the newest of all does."""
        ended = [(name, limited) for name, limited in self._limited.items() if limited.until]
        if not ended:
            return None
        name, limited = min(ended, key=lambda each: release_of(each[1].until))
        text = (
            f"{self._title} {limited.newest}, the newest release that takes {name}, which {limited.until} and later "
            "refuse; --version names another"
        )
        return limited.newest, (Note("assumes", text),)

    def refused_by(self, version: str) -> tuple[str, ...]:
        """Those of them that a release does not take."""
        return tuple(
            name
            for name, limited in self._limited.items()
            if (limited.until and release_of(version) >= release_of(limited.until))
            or (limited.since and release_of(version) < release_of(limited.since))
        )

    def findings(self, version: str) -> tuple[Finding, ...]:
        """What a release says of settings that it does not have."""
        return tuple(self._refused(name, version) for name in self.refused_by(version))

    def _refused(self, name: str, version: str) -> Finding:
        limited = self._limited[name]
        others = [f"{limited.since} or later"] if limited.since else []
        others += [f"before {limited.until}"] if limited.until else []
        return Refused.planned(
            expected=f"settings of {self._title} {version}",
            observed=limited.words,
            why=f"{self._given[name].place}: {self._title} {version} ends the run with this error at once",
            fix=f"{limited.remedy}; --version names a release that takes it: {' and '.join(others)}",
        )


def release_without_list(
    system: System,
    given: Mapping[str, Setting],
    asked: str | None,
    pinned: Pinned | None,
    newest: tuple[Note, ...],
) -> Release:
    """The release for a launch of a framework without a list of its settings.

    Args:
        system: The framework.
        given: What the launch sets.
        asked: The release that the user names.
        pinned: The release that the checkout installs.
        newest: What is said of the newest release.
    """
    limited = LimitedSettings(system, given)
    notes: tuple[Note, ...] = ()
    if asked is not None:
        version = asked
    elif pinned is not None:
        version, notes = pinned.version, (pinned.note,)
    else:
        version, notes = limited.newest or (system.version, newest)
    return Release(
        version=version, notes=notes, findings=limited.findings(version), refused=limited.refused_by(version)
    )
