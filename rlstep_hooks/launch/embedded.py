"""Launch commands in files that are no shell scripts: notebooks, Makefiles, Dockerfiles, the YAML of workflows and clusters.

Each becomes shell text whose lines stand where they stand in the file. Nothing is executed, and what a file leaves to the run
(`${{ matrix.size }}`) is a variable without a value there.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlstep_hooks.launch.files import MAKEFILES, NOTEBOOK, contents, holds_commands, size_of
from rlstep_hooks.launch.text import LaunchError, Place
from rlstep_hooks.launch.yaml_file import LARGEST_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import yaml


class Embedded(msgspec.Struct, frozen=True):
    """Shell text in another file."""

    text: str
    """The shell text, behind as many empty lines as give its lines the numbers that they have in the file."""
    variables: dict[str, str] = {}
    """Environment variables that the file sets for the text."""


def shell_in(path: Path) -> list[Embedded]:
    """The shell texts in a file, in order; none if it is no such file or cannot be read as one.

    Raises:
        OSError: It cannot be read.
    """
    kind = path.suffix if path.suffix in _KINDS else "Makefile" if path.name in MAKEFILES else "Dockerfile"
    if size_of(path) > LARGEST_FILE * 8 or (path.suffix not in _KINDS and not holds_commands(path.name)):
        return []
    text = contents(path).decode(errors="replace")
    try:
        return list(_KINDS[kind](text))
    except (ValueError, RecursionError, SyntaxError):
        return []


# Notebooks.


def code_of(path: Path) -> bytes:
    """The Python of a notebook, its cells one below the other, without what lines of IPython's own (`!pip`, `%cd`) say.

    Raises:
        LaunchError: It is no notebook.
        OSError: It cannot be read.
    """
    try:
        cells = _code_cells(contents(path).decode())
    except ValueError as error:
        raise LaunchError(f"not a notebook: {error}", Place(str(path))) from None
    lines = [line if whose == "python" else _in_place_of(line) for line, whose in _marked(cells)]
    return "\n".join(lines).encode()


_STATEMENT = re.compile(r"[ \t]+(?=[!?]|%[%\w]|[\w, ]+=\s*[!%])")
"""The indentation of a line that only IPython reads. `% name` may be an operator in a line that goes on."""


def _in_place_of(line: str) -> str:
    """What Python reads for a line of IPython's own: a statement where it may be the only one of a block."""
    indented = _STATEMENT.match(line)
    return f"{indented[0]}pass" if indented is not None else ""


_IPYTHON = re.compile(r"\s*(%|\?|[\w, ]+=\s*[!%])")
"""What only IPython reads: magic, help, the output of a command."""


def _marked(cells: list[list[str]]) -> Iterator[tuple[str, Literal["shell", "ipython", "python"]]]:
    """The lines of cells, and who reads each. A line of the shell's or of IPython's that ends with a backslash goes on in the next."""
    whose: Literal["shell", "ipython", "python"] = "python"
    for line in (line for cell in cells for line in cell):
        if whose == "python":
            whose = "shell" if line.lstrip().startswith("!") else "ipython" if _IPYTHON.match(line) else "python"
        yield line, whose
        if not line.rstrip().endswith("\\"):
            whose = "python"


class Written(msgspec.Struct, frozen=True):
    """The files that the cells of a notebook write."""

    texts: dict[str, str] = {}
    """What each file holds, by the name that the notebook gives it."""
    several: frozenset[str] = frozenset()
    """Files that several cells write otherwise: which text a launch finds is not known."""


def written_by(path: Path) -> Written:
    """The files that a notebook writes by `%%writefile NAME`; none where it cannot be read.

    Args:
        path: The notebook.

    Raises:
        OSError: It cannot be read.
    """
    try:
        cells = [cell for cell in _sources(contents(path).decode()) if _WRITES.match(cell)]
    except ValueError:
        return Written()
    texts: dict[str, str] = {}
    several: set[str] = set()
    for cell in cells:
        found = _WRITES.match(cell)
        assert found is not None, "the others were left out"
        name, text = found["name"], cell[found.end() :]
        if found["appends"]:
            text = texts.get(name, "") + text
        elif name in texts and texts[name] != text:
            several.add(name)
        texts[name] = text
    return Written(texts, frozenset(several))


