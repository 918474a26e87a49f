"""What became of a mutant, and the table of many."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants.operators import Mutation
from tests.mutants.training import difference

JUDGED = Path(__file__).with_name("judged.json")
"""What persons found of survivors."""


@dataclass(frozen=True)
class Judgement:
    """What a person found of a survivor.

    Attributes:
        key: The mutation's.
        run: The configuration that it survived in.
        kind: "real", "legal" (another training that the configuration allows as well), or "logs" (nothing but what is logged).
        why: In one line.
    """

    key: str
    run: str
    kind: str
    why: str


@dataclass(frozen=True)
class Outcome:
    """A mutant that was tried.

    Attributes:
        run: The configuration.
        what: "none" (it could not be made), "raised", "hung", "equivalent", "logs", or "changed".
        where: The first update whose training differs, or why there was none.
        verdict: Of the audit.
        found: Its findings beyond information: code, severity, text.
    """

    mutation: Mutation
    run: str
    what: str
    where: str = ""
    verdict: str = ""
    found: tuple[dict[str, str], ...] = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The rules that found it."""
        return tuple(dict.fromkeys(finding["code"] for finding in self.found))

    @property
    def survived(self) -> bool:
        """Whether it changed what is computed and nothing was found."""
        return self.what in {"changed", "logs"} and not self.found

    def to_json(self) -> str:
        """One line of a file of results."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Outcome:
        """As it was written."""
        entry = json.loads(line)
        return cls(**entry | {"mutation": Mutation(**entry["mutation"]), "found": tuple(entry["found"])})


def outcome(mutation: Mutation, run: str, answer: dict[str, Any], unmutated: dict[str, Any]) -> Outcome:
    """What became of a mutant, from its answer and the training of the unmutated run."""
    for what in ("none", "hung", "raised"):
        if what in answer:
            return Outcome(mutation, run, what, str(answer[what]))
    where = difference(unmutated, answer["training"])
    what = {"": "equivalent", "logs": "logs"}.get(where, "changed")
    return Outcome(mutation, run, what, where, answer["verdict"], tuple(answer["findings"]))


@dataclass
class Table:
    """The outcomes of a session.

    Attributes:
        judged: Judgements by mutation.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    judged: dict[str, Judgement] = field(default_factory=dict)

    def kind(self, survivor: Outcome) -> str:
        """What a survivor is: as it was judged, "logs" where nothing else differs, else "not judged"."""
        judgement = self.judged.get(survivor.mutation.key)
        if judgement is not None:
            return judgement.kind
        return "logs" if survivor.what == "logs" else "not judged"

    def text(self) -> str:
        """Numbers, what was found by which rule, and the survivors."""
        became = Counter(entry.what for entry in self.outcomes)
        changed = [entry for entry in self.outcomes if entry.what == "changed"]
        found = [entry for entry in changed if entry.found]
        survivors = [entry for entry in self.outcomes if entry.survived]
        kinds = Counter(self.kind(entry) for entry in survivors)
        real = len(found) + kinds["real"] + kinds["not judged"]
        rules = Counter(code for entry in found for code in entry.codes)
        share = f"{len(found) / real:.1%}" if real else "none"
        lines = [
            f"{len(self.outcomes)} drawn: " + ", ".join(f"{number} {what}" for what, number in became.most_common()),
            f"{real} real faults, {len(found)} found: {share}",
            "alarms where training is the same: "
            + str(sum(bool(entry.found) for entry in self.outcomes if entry.what == "equivalent")),
            "found by " + ", ".join(f"{code} {number}" for code, number in rules.most_common()),
            "survivors: " + (", ".join(f"{number} {kind}" for kind, number in kinds.most_common()) or "none"),
        ]
        for entry in sorted(survivors, key=lambda entry: (self.kind(entry), str(entry.mutation))):
            judgement = self.judged.get(entry.mutation.key)
            lines.append(f"  {self.kind(entry):<10}  {entry.run}, {entry.where}: {entry.mutation}")
            if judgement is not None:
                lines.append(f"              {judgement.why}")
        return "\n".join(lines)


def judgements(file: Path = JUDGED) -> dict[str, Judgement]:
    """What is known of survivors, by mutation."""
    return {entry["key"]: Judgement(**entry) for entry in json.loads(file.read_text())}
