"""Settings as written, over a framework's defaults. Typed reads raise errors that name the place."""

from __future__ import annotations

import math
import re
from difflib import get_close_matches
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import NOWHERE, Place, SettingError, UnknownText, UnknownValueError
from rlstep_hooks.launch.values import primitive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rlstep_hooks.launch.interpolation import Interpolation


class Setting(msgspec.Struct, frozen=True):
    """One setting of a launch."""

    name: str
    """The name of the setting in one spelling: dots between parts, underscores inside them."""
    value: Any
    """A string from a flag; a typed value from Hydra, YAML, TOML or Python."""
    place: Place = NOWHERE
    written: str = ""
    """The name as the user wrote it, for example "--rollout-batch-size"."""
    unknown: tuple[UnknownText, ...] = ()
    deleted: bool = False
    """Whether the user removed the setting (`~key`)."""
    added: bool = False
    """Whether Hydra adds the setting if it does not exist (`+key=value`, `++key=value`)."""

    def __str__(self) -> str:
        return self.written or self.name


class _Missing:
    def __repr__(self) -> str:
        return "missing"


MISSING: Any = _Missing()
"""The default of a setting that the framework requires."""

_REFERENCE = re.compile(r"\$\{(\.*)(\w+(?:\.\w+)*)\}")
_NAMES = re.compile(r"\w+(?:\.\w+)*")
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NOTHING = ("none", "null", "")


def _absolute(name: str, dots: str, path: str) -> str:
    """The setting that a reference names: a leading dot stands for the setting's own section, each further dot for one above."""
    if not dots:
        return path
    sections = name.split(".")[: -len(dots)]
    return ".".join((*sections, path))


