"""The options that a Python file takes: those of `parser.add_argument(...)`, and the fields of dataclasses, its own or imported ones.

`transformers.HfArgumentParser` and `trl.TrlParser` make an option of each field of the dataclasses that they are given.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.python_arguments import ALL, set_elsewhere
from rlstep_hooks.launch.python_source import name_of
from rlstep_hooks.launch.structured import definition_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_PARSERS = ("HfArgumentParser", "TrlParser")
_MAKERS = (*_PARSERS, "ArgumentParser", "add_subparsers", "add_mutually_exclusive_group")
"""Calls that make what takes arguments."""
_OF_FILES = frozenset(("parse_yaml_file", "parse_json_file", "parse_dict"))
"""Methods of such parsers that take the fields from elsewhere."""
_OPTIONAL = re.compile(r"Optional\[(\w+)\]|(\w+) \| None")


class Option(msgspec.Struct, frozen=True):
    """An option that a file adds to its parser."""

    names: tuple[str, ...]
    """The long flags that set it, without dashes; of an argument without a flag the number of its place, counted from 0."""
    keywords: dict[str, ast.expr]
    """What `add_argument` is given."""
    off: tuple[str, ...] = ()
    """The long flags that turn it off, of one that another flag turns on."""
    short: tuple[str, ...] = ()
    """Its flags of one dash, beside long ones."""
    abbreviated: bool = False
    """Whether the beginning of a long flag sets it too, where no other option begins so."""

    @property
    def flags(self) -> tuple[str, ...]:
        """All of its flags."""
        return (*self.names, *self.off, *self.short)

    @property
    def placed(self) -> bool:
        """Whether it is an argument without a flag, known by its place."""
        return self.names[0].isdigit()


def options_of(tree: ast.Module, source: str, flags: Collection[str]) -> dict[str, Option | None]:
    """The options of a file, by the attributes that they set; None for one that is added several times.

    Args:
        tree: The file.
        source: Its path.
        flags: The long options that it is called with.
    """
    found = _with_defaults(tree, dict(_placed(tree)) | dict(_added(tree)))
    for name, option in (*_of_dataclasses(tree, source, flags), *_of_loops(tree)):
        found[name] = None if name in found else option
    elsewhere = set_elsewhere(tree) if found else frozenset[str]()
    return {
        name: None if ALL in elsewhere or _is_one_of(name, each, elsewhere) else each for name, each in found.items()
    }


def _is_one_of(name: str, option: Option | None, names: frozenset[str]) -> bool:
    return name in names or (option is not None and not names.isdisjoint(option.flags))


def _of_dataclasses(tree: ast.Module, source: str, flags: Collection[str]) -> Iterator[tuple[str, Option]]:
    """The fields of the file's own dataclasses that the one parser of the file is given, and that nothing but flags can set."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = [call for call in calls if name_of(call.func) in _PARSERS]
    reads_files = any(name_of(call.func) in _OF_FILES for call in calls)
    if (
        len(made) != 1
        or not made[0].args
        or reads_files
        or (name_of(made[0].func) == "TrlParser" and "config" in flags)
    ):
        return
    given = made[0].args[0]
    names = [ast.unparse(each) for each in (given.elts if isinstance(given, ast.Tuple | ast.List) else [given])]
    for name in names:
        node = definition_of(name, Path(source)) if name.isidentifier() else None
        # A class that derives from another one has fields that are not here, and may be the framework's.
        if node is not None and not node.bases:
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    yield each.target.id, _of_field(each, each.target.id, elsewhere=node not in tree.body)


def _of_loops(tree: ast.Module) -> Iterator[tuple[str, Option]]:
    """The fields of a dataclass of the file, each of which a loop makes an option:
    `for f in fields(Config): parser.add_argument(f"--{f.name}", type=f.type, default=f.default)`.
    """
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef) and not node.bases}
    # With annotations that stay texts, no type could be called.
    if any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body):
        return
    for loop in (node for node in ast.walk(tree) if isinstance(node, ast.For)):
        match loop:
            case ast.For(target=ast.Name(id=field), iter=ast.Call(func=made, args=[ast.Name(id=name)]), orelse=[]):
                owner = classes.get(name) if ast.unparse(made).rpartition(".")[2] == "fields" else None
                kinds = _kinds_in(loop, field) if owner is not None else None
            case _:
                continue
        if owner is None or kinds is None:
            continue
        for each in owner.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                option = _of_field(each, each.target.id, elsewhere=False)
                kind = ast.unparse(option.keywords["type"])
                yield each.target.id, option if kind in kinds else _with_other_type(option)


