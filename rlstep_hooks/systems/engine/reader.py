"""A launch or a live configuration of a declared system -> Reading: the Schedule with its formulas, notes and facts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.command import Command, Program
from rlstep_hooks.launch.settings import Setting, Settings
from rlstep_hooks.launch.text import LaunchError, SettingError, UnknownValueError
from rlstep_hooks.planning import formula as language
from rlstep_hooks.planning.explained import shown
from rlstep_hooks.planning.formula import Unknown
from rlstep_hooks.planning.reading import Formula, Note, Reading
from rlstep_hooks.planning.refusal import PlanError, refuse
from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.planning.shape import shaped
from rlstep_hooks.systems.engine.entry import named
from rlstep_hooks.systems.engine.parts import REQUIRED, Check, Demand
from rlstep_hooks.systems.engine.quantities import Quantities
from rlstep_hooks.systems.engine.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.systems.engine.declaration import System


def read(system: System, request: Request) -> Reading:
    """The Schedule that a launch means.

    Raises:
        SettingError: A setting has a value that it cannot have, or one that the plan needs is missing.
        UnknownValueError: A setting that the plan needs cannot be known.
        PlanError: The framework itself would end the run with an error.
    """
    other = system.instead(request) if system.instead is not None else None
    if other is not None:
        request.settings.add_defaults(other.defaults(request.version))
        return read(other, request)
    notes: tuple[Note, ...] = ()
    if system.reads_as is not None:
        version, notes = system.reads_as(request)
        request.settings.add_defaults(system.defaults(version))
        request = msgspec.structs.replace(request, version=version)
    if system.given_of is not None:
        request = msgspec.structs.replace(request, settings=request.settings.over(system.given_of(request)))
    reading = _read_settings(system, request)
    return msgspec.structs.replace(reading, notes=(*notes, *reading.notes))


def _read_settings(system: System, request: Request, *, checked: bool = False) -> Reading:
    """The Schedule of a launch whose settings have the names that are declared."""
    if system.defaults_of is not None:
        request.settings.add_defaults(system.defaults_of(request))
    launch = Quantities(system, request)
    if system.plan:
        reading: Reading = named(system.plan)(launch)
        if system.framework:  # a fork that is planned by the formulas of what it forked
            reading = msgspec.structs.replace(
                reading, schedule=msgspec.structs.replace(reading.schedule, framework=system.framework)
            )
        return reading
    try:
        return _read(system, launch, checks=() if checked else system.checks)
    except PlanError:
        request.settings.is_given(*system.rows_from)
        for name in launch.settings_looked_at():
            launch.given(name)  # a setting that the framework reads is not unused, even if the launch is refused before
        raise


def read_config(
    system: System,
    config: Mapping[str, Any],
    *,
    version: str = "",
    program: str = "",
    rows: int | None = None,
    rows_unknown: str = "",
    world_size: int | None = None,
    checked: bool = False,
) -> Reading:
    """The Schedule of a live configuration.

    Args:
        system: The system whose configuration is read.
        config: The configuration, nested or flat, by the names of the settings.
        version: The release; the one that was read, if left out.
        program: Name of the program that would have such a configuration, where the formulas ask for it.
        rows: Rows of the training set; None if not known.
        rows_unknown: Why they are not known.
        world_size: Data-parallel processes, where the configuration does not say.
        checked: Whether the framework itself has checked the configuration, so that its checks are not repeated.

    Raises:
        As `read` does.
    """
    version = version or system.version
    given = {name: Setting(name, value) for name, value in _flat(config)}
    request = Request(
        settings=Settings(given, system.defaults(version)),
        version=version,
        command=Command(Program("config", program or system.name), ()),
        rows_given=rows,
        rows_unknown=rows_unknown,
        world_size_given=world_size,
    )
    return _read_settings(system, request, checked=checked)


def live_settings(system: System, config: Any) -> dict[str, Any]:
    """The settings of a live configuration, an object that has each under its dotted name; those that are None are left out."""
    given = {name: _attribute(config, name) for name in system.settings}
    return {name: value for name, value in given.items() if value is not None}


def _attribute(config: Any, name: str) -> Any:
    """The value under a dotted name; None where the configuration has none."""
    for part in name.split("."):
        config = getattr(config, part, None)
    return config


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a nested configuration under their dotted names."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _read(system: System, launch: Quantities, checks: tuple[Check | Demand, ...]) -> Reading:
    for name in launch.settings_looked_at():
        if system.settings[name].default is REQUIRED:
            launch.value(name)
        elif launch.given(name):
            with suppress(UnknownValueError):  # whether the plan needs it is seen later, as for one that is null
                if launch.request.settings.text(*launch.names(name)) is not None:
                    launch.value(name)
    for check in checks:
        _apply(check, launch)
    formulas = tuple(_explained(system, launch))
    schedule = shaped(
        launch.said,
        framework=system.framework or launch.said("framework") or system.title,
        version=launch.request.version,
        rows=launch.value("rows"),
        world_size=launch.value("world_size"),
        settings=launch.written(),
        sources={formula.quantity: formula.source for formula in formulas},
        declared=launch.declared,
    )
    facts: dict[str, Any] = {}
    for name, expression in system.facts.items():
        with suppress(UnknownValueError):  # no count of the plan depends on when a run saves or evaluates
            facts[name] = launch.evaluate(expression)
    return Reading(
        schedule=schedule,
        formulas=formulas,
        notes=tuple(Note(note.kind, launch.fill(note.text)) for note in system.notes if launch.holds(note.when)),
        facts={name: value for name, value in facts.items() if value is not None and not isinstance(value, Unknown)},
    )


def _apply(check: Check | Demand, launch: Quantities) -> None:
    """Refuse what the framework refuses. A check that cannot be evaluated refuses nothing."""
    if not launch.holds(check.where) or launch.evaluate(check.holds):
        return
    if isinstance(check, Demand) and check.about in ("", "program"):
        raise LaunchError(launch.fill(check.says), launch.request.command.place if check.about else None)
    if isinstance(check, Demand):
        raise SettingError(launch.fill(check.says), launch.request.settings.place(*launch.names(check.about)))
    refuse(
        launch.fill(check.says),
        when=launch.fill(check.when),
        fix=with_values(launch.fill(check.fix)),
        source=launch.fill(check.source),
    )


def with_values(fix: str) -> str:
    """A fix without the alternatives for which there is no value nearby ("a = , or b = 4")."""
    alternatives = fix.split(", or ")
    left = [each for each in alternatives if not each.rstrip().endswith("=")]
    if not left:
        return "no value nearby fits: change " + " or ".join(each.rstrip(" =") for each in alternatives)
    return ", or ".join(left)


def _explained(system: System, launch: Quantities) -> list[Formula]:
    """The formulas that were used for fields of the Schedule, as they ran, with their values."""
    fields = Schedule.__struct_fields__
    steps = {name: step for name, step in system.let.items() if name.removeprefix("critic.") not in fields}
    for formula in system.formulas:
        if formula.quantity.rpartition(".")[2] not in fields:
            steps[formula.quantity] = (launch.formula_of(formula.quantity) or formula).text
    # A Python function of the whole launch is shown by its name. Nearly no step has the word, and finding its names parses it.
    steps = {
        name: step for name, step in steps.items() if "launch" not in step or "launch" not in language.names_in(step)
    }
    with_critic = bool(launch.said("critic"))
    found = []
    for formula in system.formulas:
        if formula.quantity in steps or (formula.quantity.startswith("critic.") and not with_critic):
            continue
        if launch.formula_of(formula.quantity) is formula and launch.value(formula.quantity) is not None:
            text, inputs = shown(formula.text, launch, steps)
            found.append(Formula(formula.quantity, text, launch.fill(formula.source), inputs=inputs))
    return found
