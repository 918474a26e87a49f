"""Which release of a package a checkout installs: requirement files, project files, lock files, and lines that call pip.

They are read as text, each only where the package's name is in it. The folders go from the launch up to the root of its repository; the
nearest that says something decides.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.files import contents, up_to_root
from rlstep_hooks.launch.text import Place
from rlstep_hooks.launch.wildcards import matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LOCKS = ("uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock")
_PROJECT = ("pyproject.toml", "setup.py", "setup.cfg", "Pipfile")
_REQUIREMENTS = ("*requirements*.txt", "*requirements*.in", "*constraints*.txt")
_CONDA = ("*environment*.yml", "*environment*.yaml", "conda*.yml", "conda*.yaml")
_SHELL = ("Dockerfile*", "*.dockerfile", "Makefile", "*install*.sh", "*setup*.sh", "*build*.sh", "*env*.sh")
_PROSE = ("README*.md", "INSTALL*.md", "install*.md")
_INNER = ("requirements", "docker", ".devcontainer", "envs", "environments")
"""Folders beside such files that hold more of them."""
_LARGEST = 4 << 20
_MOST_FILES = 40


class Pin(msgspec.Struct, frozen=True):
    """What one line says of a package."""

    place: Place
    constraint: str = ""
    """Releases, as PEP 440 writes them: "==0.14.0", ">=0.9,<0.12"; empty for a repository."""
    repository: str = ""
    """Owner and name on the server, such as "huggingface/trl"; empty for a release."""
    reference: str = ""
    """Commit, tag or branch; empty for the default branch."""

    def __str__(self) -> str:
        said = f"{self.repository}@{self.reference or 'its default branch'}" if self.repository else self.constraint
        return f"{said} ({self.place})"

    @property
    def is_exact(self) -> bool:
        """Whether one version is meant, and no range of them."""
        return bool(self.repository) or (self.constraint.startswith("==") and not set(self.constraint) & set("*,"))


def find_pins(package: str, folders: Iterable[Path], launch: Path | None = None) -> tuple[Pin, ...]:
    """What a checkout says of a package; empty where it says nothing.

    Args:
        package: The distribution's name.
        folders: Where the launch runs and where it lies; each is looked at with those above it.
        launch: The launch's own file, which may install the package itself.
    """
    if launch is not None and launch.is_file():
        own = tuple(_of_launch(launch, package))
        if own:
            return own
    seen: set[Path] = set()
    for folder in folders:
        for place in (Path(os.path.abspath(folder)), *up_to_root(folder)):
            if place in seen:
                continue
            seen.add(place)
            found = _in_folder(place, package)
            if found:
                return found
    return ()


def is_project(package: str, folder: Path) -> bool:
    """Whether a folder lies in the package's own project: a project file above it has the package's name for its own."""
    named = re.compile(rf"^\s*name\s*=\s*[\"']{_spelled(package)}[\"']", re.MULTILINE | re.IGNORECASE)
    return any(
        named.search(_text(place / name, package))
        for place in (Path(os.path.abspath(folder)), *up_to_root(folder))
        for name in ("pyproject.toml", "setup.py", "setup.cfg")
    )


def _in_folder(folder: Path, package: str) -> tuple[Pin, ...]:
    """What the files of one folder say. Prose counts where nothing else names one version."""
    files = _files(folder)
    installed = [path for path in files if not _is(path, _PROSE)]
    found = [pin for path in installed for pin in _of_file(path, package)]
    if not any(pin.is_exact for pin in found):
        prose = [pin for path in files if path not in installed for pin in _of_file(path, package)]
        found += [pin for pin in prose if pin.is_exact or not found]
    return tuple({(pin.constraint, pin.repository, pin.reference): pin for pin in reversed(found)}.values())


def _files(folder: Path) -> list[Path]:
    patterns = (*_LOCKS, *_PROJECT, *_REQUIREMENTS, *_CONDA, *_SHELL, *_PROSE)
    found: list[Path] = []
    for place, kinds in ((folder, patterns), *((folder / inner, (*patterns, "*.txt")) for inner in _INNER)):
        try:
            with os.scandir(place) as entries:
                names = sorted(entry.name for entry in entries)
        except OSError:
            continue
        found += [place / name for name in names if any(matches(name, kind) for kind in kinds)]
    return found[:_MOST_FILES]


def _is(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(matches(path.name, pattern) for pattern in patterns)


def _of_launch(path: Path, package: str) -> Iterator[Pin]:
    """What a launch installs itself: calls of pip, and the dependencies at the head of a Python script (PEP 723)."""
    text = _text(path, package)
    if path.suffix == ".py":
        head = re.search(r"^# /// script$(.*?)^# ///$", text, re.MULTILINE | re.DOTALL)
        if head is not None:
            above = text.count("\n", 0, head.start(1))
            plain = re.sub(r"^# ?", "", head[1], flags=re.MULTILINE)
            yield from _of_lines(plain, path, package, above=above)
    elif path.suffix in (".sh", ".bash", ".slurm", ".sbatch", ".ipynb"):
        yield from _of_calls(text, path, package)


def _of_file(path: Path, package: str) -> Iterator[Pin]:
    text = _text(path, package)
    if not text:
        return
    if path.name == "Pipfile.lock":
        pattern = rf'"{_spelled(package)}": \{{.*?"version": "(?P<spec>==[^"]+)"'
        for found in re.finditer(pattern, text, re.DOTALL | re.IGNORECASE):
            yield Pin(_place(path, text, found.start()), found["spec"])
    elif path.suffix == ".lock":
        yield from _of_lock(text, path, package)
    elif _is(path, _SHELL) or _is(path, _PROSE):
        yield from _of_calls(text, path, package)
        if _is(path, _PROSE):
            yield from _of_prose(text, path, package)
    else:
        if path.suffix == ".toml" or path.name == "Pipfile":
            yield from _of_toml(text, path, package)
        yield from _of_lines(text, path, package)


def _text(path: Path, package: str) -> str:
    """A file's text; empty where the package's name is not in it."""
    try:
        if path.stat().st_size > _LARGEST:
            return ""
        data = contents(path)
    except OSError:
        return ""
    lower = data.lower()
    first = re.split(r"[-_.]", package.lower())[0].encode()
    return data.decode(errors="replace") if first in lower else ""


# The forms in which a version is written.

_ONE = r"(?:===|==|~=|>=|<=|!=|<|>)\s*\d[\w.*+!]*"
_SPEC = rf"{_ONE}(?:\s*,\s*{_ONE})*"
_SERVER = r"(?:https?|ssh)://(?:[^\s/@\"']+@)?[\w.-]+/"


@lru_cache(maxsize=8)
def _spelled(package: str) -> str:
    """A pattern of the package's name in all spellings (PEP 503)."""
    return "[-_.]+".join(map(re.escape, re.split(r"[-_.]+", package)))


