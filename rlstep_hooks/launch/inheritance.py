"""A configuration with the files that it inherits from: `defaults` as Hydra and as NeMo-RL read it, `toml_files` as prime-rl does.

Both dialects use the word `defaults`. A text, or a list of file names, names parents beside the file, which overrides them. Hydra's
list names groups, packages and `_self_`; tests compare the result with Hydra's own. A parent that is not here is reported and never
guessed.
"""

from __future__ import annotations

import re
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.layers import Parent, over
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import LaunchError, Place
from rlstep_hooks.launch.yaml_file import Repeated, parse_yaml, read_text, read_toml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SUFFIXES = (".yaml", ".yml")
_DEEPEST = 20
_HEADER = re.compile(r"^\s*#\s*@package\s+(\S+)\s*$", re.MULTILINE)
_CHOICE = re.compile(r"\$\{([\w/@.]+)\}")


class Configuration(msgspec.Struct, frozen=True):
    """The settings of a file and of all that it inherits from."""

    settings: dict[str, Setting]
    missing: tuple[Parent, ...] = ()
    choices: frozenset[str] = frozenset()
    """The groups for which Hydra's lists choose a file; `group=name` in a command chooses another one."""
    repeated: tuple[Repeated, ...] = ()
    """Keys that a file has several times; the settings are the last of each."""


def read_config(path: str | Path, choices: Mapping[str, str] | None = None) -> Configuration:
    """The settings of a YAML file or (if its name ends in .toml) of a TOML file, over those of its parents.

    Args:
        path: The file.
        choices: Hydra's groups for which the command chooses a file, by their names (`group` or `group@package`).

    Raises:
        LaunchError: A file is not YAML or TOML, or one inherits from itself.
        OSError: A file cannot be read.
    """
    file = Path(path)
    reader = _Reader(file.parent, dict(choices or {}))
    settings = reader.toml(file, 0) if file.suffix == ".toml" else reader.yaml(file, "", 0)
    return Configuration(
        settings, tuple(dict.fromkeys(reader.missing)), frozenset(reader.groups), tuple(reader.repeated)
    )


class _Entry(msgspec.Struct, frozen=True):
    """One entry of Hydra's list."""

    group: str
    """The group with its path, "" for a configuration of no group."""
    names: tuple[str, ...]
    """The files that are chosen; none for null."""
    package: str | None
    optional: bool = False
    override: bool = False


class _Reader:
    """Reads one file and all its parents."""

    def __init__(self, root: Path, choices: dict[str, str]) -> None:
        self.missing: list[Parent] = []
        self.groups: set[str] = set()
        self.repeated: list[Repeated] = []
        self._search = [root]
        self._choices = choices

    def toml(self, path: Path, depth: int) -> dict[str, Setting]:
        own = read_toml(path)
        listed = own.pop("toml_files", None)
        return over(self._parents(path, listed, depth), own) if listed is not None else own

    def yaml(self, path: Path, package: str, depth: int) -> dict[str, Setting]:
        return self._composed(path, read_text(path), package, depth)

    def _composed(self, path: Path, text: str, package: str, depth: int) -> dict[str, Setting]:
        own = parse_yaml(text, str(path), self.repeated) if depth == 0 or _has_content(text) else {}
        listed = own.get("defaults")
        if listed is None or not isinstance(listed.value, str | list):
            return _within(own, package)
        del own["defaults"]
        if isinstance(listed.value, str) or all(_is_file_name(entry) for entry in listed.value):
            return _within(over(self._parents(path, listed, depth), own), package)
        return self._with_hydra(path, own, listed, package, depth)

    def _parents(self, path: Path, listed: Setting, depth: int) -> dict[str, Setting]:
        """The parents of the simple dialect, the later over the earlier: files beside the one that names them."""
        _check_depth(depth, listed)
        result: dict[str, Setting] = {}
        for name in [listed.value] if isinstance(listed.value, str) else listed.value:
            parent = path.parent / str(name)
            if not parent.is_file():
                self.missing.append(Parent(str(name), listed.place))
            elif parent.suffix == ".toml":
                result = over(result, self.toml(parent, depth + 1))
            else:
                result = over(result, self.yaml(parent, "", depth + 1))
        return result

    # Hydra: hydra/_internal/defaults_list.py and core/default_element.py of 1.3.

    def _with_hydra(
        self, path: Path, own: dict[str, Setting], listed: Setting, package: str, depth: int
    ) -> dict[str, Setting]:
        _check_depth(depth, listed)
        if depth == 0:
            searched = own.get("hydra.searchpath")
            self._search += _search_path(path, searched.value if searched is not None else None)
        own = {name: setting for name, setting in own.items() if name.partition(".")[0] != "hydra"}
        entries = [entry for written in listed.value if (entry := _entry(written, listed.place)) is not None]
        for entry in entries:
            if entry.override and entry.names:
                self._choices.setdefault(self._key(path, entry, package), entry.names[0])
        result: dict[str, Setting] = {}
        if all(entry.names != ("_self_",) for entry in entries):
            entries.append(_Entry("", ("_self_",), None))
        for entry in entries:
            if entry.names == ("_self_",):
                result = over(result, _within(own, package))
            elif not entry.override:
                result = over(result, self._chosen(path, entry, listed.place, package, depth))
        return result

    def _chosen(self, path: Path, entry: _Entry, place: Place, package: str, depth: int) -> dict[str, Setting]:
        names = entry.names
        if entry.group:
            key = self._key(path, entry, package)
            self.groups.add(key)
            if key in self._choices:
                names = () if self._choices[key] in ("null", "") else (self._choices[key],)
            elif len(names) == 1:
                self._choices[key] = names[0]
        result: dict[str, Setting] = {}
        for written in names:
            name = _CHOICE.sub(lambda found: self._choices.get(found[1], found[0]), written)
            shown = f"{entry.group}/{name}" if entry.group else name
            file = self._file(path, shown)
            if file is None:
                if not entry.optional:
                    self.missing.append(Parent(shown, place))
                continue
            text = read_text(file)
            header = _HEADER.search(text)
            below = entry.package
            if below is None and header is not None:
                below = header[1] if header[1].startswith("_global_") else f"_global_.{header[1]}"
            if below is None:
                below = str(Path(shown.lstrip("/")).parent).replace("/", ".").strip(".")
            result = over(result, self._composed(file, text, _joined(package, below, entry.group), depth + 1))
        return result

    def _key(self, path: Path, entry: _Entry, package: str) -> str:
        """The name by which a command or a file chooses for a group: with its package where that is not the group's own."""
        above = next((path.parent.relative_to(root) for root in self._search if path.is_relative_to(root)), Path())
        group = entry.group.lstrip("/") if entry.group.startswith("/") else normpath(above / entry.group)
        own = group.replace("/", ".")
        final = own if entry.package is None and not package else _joined(package, entry.package or own, group)
        return group if final == own else f"{group}@{final or '_global_'}"

    def _file(self, path: Path, name: str) -> Path | None:
        """The file of a name: beside the one that lists it, or, from the root, in each folder that is searched."""
        file = name if name.endswith(_SUFFIXES) else f"{name}.yaml"
        folders = self._search if name.startswith("/") else [path.parent, *self._search]
        return next((found for folder in folders if (found := folder / file.lstrip("/")).is_file()), None)


