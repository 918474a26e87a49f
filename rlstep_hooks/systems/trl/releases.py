"""Differences between releases of TRL that code depends on. Read in the source of each named release; `system` has the formulas."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from packaging.version import Version

from rlstep_hooks.record.variables import judged_as

FIRST = Version("0.16")
"""First supported release: the first with `num_iterations` and `_generate_and_score_completions`."""
FIRST_PLANNED = Version("0.14")
"""First release that is planned: the first with GRPOTrainer."""
FIRST_UNSUPPORTED = Version("1.17")
"""First release after those that were read and trained for real."""


class TrlRelease(msgspec.Struct, frozen=True):
    """The behaviour of one release of TRL under one release of transformers."""

    trl: str
    transformers: str

    @property
    def supported(self) -> bool:
        """Whether this release was read and trained."""
        release = Version(Version(self.trl).base_version)
        return FIRST <= release < FIRST_UNSUPPORTED

    def since(self, release: str) -> bool:
        """Whether this is the named release of TRL or a later one."""
        return Version(Version(self.trl).base_version) >= Version(release)

    @property
    def has_steps_per_generation(self) -> bool:
        """0.18 and later: generation every `steps_per_generation * num_iterations` micro-steps."""
        return self.since("0.18")

    @property
    def updates_rounded_down(self) -> bool:
        """transformers up to 4.51 take floor(micro-steps / accumulation) for max_steps, later ones the ceiling
        (`Trainer.set_initial_training_values`)."""
        return Version(Version(self.transformers).base_version) < Version("4.52")

    @property
    def norms_never_decay(self) -> bool:
        """Whether parameters that are named `norm` alone are left out of weight decay: in transformers 4.57.6 and later ones, not
        in 4.51.3 (`Trainer.get_decay_parameter_names`). Nobody read those between."""
        return Version(Version(self.transformers).base_version) >= Version("4.57")

    @property
    def loss_includes_accumulation(self) -> bool:
        """0.22 and later divide by the accumulation inside `_compute_loss`; before, transformers does."""
        return self.since("0.22")


@lru_cache(maxsize=1)
def installed_release() -> TrlRelease | None:
    """The releases that are installed here, or None without TRL. Looked up once: reading metadata takes milliseconds.
    The release that `RLSTEP_AS_RELEASE` names stands for the one that is installed."""
    from importlib.metadata import PackageNotFoundError  # 15 ms that a plan of a launch does not need
    from importlib.metadata import version as installed

    try:
        return TrlRelease(judged_as("trl") or installed("trl"), installed("transformers"))
    except PackageNotFoundError:
        return None
