"""Commands of the shell itself, as far as they change which commands run or what is known."""

from __future__ import annotations

import os.path
import re
from itertools import zip_longest
from typing import TYPE_CHECKING

from rlstep_hooks.launch.files import at_its_end, contents, misplaced
from rlstep_hooks.launch.shell import rewrites
from rlstep_hooks.launch.shell.ends import BrokenError, ContinuedError, EndedError, ReturnedError
from rlstep_hooks.launch.shell.scope import Text
from rlstep_hooks.launch.shell.substitutions import edited
from rlstep_hooks.launch.shell.walk import DEEPEST
from rlstep_hooks.launch.shell.words import OUTPUT
from rlstep_hooks.launch.text import LaunchError, UnknownText

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.launch.shell.walk import Walk
    from rlstep_hooks.launch.text import Place, Token


def _shift(walk: Walk, tokens: list[Token], depth: int) -> None:
    count = int(tokens[1].text) if len(tokens) > 1 and tokens[1].text.isdigit() else 1
    walk.scope.positional = walk.scope.positional[count:]


def _set(walk: Walk, tokens: list[Token], depth: int) -> None:
    """`set -- WORDS` gives the parameters; `set -u` ends the script at a variable that is not set, `set -e` at what fails."""
    words = [token.text for token in tokens]
    for word, following in zip_longest(words[1:], words[2:]):
        if word == "--" or following == "--":
            break
        if re.fullmatch(r"[-+][a-zA-Z]*u[a-zA-Z]*", word) or (word in ("-o", "+o") and following == "nounset"):
            walk.scope.ends_at_unset = tokens[0].place if word.startswith("-") else None
        if re.fullmatch(r"[-+][a-zA-Z]*e[a-zA-Z]*", word) or (word in ("-o", "+o") and following == "errexit"):
            ends = word.startswith("-") and not walk.conditional
            walk.scope.ends_at_failure = tokens[0].place if ends else None
    if "--" in words:
        walk.scope.positional = [Text(token.text, token.unknown) for token in tokens[words.index("--") + 1 :]]


def _exit(walk: Walk, tokens: list[Token], depth: int) -> None:
    walk.may_break = True
    raise EndedError


def _return(walk: Walk, tokens: list[Token], depth: int) -> None:
    walk.may_break = True
    raise ReturnedError


def _break(walk: Walk, tokens: list[Token], depth: int) -> None:
    walk.may_break = True
    if not walk.conditional:
        raise BrokenError


def _continue(walk: Walk, tokens: list[Token], depth: int) -> None:
    if not walk.conditional:
        raise ContinuedError


def _cd(walk: Walk, tokens: list[Token], depth: int) -> None:
    folder = next((token for token in tokens[1:] if not token.text.startswith("-")), None)
    known = folder is not None and not folder.unknown
    if known and folder is not None and (walk.scope.folder is not None or os.path.isabs(folder.text)):
        walk.scope.folder = _here(walk, os.path.normpath(os.path.join(walk.scope.folder or "", folder.text)))
    else:
        walk.scope.folder = None


def _here(walk: Walk, folder: str) -> str:
    """A folder as it is called here: one of the machine that the script was written for is that of the repository which ends alike."""
    found = at_its_end(folder, walk.folder, folders=True) if walk.folder is not None and os.path.isabs(folder) else None
    return str(found) if found is not None else folder


def _read(walk: Walk, tokens: list[Token], depth: int) -> None:
    """`read NAME`: the first line of a here-document, or all of it with `-d ''`, as an array with `-a`; else it is unknown."""
    words = [token.text for token in tokens[1:]]
    names = [word for word in words if word.isidentifier()]
    if not names:
        return
    place = tokens[0].place
    array = any(word.startswith("-") and word.endswith("a") for word in words)
    if walk.stdin is None or len(names) > 1:
        for name in names:
            _set_by_the_run(walk, name, place, array=array)
        return
    whole = any(word.startswith("-") and word.endswith("d") for word in words)
    text = walk.stdin.text.strip() if whole else walk.stdin.text.partition("\n")[0].strip()
    value = Text(text, walk.stdin.unknown)
    walk.scope.assign(names[0], walk.scope.split(value) if array else value, place)


def _set_by_the_run(walk: Walk, name: str, place: Place, *, array: bool) -> None:
    """A variable, or an array of any number of words, that only the run can tell."""
    unknown = (UnknownText(name, "read while the script runs", place),)
    value = Text(f"${name}", unknown, any_number=array)
    walk.scope.assign(name, (value,) if array else value, place)


