"""A real bug of the field, as data: one file of `data` each. Imports no framework."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from rlstep_hooks.planning.finding import Where

DATA = Path(__file__).parent / "data"

Way = Literal["published releases", "mend undone", "same mistake"]
"""How a bug is reproduced: the release that had it is trained and the one without it; what mended it is taken back, in words of our
own, in a newer release of the same framework; or a run of another release or framework makes the same mistake."""
Environment = Literal["trl", "classic", "verl", "openrlhf", "ranks"]
"""Where both runs are made: the session of nox, in the order of the table."""


class Bug(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One bug, and what must be said of a run that has it. A run without it must be silent."""

    report: str
    """Owner, repository and number of the issue or pull request that was read, such as "huggingface/trl#3992"; without a number where
    it is a line of a change log."""
    url: str
    """Where it was read."""
    wrong: str
    """What was wrong, in one sentence."""
    seen: str
    """What a user saw of it."""
    before: str
    """A release that has it, or how it is known not to have been in one."""
    after: str
    """The first release without it; empty where there is none yet."""
    link: str
    """The link of a run that it breaks (`rlstep_hooks.judge.links`)."""
    way: Way
    environment: Environment
    made_in: str
    """Framework and release that are trained; of published releases the one with the bug."""
    silent_in: str = ""
    """Of published releases: framework and release that are trained without the bug."""
    fault: str
    """Name of what makes it, in a corpus of faults or beside the tests of its environment."""
    rule: str
    """Code of the rule that must find it."""
    event: Where = Where()
    """Place of the first wrong event; numbers left out are not compared."""
    cause: str = ""
    """Words that the finding must have."""
    doubtful: bool = False
    """Whether its rule warns and the run passes."""
    not_found: str = ""
    """Why nothing finds it; its rule is then the one that should."""

    @property
    def repository(self) -> str:
        """Owner and repository."""
        return self.report.partition("#")[0]


def bugs() -> dict[str, Bug]:
    """All bugs by the names of their files, in their order."""
    return {path.stem: msgspec.yaml.decode(path.read_bytes(), type=Bug) for path in sorted(DATA.glob("*.yaml"))}


def bugs_of(environment: Environment) -> dict[str, Bug]:
    """The bugs of one environment."""
    return {name: bug for name, bug in bugs().items() if bug.environment == environment}