def _kinds_in(loop: ast.For, field: str) -> tuple[str, ...] | None:
    """The types of fields whose words a loop converts by the very type of the field; None where it does not make an option of each."""
    *before, last = loop.body
    call = last.value if isinstance(last, ast.Expr) else None
    if not isinstance(call, ast.Call) or name_of(call.func) != "add_argument" or len(call.args) != 1:
        return None
    words = {word.arg: ast.unparse(word.value) for word in call.keywords}
    named = ast.unparse(call.args[0]) == f"f'--{{{field}.name}}'"
    if not named or words.get("default") != f"{field}.default" or not set(words) <= {"type", "default", "help"}:
        return None
    kinds = {
        ast.unparse(each.targets[0]): ast.unparse(each.value)
        for each in before
        if isinstance(each, ast.Assign) and len(each.targets) == 1
    }
    if len(kinds) < len(before):
        return None
    kind = kinds.get(words.get("type", ""), words.get("type", ""))
    converts = kind == f"{field}.type" or (kind.endswith(f" if {field}.type == bool else {field}.type"))
    return ("int", "float", "str") if converts else ()


def _with_other_type(option: Option) -> Option:
    """An option whose word in a command means nothing that is known."""
    return Option(option.names, {**option.keywords, "type": ast.Constant("another")})


def _of_field(field: ast.AnnAssign, name: str, *, elsewhere: bool) -> Option:
    """The option of a field, in the words of `add_argument`.

    Args:
        field: The field.
        name: Its name.
        elsewhere: Whether another file defines it: names in its default are then those of that file.
    """
    annotation = ast.unparse(field.annotation).strip("'\"")
    optional = _OPTIONAL.fullmatch(annotation)
    kind = next(filter(None, optional.groups())) if optional is not None else annotation
    keywords: dict[str, ast.expr] = {"type": ast.Name(kind)}
    if field.value is None or _has_no_default(field.value) or (elsewhere and not _is_written_out(field.value)):
        keywords["required"] = ast.Constant(value=True)
    else:
        keywords["default"] = default_of_field(field.value)
    return Option((name,), keywords)


def _is_written_out(value: ast.expr) -> bool:
    """Whether the default of a field uses no names of its file."""
    try:
        ast.literal_eval(default_of_field(value))
    except ValueError:
        return False
    return True


def _has_no_default(value: ast.expr) -> bool:
    is_field = isinstance(value, ast.Call) and name_of(value.func) == "field"
    return (
        is_field
        and isinstance(value, ast.Call)
        and not any(str(word.arg).startswith("default") for word in value.keywords)
    )


def default_of_field(value: ast.expr) -> ast.expr:
    """The default that a field is given: 4 of `field(default=4, metadata=...)`, and of pydantic's `Field(4, ge=1)`."""
    if not isinstance(value, ast.Call) or name_of(value.func) not in ("field", "Field"):
        return value
    placed = value.args[:1] if name_of(value.func) == "Field" else []
    stated = [*placed, *(word.value for word in value.keywords if word.arg == "default")]
    is_required = bool(stated) and isinstance(stated[0], ast.Constant) and stated[0].value is ...
    return stated[0] if stated and not is_required else value


