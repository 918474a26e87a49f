"""The golden timelines of TRL (`trl_timelines.json`): measured runs, and the plan that each configuration must have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlstep_hooks.systems.trl.plan import plan_settings
from rlstep_hooks.systems.trl.releases import TrlRelease
from tests.golden.letters import expand

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule


class Timeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured configuration; the fields are explained in the file."""

    config: str
    algorithm: Literal["GRPO", "RLOO"]
    releases: tuple[str, ...]
    settings: dict[str, Any]
    rows: int
    world_size: int
    letters: tuple[tuple[str, int], ...]
    max_steps: int
    global_step: int
    epoch: float
    micro_steps: int
    rollouts: int
    rows_dropped: int
    old_logprob_source: str
    lags: tuple[int, ...]
    planned: tuple[tuple[str, int], ...] = ()
    deviation: str = ""
    evaluation_batches: int = 0
    resume_at: int = 0

    @property
    def observed_letters(self) -> str:
        """What a real run shows."""
        return expand(self.letters)

    @property
    def planned_letters(self) -> str:
        """What the plan shows: the same, except where the release deviates from it."""
        return expand(self.planned or self.letters)

    def schedule(self, release: str) -> Schedule:
        """The plan under one of the releases."""
        return plan_of_fields(
            self.settings, release, algorithm=self.algorithm, world_size=self.world_size, rows=self.rows
        )


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    notes: tuple[str, ...]
    transformers: dict[str, str]
    common_settings: dict[str, Any]
    timelines: tuple[Timeline, ...]


_FILE = msgspec.json.decode(Path(__file__).with_name("trl_timelines.json").read_bytes(), type=_File)

TIMELINES: tuple[Timeline, ...] = _FILE.timelines
COMMON_SETTINGS: dict[str, Any] = _FILE.common_settings
"""Fields of GRPOConfig that all timelines share."""


def release_of(trl: str) -> TrlRelease:
    """A release of TRL with the release of transformers that it was measured with."""
    return TrlRelease(trl, _FILE.transformers[trl])


def plan_of_fields(
    fields: dict[str, Any],
    release: str,
    *,
    algorithm: Literal["GRPO", "RLOO"] = "GRPO",
    world_size: int,
    rows: int | None,
) -> Schedule:
    """The plan of fields of GRPOConfig or RLOOConfig under their own names, on top of `COMMON_SETTINGS`."""
    given = {"beta": 0.0} | COMMON_SETTINGS | fields
    return plan_settings(given, release_of(release), algorithm=algorithm, world_size=world_size, rows=rows)
