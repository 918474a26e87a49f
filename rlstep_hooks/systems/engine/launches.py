"""A launch as the user gives it -> Plan: find the command, recognise the system, gather the settings, and plan with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.changed_files import ask_about, texts_of
from rlstep_hooks.launch.files import edited
from rlstep_hooks.launch.settings import Setting, Settings
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.counting import TooManyError
from rlstep_hooks.planning.formula import FormulaError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.planning.reading import Note, Reading
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.checked import looked_at
from rlstep_hooks.systems.engine.entry import named
from rlstep_hooks.systems.engine.keys import key_list
from rlstep_hooks.systems.engine.launch import refuse_missing
from rlstep_hooks.systems.engine.launch_search import differing_rounds, find_launch, one_run
from rlstep_hooks.systems.engine.observed_live import not_observed
from rlstep_hooks.systems.engine.partial import ask_for_processes, one_process, what_is_meant
from rlstep_hooks.systems.engine.pins import pinned_releases
from rlstep_hooks.systems.engine.program_beside import program_beside
from rlstep_hooks.systems.engine.reader import read
from rlstep_hooks.systems.engine.release import (
    accepted_by_others,
    release_for,
    release_installed,
)
from rlstep_hooks.systems.engine.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlstep_hooks.launch.rows import RowCount
    from rlstep_hooks.systems.engine.declaration import Beside, Keys, System
    from rlstep_hooks.systems.engine.launch import Launch
    from rlstep_hooks.systems.engine.planned_release import Pinned, Release

_HYDRA = ("config_name", "config_path", "config_dir", "cn", "cp")
"""Flags of Hydra that say where the configuration is."""
_MOST_RUNS = 64
"""Further runs of one command that are planned to see whether they mean the same."""


def plan_launch(words: list[str], options: Options | None = None) -> Plan:
    """The plan of a launch command, a script, a configuration file or a Python file.

    Args:
        words: The command's words, or one path.
        options: What completes or overrides it.

    Raises:
        LaunchError: It cannot be read; the message says where and why.
        OSError: A file cannot be read.
    """
    options = options or Options()
    launch = find_launch(words, options)
    return plan_of(launch, options)


def plan_of(launch: Launch, options: Options) -> Plan:
    """The plan of a recognised launch, which stands for all its runs where a loop makes several.

    Raises:
        LaunchError: A setting is missing, unknown or impossible, or the runs of a loop have different schedules.
    """
    with edited(texts_of(launch.command.changed)):
        plan = _plan_of_run(launch, options)
    if not launch.rounds:
        return plan
    if len(launch.rounds) > _MOST_RUNS:
        raise differing_rounds(launch)
    if any(_meaning(_plan_of_run(each, options)) != _meaning(plan) for each in launch.rounds):
        raise differing_rounds(launch)
    rows = ", each with as many rows as --rows says" if options.rows is not None else ""
    text = f"the command runs {len(launch.rounds) + 1} times{rows}; each of these runs has this schedule"
    return msgspec.structs.replace(plan, notes=(Note("assumes", text), *plan.notes))


def _meaning(plan: Plan) -> tuple[str, ...]:
    """What must be the same in two plans for one to stand for both: what happens, and what is said about it."""
    schedules = [each for each in (plan.schedule, plan.meant) if each is not None]
    return (
        *(str(msgspec.structs.replace(each, version="", sources={}, settings={})) for each in schedules),
        *(f"{found.code} {found.severity} {found.observed}" for found in plan.findings),
    )


def _plan_of_run(launch: Launch, options: Options) -> Plan:
    """The plan of one run."""
    from rlstep_hooks.judge.rules.plan_checks import check_plan, refused

    system = index.system_of(launch.framework)
    launch, release = _with_release(system, launch, options)
    names = launch.given.keys()
    system, release, launch = _with_checkout(system, launch, release, options)
    read = (each.place.source for each in launch.given.values())
    ask_about(launch.command.changed, read, launch.folder, launch.command.folder)
    request = request_of(launch, system, release.version, options)
    settings = request.settings
    plan = Plan(
        framework=system.name,
        title=system.title,
        version=release.version,
        source=launch.source,
        schedule=None,
        foreign=release.foreign,
        notes=(*launch.notes, *release.notes, *not_observed(system, request)),
    )
    others = _other_calls(launch.given.values(), system)
    try:
        reading = _read(system, request)
    except PlanError as refusal:
        ask_for_processes(system, request, refusal, _read)
        finding = refused(refusal, system.title, fork=bool(release.foreign))
        plan = msgspec.structs.replace(plan, findings=(*release.findings, finding))
        if options.version is None:
            said = accepted_by_others(system, lambda each: _read(system, request_of(launch, system, each, options)))
            plan = msgspec.structs.replace(plan, notes=(*plan.notes, *said))
        if (meant := what_is_meant(system, request, _read)) is not None:
            plan = msgspec.structs.replace(
                plan,
                meant=meant.schedule,
                formulas=meant.formulas,
                notes=(*plan.notes, *meant.notes),
            )
    else:
        misspelt = _misspelt(settings, (*release.refused, *release.foreign, *others), known_by=system.keys)
        plan = msgspec.structs.replace(
            plan,
            schedule=reading.schedule,
            formulas=reading.formulas,
            notes=(
                *plan.notes,
                *one_process(system, request, _read),
                *reading.notes,
                *_assumed(settings),
                *misspelt,
            ),
            findings=(*release.findings, *check_plan(reading)),
        )
    elsewhere = {*release.refused, *others, *(_HYDRA if system.overrides else ())}
    unused = tuple(setting for setting in settings.unused if setting.name in names and setting.name not in elsewhere)
    return msgspec.structs.replace(plan, unused=unused, no_effect=tuple(looked_at(system.keys, unused)))


def planned_again(launch: Launch, plan: Plan, options: Options) -> Plan:
    """The plan of a launch of which only values of settings were changed: what the names mean stays as it was found.

    Args:
        launch: The changed launch.
        plan: The plan of the launch before.
        options: What completes it.

    Raises:
        PlanError: The framework itself refuses it.
        LaunchError: A setting is missing, unknown or impossible.
    """
    from rlstep_hooks.judge.rules.plan_checks import check_plan

    system = index.system_of(launch.framework)
    release = release_for(system, launch.command, launch.given, plan.version, keywords=launch.keywords)
    system, release, launch = _with_checkout(system, launch, release, options)
    reading = _read(system, request_of(launch, system, release.version, options))
    return msgspec.structs.replace(
        plan,
        schedule=reading.schedule,
        meant=None,
        formulas=reading.formulas,
        notes=reading.notes,
        findings=(*release.findings, *check_plan(reading)),
    )


def _other_calls(given: Iterable[Setting], system: System) -> set[str]:
    """Keywords of calls in a Python file that configure something else, such as `add_argument(help=...)`; they are not reported as
    unused."""
    own = {call for entry in index.entries_of(system.name) for call in entry.calls} | set(system.keywords_of)
    calls = (setting for setting in given if setting.place.source.endswith(".py") and "." in setting.name)
    return {setting.name for setting in calls if setting.name.partition(".")[0] not in own}


def _assumed(settings: Settings) -> list[Note]:
    return [Note("assumes", assumption) for assumption in settings.assumed]


def _misspelt(settings: Settings, refused: tuple[str, ...], *, known_by: Keys | None) -> list[Note]:
    """Notes on unused settings that resemble one that the plan reads, except settings that the framework has or is said to refuse."""
    known = key_list(known_by.file) if known_by is not None else None
    return [
        Note("ignores", f"{setting} at {setting.place} is not read; did you mean {other}?")
        for setting, other in settings.look_alikes()
        if setting.name not in refused and (known is None or not known.ever(setting.name))
    ]


def reading_of(words: list[str], options: Options | None = None) -> Reading:
    """The bare reading of a launch, without findings."""
    options = options or Options()
    launch = one_run(find_launch(words, options))
    system = index.system_of(launch.framework)
    launch, release = _with_release(system, launch, options)
    system, release, launch = _with_checkout(system, launch, release, options)
    return _read(system, request_of(launch, system, release.version, options))


def _release(system: System, launch: Launch, options: Options) -> Release:
    """The release that a launch is planned for: the one that the user names, that is installed here, that the checkout pins, or the
    newest that accepts its settings.

    Raises:
        LaunchError: The checkout pins what is not known, or releases that plan the launch differently.
    """
    release = release_for(system, launch.command, launch.given, options.version, keywords=launch.keywords)
    if options.version is not None:
        return release
    if options.here:
        if release.foreign:
            return release
        return release_installed(system, launch.command, launch.given, release, keywords=launch.keywords)
    pinned = pinned_releases(system, launch.command, launch.given, launch.folder, Path(launch.source), launch.keywords)
    if not pinned:
        return release
    found = [
        release_for(system, launch.command, launch.given, None, pinned=each, keywords=launch.keywords)
        for each in pinned
    ]
    if len(found) > 1:
        _ask_between(system, launch, options, pinned)
    return found[-1]


def _with_release(system: System, launch: Launch, options: Options) -> tuple[Launch, Release]:
    """A launch and the release that it is planned for, where a configuration beside it may have settings that no release has.

    Of a configuration that is here only in part, the parts that are here say so.

    Raises:
        LaunchError: The checkout pins what is not known, or releases that plan the launch differently.
    """
    release = _release(system, launch, options)
    if not (release.foreign and system.overrides) or options.version is not None or options.here:
        return launch, release
    from rlstep_hooks.systems.engine.own_configuration import taken_in_part

    part = taken_in_part(launch.command, launch.folder, launch.given)
    known = part.settings.keys() & set(release.foreign) if part is not None else set()
    if part is None or not known:
        return launch, release
    others = {name: setting for name, setting in launch.given.items() if name not in known}
    noted = msgspec.structs.replace(launch, notes=(*launch.notes, Note("assumes", part.said())))
    return noted, _release(system, msgspec.structs.replace(launch, given=others), options)


def _ask_between(system: System, launch: Launch, options: Options, pinned: Sequence[Pinned]) -> None:
    """Ask which release it is, where the checkout allows several and they plan the launch differently.

    Raises:
        LaunchError: They do.
    """
    planned = {}
    for each in pinned:
        try:
            schedule = _read(system, request_of(launch, system, each.version, options)).schedule
        except PlanError as refusal:
            planned[each.version] = str(refusal)
        else:
            planned[each.version] = str(msgspec.structs.replace(schedule, version="", sources={}, settings={}))
    if len(set(planned.values())) > 1:
        raise LaunchError(
            f"{pinned[0].note.text.partition(';')[0]}; {system.title} {' and '.join(planned)} plan this launch differently",
            remedy="--version names one of them",
        )


def _refuse_at_once(system: System, launch: Launch) -> None:
    """Say what the configuration of the checkout refuses, before its trainer is asked about: with that no trainer is ever made.

    Raises:
        LaunchError: It refuses a setting of the launch.
    """
    if system.overrides:
        from rlstep_hooks.systems.engine.refused_by_checkout import refuse_at_once

        refuse_at_once(launch.command, launch.folder, launch.given)


def _with_checkout(
    system: System, launch: Launch, release: Release, options: Options
) -> tuple[System, Release, Launch]:
    """The declaration, the release and the launch as the source beside it has them; as they are where the user names the release.

    Raises:
        LaunchError: That source has lines that may decide the plan, and that are not known.
    """
    if options.version is not None or options.here or options.framework is not None:
        return system, release, launch
    found: Beside | None = None
    if system.checkout:
        try:
            found = named(system.checkout)(system, launch.command, launch.folder, launch.given)
        except LaunchError:
            _refuse_at_once(system, launch)
            raise
    read = found is not None and bool(found.settings)
    program = program_beside(launch.command, launch.folder) if system.overrides and not read else None
    if found is None and program is None:
        return system, release, launch
    # Only where something lies beside the launch: what reads the files of Hydra takes 10 ms to load.
    from rlstep_hooks.systems.engine.launch_beside import as_beside

    return as_beside(system, launch, release, found, program)


def request_of(launch: Launch, system: System, version: str, options: Options) -> Request:
    """A launch as its system gets it.

    Raises:
        LaunchError: A file that decides the plan is not here, or a Python file hides settings.
    """
    refuse_missing(launch.missing)
    if launch.hidden is not None:
        raise LaunchError(launch.hidden.why, launch.hidden.place, remedy="write the settings in the call")
    defaults = system.defaults(version)
    settings = Settings(launch.given, defaults, functions=system.resolvers, environment=launch.environment)
    return Request(
        settings=settings,
        version=version,
        command=launch.command,
        folder=launch.folder,
        rows_given=options.rows,
        world_size_given=options.world_size,
        rows_written=_written(system, launch),
    )


def _written(system: System, launch: Launch) -> RowCount | None:
    """The rows that another command of the script writes, for a framework that has such a program."""
    if system.rows_written is None:
        return None
    from rlstep_hooks.systems.engine.written_rows import written_rows

    return written_rows(system, launch)


def _read(system: System, request: Request) -> Reading:
    """What a system makes of a launch; a plan too long to list is a `LaunchError` too."""
    try:
        return read(system, request)
    except TooManyError as error:
        raise LaunchError(str(error)) from None
    except FormulaError as error:
        raise LaunchError(f"the declaration of {system.title} is at fault: {error}") from error
