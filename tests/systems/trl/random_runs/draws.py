"""One drawn run: all that tells it from the tiny run with the framework's defaults."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Draw:
    """A run as data, so that it can be printed, sent to another process, and made smaller."""

    algorithm: str
    """"GRPO" or "RLOO"."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of the configuration that differ from `fields.base`."""
    around: dict[str, Any] = field(default_factory=dict)
    """What surrounds the configuration, where it differs from `around.PLAIN`: model, data, rewards, optimizer, callbacks."""

    def to_json(self) -> str:
        """The text that `--only` takes."""
        return json.dumps({"algorithm": self.algorithm, "settings": self.settings, "around": self.around})

    @classmethod
    def from_json(cls, text: str) -> Draw:
        """The draw that `to_json` wrote."""
        return cls(**json.loads(text))

    def smaller(self) -> list[Draw]:
        """This draw with each one thing set back to its default."""
        fewer = [replace(self, settings=_without(self.settings, name)) for name in self.settings]
        return fewer + [replace(self, around=_without(self.around, name)) for name in self.around]


def _without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}
