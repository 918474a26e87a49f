"""The arguments of a program -> settings: argparse flags and Hydra overrides.

Hydra's own parser is exact but takes about 200 ms to load (ANTLR), longer than a plan takes. `override_value` reads the part of
Hydra's grammar that launch commands use; tests compare it with Hydra's parser. Sweeps and functions are refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import Place, SettingError, Token
from rlstep_hooks.launch.values import primitive

if TYPE_CHECKING:
    from collections.abc import Iterable

_OVERRIDE = re.compile(r"(?P<mark>\+\+|\+|~)?(?P<key>[\w./@:$-]+)=(?P<value>.*)", re.DOTALL)
_DELETION = re.compile(r"~(?P<key>[\w./@:$-]+)")
_NEGATIVE_NUMBER = re.compile(r"-\.?\d")


def canonical(name: str) -> str:
    """A setting's name in one spelling: no leading dashes, underscores instead of dashes."""
    return name.lstrip("-").replace("-", "_")


def read_arguments(tokens: Iterable[Token], *, overrides: bool = False) -> tuple[dict[str, Setting], list[Token]]:
    """Arguments as settings.

    Args:
        tokens: The arguments of the program.
        overrides: Whether `key=value` sets a key (Hydra, OmegaConf); otherwise it is an ordinary value.

    Returns:
        Settings by name (the last mention of a name holds), and the arguments that belong to no setting.

    Raises:
        SettingError: An override cannot be read.
    """
    settings: dict[str, Setting] = {}
    loose: list[Token] = []
    flag: Token | None = None
    values: list[Token] = []

    def close() -> None:
        if flag is not None:
            name, equals, value = flag.text.partition("=")
            all_values = [msgspec.structs.replace(flag, text=value), *values] if equals else values
            _keep(settings, _flag_setting(name, flag, all_values))

    for token in tokens:
        if _is_flag(token.text):
            close()
            flag, values = token, []
        elif overrides and (setting := _override(token)) is not None:
            close()
            flag = None
            _keep(settings, setting)
        elif flag is not None:
            values.append(token)
        elif token.text:
            loose.append(token)
    close()
    return settings, loose


def _keep(settings: dict[str, Setting], setting: Setting) -> None:
    settings.pop(setting.name, None)  # settings are ordered by their last mention
    settings[setting.name] = setting


def _is_flag(text: str) -> bool:
    return text.startswith("-") and text.strip("-") != "" and not _NEGATIVE_NUMBER.match(text)


def _flag_setting(name: str, flag: Token, values: list[Token]) -> Setting:
    value: Any = "true" if not values else values[0].text if len(values) == 1 else [token.text for token in values]
    unknown = flag.unknown + tuple(u for token in values for u in token.unknown)
    return Setting(canonical(name), value, flag.place, name, tuple(dict.fromkeys(unknown)))


def _override(token: Token) -> Setting | None:
    match = _OVERRIDE.fullmatch(token.text)
    if match is None:
        deletion = _DELETION.fullmatch(token.text)
        if deletion is None:
            return None
        return Setting(deletion["key"], None, token.place, token.text, deleted=True)
    key = match["key"].partition("@")[0].replace("/", ".") if "/" in match["key"] else match["key"]
    if match["mark"] == "~":
        return Setting(key, None, token.place, token.text, deleted=True)
    added = match["mark"] is not None
    if token.unknown:
        return Setting(key, match["value"], token.place, match["key"], token.unknown, added=added)
    return Setting(key, override_value(match["value"], token.place), token.place, match["key"], added=added)


def choices_of(tokens: Iterable[Token]) -> dict[str, str]:
    """Overrides that may choose a file for a group of Hydra: `group=name` and `group@package=name`."""
    found = (_OVERRIDE.fullmatch(token.text) for token in tokens if not token.unknown)
    return {match["key"]: match["value"] for match in found if match is not None}


def override_value(text: str, place: Place | None = None) -> Any:
    """The value of a Hydra override.

    Raises:
        SettingError: A quote or bracket is open, or the value is a sweep.
    """
    reader = _OverrideParser(text, place)
    value = reader.value(end="")
    rest = reader.rest()
    if rest and rest[0] != ",":
        raise SettingError(f"{text!r}: {rest[0]!r} closes what nothing opened; Hydra cannot read it either", place)
    if rest:
        raise SettingError(
            f"{text!r} has a comma outside brackets and quotes, which means a sweep; give one value", place
        )
    return value


class _OverrideParser:
    """A recursive-descent parser of override values."""

    def __init__(self, text: str, place: Place | None) -> None:
        self._text = text
        self._place = place
        self._at = 0
        self._depth = 0

    def rest(self) -> str:
        return self._text[self._at :].strip()

    def _fail(self, what: str) -> SettingError:
        return SettingError(f"{self._text!r}: {what}", self._place)

    def _blanks(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def value(self, *, end: str) -> Any:
        """Read one value, up to but not including a comma or one of the characters `end`."""
        self._depth += 1
        if self._depth > 50:
            raise self._fail("nested too deeply")
        self._blanks()
        first = self._text[self._at : self._at + 1]
        if first == "[":
            value: Any = self._list()
        elif first == "{":
            value = self._dict()
        elif first in ("'", '"') and first:
            value = self._quoted(first)
            self._blanks()
            if self._at < len(self._text) and self._text[self._at] not in f",{end}":
                raise self._fail("text after a closing quote")
        else:
            value = self._plain(end)
        self._blanks()
        self._depth -= 1
        return value

    def _quoted(self, quote: str) -> str:
        result: list[str] = []
        self._at += 1
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "\\" and self._text[self._at + 1 : self._at + 2] == quote:
                result.append(quote)
                self._at += 2
                continue
            self._at += 1
            if character == quote:
                return "".join(result)
            result.append(character)
        raise self._fail("a quote is open")

    def _list(self) -> list[Any]:
        self._at += 1
        values: list[Any] = []
        self._blanks()
        while not self._closed("]"):
            values.append(self.value(end="]"))
            self._separator("]")
        return values

    def _dict(self) -> dict[str, Any]:
        self._at += 1
        values: dict[str, Any] = {}
        self._blanks()
        while not self._closed("}"):
            key = self._plain(":}") if self._text[self._at] not in "'\"" else self._quoted(self._text[self._at])
            self._blanks()
            if self._text[self._at : self._at + 1] != ":":
                raise self._fail("a key without a value")
            self._at += 1
            values[str(key)] = self.value(end="}")
            self._separator("}")
        return values

    def _closed(self, bracket: str) -> bool:
        if self._at >= len(self._text):
            raise self._fail("a bracket is open")
        if self._text[self._at] != bracket:
            return False
        self._at += 1
        return True

    def _separator(self, bracket: str) -> None:
        self._blanks()
        following = self._text[self._at : self._at + 1]
        if following == ",":
            self._at += 1
            self._blanks()
        elif following != bracket:
            raise self._fail("a bracket is open")

    def _plain(self, end: str) -> Any:
        """A value without quotes."""
        result: list[str] = []
        depth = 0
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "\\" and self._text[self._at + 1 : self._at + 2] in tuple("\\()[]{}:=, \t"):
                result.append(self._text[self._at + 1])
                self._at += 2
                continue
            if depth == 0 and (character == "," or (end and character in end)):
                break
            depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(character, 0)
            if depth < 0:
                break
            result.append(character)
            self._at += 1
        return primitive("".join(result).strip())
