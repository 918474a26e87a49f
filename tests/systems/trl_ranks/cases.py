"""What one launch of several ranks trains, one after the other, and what each rank says of it at the end. Imports no framework."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rlstep_hooks.planning.finding import Where

WRITTEN = (bool, int, float, str, list, dict, type(None))
"""Kinds of settings that a case carries to its ranks. Others, as a reward function, each rank has from the fault itself."""

Deployment = Literal["ddp", "fsdp1", "fsdp2", "zero0", "zero1", "zero2", "zero3"]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One trainer."""

    name: str
    fault: str = ""
    """Its name in the corpus of faults, or of those of ranks (`rank_faults`); empty for a healthy run."""
    healthy: bool = False
    """Whether only what the run without the fault needs as well is made of it."""
    settings: dict[str, Any] = {}
    """For `tiny_trainer`."""
    draw: str = ""
    """A random configuration (`tests.systems.trl.random_runs`) as JSON, which is trained in the place of `settings`."""
    resumes_after: int = 0
    """The updates of a checkpoint that it goes on from: the same is trained before, without a fault; 0 where it begins anew."""
    records_elsewhere: bool = False
    """Whether the run that made the checkpoint has a folder of records of its own."""
    mutation: dict[str, Any] = {}
    """A mistake that a machine made in the framework's source (`tests.mutants.operators.Mutation`), which is in force on all ranks."""
    traced: tuple[str, ...] = ()
    """Modules whose executed lines each rank writes into FOLDER/<case>/lines<N>.json."""
    sharding: dict[str, Any] = {}
    """More of FSDP's own settings; of DeepSpeed's `stage` for another one than that of the launch, `offload`, and `zero` with more of
    ZeRO's own."""


class Found(msgspec.Struct, frozen=True):
    """One finding that is more than information."""

    code: str
    severity: str
    place: Where
    text: str
    deviation: str = ""
    """The known deviation that explains it."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank says of one case."""

    error: str = ""
    """What training raised; all else is empty then."""
    verdict: str = ""
    found: list[Found] = []
    rules: dict[str, tuple[str, str]] = {}
    """The verdict of each rule, and why it has none."""
    not_evaluated: dict[str, str] = {}
    updates: int = 0
    trained: str = ""
    """Digest of what this rank holds of the weights at the end: equal where two runs trained the same."""
    seconds: float = 0.0
    false: list[str] = []
    """Of a random configuration: findings that no condition of it makes true."""
