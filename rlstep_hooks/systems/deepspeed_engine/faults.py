"""Faults of DeepSpeed's releases that no error tells, as data. Each was seen in a real run of a release that has it
(tests/systems/trl_ranks)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
from packaging.version import InvalidVersion, Version

from rlstep_hooks.judge.deviations import Deviation

if TYPE_CHECKING:
    from collections.abc import Collection

    from rlstep_hooks.judge.deviations import Evidence

OFFLOAD = "offload"
"""As `Deployment` calls an optimizer that is offloaded."""


class EngineFault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of DeepSpeed."""

    name: str
    title: str
    since: str
    """First release that has it."""
    fixed_in: str | None
    """First release without it; None if all later ones have it."""
    stage: str
    """The stage of ZeRO that has it, as `Deployment` calls it."""
    offload: bool | None = None
    """Whether the optimizer is offloaded where it has it; None if that does not matter."""
    reduced: bool = False
    """Whether only weights in 16 bits have it."""
    microbatches: int = 1
    """Micro-batches of an update from which on it has it."""
    document: str
    code: str
    evidence: str
    workaround: str
    codes: frozenset[str]
    """Codes of the rules whose findings it explains."""

    def concerns(
        self, release: str, deployment: Collection[str], *, reduced: bool, microbatches: int | None = None
    ) -> bool:
        """Whether a run has it.

        Args:
            release: Of DeepSpeed; empty where it is not known.
            deployment: What sets the run apart from one process.
            reduced: Whether its weights are in 16 bits.
            microbatches: Of an update; None where that is not known.
        """
        try:
            version = Version(release)
        except InvalidVersion:
            return False
        return (
            Version(self.since) <= version
            and (self.fixed_in is None or version < Version(self.fixed_in))
            and self.stage in deployment
            and (self.offload is None or self.offload == (OFFLOAD in deployment))
            and (reduced or not self.reduced)
            and (microbatches is None or microbatches >= self.microbatches)
        )


FAULTS: tuple[EngineFault, ...] = (
    EngineFault(
        name="deepspeed-adam-begins-at-step-1",
        title="Adam begins at step 1 in DeepSpeed without ZeRO, in bf16 or fp16",
        since="0.18.2",
        fixed_in=None,
        stage="ZeRO-0",
        reduced=True,
        document="the first update is Adam's first step, which moves each weight by the learning rate",
        code=(
            "FP16_UnfusedOptimizer.initialize_optimizer_states steps the optimizer on gradients of 0 before training: Adam's bias "
            "correction is one step ahead, the first update moves weights by 0.744 of the learning rate, and a decay has shrunk the "
            "weights in float32 once"
        ),
        evidence=(
            "runtime/fp16/unfused_optimizer.py 0.19.8:412-425, 0.18.9:420 and 0.18.2:419; measured with 0.19.8 in TRL's GRPO on two "
            "ranks: 0.744 of the rate, and 1.000 with ZeRO-1, 2 and 3"
        ),
        workaround="use ZeRO-1, which has no such step, or a warm-up of the learning rate",
        codes=frozenset({"RLS807"}),
    ),
)


def faults_of(
    release: str, deployment: Collection[str], *, reduced: bool, microbatches: int | None = None
) -> list[EngineFault]:
    """The faults that a run has. Arguments as in `EngineFault.concerns`."""
    return [of for of in FAULTS if of.concerns(release, deployment, reduced=reduced, microbatches=microbatches)]


def _explains(fault: EngineFault, evidence: Evidence) -> bool:
    progress = evidence.progress
    facts = progress.started.facts
    return fault.concerns(
        progress.started.versions.get("deepspeed", ""),
        facts.get("deployment", ()),
        reduced=progress.precision != "float32",
        microbatches=progress.schedule.microbatches_per_update,
    )


DEVIATIONS: tuple[Deviation, ...] = tuple(
    Deviation(
        name=fault.name,
        title=fault.title,
        since="0",  # of the framework: DeepSpeed's own releases decide
        fixed_in=None,
        document=fault.document,
        code=fault.code,
        evidence=f"DeepSpeed {fault.evidence}",
        workaround=fault.workaround,
        codes=fault.codes,
        applies=partial(_explains, fault),
    )
    for fault in FAULTS
)
"""The same, as deviations of a framework that drives the engine."""
