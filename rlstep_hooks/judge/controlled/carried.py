"""What a controller handed over to its trainers against what came to one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.record.events import Carried, CarriedPart

TOKENS = "tokens"
"""The name of the checksum by which a part of a rollout is recognised."""


def arrived(came: Carried, handed: Iterable[Carried], rollout: int | None) -> Carried:
    """What came to a trainer, compared with what its controller handed over.

    Args:
        came: What the trainer recorded of the samples that came.
        handed: What the controller handed over of the latest rollouts.
        rollout: Index of the rollout that came; None where it is not known.

    Returns:
        The event, with what was altered on the way. Nothing is compared where the controller recorded nothing of this rollout.
    """
    known: dict[int, list[CarriedPart]] = {}
    for each in handed:
        if (each.rollout, each.role) == (rollout, came.role):
            for part in each.parts:
                known.setdefault(part.checksums[TOKENS], []).append(part)
    altered, compared_names = dict[str, int](), dict[str, None]()
    for part in came.parts if known else ():
        compared_names |= dict.fromkeys(part.checksums)
        # Of two parts of equal tokens, the one that differs least.
        names = min(
            (_differ(part, before) for before in known.get(part.checksums[TOKENS], ())), key=len, default=[TOKENS]
        )
        for name in names:
            altered[name] = altered.get(name, 0) + part.samples
    compared = sum(part.samples for part in came.parts) if known else 0
    index = -1 if rollout is None else rollout
    return msgspec.structs.replace(
        came, rollout=index, compared=compared, names=tuple(compared_names), altered=altered, parts=()
    )


def _differ(part: CarriedPart, before: CarriedPart) -> list[str]:
    """Names of what a part holds otherwise than before."""
    return [name for name, checksum in part.checksums.items() if before.checksums.get(name) != checksum]
