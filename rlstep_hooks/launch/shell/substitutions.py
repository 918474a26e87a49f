"""`$(...)`: the output of commands that only work on text and on the script's own place. Nothing is executed.

Launch scripts use these commands to find their own folder (`dirname`, `pwd`, `cd ... && pwd`, `realpath`), to name a run
(`basename`), to count devices (`echo $X | tr , '\\n' | wc -l`) and to write text (`cat <<EOF`). The output of any other command
depends on the machine.
"""

from __future__ import annotations

import os.path
import re
from shlex import quote
from typing import TYPE_CHECKING

from rlstep_hooks.launch.shell.scope import Text
from rlstep_hooks.launch.shell.syntax import source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

    from rlstep_hooks.launch.shell.scope import Scope


class _DependsError(Exception):
    """The output depends on the machine."""


def output(
    node: Node, scope: Scope, words: Callable[[Node], list[Text]], heredoc: Callable[[Node], Text]
) -> Text | None:
    """What a command substitution prints, without its last line ends; None if it depends on the machine.

    Args:
        node: The substitution.
        scope: The variables.
        words: Expands one word.
        heredoc: Expands the body of a here-document.
    """
    statements = [child for child in node.named_children if child.type != "comment"]
    reader = _Reader(scope, words, heredoc)
    try:
        printed = [reader.run(statement, "") for statement in statements]
    except _DependsError:
        return None
    return Text("".join(printed).rstrip("\n"))


class _Reader:
    def __init__(self, scope: Scope, words: Callable[[Node], list[Text]], heredoc: Callable[[Node], Text]) -> None:
        self._words = words
        self._heredoc = heredoc
        self._folder = scope.folder

    def run(self, node: Node, stdin: str) -> str:
        """What a statement prints.

        Raises:
            _DependsError: That depends on the machine.
        """
        inner = [child for child in node.named_children if child.type != "comment"]
        if node.type == "command":
            return self._command(inner, stdin)
        if node.type == "redirected_statement":
            return self._redirected(inner, stdin)
        if node.type == "pipeline":
            for child in inner:
                stdin = self.run(child, stdin)
            return stdin
        if node.type == "list" and any(child.type == "&&" for child in node.children):
            return "".join(self.run(child, stdin) for child in inner)
        raise _DependsError

    def _redirected(self, inner: list[Node], stdin: str) -> str:
        dropped = False
        for child in inner[1:]:
            if child.type == "heredoc_redirect":
                stdin = self._known([self._heredoc(child)])[0]
            elif child.type == "herestring_redirect":
                stdin = self._herestring(child)
            elif source_of(child).replace(" ", "") in (">/dev/null", "1>/dev/null"):
                dropped = True
            elif not source_of(child).startswith(("2>", "&>")) or not source_of(child).endswith(("/dev/null", "&1")):
                raise _DependsError
        printed = self.run(inner[0], stdin)
        return "" if dropped else printed

    def _herestring(self, node: Node) -> str:
        return "".join(self._known(self._words(node.named_children[0]))) + "\n"

    @staticmethod
    def _known(texts: list[Text]) -> list[str]:
        if any(text.unknown for text in texts):
            raise _DependsError
        return [text.text for text in texts]

    def _command(self, inner: list[Node], stdin: str) -> str:
        for child in inner:
            if child.type == "herestring_redirect":  # the grammar takes `awk ... <<< "$X"` for a part of the command
                stdin = self._herestring(child)
        inner = [child for child in inner if child.type != "herestring_redirect"]
        words = self._known([text for child in inner for text in self._words(child)])
        name, given = (words[0], words[1:]) if words else ("", [])
        if name == "cd" and given:
            folder = [word for word in given if not word.startswith("-")]
            if self._folder is None and not os.path.isabs(folder[-1] if folder else ""):
                raise _DependsError
            self._folder = os.path.normpath(os.path.join(self._folder or "", folder[-1])) if folder else None
            return ""
        if name == "pwd" and self._folder is not None:
            return self._folder + "\n"
        if name in ("realpath", "readlink") and given and self._folder is not None:
            paths = [word for word in given if not word.startswith("-")]
            return "".join(os.path.normpath(os.path.join(self._folder, path)) + "\n" for path in paths)
        known = _COMMANDS.get(name)
        if known is None:
            raise _DependsError
        return known(given, stdin)


def printed_by_command(name: str, given: list[str]) -> str | None:
    """What a command prints that works on text alone; None for any other, and where that depends on the machine."""
    known = _COMMANDS.get(name)
    try:
        return known(given, "") if known is not None else None
    except _DependsError:
        return None


def _plain(words: list[str]) -> list[str]:
    return [word for word in words if word != "--"]


def _dirname(given: list[str], _: str) -> str:
    return "".join(
        (os.path.dirname(path.rstrip("/")) or ("/" if path[:1] == "/" else ".")) + "\n" for path in _plain(given)
    )


def _basename(given: list[str], _: str) -> str:
    words = _plain(given)
    if not words or words[0].startswith("-"):
        raise _DependsError
    name = os.path.basename(words[0].rstrip("/"))
    ending = words[1] if len(words) > 1 else ""
    return (name.removesuffix(ending) if name != ending else name) + "\n"


def _echo(given: list[str], _: str) -> str:
    if given and given[0] in ("-e", "-E"):
        raise _DependsError
    return " ".join(given[1:]) if given[:1] == ["-n"] else " ".join(given) + "\n"