def _has_content(text: str) -> bool:
    """Whether a parent is more than comments: an empty one sets nothing."""
    return any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines())


def _check_depth(depth: int, listed: Setting) -> None:
    if depth >= _DEEPEST:
        raise LaunchError(f"inherits over more than {_DEEPEST} files, or from itself", listed.place)


def _is_file_name(entry: Any) -> bool:
    return isinstance(entry, str) and entry.endswith(_SUFFIXES)


def _within(own: Mapping[str, Setting], package: str) -> dict[str, Setting]:
    """Settings of a file that stand in a package."""
    if not package:
        return dict(own)
    moved = ((f"{package}.{name}", setting) for name, setting in own.items())
    return {name: Setting(name, setting.value, setting.place, setting.written) for name, setting in moved}


def _entry(written: Any, place: Place) -> _Entry | None:
    """An entry of Hydra's list; None for Hydra's own logging and launchers."""
    if isinstance(written, str):
        path, at, package = written.partition("@")
        return _Entry("", (path,), _package(package) if at else None)
    if not isinstance(written, dict) or len(written) != 1:
        raise LaunchError("an entry of `defaults` that is neither a name nor `group: name`", place)
    key, chosen = next(iter(written.items()))
    words = str(key).split()
    group, at, package = words[-1].partition("@")
    if group.strip("/").partition("/")[0] == "hydra":
        return None
    names = chosen if isinstance(chosen, list) else [] if chosen is None else [chosen]
    return _Entry(
        group,
        tuple(str(name) for name in names),
        _package(package) if at else None,
        optional="optional" in words[:-1],
        override="override" in words[:-1],
    )


def _package(written: str) -> str:
    return "" if written == "_here_" else written


def _joined(package: str, below: str, group: str) -> str:
    """The package of a file in that of the one that lists it; behind `_global_` it is absolute."""
    below = below.replace("_group_", group.strip("/").replace("/", "."))
    full = ".".join(part for part in (package, below) if part)
    at = full.rfind("_global_")
    return full if at == -1 else full[at + len("_global_") + 1 :]


def _search_path(path: Path, searched: Any) -> Iterable[Path]:
    """The folders of `hydra.searchpath` that are here: below one of the folders above the file, or where the command runs."""
    for entry in searched if isinstance(searched, list) else []:
        kind, separator, name = str(entry).partition("://")
        folder = Path(name.replace(".", "/") if kind == "pkg" else name if separator else kind)
        above = [Path(), *path.resolve().parents]
        yield from (found for each in above if (found := each / folder).is_dir())
