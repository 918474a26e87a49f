"""Commands of a script that write configuration files: `sed -i`, `yq -i`, `cp`, and redirections.

What the file holds then is read by the launches behind them. Where that cannot be told, a launch that reads the file is asked about.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.launch.changed_files import KINDS, Changed
from rlstep_hooks.launch.files import contents
from rlstep_hooks.launch.shell.substitutions import edited
from rlstep_hooks.launch.text import Token

if TYPE_CHECKING:
    from rlstep_hooks.launch.shell.scope import Text
    from rlstep_hooks.launch.shell.walk import Walk
    from rlstep_hooks.launch.text import Place

_IN_PLACE = re.compile(r"-\w*i(\..*)?$|--in-?place")
_FLAGS = ("e", "eval", "-y", "-Y")
_BASIC = re.compile(
    r"s(?P<d>[^\w\s\\])(?P<old>(?:(?!(?P=d))(?:[^\\]|\\.))+)(?P=d)(?P<new>(?:(?!(?P=d))[^\\&])*)(?P=d)(?P<g>g?)"
)
_SAME = re.compile(r"(?:[^\\+?(){}|\[\]]|\\[.*\[\]^$/\-]|\[\^?[\w .,:=-]+\])+")
"""A basic regular expression that means the same to Python: `num_generations: .*`, `lr: [0-9.]*`."""
_SET = re.compile(r"(?P<keys>(?:\.\w+)+)\s*=\s*(?P<value>\"[^\"\\]*\"|'[^'\\]*'|[\w.+-]+)")


def write(walk: Walk, name: Token | Text, text: str | None, place: Place) -> None:
    """Note that the script writes a configuration file.

    Args:
        walk: Where the script is.
        name: The file, as the script names it.
        text: What it holds then; None where that cannot be told.
        place: The command that writes it.
    """
    if name.unknown or not name.text.endswith(KINDS):
        return
    path = _path(walk, name.text)
    if text is None and not os.path.exists(path) and path not in walk.changed:
        return  # a launch that reads it says that it is not here
    walk.changed[path] = Changed(None if walk.conditional else text, place)


def held(walk: Walk, name: Token | Text) -> str | None:
    """What a file holds where the script is; None where that cannot be told."""
    path = _path(walk, name.text) if not name.unknown else ""
    if path in walk.changed:
        return walk.changed[path].text
    try:
        return contents(Path(path)).decode() if os.path.isfile(path) else None
    except (OSError, UnicodeDecodeError):
        return None


def _path(walk: Walk, name: str) -> str:
    """The file that a script names: one that it has written, one that is here, or where it would be."""
    own = os.path.abspath(os.path.join(walk.scope.folder or "", name))
    if own in walk.changed or os.path.exists(own):
        return own
    # The script may be started from another folder than this one: what it says of folders is so of its repository's root as well.
    below = [os.path.relpath(own)] if Path(own).is_relative_to(Path.cwd()) else []
    found = next((path for each in (*below, name) if (path := walk.found(Token(each))) is not None), None)
    return os.path.abspath(found) if found is not None else own


def in_place(walk: Walk, tokens: list[Token]) -> None:
    """`sed -i` on configuration files."""
    words = [token for token in tokens[1:] if not _IN_PLACE.match(token.text)]
    files = [word for word in words if word.text.endswith(KINDS)]
    program = [word for word in words if word not in files]
    known = not any(word.unknown for word in program)
    for file in files:
        before = held(walk, file)
        after = _substituted([word.text for word in program], before) if known and before is not None else None
        write(walk, file, after, tokens[0].place)


def _substituted(given: list[str], text: str) -> str | None:
    """What `sed` makes of a text; None where that cannot be told."""
    programs = given[1::2] if len(given) > 1 and set(given[::2]) == {"-e"} else given if len(given) == 1 else []
    for program in programs:
        found = _BASIC.fullmatch(program)
        if found is None or not _SAME.fullmatch(found["old"]):
            return edited(given, text)
        most = 0 if found["g"] else 1
        lines = (re.sub(found["old"], found["new"], line, count=most) for line in text.splitlines())
        text = "".join(f"{line}\n" for line in lines)
    return text if programs else edited(given, text)


def queried(walk: Walk, tokens: list[Token], depth: int) -> None:
    """`yq -i '.train.batch = 4' FILE`."""
    if not any(_IN_PLACE.match(token.text) for token in tokens[1:]):
        return
    words = [token for token in tokens[1:] if not _IN_PLACE.match(token.text) and token.text not in _FLAGS]
    files = [word for word in words if word.text.endswith(KINDS)]
    program = [word for word in words if word not in files]
    for file in files:
        before = held(walk, file)
        known = len(program) == 1 and not program[0].unknown and before is not None and len(files) == 1
        write(walk, file, _given(program[0].text, before) if known and before is not None else None, tokens[0].place)


def _given(program: str, text: str) -> str | None:
    """A YAML text with keys that a program of `yq` gives values; None where it does anything else."""
    import yaml

    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError:
        return None
    for each in program.split("|"):
        found = _SET.fullmatch(each.strip())
        if found is None or not _put(root, found["keys"].split(".")[1:], found["value"].strip("\"'")):
            return None
    return str(yaml.serialize(root, Dumper=yaml.SafeDumper))


def _put(root: object, keys: list[str], value: str) -> bool:
    """Give a key of a YAML document a value; whether there was such a key with a plain value."""
    import yaml

    for key in keys[:-1]:
        inner = [one for name, one in root.value if name.value == key] if isinstance(root, yaml.MappingNode) else []
        if len(inner) != 1:
            return False
        root = inner[0]
    if not isinstance(root, yaml.MappingNode):
        return False
    at = [index for index, (name, _) in enumerate(root.value) if name.value == keys[-1]]
    tag = yaml.SafeLoader("").resolve(yaml.ScalarNode, value, (True, False))
    new = yaml.ScalarNode(tag, value)
    if len(at) > 1 or (at and not isinstance(root.value[at[0]][1], yaml.ScalarNode)):
        return False
    if at:
        root.value[at[0]] = (root.value[at[0]][0], new)
    else:
        root.value.append((yaml.ScalarNode("tag:yaml.org,2002:str", keys[-1]), new))
    return True


def copied(walk: Walk, tokens: list[Token], depth: int) -> None:
    """`cp FILE OTHER`, `mv FILE OTHER`."""
    words = [token for token in tokens[1:] if not token.text.startswith("-")]
    if len(words) == 2 and words[1].text.endswith(KINDS):
        write(walk, words[1], held(walk, words[0]), tokens[0].place)


def redirected(walk: Walk, name: Text, place: Place, *, appends: bool, text: str | None) -> None:
    """`cat > FILE <<EOF`, or the output of any other command, which is not known.

    Args:
        walk: Where the script is.
        name: The file.
        place: The statement.
        appends: Whether the file keeps what it holds.
        text: What is written; None where that cannot be told.
    """
    if appends and text is not None:
        before = held(walk, name)
        text = before + text if before is not None else None
    write(walk, name, text, place)