def _printf(given: list[str], _: str) -> str:
    if len(given) > 1 and given[0] in ("%s", "%s\\n", "%s "):  # the format is used again for each further word
        return "".join(word + given[0][2:].replace("\\n", "\n") for word in given[1:])
    if len(given) == 2 and given[0] == "%q":
        return quote(given[1])
    raise _DependsError


def _expr(given: list[str], _: str) -> str:
    if len(given) != 3 or not all(re.fullmatch(r"-?\d+", word) for word in (given[0], given[2])):
        raise _DependsError
    a, b = int(given[0]), int(given[2])
    if given[1] in ("/", "%") and (b == 0 or a < 0 or b < 0):
        raise _DependsError
    values = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0, "%": a % b if b else 0}
    if given[1] not in values:
        raise _DependsError
    return f"{values[given[1]]}\n"


def _seq(given: list[str], _: str) -> str:
    if not given or not all(re.fullmatch(r"-?\d+", word) for word in given) or len(given) > 3:
        raise _DependsError
    numbers = [int(word) for word in given]
    first, step, last = (numbers[0] if len(numbers) > 1 else 1), (numbers[1] if len(numbers) == 3 else 1), numbers[-1]
    if step == 0 or abs(last - first) > 10_000:
        raise _DependsError
    return "".join(f"{value}\n" for value in range(first, last + (1 if step > 0 else -1), step))


def _tr(given: list[str], stdin: str) -> str:
    cases = {"[:upper:]": "[:lower:]", "A-Z": "a-z"}
    if len(given) == 2 and cases.get(given[0]) == given[1]:
        return stdin.lower()
    if len(given) == 2 and cases.get(given[1]) == given[0]:
        return stdin.upper()
    if len(given) == 2 and given[0] == "-d" and len(given[1]) == 1:
        return stdin.replace(given[1], "")
    single = [word.replace("\\n", "\n") for word in given]
    if len(single) == 2 and len(single[0]) == len(single[1]) and not any(c in "[-" for word in single for c in word):
        return stdin.translate(str.maketrans(single[0], single[1]))
    raise _DependsError


def _wc(given: list[str], stdin: str) -> str:
    if given == ["-l"]:
        return f"{stdin.count(chr(10))}\n"
    if given == ["-w"]:
        return f"{len(stdin.split())}\n"
    raise _DependsError


def _cut(given: list[str], stdin: str) -> str:
    options = re.fullmatch(r"-d ?(.) -f ?(\d+)", " ".join(given)) or re.fullmatch(r"-f ?(\d+) -d ?(.)", " ".join(given))
    if options is None:
        raise _DependsError
    between, field = sorted(options.groups(), key=str.isdigit)
    lines = [line.split(between) for line in stdin.splitlines()]
    return "".join((parts[int(field) - 1] if len(parts) >= int(field) > 0 else "") + "\n" for parts in lines)


def _awk(given: list[str], stdin: str) -> str:
    """`awk -F, '{print NF}'`: the number of fields in each line."""
    program = re.fullmatch(r"-F ?(.) \{ ?print NF;? ?\}", " ".join(given))
    if program is None:
        raise _DependsError
    return "".join(f"{len(line.split(program[1])) if line else 0}\n" for line in stdin.splitlines())


_SED = re.compile(
    r"s(?P<d>[^\w\s\\])(?P<old>(?:(?!(?P=d))(?:[^\\.*\[\]^$&]|\$(?!(?P=d))))+)(?P=d)(?P<new>(?:(?!(?P=d))[^\\&])*)(?P=d)(?P<g>g?)"
)
"""A plain text in the place of another; a `$` that does not end an expression stands for itself."""


_EXTENDED = re.compile(
    r"s(?P<d>[^\w\s\\|()])(?P<old>(?:(?!(?P=d))[^\\\[\]{}])+)(?P=d)(?P<new>(?:(?!(?P=d))[^\\&])*)(?P=d)(?P<g>g?)"
)
"""An extended regular expression that means the same to Python."""


def _sed(given: list[str], stdin: str) -> str:
    """`sed s/old/new/` with plain texts, and `sed -E` with expressions that mean the same in Python."""
    if given[:1] in (["-E"], ["-r"]) and len(given) == 2 and (extended := _EXTENDED.fullmatch(given[1])):
        most = 0 if extended["g"] else 1
        lines = (re.sub(extended["old"], extended["new"], line, count=most) for line in stdin.splitlines())
        return "".join(f"{line}\n" for line in lines)
    program = _SED.fullmatch(given[-1]) if len(given) == 1 or given[:-1] == ["-e"] else None
    if program is None:
        raise _DependsError
    count = -1 if program["g"] else 1
    return "".join(line.replace(program["old"], program["new"], count) for line in stdin.splitlines(keepends=True))


def edited(given: list[str], text: str) -> str | None:
    """What `sed` makes of a text; None where that depends on the machine, or cannot be told.

    Args:
        given: Its arguments, without the files.
        text: The text.
    """
    try:
        return _sed(given, text)
    except _DependsError:
        return None


def _cat(given: list[str], stdin: str) -> str:
    if given:
        raise _DependsError
    return stdin


_COMMANDS: dict[str, Callable[[list[str], str], str]] = {
    "dirname": _dirname,
    "basename": _basename,
    "echo": _echo,
    "printf": _printf,
    "expr": _expr,
    "seq": _seq,
    "tr": _tr,
    "wc": _wc,
    "cut": _cut,
    "sed": _sed,
    "awk": _awk,
    "cat": _cat,
}
