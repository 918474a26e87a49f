"""The values of one launch by name: settings as they are declared, and quantities as their expressions give them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.settings import plain
from rlstep_hooks.launch.text import SettingError, UnknownValueError
from rlstep_hooks.planning import formula as language
from rlstep_hooks.planning.formula import FormulaError, NotKnownError, Unknown
from rlstep_hooks.systems.engine.launch_settings import CONFIGS
from rlstep_hooks.systems.engine.parts import REQUIRED
from rlstep_hooks.systems.engine.request import release_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlstep_hooks.planning.reading import Formula
    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.engine.request import Request

DERIVED = {
    "samples_per_rollout": "prompts_per_rollout * samples_per_prompt",
    "samples_per_update": "samples_per_rollout",
    "reuse_epochs": "1",
    "frozen_rollouts": "0",
    "updates": "floor(max(rollouts - frozen_rollouts, 0) * updates_per_rollout)",
}
"""Quantities that expressions may name although the declaration does not state them."""


class Quantities:
    """The values of one launch by name, computed when they are asked for."""

    def __init__(self, system: System, request: Request) -> None:
        self.system = system
        self.request = request
        self.functions: Mapping[str, Callable[..., Any]] = {**language.FUNCTIONS, **system.functions}
        self._known: dict[str, Any] = {}
        self._under_way: list[str] = []
        self.declared = {*system.let, *system.always, *(formula.quantity for formula in system.formulas)}

    def given(self, name: str) -> bool:
        """Whether the launch sets a setting."""
        return self.request.settings.is_given(*self.names(name))

    def __getitem__(self, name: str) -> Any:
        """The value of a setting or a quantity.

        Raises:
            NotKnownError: It cannot be known.
            FormulaError: There is none of that name, or it depends on itself.
        """
        value = self.value(name)
        if isinstance(value, Unknown):
            raise NotKnownError(value.reason)
        return value

    def said(self, name: str) -> Any:
        """The value of a quantity, `Unknown`, or None where the declaration says nothing of it."""
        return self.value(name) if name in self.declared else None

    def value(self, name: str) -> Any:
        """The value, or `Unknown`."""
        if self._under_way and self._under_way[-1] == name:
            return self._given_value(name)  # within its own formula a name means the value before it
        if name not in self._known:
            if name in self._under_way:
                raise FormulaError(f"{self.system.name}: {' -> '.join((*self._under_way, name))} depends on itself")
            self._under_way.append(name)
            try:
                self._known[name] = self._worked_out(name)
            finally:
                self._under_way.pop()
        return self._known[name]

    def _worked_out(self, name: str) -> Any:
        value = self._said(name)
        if isinstance(value, Unknown) or value is None:
            return value
        reasons = [each.says for each in self.system.depends if name in each.counts and self.holds(each.on)]
        return Unknown(f"{self.fill(reasons[0])}; at most {value}") if reasons else value

    def _said(self, name: str) -> Any:
        """What the declaration says of a quantity, or the launch of a setting."""
        if name in self.system.let:
            return self.evaluate(self.system.let[name])
        found = self.formula_of(name)
        if found is not None:
            return self.evaluate(found.text)
        if name in self.system.always:
            value = self.system.always[name]
            return self.fill(value) if isinstance(value, str) else value
        return None if name in self.declared else self._given_value(name)

    def formula_of(self, name: str) -> Formula | None:
        """The formula of a quantity whose condition holds."""
        formulas = (formula for formula in self.system.formulas if formula.quantity == name)
        return next((formula for formula in formulas if self.holds(formula.where)), None)

    def holds(self, condition: str) -> bool:
        """Whether a condition is known to be true; an empty one is."""
        value = self.evaluate(condition) if condition else True
        return not isinstance(value, Unknown) and bool(value)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, or `Unknown`.

        Raises:
            SettingError: A setting that it needs is not set.
            FormulaError: The expression is at fault.
        """
        try:
            return language.evaluate(expression, self)
        except FormulaError:
            for name in sorted(language.names_in(expression)):
                if name in self.system.settings and self._known.get(name, 0) is None:
                    settings, names = self.request.settings, self.names(name)
                    message = f"{settings.spelled(*names)} is not set, and the plan needs it"
                    raise SettingError(message, settings.place(*names)) from None
            raise

    def fill(self, template: str) -> str:
        """A text with its {expressions} replaced by their values."""
        return language.fill(template, self)

    # What is given.

    def _given_value(self, name: str) -> Any:
        if name in self.system.settings:
            return self._setting(name)
        if name == "rows":
            rows = self.request.rows(*self.system.rows_from)
            return Unknown(rows.source) if rows.count is None else rows.count
        if name == "world_size":
            return self.request.world_size(self._processes())
        program, parser = self.request.command.program, self.request.command.parser
        others: dict[str, Callable[[], Any]] = {
            "program": lambda: program.name,
            "program_kind": lambda: program.kind,
            "no_program": lambda: program.kind == "config" and program.name.endswith(CONFIGS),
            "reader": lambda: parser.program if program.kind == "config" and parser is not None else "",
            "version": lambda: self.request.version,
            "release": lambda: release_of(self.request.version),
            "launch": lambda: self.request,
        }
        if name in DERIVED:
            return self.evaluate(DERIVED[name])
        if name not in others:
            raise FormulaError(f"{self.system.name}: there is no setting or quantity {name!r}")
        return others[name]()

    def _processes(self) -> int | None:
        """The processes that the launch says; None where it says none, or where only the run knows them and the user gives them."""
        try:
            return self["processes"] if "processes" in self.declared else None
        except UnknownValueError:
            if self.request.world_size_given is None:
                raise
            return None

    def names(self, name: str) -> tuple[str, ...]:
        """The names under which a setting may be given: a script passes its flags on to calls, so a flag comes first."""
        settings, typed = self.request.settings, self.system.settings.get(name)
        names = []
        for each in (name, *(typed.also if typed is not None else ())):
            names.append(each)
            if self.system.keywords_of and not settings.is_given(each):
                called = (f"{callee}.{each}" for callee in self.system.keywords_of)
                names += [other for other in called if settings.is_given(other)]
        return tuple(names)

    def _setting(self, name: str) -> Any:
        typed, settings, names = self.system.settings[name], self.request.settings, self.names(name)
        default, needed = typed.default_in(self.request.version), typed.needed_in(self.request.version)
        if typed.kind == "count":
            read = settings.count if needed else settings.optional_count
            return read(*names, least=typed.least)
        if typed.kind == "number":
            return (settings.number if needed else settings.optional_number)(*names)
        if typed.kind == "flag" and default is None and settings.text(*names) is None:
            return None
        if typed.kind == "flag":
            return False if typed.off and settings.is_given(typed.off) else settings.flag(*names)
        written = settings.text(*names)
        return written if written is not None or not needed else default

    def settings_looked_at(self) -> list[str]:
        """The settings that the framework looks at in this launch."""
        return [name for name, typed in self.system.settings.items() if self.holds(typed.where)]

    def written(self) -> dict[str, Any]:
        """The settings behind the plan, as they were written, with the defaults that hold.

        One whose value only the run knows, and that no formula needed, is left out.
        """
        defaults = self.system.defaults(self.request.version)
        looked_at, shown = self.settings_looked_at(), self.system.shown
        if shown is None:
            shown = tuple(name for name, value in defaults.items() if value is not REQUIRED or name in self._known)
        found: dict[str, Any] = {}
        for name in shown:
            if name in looked_at or name not in self.system.settings:
                with suppress(UnknownValueError):
                    found[name] = self._written(name)
        return {name: value for name, value in found.items() if value is not None or self._null_is_shown(name)}

    def _written(self, name: str) -> Any:
        if name in self.system.resolved:
            return plain(self.evaluate(self.system.resolved[name]))
        if name in self.system.settings:
            return plain(self.request.settings.value(*self.names(name)))
        return plain(self.value(name))

    def _null_is_shown(self, name: str) -> bool:
        """Whether None is shown: as a default it is, but one that is only read where it is given is then left out."""
        typed = self.system.settings.get(name)
        return typed is None or typed.default_in(self.request.version) is None
