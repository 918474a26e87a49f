"""`assert_schedule`: lets a repository's tests state what its configurations mean, without training."""

from __future__ import annotations

import os
import textwrap
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.systems.engine.live_plan import plan
from rlstep_hooks.testing.names import unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rlstep_hooks.planning.launched import Options, Plan

WIDTH = 100
"""Columns of the table in an AssertionError."""

_GIVEN = ("framework", "version", "world_size", "rows")
"""Quantities that the caller supplies, so that there is nothing to compare."""
QUANTITIES = tuple(
    name
    for name in Schedule.__struct_fields__
    if name not in (*_GIVEN, "settings", "sources", "not_evaluated", "step_means")
)
"""Fields of Schedule that can be asserted."""


class Mismatch(msgspec.Struct, frozen=True):
    """One quantity whose planned value is not the expected one."""

    quantity: str
    expected: str
    planned: str
    because: tuple[str, ...] = ()
    """Where the planned value comes from (formula, settings, source), or why it is unknown."""


def assert_schedule(
    config: Any,
    *,
    rows: int | None = None,
    world_size: int | None = None,
    framework: str | None = None,
    version: str | None = None,
    line: int | None = None,
    variables: Mapping[str, str] | None = None,
    **quantities: Any,
) -> Schedule:
    """Assert what a configuration means: `assert_schedule("train.sh", rows=8532, updates_per_rollout=4)`.

    A text or a path is read as `rlstep plan` reads it; nothing is run and no framework is imported. The assertion also fails if the
    plan has an error, even without quantities.

    Args:
        config: A launch command (a text or a list of words); the path of a script, a YAML, TOML or Python file; or a live configuration
            or trainer, as for `rlstep_hooks.plan`.
        rows: Rows of the training set, if the configuration does not say.
        world_size: Data-parallel processes, if the configuration does not say.
        framework: For a launch: the framework, if the command does not show it.
        version: For a launch: the framework's release.
        line: For a script with several commands: the line of the command to read.
        variables: For a script: values of its variables (`--set`).
        quantities: Fields of `Schedule` with their expected values: numbers, texts, tuples; a fraction as `Fraction` or as text
            ("1/2"). `critic` takes a dict of the critic's quantities, or None.

    Returns:
        The plan's schedule, for further assertions.

    Raises:
        AssertionError: A quantity has another value or is unknown before the run, or the plan has an error.
        TypeError: A quantity does not exist, its value has a wrong type, or no system knows the configuration.
        LaunchError: The launch cannot be read; the message says where and why (`rlstep_hooks.launch.text`).
        OSError: A file cannot be read.
    """
    __tracebackhide__ = True  # makes pytest show the test's line
    _check_names(quantities)
    made = _planned(config, rows, world_size, framework, version, line, variables)
    errors = [str(finding) for finding in made.findings if finding.severity == "error"]
    if made.schedule is None:
        raise AssertionError("\n".join(errors))
    found = deviations(made, quantities)
    if found or errors:
        raise AssertionError("\n\n".join([*([_table(made, found)] if found else []), *errors]))
    return made.schedule


def deviations(made: Plan, quantities: Mapping[str, Any]) -> list[Mismatch]:
    """The quantities whose planned values are not the expected ones.

    Raises:
        TypeError: A value has the wrong type for its quantity.
    """
    assert made.schedule is not None
    return _deviations(made, made.schedule, quantities, "")


def _deviations(made: Plan, schedule: Schedule, quantities: Mapping[str, Any], prefix: str) -> list[Mismatch]:
    found = []
    for name, value in quantities.items():
        if name == "critic":
            found += _critic_deviations(made, schedule.critic, value)
            continue
        planned = getattr(schedule, name)
        expected = _comparable(name, value)
        if planned != expected:
            reasons = _because(made, schedule, name, prefix)
            found.append(Mismatch(prefix + name, _text(expected), _text(planned), reasons))
    return found


def _critic_deviations(made: Plan, critic: Schedule | None, expected: Any) -> list[Mismatch]:
    if expected is not None and critic is not None:
        return _deviations(made, critic, expected, "critic.")
    if expected is None and critic is None:
        return []
    one, none = "a critic", "no critic"
    return [Mismatch("critic", none if expected is None else one, none if critic is None else one)]


