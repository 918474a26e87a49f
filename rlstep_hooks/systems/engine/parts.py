"""What a declaration is made of: settings, and what a framework or this package refuses; see `engine.declaration`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rlstep_hooks.launch.settings import MISSING
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.request import release_of

REQUIRED: Any = MISSING
"""The default of a setting that the framework requires."""


class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Any = _Nothing()
"""The default of a setting that is only read where it is given, and is not shown among those behind a plan."""


class Writes(msgspec.Struct, frozen=True):
    """A program that writes the training set."""

    program: str
    """Its pattern: "module:examples.data_preprocess.prepare"."""
    flag: str
    """The flag that says how many rows it writes."""
    default: int
    """The rows that it writes where the flag is not given."""


class Typed(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: the values that it may have, and its default."""

    kind: Literal["count", "number", "flag", "text"]
    default: Any
    least: int = 1
    """The smallest value that a count may have."""
    also: tuple[str, ...] = ()
    """Other names of the setting."""
    off: str = ""
    """Another flag that turns this one off, for example "no_anneal_lr"."""
    since: tuple[tuple[str, Any], ...] = ()
    """Defaults of later releases: the first release that has it, and the default, in ascending order."""
    where: str = ""
    """The condition under which the framework looks at the setting. In other launches it is not required, read or shown."""

    def default_in(self, version: str) -> Any:
        """The default of a release."""
        found = self.default
        for first, default in self.since:
            if release_of(version) >= release_of(first):
                found = default
        return found

    def needed_in(self, version: str) -> bool:
        """Whether a release of the framework has a value for the setting in any case."""
        default = self.default_in(version)
        return default not in (None, NOTHING) and not str(default).startswith("${")


def count(
    default: Any = NOTHING, *, least: int = 1, also: tuple[str, ...] = (), since: Any = (), where: str = ""
) -> Typed:
    """A whole number of at least `least`."""
    return Typed(kind="count", default=default, least=least, also=also, since=since, where=where)


def number(default: Any = NOTHING, *, also: tuple[str, ...] = (), since: Any = (), where: str = "") -> Typed:
    """Any number, exact."""
    return Typed(kind="number", default=default, also=also, since=since, where=where)


def flag(
    default: Any = NOTHING, *, also: tuple[str, ...] = (), off: str = "", since: Any = (), where: str = ""
) -> Typed:
    """True or false. Without a default it is false if the launch does not set it; with the default None it is None."""
    return Typed(kind="flag", default=default, also=also, off=off, since=since, where=where)


def text(default: Any = NOTHING, *, also: tuple[str, ...] = (), since: Any = (), where: str = "") -> Typed:
    """A text."""
    return Typed(kind="text", default=default, also=also, since=since, where=where)


class Check(msgspec.Struct, frozen=True):
    """A launch that the framework itself ends."""

    holds: str
    """The launch is refused if this expression is false."""
    says: str
    """How the run ends, in the framework's own words; with {expressions}, as is `fix`."""
    fix: str
    """The smallest change, with the nearest values that work."""
    when: str
    """The moment at which the user would see that the launch ends."""
    source: str
    where: str = ""
    """The condition under which the framework makes this check."""


class Demand(msgspec.Struct, frozen=True):
    """A launch that cannot be planned: what the framework does then was not read, or it has no meaning."""

    holds: str
    says: str
    about: str = ""
    """The setting whose place is shown; "program" for that of the program."""
    where: str = ""


class Depends(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with which counts depend on the run: no exact number is given for them then."""

    on: str
    """The condition under which counts depend on the run, an expression."""
    says: str
    """Why, without a number: "a rollout takes as many batches of the loader as the filter leaves it"."""
    counts: tuple[str, ...]
    """The quantities that depend on the run; what follows from them is not known either. Empty where `updates_bound` says that
    the updates are a bound."""
    source: str


def program_assumed(program: str, where: str = "") -> Note:
    """The note on a configuration file alone that several programs of the framework read, each in its own way.

    Args:
        program: The program that the plan is of; with {expressions}.
        where: The condition under which the file's settings do not say it.
    """
    when = f"no_program and ({where})" if where else "no_program"
    return Note(
        "assumes",
        f"{program} reads this file: it names no program, and others read the same settings in their own way",
        when,
    )


class Said(msgspec.Struct, frozen=True):
    """What a framework makes of a setting that it does not have."""

    words: str
    """What ends the run, in the framework's own words; or why nothing does."""
    refuses: bool = True
    """Whether the run ends. Otherwise the setting is dropped without a word."""


class Until(msgspec.Struct, frozen=True):
    """A value of a setting that releases refuse from one on."""

    value: str
    release: str
    """The first release that refuses it."""
    words: str
    """The words in which it does."""


class Limited(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that some releases have, and others refuse."""

    words: str
    """The words in which it is refused."""
    remedy: str
    """What to write in its place."""
    since: str = ""
    """The first release that takes it; empty where that is the first that is known."""
    until: str = ""
    """The first release that refuses it again; empty where the newest takes it."""
    newest: str = ""
    """The newest release that takes it, where a later one does not."""
    unless: str = ""
    """A setting with which the framework passes over settings that it does not have."""


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """The names of a framework's settings, release by release; see `rlstep_hooks.systems.engine.release`."""

    file: str
    """The list, below `rlstep_hooks/systems`: "verl/keys.json"."""
    refusal: str
    """What the framework says of a setting that it does not have, with {name} and {written}."""
    strict: tuple[str, ...]
    """Programs that know these settings only: patterns of `Program.matches`."""
    parsed: frozenset[str] = frozenset()
    """The dataclasses ("package.Class") whose fields these names are: a program of somebody's own whose parser is given no others from
    outside of the checkout knows these settings and its own fields only."""
    unless: str = ""
    """A function of the given settings, "module:function": whether the launch has a configuration of its own."""
    also: tuple[str, ...] = ()
    """Patterns of further settings that these programs take."""
    until: dict[str, Until] = {}
    """Settings with a value that releases take up to one alone."""
    open: tuple[str, ...] = ()
    """Patterns of settings that any release takes and hands on unread (arguments of Ray, of an engine, of a reward function), or looks
    for without having them in its configuration. The schedule does not depend on them."""
    own_code: dict[str, str] = {}
    """Pattern of settings -> the setting that names code of the user's own, which reads them."""
    abbreviated: bool = False
    """Whether the beginning of a name stands for it, as argparse has it."""
    dashed: bool = False
    """Whether argparse has each name with dashes too."""
    says: str = ""
    """What a release makes of a setting that it does not have, "module:function": `(Command, Setting, version) -> Said | None`, None
    where something else takes it. Without it, arguments are refused in the words of `refusal`, and files are not looked at."""
    forked: bool = False
    """Whether a user's program with settings that no release has is a fork (otherwise: a script with flags of its own)."""
    no_effect: tuple[str, ...] = ()
    """Patterns of settings that were read in the source: the schedule does not depend on them."""