@lru_cache(maxsize=8)
def _required(package: str) -> re.Pattern[str]:
    """A requirement (PEP 508), a URL of its repository, or conda's `name=version`."""
    name = _spelled(package)
    repository = rf"{_SERVER}([\w.-]+/{name})"
    return re.compile(
        rf"(?<![\w./-]){name}(?:\[[^\]]*\])?[ ]*(?P<spec>{_SPEC}|=\d[\w.]*(?=$|[\s\"']))"
        rf"|git\+{repository}(?:\.git)?(?:@([^\s\"'#,;\\\])]+))?(?=$|[\s\"'#,;\\\])])"
        rf"|{repository}/archive/(?:refs/(?:tags|heads)/)?([\w.-]+?)\.(?:zip|tar\.gz)",
        re.IGNORECASE,
    )


def _of_lines(text: str, path: Path, package: str, *, above: int = 0) -> Iterator[Pin]:
    """What the lines of a file say, without its comments."""
    for number, line in enumerate(text.splitlines(), above + 1):
        plain = re.sub(r"(?:^|\s)#.*", "", line)
        yield from _in_line(plain, Place(_shown(path), number, 1), package)


_WARNS = re.compile(
    r"\b(?:not|no|never|avoid|broken|breaks|fails?|incompatible|instead|issue|bug|older|unlike|until|before|was|were)\b|n't|不|勿",
    re.IGNORECASE,
)
"""Words of a line that may name a release which is not the one that runs."""
_INSTALLS = re.compile(r"\b(?:pip3?|uv|conda|mamba|micromamba|poetry|pdm)\b[^\n]*\b(?:install|add)\b")


def _of_calls(text: str, path: Path, package: str) -> Iterator[Pin]:
    """What the lines say that call pip or the like; a line may go on after a backslash."""
    joined = re.sub(r"\\(?:\\n\",?)?\s*\n[ \t]*\"?", lambda found: " " * len(found[0]), text)
    place = 0
    for line in joined.split("\n"):
        start, place = place, place + len(line) + 1
        bare = line.strip(' \t">-*!%`')
        if bare.startswith("#") or not _INSTALLS.search(line):
            continue
        yield from _in_line(_with_values(line, text), _place(path, text, start), package)


