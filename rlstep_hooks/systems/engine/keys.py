"""The settings that each release of a framework has, and what a launch shows by the settings that it gives.

The lists are data (`verl/keys.json`, `trl/keys.json`, `openrlhf/keys.json`), made of the frameworks' wheels by
`tests/golden/release_keys.py`, and loaded only when a launch of that framework is planned.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HERE = Path(__file__).parents[1]


class KeyList(msgspec.Struct, frozen=True, dict=True):
    """The settings of each release."""

    releases: tuple[str, ...]
    """All releases, ascending."""
    keys: dict[str, int]
    """Setting -> bits: bit i is set if `releases[i]` has it."""

    def has(self, name: str, release: str) -> bool:
        """Whether a release has a setting. For a release that is not listed, the answer is that of the one before it."""
        return bool(self.keys.get(name, 0) >> self._index(release) & 1)

    def ever(self, name: str) -> bool:
        """Whether any release has it."""
        return name in self.keys

    def releases_with(self, names: Iterable[str]) -> tuple[str, ...]:
        """The releases that have all of these settings."""
        bits = (1 << len(self.releases)) - 1
        for name in names:
            bits &= self.keys.get(name, 0)
        return tuple(release for i, release in enumerate(self.releases) if bits >> i & 1)

    def numbers_of(self, names: Iterable[str]) -> dict[str, int]:
        """How many of these settings each release has."""
        bits = [self.keys.get(name, 0) for name in names]
        return {release: sum(each >> i & 1 for each in bits) for i, release in enumerate(self.releases)}

    def listed(self, release: str) -> str:
        """The release of the list that answers for another one: itself, or the one before it."""
        return self.releases[self._index(release)]

    def nearest(self, name: str, release: str) -> str | None:
        """The setting of a release that a name may be a misspelling of: one letter or two away, in the same section if there is one.

        Answers are kept, because a search for a fix plans one launch hundreds of times.
        """
        asked = (name, release)
        if asked not in self._nearest:
            self._nearest[asked] = self._find_nearest(name, release)
        return self._nearest[asked]

    @cached_property
    def _nearest(self) -> dict[tuple[str, str], str | None]:
        return {}

    def _find_nearest(self, name: str, release: str) -> str | None:
        section, _, last = name.rpartition(".")
        siblings = {}
        for known in self.of(release):
            parent, _, end = known.rpartition(".")
            if parent == section:
                siblings[end] = known
        near = get_close_matches(last, siblings, n=1, cutoff=_CLOSE)
        if near:
            return siblings[near[0]]
        found = get_close_matches(name, self.of(release), n=1, cutoff=_CLOSE_WHOLE)
        return found[0] if found else None

    def of(self, release: str) -> list[str]:
        """The settings of a release."""
        at = self._index(release)
        return [name for name, bits in self.keys.items() if bits >> at & 1]

    def below_a_setting(self, name: str) -> bool:
        """Whether the name is below a setting that holds a mapping of the user's own, such as `override_config`."""
        return any(parent in self.keys for parent in parents_of(name))

    def is_section(self, name: str) -> bool:
        """Whether the name is that of a whole section, which Hydra may replace."""
        return name in self._sections

    @cached_property
    def _sections(self) -> frozenset[str]:
        found: set[str] = set()
        for known in self.keys:
            section = known.rpartition(".")[0]
            while section and section not in found:  # those around one that was met are there already
                found.add(section)
                section = section.rpartition(".")[0]
        return frozenset(found)

    def _index(self, release: str) -> int:
        if release in self.releases:
            return self.releases.index(release)
        from rlstep_hooks.systems.engine.request import release_of

        asked = release_of(release)
        return max((i for i, each in enumerate(self.releases) if release_of(each) <= asked), default=0)


_CLOSE, _CLOSE_WHOLE = 0.8, 0.93


def parents_of(name: str) -> Iterator[str]:
    """The sections that a setting is in, from the outermost on."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))


@lru_cache(maxsize=4)
def key_list(file: str) -> KeyList:
    """The list in a file below `rlstep_hooks/systems`, for example "verl/keys.json"."""
    return msgspec.json.decode((_HERE / file).read_bytes(), type=KeyList)


def runs_of(releases: Iterable[str], known: tuple[str, ...]) -> str:
    """Releases in words: "0.4.0 to 0.7.1 and 0.9.1"."""
    indices = [known.index(release) for release in releases]
    runs: list[list[int]] = []
    for i in indices:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    words = [known[run[0]] if len(run) == 1 else f"{known[run[0]]} to {known[run[-1]]}" for run in runs]
    return " and ".join(words)