_WRITES = re.compile(r"%%(?:writefile|file)[ \t]+(?P<appends>(?:-a|--append)[ \t]+)?(?P<name>[^\s\"']+)[ \t]*(?:\n|$)")


def _sources(text: str) -> Iterator[str]:
    """The texts of a notebook's cells of code."""
    notebook = json.loads(text)
    cells = notebook.get("cells", []) if isinstance(notebook, dict) else []
    for cell in cells:
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source", "")
            yield "".join(source) if isinstance(source, list) else str(source)


def _code_cells(text: str) -> list[list[str]]:
    found: list[list[str]] = []
    for lines in _sources(text):
        if _WRITES.match(lines):
            lines = "\n" * lines.count("\n")
        if lines.startswith(_SHELL_CELLS):
            lines = "\n".join(f"!{line}" for line in lines.splitlines()[1:])
        found.append(lines.splitlines())
    return found


_SHELL_CELLS = ("%%bash", "%%sh", "%%shell", "%%script bash")


def _in_notebook(text: str) -> Iterator[Embedded]:
    lines = _marked(_code_cells(text))
    kept = [_filled(line.strip().lstrip("!"), r"\{(\w+)\}") if whose == "shell" else "" for line, whose in lines]
    yield Embedded("\n".join(kept))


# Makefiles.

_MAKE_SETS = re.compile(r"(?:export\s+|override\s+)?([A-Za-z_]\w*)\s*(::?=|\?=|\+=|=)\s*(.*)")


def _in_makefile(text: str) -> Iterator[Embedded]:
    """Variables and the commands of all targets; `ifdef` and the like decide nothing."""
    kept: list[str] = []
    going_on = False
    for line in text.splitlines():
        assigned = None if going_on or line.startswith("\t") else _MAKE_SETS.fullmatch(line.strip())
        if line.startswith("\t") or going_on:
            kept.append(_made(line.strip() if going_on else line.strip().lstrip("@-+")))
        elif assigned is not None and not assigned[3].endswith("\\"):
            name, how, value = assigned.groups()
            value = _made(value.partition(" #")[0].strip()).replace('"', '\\"')
            kept.append(
                f': "${{{name}:={value}}}"' if how == "?=" else f'{name}{"+=" if how == "+=" else "="}"{value}"'
            )
        else:
            kept.append("")
        going_on = bool(kept[-1]) and line.rstrip().endswith("\\")
    yield Embedded("\n".join(kept))


def _made(line: str) -> str:
    """A line of a recipe as the shell gets it, with its variables as the shell's."""
    line = re.sub(r"\$[({](\w+)[)}]", r"${\1}", line.replace("$$", "\0"))
    line = re.sub(r"\$\(shell ([^()]*)\)", r"$(\1)", line)
    return line.replace("\0", "$")


# Dockerfiles.


def _in_dockerfile(text: str) -> Iterator[Embedded]:
    """What a container starts, with ENV and ARG: the last ENTRYPOINT before the last CMD."""
    variables: list[str] = []
    starts: dict[str, tuple[int, str]] = {}
    lines = text.splitlines()
    for number, line in enumerate(lines):
        instruction, _, rest = line.strip().partition(" ")
        while rest.endswith("\\") and number + 1 < len(lines):
            number += 1
            rest = rest[:-1] + lines[number].strip()
        if instruction in ("ENV", "ARG") and "=" in rest:
            variables.append(f"export {rest}")
        elif instruction in ("CMD", "ENTRYPOINT"):
            starts[instruction] = number, _exec_form(rest)
    if starts:
        last = max(number for number, _ in starts.values())
        command = " ".join(starts[name][1] for name in ("ENTRYPOINT", "CMD") if name in starts)
        above = "; ".join(variables)
        yield Embedded(f"{above}{chr(10) * max(last, 1)}{command}")