def _of_prose(text: str, path: Path, package: str) -> Iterator[Pin]:
    """The one release that a text names as code, "training uses `ms-swift==3.10.3`", where it does not warn of any."""
    found: dict[str, Pin] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for said in re.finditer(rf"`{_spelled(package)}(?:\[[^\]]*\])?(==\d[\w.]*)`", line, re.IGNORECASE):
            if _WARNS.search(line):
                return
            found.setdefault(said[1], Pin(Place(_shown(path), number, 1), said[1]))
    if len(found) == 1:
        yield from found.values()


def _with_values(line: str, text: str) -> str:
    """A line with the variables that the file sets once: `ARG TRL_VERSION=0.14.0`."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        set_to = re.findall(rf"^\s*(?:(?:ARG|ENV|export)\s+)?{name}\s*[:?]?=\s*[\"']?([\w.]+)", text, re.MULTILINE)
        return set_to[0] if len(set(set_to)) == 1 else found[0]

    return re.sub(r"\$(?:[{(](\w+)[})]|(\w+))", value, line)


def _in_line(line: str, place: Place, package: str) -> Iterator[Pin]:
    for found in _required(package).finditer(line):
        spec = found["spec"]
        if spec is not None:
            spec = re.sub(r"\s", "", spec).replace("===", "==")
            yield Pin(place, spec if spec[1:2] == "=" or spec[0] != "=" else f"={spec}")
            continue
        repository, reference = [*(part for part in found.groups() if part is not None), ""][:2]
        yield Pin(place, repository=repository, reference=reference)


def _of_toml(text: str, path: Path, package: str) -> Iterator[Pin]:
    """What Poetry, uv and Pipenv write in tables: `trl = "^0.14"`, `trl = { git = "...", rev = "..." }`."""
    pattern = (
        rf"^[ \t]*[\"']?{_spelled(package)}[\"']?[ \t]*=[ \t]*(?:[\"'](?P<spec>[^\"']*)[\"']|\{{(?P<table>[^}}\n]*)\}})"
    )
    for found in re.finditer(pattern, text, re.MULTILINE | re.IGNORECASE):
        table = dict(re.findall(r"(\w+)\s*=\s*[\"']([^\"']*)[\"']", found["table"] or ""))
        place = _place(path, text, found.start())
        if "git" in table:
            reference = table.get("rev") or table.get("tag") or table.get("branch") or ""
            yield Pin(place, repository=_repository(table["git"]), reference=reference)
        elif constraint := _constraint(found["spec"] or table.get("version", "")):
            yield Pin(place, constraint)


def _of_lock(text: str, path: Path, package: str) -> Iterator[Pin]:
    """The version that a lock file resolved."""
    pattern = rf'^name = "{_spelled(package)}"\s*^version = "(?P<version>[^"]+)"(?P<more>.*?)(?=^\[\[|\Z)'
    for found in re.finditer(pattern, text, re.MULTILINE | re.DOTALL | re.IGNORECASE):
        place = _place(path, text, found.start())
        of_uv = re.search(r"git = \"(?P<url>[^\"?#]+)[^\"#]*#(?P<commit>\w+)\"", found["more"])
        of_poetry = re.search(
            r"url = \"(?P<url>[^\"]+)\".*?resolved_reference = \"(?P<commit>\w+)\"", found["more"], re.DOTALL
        )
        source = of_uv or of_poetry
        if source is not None:
            yield Pin(place, repository=_repository(source["url"]), reference=source["commit"])
        else:
            yield Pin(place, f"=={found['version']}")


def _constraint(spec: str) -> str:
    """A version as Poetry writes it, in the form of PEP 440; empty for any version."""
    spec = spec.replace(" ", "")
    if spec[:1] not in ("^", "~") or spec.startswith("~="):
        if spec[:1].isdigit():
            return f"=={spec}"
        return spec if re.fullmatch(_SPEC, spec) else ""
    numbers = spec[1:].split(".")
    if not all(number.isdigit() for number in numbers):
        return ""
    # With ^, the first number that is not zero may not change.
    first = next((at for at, number in enumerate(numbers, 1) if number != "0"), len(numbers))
    kept = first if spec[0] == "^" else min(len(numbers), 2)
    end = [*numbers[: kept - 1], str(int(numbers[kept - 1]) + 1)]
    return f">={spec[1:]},<{'.'.join(end)}"


def _repository(url: str) -> str:
    return "/".join(url.removesuffix(".git").rstrip("/").split("/")[-2:])


def _place(path: Path, text: str, at: int) -> Place:
    return Place(_shown(path), text.count("\n", 0, at) + 1, 1)


def _shown(path: Path) -> str:
    """A path as messages name it: from where `rlstep` runs, if it is below."""
    here = Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)