def _mapfile(walk: Walk, tokens: list[Token], depth: int) -> None:
    """`mapfile NAME`: the lines of a here-document, or of what is printed into it, as an array; else they are unknown, as those of
    `NAME=($(...))`, and so they are with options that leave lines out or divide them in another way."""
    named = tokens[-1].text if len(tokens) > 1 and tokens[-1].text.isidentifier() else "MAPFILE"
    place = tokens[0].place
    plain = all(token.text in ("-t", named) for token in tokens[1:])
    if walk.stdin is None or walk.stdin.unknown or not plain:
        why = f"{named} is {OUTPUT} a command that the script runs"
        walk.scope.assign(named, (Text(f"${named}", (UnknownText(named, why, place),), any_number=True),), place)
    else:
        walk.scope.assign(named, tuple(Text(line) for line in walk.stdin.text.splitlines()), place)


def _let(walk: Walk, tokens: list[Token], depth: int) -> None:
    """`let EXPRESSION`: as in `((...))`."""
    for token in tokens[1:]:
        walk.run_children(walk.parsed(f"(({token.text}))".encode()), depth + 1)


def _eval(walk: Walk, tokens: list[Token], depth: int) -> None:
    """`eval WORDS`: a text of shell, in this scope. Variables in it that are not known yet are looked up again."""
    text = " ".join(token.text for token in tokens[1:])
    source = walk.scope.source
    walk.scope.source = f"{source} line {tokens[0].place.line}"
    root = walk.parsed(text.encode())
    if not root.has_error:
        walk.run_children(root, depth + 1)
    walk.scope.source = source


def _sourced(walk: Walk, tokens: list[Token], depth: int) -> None:
    """Follow `source FILE` if the file is here."""
    path = walk.found(tokens[1]) if len(tokens) > 1 else None
    if path is None and len(tokens) > 1:
        _refuse_misplaced(walk, tokens[1])
    if path is None or walk.depth + depth >= DEEPEST:
        return
    source, walk.scope.source = walk.scope.source, str(path)
    file, walk.scope.file = walk.scope.file, str(path)
    walk.until_return(lambda: walk.run_children(walk.parsed(contents(path)), depth + 1))
    walk.scope.source, walk.scope.file = source, file


def _refuse_misplaced(walk: Walk, token: Token) -> None:
    """Refuse a script that ends where it sources a file at a place where the repository has none.

    Only with `set -e`, and where the repository has the file at another place: one that is nowhere in it may be of each user's own
    (`.env`, `venv/bin/activate`).

    Raises:
        LaunchError: The script ends there.
    """
    ends = walk.scope.ends_at_failure
    if (
        ends is None
        or walk.conditional
        or walk.tested
        or token.unknown
        or walk.folder is None
        or token.text in walk.written
    ):
        return
    elsewhere = misplaced(token.text, walk.folder)
    if elsewhere is not None:
        raise LaunchError(
            f"the script sources {token.text}, which is not there ({elsewhere} is), and with `set -e` ({ends}) it ends at that",
            token.place,
            remedy="correct the path, and plan again",
        )


_IN_PLACE = ("-i", "--in-place")
_ASSIGNED = re.compile(r"\s*(?:export\s+)?\w+=")


def _sed(walk: Walk, tokens: list[Token], depth: int) -> None:
    """`sed -i` on files that the script has written itself: what it makes of them, or nothing that can be known."""
    files = [token.text for token in tokens[1:] if token.text in walk.written]
    if not any(token.text.startswith(_IN_PLACE) for token in tokens):
        return
    rewrites.in_place(walk, [token for token in tokens if token.text not in files])
    words = [token for token in tokens[1:] if token.text not in files and not token.text.startswith(_IN_PLACE)]
    for file in files:
        text = walk.written[file]
        new = edited([token.text for token in words], text) if not any(token.unknown for token in words) else None
        new = _without_assignments(words, text) if new is None else new
        if new is None:
            del walk.written[file]
        else:
            walk.written[file] = new


def _without_assignments(words: list[Token], text: str) -> str | None:
    """A text without the lines that `sed s|old|new|` gives something unknown; None where these do more than to set a variable."""
    expression = words[0].text if len(words) == 1 else ""
    parts = expression.split(expression[1], 2) if expression[:1] == "s" and len(expression) > 1 else []
    if len(parts) < 3 or any(each in parts[1] for each in "\\.*[]^&"):
        return None
    changed = [line for line in text.splitlines() if parts[1] in line]
    if not all(map(_ASSIGNED.match, changed)):
        return None
    return "".join(f"{line}\n" for line in text.splitlines() if line not in changed)


BUILTINS: dict[str, Callable[[Walk, list[Token], int], None]] = {
    "shift": _shift,
    "set": _set,
    "source": _sourced,
    ".": _sourced,
    "exit": _exit,
    "return": _return,
    "break": _break,
    "continue": _continue,
    "cd": _cd,
    "read": _read,
    "mapfile": _mapfile,
    "readarray": _mapfile,
    "let": _let,
    "eval": _eval,
    "sed": _sed,
    "yq": rewrites.queried,
    "cp": rewrites.copied,
    "mv": rewrites.copied,
}
