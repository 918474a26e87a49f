"""Faults of DeepSpeed's releases that no error tells, as data. Each was seen in a real run of a release that has it
(tests/systems/trl_ranks)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
from packaging.version import InvalidVersion, Version

from rlstep_hooks.judge.deviations import Deviation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from rlstep_hooks.judge.deviations import Evidence

OFFLOAD = "offload"
"""What `Deployment` calls a run whose optimizer is offloaded."""


class EngineFault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of DeepSpeed."""

    name: str
    title: str
    since: str
    """The first release that has the fault."""
    fixed_in: str | None
    """The first release without the fault; None if all later ones have it."""
    stage: str
    """The stage of ZeRO that has the fault, by `Deployment`'s name for it."""
    offload: bool | None = None
    """Whether the fault needs an optimizer that is offloaded, or one that is not; None if that does not matter."""
    reduced: bool = False
    """Whether only weights in 16 bits have it."""
    microbatches: int = 1
    """The fewest micro-batches of an update with which the fault shows."""
    document: str
    code: str
    evidence: str
    workaround: str
    codes: frozenset[str]
    """Codes of the rules whose findings the fault explains."""

    def in_release(self, release: str) -> bool:
        """Whether a release has the fault; False for a text that names no release."""
        try:
            version = Version(release)
        except InvalidVersion:
            return False
        return Version(self.since) <= version and (self.fixed_in is None or version < Version(self.fixed_in))

    @property
    def where(self) -> str:
        """The runs that have the fault, in words."""
        parts = [self.stage]
        if self.offload is not None:
            parts.append("with offload of the optimizer" if self.offload else "without offload of the optimizer")
        parts += ["in bf16 or fp16"] if self.reduced else []
        parts += [f"from {self.microbatches} micro-batches an update on"] if self.microbatches > 1 else []
        return ", ".join(parts)

    def concerns(
        self, release: str, deployment: Collection[str], *, reduced: bool, microbatches: int | None = None
    ) -> bool:
        """Whether a run has the fault.

        Args:
            release: The release of DeepSpeed; empty where it is not known.
            deployment: What sets the run apart from one process.
            reduced: Whether its weights are in 16 bits.
            microbatches: The number of micro-batches of an update; None where it is not known.
        """
        return (
            self.in_release(release)
            and self.stage in deployment
            and (self.offload is None or self.offload == (OFFLOAD in deployment))
            and (reduced or not self.reduced)
            and (microbatches is None or microbatches >= self.microbatches)
        )


FAULTS: tuple[EngineFault, ...] = (
    EngineFault(
        name="deepspeed-zero-2-keeps-the-last-micro-batch",
        title="ZeRO-2 loses all micro-batches of an update but the last",
        since="0.17.6",
        fixed_in="0.18.3",
        stage="ZeRO-2",
        offload=False,
        microbatches=2,
        document="the gradients of all micro-batches of an update are added up",
        code=(
            "independent_gradient_partition_epilogue asks whether averaged_gradients is empty, which it is until the boundary, and so "
            "overwrites the accumulated gradients (all_grad_tensors) in each micro-batch: the optimizer gets those of the last one"
        ),
        evidence=(
            "runtime/zero/stage_1_and_2.py 0.17.6:854 and 0.18.2:855; 0.17.5:849 has another accumulation, 0.18.3:864 asks "
            "all_grad_tensors; measured with 0.18.2 in TRL's GRPO, two ranks, three micro-batches. accelerate#3877, trl#4631 and "
            "DeepSpeed#7718 fit"
        ),
        workaround="use DeepSpeed 0.18.3 or later, or ZeRO-1 or 3",
        codes=frozenset({"RLS811"}),
    ),
    EngineFault(
        name="deepspeed-offload-keeps-first-and-last-micro-batch",
        title="ZeRO-2 with optimizer offload keeps the first and the last micro-batch of an update",
        since="0.15.2",
        fixed_in="0.19.0",
        stage="ZeRO-2",
        offload=True,
        microbatches=3,
        document="the gradients of all micro-batches of an update are added up",
        code=(
            "async_accumulate_grad_in_cpu_via_gpu copies to the CPU only what the first micro-batch gave; later ones are added to a "
            "temporary, and the boundary uses the sum of its own: the optimizer gets those of the first and the last"
        ),
        evidence=(
            "runtime/zero/stage_1_and_2.py 0.18.3:1354, 0.17.5:1321, 0.15.2: `else: copy_gradients_to_cpu()`, otherwise in 0.15.1 and "
            "0.19.0:1416 (DeepSpeed PR 7967); measured with 0.18.2 and 0.18.9 in TRL's GRPO, two ranks, three micro-batches"
        ),
        workaround="use DeepSpeed 0.19.0 or later, or ZeRO-1 or 3",
        codes=frozenset({"RLS811"}),
    ),
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


def told(faults: Iterable[EngineFault], release: str) -> list[dict[str, str]]:
    """What a rule is told of the faults of an installed release (fact `release_faults`, read by RLS119)."""
    return [
        {
            "release": f"DeepSpeed {release}",
            "name": fault.name,
            "title": fault.title,
            "document": fault.document,
            "code": fault.code,
            "workaround": fault.workaround,
        }
        for fault in faults
    ]


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
"""DeepSpeed's faults as deviations of a framework that drives the engine."""


def concerning(release: str) -> list[EngineFault]:
    """The faults that a release has in some configuration."""
    return [of for of in FAULTS if of.in_release(release)]
