"""Which flags of a launch the parser of open-instruct's trainer does not have: it ends the run at them.

`HfArgumentParser` takes the fields of the dataclasses that the program gives it, their beginnings, and `--no_x` for flags that are on.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.arguments import read_arguments
from rlstep_hooks.systems.engine.declaration import Check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.launch.checkout import Checkout, Source
    from rlstep_hooks.launch.command import Command

_PROGRAM = "grpo_fast.py"
_PARSER = "ArgumentParserPlus"
_CLASS = re.compile(r"^class (\w+)(?:\(([\w.,\s]*)\))?:", re.MULTILINE)


def unknown_flags(command: Command, checkout: Checkout) -> Check | None:
    """The refusal of the flags that no dataclass of the checkout has; None where there are none, or where that cannot be told."""
    program = checkout.source(_PROGRAM)
    if program is None or not command.program.name.endswith((_PROGRAM, _PROGRAM.removesuffix(".py"))):
        return None
    first = command.arguments[0].text if command.arguments else ""
    line = _parser_line(program)
    # A file that is given first takes another way through the parser, which drops flags that it does not know.
    if line is None or first.endswith(".yaml"):
        return None
    texts = [path.read_text(errors="replace") for path in sorted(checkout.package.rglob("*.py"))]
    if not _all_here(program, texts):
        return None
    flags, _ = read_arguments(command.arguments)
    unknown = [setting.written or name for name, setting in flags.items() if not _is_field(name, texts)]
    if not unknown:
        return None
    return Check(
        "False",
        f"ValueError: Some specified arguments are not used by the HfArgumentParser: {', '.join(unknown)}",
        fix=f"leave out {' and '.join(unknown)}, which no dataclass in {checkout.package.name}/ has",
        when="at start-up, when the arguments are parsed",
        source=program.at(line),
    )


def _parser_line(program: Source) -> int | None:
    """The line of the program that makes its parser."""
    return next((call.lineno for call in _calls(program)), None)


def _calls(program: Source) -> Iterator[ast.Call]:
    for node in ast.walk(program.tree() or ast.Module([], [])):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == _PARSER:
            yield node


def _all_here(program: Source, texts: list[str]) -> bool:
    """Whether the package defines all dataclasses that the parser is given, and all that these derive from."""
    parents = {name: re.findall(r"(\w+)\s*(?:,|$)", bases) for text in texts for name, bases in _CLASS.findall(text)}
    for call in _calls(program):
        given = call.args[0] if call.args else None
        if not isinstance(given, ast.Tuple):
            return False
        asked = [ast.unparse(part).rpartition(".")[2] for part in given.elts]
        while asked:
            name = asked.pop()
            if name not in parents:
                return False
            asked += [parent for parent in parents[name] if parent != name]
    return True


def _is_field(name: str, texts: list[str]) -> bool:
    """Whether some class of the package has a field of this name, or one that begins with it."""
    plain = name.replace("-", "_")
    names = "|".join(re.escape(each) for each in (plain, plain.removeprefix("no_")))
    field = re.compile(rf"^\s+(?:{names})\w*\s*:", re.MULTILINE)
    return any(field.search(text) for text in texts)