def _exec_form(text: str) -> str:
    """`["python", "train.py"]` as a shell's words."""
    if not text.startswith("["):
        return text
    words = json.loads(text)
    return shlex.join(str(word) for word in words)


# YAML of workflows, pods, jobs and services.

_LINES = frozenset({"run", "script", "before_script", "entrypoint", "submissionCommand"})
_WORDS = frozenset({"command", "args", "cmd", "entrypoint"})
_ENVIRONMENTS = frozenset({"env", "environment", "envs", "variables"})


def _in_yaml(text: str) -> Iterator[Embedded]:
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        documents = [node for node in yaml.compose_all(text, loader) if node is not None]
    except yaml.YAMLError as error:
        raise ValueError from error
    for document in documents:
        yield from _below(document, {}, 0)


def _below(node: yaml.Node, variables: dict[str, str], depth: int) -> Iterator[Embedded]:
    import yaml

    if depth > 40:
        raise ValueError
    if isinstance(node, yaml.SequenceNode):
        for part in node.value:
            yield from _below(part, variables, depth + 1)
    if not isinstance(node, yaml.MappingNode):
        return
    own = {key.value: value for key, value in node.value if isinstance(key.value, str)}
    variables = {
        **variables,
        **{name: text for key in _ENVIRONMENTS & own.keys() for name, text in _variables(own[key])},
    }
    words = [word for key in ("entrypoint", "command", "args", "cmd") if key in own for word in _strings(own[key])]
    for key, value in own.items():
        if key in _LINES and _strings(value) and (key != "entrypoint" or isinstance(value, yaml.ScalarNode)):
            yield _placed("\n".join(_strings(value)), value, variables)
        elif key in _WORDS and isinstance(value, yaml.ScalarNode) and "args" not in own:
            yield _placed(value.value, value, variables)
        elif key in _WORDS and words and key == next(name for name in own if name in _WORDS):
            yield _placed(words[0] if len(words) == 1 else shlex.join(words), value, variables)
        elif key not in _ENVIRONMENTS:
            yield from _below(value, variables, depth + 1)


def _strings(node: yaml.Node) -> list[str]:
    """A text, or a list of texts; empty for anything else."""
    import yaml

    parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
    return [part.value for part in parts] if all(isinstance(part, yaml.ScalarNode) for part in parts) else []


def _variables(node: yaml.Node) -> Iterator[tuple[str, str]]:
    """`NAME: value`, `- NAME=value` and `- {name: NAME, value: value}`."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        yield from ((key.value, value.value) for key, value in node.value if isinstance(value, yaml.ScalarNode))
    for part in node.value if isinstance(node, yaml.SequenceNode) else ():
        if isinstance(part, yaml.ScalarNode) and "=" in part.value:
            yield tuple(part.value.split("=", 1))
        elif isinstance(part, yaml.MappingNode):
            pair = {key.value: value.value for key, value in part.value if isinstance(value, yaml.ScalarNode)}
            if "name" in pair and "value" in pair:
                yield pair["name"], pair["value"]


def _placed(text: str, node: yaml.Node, variables: dict[str, str]) -> Embedded:
    line = node.start_mark.line + (getattr(node, "style", None) in ("|", ">"))
    known = {name: value for name, value in variables.items() if "${{" not in value}
    return Embedded("\n" * line + _filled(text, r"\$\{\{\s*([\w.-]+)[^}]*\}\}"), known)


def _filled(text: str, pattern: str) -> str:
    """A text with variables of the shell for what a template leaves open."""
    return re.sub(pattern, lambda found: "${" + re.sub(r"\W", "_", found[1]) + "}", text)


_KINDS: dict[str, Callable[[str], Iterable[Embedded]]] = {
    NOTEBOOK: _in_notebook,
    ".mk": _in_makefile,
    "Makefile": _in_makefile,
    "Dockerfile": _in_dockerfile,
    ".yaml": _in_yaml,
    ".yml": _in_yaml,
}