def _because(made: Plan, schedule: Schedule, quantity: str, prefix: str) -> tuple[str, ...]:
    """Where a planned value comes from, as far as the plan says, or why it is unknown."""
    from rlstep_hooks.planning.comparison import settings_behind

    if getattr(schedule, quantity) is None:
        return (schedule.not_evaluated.get(quantity, "it cannot be known before the run"),)
    formula = next((formula for formula in made.formulas if formula.quantity == prefix + quantity), None)
    if formula is None:
        return tuple(filter(None, [schedule.sources.get(quantity, "")]))
    assert made.schedule is not None  # which alone shows settings: those of both roles
    settings = _settings_text(made.schedule, settings_behind(made, prefix + quantity))
    return tuple(filter(None, [formula.text, settings, formula.source]))


def _check_names(quantities: Mapping[str, Any]) -> None:
    for name, value in quantities.items():
        if name not in QUANTITIES:
            raise TypeError(unknown_name("there is no quantity", name, QUANTITIES))
        if name == "critic" and value is not None:
            if not isinstance(value, dict):
                raise TypeError(f"critic is a dict of quantities or None, not {value!r}")
            _check_names(value)
        elif isinstance(value, float):
            raise TypeError(f'{name}: whole numbers and fractions are compared exactly; write "1/2" or Fraction(1, 2)')


_FRACTIONS = [field.name for field in msgspec.structs.fields(Schedule) if field.type in (Fraction, Fraction | None)]


def _comparable(name: str, value: Any) -> Any:
    """An expected value in the form that Schedule has it."""
    if name in _FRACTIONS and isinstance(value, str):
        try:
            return Fraction(value)
        except (ValueError, ZeroDivisionError):
            raise TypeError(f"{name} is a number or a fraction such as '1/2', not {value!r}") from None
    return tuple(value) if isinstance(value, list) else value


def _planned(
    config: Any,
    rows: int | None,
    world_size: int | None,
    framework: str | None,
    version: str | None,
    line: int | None,
    variables: Mapping[str, str] | None,
) -> Plan:
    from rlstep_hooks.planning.launched import Options
    from rlstep_hooks.systems.engine.launches import plan_launch

    options = Options(
        framework=framework,
        version=version,
        rows=rows,
        world_size=world_size,
        line=line,
        variables=dict(variables or {}),
    )
    words = _words(config)
    if words is not None:
        return plan_launch(words, options)
    if framework or version or line or variables:
        raise TypeError("framework, version, line and variables are for launches; a live configuration has them itself")
    return _plan_of_live(config, options)


def _words(config: Any) -> list[str] | None:
    """A launch as words; None for other configurations."""
    if isinstance(config, str | os.PathLike):
        return [os.fspath(config)]
    if isinstance(config, list | tuple) and all(isinstance(word, str) for word in config):
        return list(config)
    return None


def _plan_of_live(config: Any, options: Options) -> Plan:
    """The plan of a live configuration, with the findings that a launch would have."""
    from rlstep_hooks.judge.rules.plan_checks import check_plan, refused
    from rlstep_hooks.planning.launched import Plan, plan_of
    from rlstep_hooks.planning.reading import Reading

    source = "the live configuration"
    try:
        schedule = plan(config, rows=options.rows, world_size=options.world_size)
    except PlanError as refusal:
        finding = refused(refusal, "the framework")
        return Plan(framework="", title="", version="", source=source, schedule=None, findings=(finding,))
    return plan_of(schedule, source, tuple(check_plan(Reading(schedule=schedule))))


def _table(made: Plan, found: Sequence[Mismatch]) -> str:
    """Expected and planned values, with their reasons below them; the settings at the end if no formula names any."""
    assert made.schedule is not None
    head = f"{made.schedule.framework} {made.schedule.version}, from {made.source}, is not planned as expected"
    rows = [Mismatch("", "expected", "planned"), *found]
    first, second, third = (
        max(len(text) for text in texts)
        for texts in zip(*((row.quantity, row.expected, row.planned) for row in rows), strict=True)
    )
    lines = [head, ""]
    for row in rows:
        lines.append(f"  {row.quantity:<{first}}  {row.expected:>{second}}  {row.planned:>{third}}")
        for reason in row.because:
            lines += textwrap.wrap(reason, WIDTH, initial_indent="      ", subsequent_indent="        ")
    if not made.formulas:
        settings = "settings: " + _settings_text(made.schedule, made.schedule.settings)
        lines += ["", *textwrap.wrap(settings, WIDTH, initial_indent="  ", subsequent_indent="    ")]
    return "\n".join(lines)


def _settings_text(schedule: Schedule, names: Iterable[str]) -> str:
    return ", ".join(f"{name} = {schedule.settings[name]}" for name in names)


def _text(value: Any) -> str:
    """A value as it could be written in the call."""
    if value is None:
        return "not known"
    return str(value) if isinstance(value, Fraction | int) else repr(value)
