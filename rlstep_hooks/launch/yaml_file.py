"""The text of one YAML or TOML file -> settings with their places. `inheritance` reads a file with its parents."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.files import contents, size_of
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import LaunchError, Place, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import yaml

LARGEST_FILE = 1 << 20
_MOST_SETTINGS = 20_000
_DEEPEST = 40
_EXPONENT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")


class Repeated(msgspec.Struct, frozen=True):
    """A key that a mapping has several times with different values. PyYAML keeps the last, and OmegaConf refuses the file."""

    name: str
    before: Any
    value: Any
    """The last value."""
    place: Place

    def __str__(self) -> str:
        return f"{self.name} occurs twice: {self.before} and {self.value}"


def read_text(path: str | Path) -> str:
    """The text of a configuration file.

    Raises:
        LaunchError: It is too large, or not a text.
        OSError: It cannot be read.
    """
    file = Path(path)
    if size_of(file) > LARGEST_FILE:
        raise LaunchError(f"larger than {LARGEST_FILE >> 20} MiB; no configuration is as large", Place(str(path)))
    try:
        return contents(file).decode()
    except UnicodeDecodeError:
        raise LaunchError("not a text file (not UTF-8)", Place(str(path))) from None


def parse_yaml(text: str, source: str, repeated: list[Repeated] | None = None) -> dict[str, Setting]:
    """The settings of YAML text.

    Args:
        text: The text.
        source: Its name in messages.
        repeated: Takes the keys that occur several times, of which the last holds; without it, they are refused.

    Raises:
        LaunchError: It is not YAML, not a mapping, or a key occurs twice.
    """
    import yaml

    loader = loader_class()(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise LaunchError("an empty configuration", Place(source))
        if not isinstance(node, yaml.MappingNode):
            raise LaunchError("not a configuration: it does not begin with `key: value`", Place(source, 1, 1))
        if _contains_itself(node, set(), set()):
            raise LaunchError("an alias that contains itself", Place(source))
        settings: dict[str, Setting] = {}
        twice: list[Repeated] = []
        for setting in _flattened(loader, node, "", source, twice):
            settings[setting.name] = setting
            if len(settings) > _MOST_SETTINGS:
                raise LaunchError(f"more than {_MOST_SETTINGS} settings", Place(source))
        if repeated is not None:
            repeated += twice
        elif twice:
            raise SettingError(str(twice[0]), twice[0].place)
        return settings
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source)
        raise LaunchError(f"not YAML: {error.problem}", place) from None
    except yaml.YAMLError as error:
        raise LaunchError(f"not YAML: {str(error).splitlines()[0]}", Place(source)) from None
    except (RecursionError, ValueError) as error:
        raise LaunchError(f"not a configuration: {error}", Place(source)) from None
    finally:
        loader.dispose()


@lru_cache(maxsize=1)
def loader_class() -> Any:
    """The safe loader with the numbers of OmegaConf: PyYAML takes `1e6` for a text."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the base is chosen when it is imported
        pass

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789."))
    return Loader


def _contains_itself(node: yaml.Node, open_nodes: set[int], clear: set[int]) -> bool:
    """Whether a node contains itself through an alias."""
    if id(node) in clear or isinstance(node.value, str):
        return False
    if id(node) in open_nodes:
        return True
    open_nodes.add(id(node))
    parts = (part for entry in node.value for part in (entry if isinstance(entry, tuple) else (entry,)))
    found = any(_contains_itself(part, open_nodes, clear) for part in parts)
    open_nodes.discard(id(node))
    clear.add(id(node))
    return found


def _flattened(
    loader: yaml.SafeLoader,
    node: yaml.MappingNode,
    prefix: str,
    source: str,
    twice: list[Repeated],
    depth: int = 0,
) -> Iterator[Setting]:
    import yaml

    if depth > _DEEPEST:
        raise LaunchError("nested too deeply", Place(source, node.start_mark.line + 1, node.start_mark.column + 1))
    _merge(node, source)
    last = {str(key_node.value): value_node for key_node, value_node in node.value}
    for key_node, value_node in node.value:
        name = f"{prefix}{key_node.value}"
        if (after := last[str(key_node.value)]) is not value_node:
            before, value = (loader.construct_object(each, deep=True) for each in (value_node, after))
            if before != value:
                mark = after.start_mark
                twice.append(Repeated(name, before, value, Place(source, mark.line + 1, mark.column + 1)))
            continue
        if isinstance(value_node, yaml.MappingNode) and value_node.value:
            yield from _flattened(loader, value_node, f"{name}.", source, twice, depth + 1)
        else:
            mark = key_node.start_mark
            value = loader.construct_object(value_node, deep=True)
            yield Setting(name, value, Place(source, mark.line + 1, mark.column + 1), name)


_MERGE = "tag:yaml.org,2002:merge"


def _merge(node: yaml.MappingNode, source: str) -> None:
    """Put the keys that `<<` brings into a mapping: its own keys hold over them, and the earlier of several mappings over the later.

    The rule is that of https://yaml.org/type/merge.html. PyYAML's own `flatten_mapping` is not used, because its releases differ: 6.0.3
    keeps the rule, and 6.0.4 lets the later mapping of a list hold.

    Raises:
        LaunchError: `<<` brings something that is no mapping.
    """
    own = [pair for pair in node.value if pair[0].tag != _MERGE]
    if len(own) == len(node.value):
        return
    written = {key.value for key, _ in own}
    brought: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
    for mapping in (part for key, value in node.value if key.tag == _MERGE for part in _merged_mappings(value, source)):
        _merge(mapping, source)
        for key, value in mapping.value:
            if key.value not in written:
                brought.setdefault(key.value, (key, value))
    node.value = [*brought.values(), *own]


def _merged_mappings(value: yaml.Node, source: str) -> list[yaml.MappingNode]:
    import yaml

    parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
    if not all(isinstance(part, yaml.MappingNode) for part in parts):
        place = Place(source, value.start_mark.line + 1, value.start_mark.column + 1)
        raise LaunchError("not YAML: << brings something that is no mapping", place)
    return parts


def read_toml(path: str | Path) -> dict[str, Setting]:
    """The settings of a TOML file: names of nested tables are joined by dots.

    Raises:
        LaunchError: It is not TOML, or this Python is older than 3.11 and cannot read TOML.
        OSError: It cannot be read.
    """
    text = read_text(path)
    data = parse_toml(text, str(path))
    return {name: Setting(name, value, _toml_place(text, name, str(path)), name) for name, value in _items(data, "")}


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Raises:
        LaunchError: It is not TOML, or this Python is older than 3.11 and cannot read TOML.
    """
    try:
        import tomllib
    except ImportError:
        raise LaunchError("TOML needs Python 3.11 or later", Place(source)) from None
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LaunchError(f"not TOML: {error}", Place(source)) from None
    return data


def _items(data: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _items(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _toml_place(text: str, name: str, source: str) -> Place:
    """The first line that assigns the last part of a name; the standard library's parser does not say where a value is."""
    last = name.rpartition(".")[2]
    for number, line in enumerate(text.splitlines(), 1):
        if line.partition("=")[0].strip().rpartition(".")[2] == last:
            return Place(source, number, 1)
    return Place(source)
