"""What the checkout beside a launch refuses itself: keys that its configuration has not, or has already, and its own words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.rules.plan.configuration import Refused
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine.own_configuration import added_twice, configuration_beside, not_in

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.systems.engine.planned_release import Release

_REMEDY = "take it out, or add it with + where the code reads it"


def refused_in_checkout(
    release: Release, own: Mapping[str, Setting], command: Command, given: Mapping[str, Setting]
) -> Release:
    """The release, with what Hydra refuses because the configuration of the checkout does not have it.

    Args:
        release: The release that the launch is planned for; what it says of the names stays.
        own: All settings of the configuration that the program beside the launch reads.
        command: The command.
        given: What the launch sets.
    """
    missing = [setting for setting in not_in(own, command, given) if setting.name not in release.refused]
    findings = [_refused_at_once(setting, _words(setting), _REMEDY) for setting in missing]
    refused = (*release.refused, *(setting.name for setting in missing))
    return msgspec.structs.replace(release, findings=(*findings, *release.findings), refused=refused)


def refuse_at_once(command: Command, folder: Path, given: Mapping[str, Setting]) -> None:
    """Refuse a launch whose trainer is not known with a setting that the configuration beside it does not have.

    Args:
        command: The command.
        folder: The folder that the launch lies in.
        given: What the launch sets.

    Raises:
        LaunchError: There is such a setting.
    """
    own = configuration_beside(command, folder, given)
    missing = not_in(own, command, given) if own else []
    if missing:
        said = f"the checkout that the launch lies in ends the run with this error at once: {_words(missing[0])}"
        raise LaunchError(said, missing[0].place, remedy=_REMEDY)


def _words(setting: Setting) -> str:
    return f"Could not override '{setting.written}'. To append to your config use +{setting.written}=..."


def refused_as_added_twice(
    release: Release, own: Mapping[str, Setting], command: Command, given: Mapping[str, Setting]
) -> Release:
    """The release, with what Hydra refuses to add because the configuration of the checkout has it already.

    Args:
        release: The release that the launch is planned for; what it says of the names stays.
        own: All settings of the configuration that the program beside the launch reads.
        command: The command.
        given: What the launch sets.
    """
    findings = [
        _refused_at_once(
            setting, f"Could not append to config. An item is already at '{setting.written}'.", "take the + out"
        )
        for setting in added_twice(own, command, given)
    ]
    return msgspec.structs.replace(release, findings=(*findings, *release.findings))


def refused_by_source(release: Release, given: Mapping[str, Setting], words: Mapping[str, str]) -> Release:
    """The release, with what the source of the checkout refuses in its own words.

    Args:
        release: The release that the launch is planned for.
        given: What the launch sets.
        words: The settings that are refused, with the words.
    """
    findings = [_refused_at_once(given[name], said, "take it out") for name, said in words.items()]
    return msgspec.structs.replace(release, findings=(*findings, *release.findings), refused=(*release.refused, *words))


def _refused_at_once(setting: Setting, words: str, fix: str) -> Finding:
    return Refused.planned(
        expected="settings of the configuration in the checkout",
        observed=words,
        why=f"{setting.place}: the checkout that the launch lies in ends the run with this error at once",
        fix=fix,
    )