class Settings:
    """The settings of a launch over the framework's defaults.

    Reading a setting marks it as used; `unused` then names the settings that the plan did not read.
    """

    def __init__(
        self,
        given: Mapping[str, Setting],
        defaults: Mapping[str, Any],
        *,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Take the settings.

        Args:
            given: What the launch sets.
            defaults: What holds without it.
            functions: What the framework registers as resolvers of OmegaConf.
            environment: Variables that the launch sets, for `${oc.env:NAME}`.
        """
        self._given = dict(given)
        self._defaults = defaults
        self._read: set[str] = set()
        self._functions = functions or {}
        self._environment = environment or {}
        self._interpolation: Interpolation | None = None

    def add_defaults(self, more: Mapping[str, Any]) -> None:
        """Add defaults that depend on the launch; they override the framework's."""
        self._defaults = {**self._defaults, **more}
        self._interpolation = None

    def over(self, given: Mapping[str, Setting]) -> Settings:
        """Other settings over the same defaults."""
        return Settings(given, self._defaults)

    # Look-up.

    def given(self, *names: str) -> Setting | None:
        """The setting that the user wrote under one of these names; None if there is none.

        Raises:
            SettingError: Two of the names have different values.
            UnknownValueError: Its value is known only during the run.
        """
        self._read.update(names)
        found = [self._given[name] for name in names if name in self._given and not self._given[name].deleted]
        found = [setting for setting in found if setting.value is not None] or found
        # Beside another name, 0 is filled in by the program (CleanRL's `num_envs: int = 0` beside `local_num_envs`).
        found = [
            setting for setting in found if setting.unknown or setting.value is False or setting.value != 0
        ] or found
        if len(found) > 1 and any(other.value != found[0].value for other in found[1:]):
            pair = " and ".join(f"{setting} = {setting.value}" for setting in found[:2])
            raise SettingError(f"{pair} contradict each other: they are two names of one setting", found[1].place)
        if not found:
            return None
        if found[0].unknown:
            raise UnknownValueError(str(found[0]), found[0].unknown[0])
        return found[0]

    @property
    def launched(self) -> Mapping[str, Setting]:
        """What the launch sets, by the names of the settings; looking here marks nothing as used."""
        return self._given

    def is_given(self, *names: str) -> bool:
        """Whether the user wrote the setting under one of its names, whether its value is known or not."""
        self._read.update(names)
        return any(name in self._given and not self._given[name].deleted for name in names)

    def has_section(self, name: str) -> bool:
        """Whether the launch sets anything in a section."""
        return any(given == name or given.startswith(f"{name}.") for given in self._given)

    def section(self, name: str) -> dict[str, Any]:
        """What the launch sets in a section, by the names below it."""
        return {below: self.value(f"{name}.{below}") for below in self.section_names(name)}

    def section_names(self, name: str) -> list[str]:
        """The names below a section that the launch sets, whether their values are known or not."""
        return [given.removeprefix(f"{name}.") for given in self._given if given.startswith(f"{name}.")]

    def value(self, *names: str) -> Any:
        """The value, or the default of the first name; None if there is neither.

        Raises:
            SettingError: The framework requires the setting and it is missing.
        """
        return self._resolved(names, frozenset())

    def _resolved(self, names: tuple[str, ...], seen: frozenset[str]) -> Any:
        setting = self.given(*names)
        value = setting.value if setting is not None else self._defaults.get(names[0])
        if value is MISSING or value == "???":
            raise SettingError(f"{names[0]} is missing; the framework requires it")
        if not isinstance(value, str) or "${" not in value:
            return value
        place = setting.place if setting else None
        reference = _REFERENCE.fullmatch(value)
        if reference is None:
            return self._worked_out(setting.name if setting else names[0], value, place)
        name = _absolute(setting.name if setting else names[0], *reference.groups())
        if name in seen:
            raise SettingError(f"{names[0]} refers to itself", place)
        # Settings that the framework leaves unset have no default here.
        if setting is not None and name not in self._given and name not in self._defaults:
            raise SettingError(f"{self.spelled(*names)} refers to {name}, which nothing sets", place)
        return self._resolved((name,), seen | {name})

    def _worked_out(self, name: str, value: str, place: Place | None) -> Any:
        """The value of a setting that is written with OmegaConf's functions."""
        self._mark(value, set())
        if self._interpolation is None:
            from rlstep_hooks.launch.interpolation import Interpolation

            known = {n: "???" if v is MISSING else v for n, v in self._defaults.items()}
            known |= {n: given.value for n, given in self._given.items() if not given.deleted}
            unknown = {n: given.unknown[0] for n, given in self._given.items() if given.unknown}
            self._interpolation = Interpolation(known, unknown, self._functions, self._environment)
        return self._interpolation.value(name, place)

    def _mark(self, value: str, seen: set[str]) -> None:
        """Mark as read what a text names."""
        for name in set(_NAMES.findall(value)) & self._given.keys() - seen:
            self._read.add(name)
            seen.add(name)
            self._mark(str(self._given[name].value), seen)

    @property
    def assumed(self) -> tuple[str, ...]:
        """What was assumed to compute values."""
        return tuple(dict.fromkeys(self._interpolation.assumed)) if self._interpolation is not None else ()

    def place(self, *names: str) -> Place | None:
        """Where the setting is written; None for a default."""
        return next((self._given[name].place for name in names if name in self._given), None)

    def spelled(self, *names: str) -> str:
        """The setting's name as the user wrote it; otherwise its first name."""
        return next((str(self._given[name]) for name in names if name in self._given), names[0])

    # Typed reads.

    def count(self, *names: str, least: int = 1) -> int:
        """A whole number of at least `least`.

        Raises:
            SettingError: It is missing, not a whole number, or too small.
            UnknownValueError: It cannot be known.
        """
        value = self.optional_count(*names, least=least)
        if value is None:
            raise SettingError(f"{self.spelled(*names)} is not set, and the plan needs it", self.place(*names))
        return value

    def optional_count(self, *names: str, least: int = 1) -> int | None:
        """A whole number of at least `least`; None if it is not set."""
        value = self.value(*names)
        if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING):
            return None
        number = self._whole(value)
        if number is None:
            raise SettingError(f"{self.spelled(*names)} = {_shown(value)} is not a whole number", self.place(*names))
        if number < least:
            raise SettingError(f"{self.spelled(*names)} = {number}: it must be at least {least}", self.place(*names))
        return number

    @staticmethod
    def _whole(value: Any) -> int | None:
        if isinstance(value, bool):
            return None if value else 0  # `test_freq=False`: frameworks compare it with 0
        if isinstance(value, int):
            return value
        if isinstance(value, float):
            return int(value) if math.isfinite(value) and value == int(value) else None
        if isinstance(value, str):
            try:
                return int(value.strip())
            except ValueError:
                return None
        return None

    def number(self, *names: str) -> Fraction:
        """A number.

        Raises:
            SettingError: It is missing or not a number.
        """
        value = self.optional_number(*names)
        if value is None:
            raise SettingError(f"{self.spelled(*names)} is not set, and the plan needs it", self.place(*names))
        return value

    def optional_number(self, *names: str) -> Fraction | None:
        """A number; None if it is not set."""
        value = self.value(*names)
        if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING):
            return None
        try:
            return Fraction(str(value).strip())
        except (ValueError, ZeroDivisionError):
            raise SettingError(
                f"{self.spelled(*names)} = {_shown(value)} is not a number", self.place(*names)
            ) from None

    def flag(self, *names: str) -> bool:
        """True or false. A flag without a value is true; a missing flag is false.

        Raises:
            SettingError: Its value is neither.
        """
        value = self.value(*names)
        if value is None:
            return False
        word = _WORDS.get(str(value).strip().lower())
        if word is None:
            raise SettingError(
                f"{self.spelled(*names)} = {_shown(value)} is neither true nor false", self.place(*names)
            )
        return word

    def text(self, *names: str) -> str | None:
        """A text; None if it is not set."""
        value = self.value(*names)
        return None if value is None or (isinstance(value, str) and value.lower() in _NOTHING) else str(value)

    def files(self, *names: str) -> list[str]:
        """One or more paths, written as a text or as a list."""
        value = self.value(*names)
        if value is None:
            return []
        if isinstance(value, str):
            inner = value.strip().removeprefix("[").removesuffix("]")
            return [part.strip().strip("'\"") for part in inner.split(",") if part.strip()]
        return [str(part) for part in value] if isinstance(value, list | tuple) else [str(value)]

    # Use of the settings.

    def written(self, *names: str) -> dict[str, Any]:
        """The named settings with their values in effect, as plain data for a Schedule's `settings`."""
        return {name: plain(self.value(name)) for name in names if self.is_given(name) or name in self._defaults}

    @property
    def used(self) -> list[Setting]:
        """Settings that were given and read."""
        return [setting for name, setting in self._given.items() if name in self._read]

    @property
    def unused(self) -> list[Setting]:
        """Settings that were given but not read, in the order of the command.

        A keyword of a Python call has two names (with its class and without); it counts once. Positional arguments are left out.
        """
        places = {setting.place for setting in self.used if setting.place.line}
        left = []
        for name, setting in self._given.items():
            named = not name.rpartition(".")[2].isdigit()
            if named and name not in self._read and setting.place not in places:
                left.append(setting)
                if setting.place.line:
                    places.add(setting.place)
        return left

    def look_alikes(self) -> Iterable[tuple[Setting, str]]:
        """Unused settings that may be misspelled, each with a similar setting that the plan reads and that is not given."""
        known = [name for name in dict.fromkeys((*self._defaults, *self._read)) if name not in self._given]
        for setting in self.unused:
            parent, _, last = setting.name.rpartition(".")
            siblings = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == parent}
            near = get_close_matches(last, siblings, n=1, cutoff=0.85)
            if near:
                yield setting, siblings[near[0]]


def plain(value: Any) -> Any:
    """A value as JSON data; the text of a flag as the number it stands for."""
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else str(value)
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return (
        primitive(value)
        if isinstance(value, str)
        else value
        if isinstance(value, int | float | bool | None)
        else str(value)
    )


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
