"""Settings of a launch with values that newer releases of its framework refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.plan.configuration import Refused
from rlstep_hooks.systems.engine.request import release_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.systems.engine.declaration import Keys
    from rlstep_hooks.systems.engine.parts import Until


class RemovedValues:
    """The settings of one launch whose values some releases do not take any more.

    Args:
        keys: The names of the framework's settings, with the values that were taken away.
        given: What the launch sets.
    """

    def __init__(self, keys: Keys, given: Mapping[str, Setting]) -> None:
        self._given = given
        self.until: dict[str, Until] = {
            name: until
            for name, until in keys.until.items()
            if name in given and not given[name].unknown and str(given[name].value) == until.value
        }
        """Each of these settings, with its value and the first release that refuses it."""

    def refused_by(self, version: str) -> dict[str, Until]:
        """Those of them that a release refuses."""
        return {name: until for name, until in self.until.items() if release_of(version) >= release_of(until.release)}

    def findings(self, title: str, version: str) -> list[Finding]:
        """What a release of the framework of this title says of values that it does not take any more."""
        return [
            Refused.planned(
                expected=f"settings of {title} {version}",
                observed=until.words,
                why=f"{self._given[name].place}: {title} {version} ends the run with this error at once",
                fix=f"take it out; --version names a release before {until.release}, which takes it",
            )
            for name, until in self.refused_by(version).items()
        ]