def _placed(tree: ast.Module) -> Iterator[tuple[str, Option | None]]:
    """The arguments without a flag, `parser.add_argument("config", nargs="?")`, by the attributes that they set.

    None where their places cannot be told: several parsers, subcommands, and arguments that take any number of words.
    """
    calls = sorted((node for node in ast.walk(tree) if isinstance(node, ast.Call)), key=lambda call: call.lineno)
    added = [
        (call.args[0].value, {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg})
        for call in calls
        if name_of(call.func) == "add_argument" and call.args and isinstance(call.args[0], ast.Constant)
    ]
    found = [(name, words) for name, words in added if isinstance(name, str) and not name.startswith("-")]
    parsers = [call for call in calls if name_of(call.func) in _MAKERS]
    counted = all(ast.unparse(words.get("nargs", ast.Constant(None))) in ("None", "'?'") for _, words in found)
    known = counted and len(parsers) == 1 and name_of(parsers[0].func) == "ArgumentParser"
    for place, (name, words) in enumerate(found):
        if "nargs" not in words:
            words["required"] = ast.Constant(value=True)
        yield name, Option((str(place),), words) if known else None


def _added(tree: ast.Module) -> Iterator[tuple[str, Option | None]]:
    """The options of `parser.add_argument(...)`, by the attributes that they set; None for one that is added several times."""
    found: dict[str, Option | None] = {}
    # A parser of dataclasses has the framework's own flags too.
    alone = not any(isinstance(node, ast.Call) and name_of(node.func) in _PARSERS for node in ast.walk(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or name_of(node.func) != "add_argument":
            continue
        flags = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        dest = keywords.get("dest")
        long = [flag for flag in flags if flag.startswith("--")] or flags[:1]
        names = tuple(flag.lstrip("-").replace("-", "_") for flag in long if flag.startswith("-"))
        if not names:
            continue
        name = str(dest.value) if isinstance(dest, ast.Constant) else names[0]
        short = tuple(flag[1:] for flag in flags if flag not in long and flag.startswith("-"))
        option = msgspec.structs.replace(_switch(names, keywords), short=short, abbreviated=alone)
        found[name] = _both(found[name], option) if name in found else option
    yield from found.items()


def _switch(names: tuple[str, ...], keywords: dict[str, ast.expr]) -> Option:
    """An option, where `BooleanOptionalAction` gives it a second flag: `--lora` and `--no-lora`."""
    if ast.unparse(keywords.get("action", ast.Constant(None))).rpartition(".")[2] != "BooleanOptionalAction":
        return Option(names, keywords)
    keywords = {"default": ast.Constant(None), **keywords, "action": ast.Constant("store_true")}
    return Option(names, keywords, tuple(f"no_{name}" for name in names))


def _both(first: Option | None, second: Option) -> Option | None:
    """One option of two flags, of which one turns on what the other turns off; None for any other two."""
    if first is None or first.off or second.off:
        return None
    actions = [ast.unparse(each.keywords.get("action", ast.Constant(None))) for each in (first, second)]
    if sorted(actions) != ["'store_false'", "'store_true'"]:
        return None
    # The parser asks its actions for their defaults in the order in which they were added.
    default = first.keywords.get("default", ast.Constant(actions[0] == "'store_false'"))
    on, off = (first, second) if actions[0] == "'store_true'" else (second, first)
    switch = Option(on.names, {**on.keywords, "default": default}, (*off.names, *off.short), on.short)
    return msgspec.structs.replace(switch, abbreviated=on.abbreviated)


def _with_defaults(tree: ast.Module, found: dict[str, Option | None]) -> dict[str, Option | None]:
    """The options with the defaults that `parser.set_defaults(size=8)` gives them, which are not known behind a condition."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    setting = sorted((call for call in calls if name_of(call.func) == "set_defaults"), key=lambda call: call.lineno)
    if not setting:
        return found
    several = sum(name_of(call.func) in ("ArgumentParser", "add_parser") for call in calls) > 1
    branches = (node for node in ast.walk(tree) if isinstance(node, ast.If | ast.For | ast.While | ast.Try))
    perhaps = {id(inner) for branch in branches for inner in ast.walk(branch)}
    for call in setting:
        for word in call.keywords:
            unclear = several or id(call) in perhaps or word.arg is None
            value = (
                ast.Starred(word.value, ast.Load()) if unclear else word.value
            )  # nothing has the value of a starred expression
            for name in found if word.arg is None else [word.arg]:
                option = found.get(name)
                if option is not None and not option.placed:
                    found[name] = msgspec.structs.replace(option, keywords={**option.keywords, "default": value})
    return found
