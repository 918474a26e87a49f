"""Noise that training adds to each forward on purpose: two forwards of the same weights then differ, and no formula is wrong."""

from __future__ import annotations

from typing import Any

import msgspec


class Noise(msgspec.Struct, frozen=True):
    """What adds noise to a forward."""

    cause: str
    """Why two forwards differ, as the end of a sentence that begins with the finding."""
    fix: str


def noise_of(facts: dict[str, Any]) -> Noise | None:
    """The noise that a run's facts name; None where each forward of the same weights gives the same.

    Args:
        facts: `dropout_modules`, the number of modules that drop something in training mode, and `embedding_noise`, the strength of
            the noise that NEFTune adds to embeddings in training mode (https://arxiv.org/abs/2310.05914).
    """
    dropout, alpha = facts.get("dropout_modules", 0), facts.get("embedding_noise")
    if dropout:
        return Noise(
            f"the model has {dropout} active dropout modules, and each forward draws its own mask",
            "set the model's dropout probabilities to 0 (the trainer may have a setting for it)",
        )
    if alpha:
        return Noise(
            f"NEFTune adds noise to the embeddings in training mode (neftune_noise_alpha={alpha:g}), and each forward draws its own",
            "leave NEFTune out: it is meant for supervised training, and here it makes the ratio noise",
        )
    return None
