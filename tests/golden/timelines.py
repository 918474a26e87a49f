"""The golden timelines of TRL (`trl_timelines.json`): measured runs, and the plan that each configuration must have."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlstep_hooks.systems.trl.plan import TrlSettings, make_schedule
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
        settings = trl_settings(self.settings, algorithm=self.algorithm)
        return make_schedule(settings, release_of(release), world_size=self.world_size, rows=self.rows)


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


def trl_settings(fields: dict[str, Any], *, algorithm: Literal["GRPO", "RLOO"] = "GRPO") -> TrlSettings:
    """Settings from fields of GRPOConfig or RLOOConfig under their own names, on top of `COMMON_SETTINGS`."""
    given = COMMON_SETTINGS | fields
    accumulation = given["gradient_accumulation_steps"]
    return TrlSettings(
        algorithm=algorithm,
        batch=given["per_device_train_batch_size"],
        accumulation=accumulation,
        group=given["num_generations"],
        steps_per_generation=given.get("steps_per_generation", accumulation),
        iterations=given.get("num_iterations", 1),
        max_steps=given.get("max_steps", -1),
        epochs=Fraction(str(given.get("num_train_epochs", 3))),
        beta=given.get("beta", 0.0),
        shuffle=given.get("shuffle_dataset", True),
        engine_correction=False,
    )
