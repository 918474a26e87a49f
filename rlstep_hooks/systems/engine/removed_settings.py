"""Settings that newer releases of a framework do not have any more, for a framework without a list of all its settings.

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
    from rlstep_hooks.systems.engine.parts import Removed
    from rlstep_hooks.systems.engine.planned_release import Pinned


class RemovedSettings:
    """The settings of one launch that some releases of its framework do not take any more.

    Args:
        system: The framework.
        given: What the launch sets.
    """

    def __init__(self, system: System, given: Mapping[str, Setting]) -> None:
        self._title = system.title
        self._given = given
        self._removed: dict[str, Removed] = {
            name: removed
            for name, removed in system.removed.items()
            if name in given and not given[name].unknown and removed.unless not in given
        }

    @property
    def newest(self) -> tuple[str, tuple[Note, ...]] | None:
        """The newest release that takes all of them, with the note that says so; None where every release does."""
        if not self._removed:
            return None
        name, removed = min(self._removed.items(), key=lambda each: release_of(each[1].release))
        text = (
            f"{self._title} {removed.newest}, the newest release that takes {name}, which {removed.release} and later "
            "refuse; --version names another"
        )
        return removed.newest, (Note("assumes", text),)

    def refused_by(self, version: str) -> tuple[str, ...]:
        """Those of them that a release does not take."""
        return tuple(
            name for name, removed in self._removed.items() if release_of(version) >= release_of(removed.release)
        )

    def findings(self, version: str) -> tuple[Finding, ...]:
        """What a release says of settings that it does not have any more."""
        return tuple(
            Refused.planned(
                expected=f"settings of {self._title} {version}",
                observed=self._removed[name].words,
                why=f"{self._given[name].place}: {self._title} {version} ends the run with this error at once",
                fix=f"{self._removed[name].remedy}; --version names a release before {self._removed[name].release}, which takes it",
            )
            for name in self.refused_by(version)
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
    removed = RemovedSettings(system, given)
    notes: tuple[Note, ...] = ()
    if asked is not None:
        version = asked
    elif pinned is not None:
        version, notes = pinned.version, (pinned.note,)
    else:
        version, notes = removed.newest or (system.version, newest)
    return Release(
        version=version, notes=notes, findings=removed.findings(version), refused=removed.refused_by(version)
    )
