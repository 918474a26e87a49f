"""What is known of published scripts: repository, commit, path and numbers, worked out from their text and the framework's source.

The texts are not stored. Where a checkout of a repository is swept (a folder `OWNER+NAME` or `NAME`), its plans are held against these.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.sweep.outcomes import Outcome

FILE = Path(__file__).parents[1] / "golden" / "published_scripts.json"


class Repository(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of the scripts of one repository."""

    repository: str
    commit: str
    """The one that was read; numbers of another can differ."""
    scripts: dict[str, dict[str, int]]
    """Fields of the Schedule with their values, by path."""

    def is_in(self, folder: Path) -> bool:
        """Whether a folder is a checkout of it, by its name."""
        return folder.name in (self.repository.replace("/", "+"), self.repository.partition("/")[2])


def repositories() -> list[Repository]:
    """All that is known."""
    return msgspec.json.decode(FILE.read_bytes(), type=list[Repository])


def compared(folder: Path, outcomes: Iterable[Outcome]) -> tuple[int, list[str]]:
    """How many plans of a checkout have the known numbers, and those that have not, in words."""
    known = {path: facts for each in repositories() if each.is_in(folder) for path, facts in each.scripts.items()}
    right, wrong = 0, []
    for outcome in outcomes:
        facts = known.get(str(Path(outcome.path).relative_to(folder)), {})
        differing = {name: value for name, value in facts.items() if outcome.numbers.get(name) != str(value)}
        right += bool(facts) and not differing
        wrong += [
            f"{outcome.path}: {name} is {outcome.numbers.get(name, 'not planned')}, {value} is known ({outcome.kind})"
            for name, value in differing.items()
        ]
    return right, wrong
