"""What mends each finding of a launch, as edits of its command and files that were planned again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.edits import Edit, edit_of, edited_texts, edited_words
from rlstep_hooks.launch.files import contents, edited
from rlstep_hooks.launch.text import NOWHERE, LaunchError
from rlstep_hooks.planning.finding import Finding
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.autofix import Mend, mends_of
from rlstep_hooks.systems.engine.launch_search import find_launch
from rlstep_hooks.systems.engine.launches import plan_launch, plan_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.planning.launched import Options, Plan
    from rlstep_hooks.systems.engine.autofix import Change
    from rlstep_hooks.systems.engine.launch import Launch


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One way to mend a finding."""

    mend: Mend
    edits: tuple[Edit, ...]
    """Where to write it; empty if a value is computed where it stands, or its form is not known."""


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, and what mends it: the smallest change first."""

    finding: Finding
    offers: tuple[Offer, ...]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch is written in."""

    words: list[str]
    """The command as it was given, or the name of one file."""
    texts: dict[str, str]
    """The files that its settings are written in, by their names; a command that is one text is there too."""


def fixes_of(words: list[str], options: Options) -> tuple[Plan, Source, list[Fix]]:
    """The plan of a launch, what it is written in, and what mends its findings.

    A finding that has nothing to mend ("fix: nothing, ...") is left out.

    Raises:
        LaunchError: The launch cannot be read.
        OSError: A file cannot be read.
    """
    launch = find_launch(words, options)
    plan = plan_of(launch, options)
    source = _source(words, launch)
    found = []
    for finding in plan.findings:
        if finding.severity == "info" and finding.fix.startswith("nothing,"):
            continue
        mends = mends_of(launch, plan, finding, options)
        offers = tuple(Offer(mend=mend, edits=_edits(mend, launch, source, options)) for mend in mends)
        found.append(Fix(finding=finding, offers=offers))
    return plan, source, found


def _source(words: list[str], launch: Launch) -> Source:
    texts: dict[str, str] = {}
    for name in dict.fromkeys(setting.place.source for setting in launch.given.values() if setting.place.line):
        if name == NOWHERE.source:
            texts[name] = words[0]
        elif Path(name).is_file():
            texts[name] = contents(Path(name)).decode(errors="replace")
    return Source(words=words, texts=texts)


def _edits(mend: Mend, launch: Launch, source: Source, options: Options) -> tuple[Edit, ...]:
    """The edits that make a mend, if the edited launch is the one that mends."""
    edits = []
    for change in mend.changes:
        edit = edit_of(change.setting, change.name, change.after, _beside(change, launch), source.texts, source.words)
        if edit is None:
            return ()
        edits.append(edit)
    return tuple(edits) if _is_as_meant(mend, source, edits, options) else ()


def _beside(change: Change, launch: Launch) -> Setting | None:
    """The setting beside which a new one is written: one of its own section where there is one, else the last one of the launch."""
    declared = {name.rpartition(".")[2] for name in index.system_of(launch.framework).settings}
    section = change.name.rpartition(".")[0]
    written = [each for each in launch.given.values() if each.written and each.name.rpartition(".")[2] in declared]
    own = [each for each in written if each.name.rpartition(".")[0] == section]
    return next(reversed(own or written), None)


def _is_as_meant(mend: Mend, source: Source, edits: Sequence[Edit], options: Options) -> bool:
    words, texts = applied(source, edits)
    try:
        with edited(texts):
            plan = plan_launch(words, options)
    except (LaunchError, OSError):
        return False
    return plan.schedule == mend.plan.schedule


def applied(source: Source, edits: Sequence[Edit]) -> tuple[list[str], dict[str, str]]:
    """The words of the command and the files that change, after some edits."""
    texts = edited_texts(source.texts, edits)
    command = texts.pop(NOWHERE.source, None)
    if command is not None:
        return [command], texts
    return edited_words(source.words, edits) if NOWHERE.source not in source.texts else source.words, texts
