"""What the numbers of micro-batches mean, once they have arrived from the device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.deferred import finite
from rlstep_hooks.observe.loss_cases import Case
from rlstep_hooks.observe.loss_causes import named, of_changed_inputs, unexplained
from rlstep_hooks.observe.losses import FITS, LOST, NO_NUMBER, Formula, LossBatch
from rlstep_hooks.observe.numbers import Columns

if TYPE_CHECKING:
    from rlstep_hooks.systems.trl.observe.loss_inputs import LossSettings

UNDERSTOOD = {"float32": 2e-3, "reduced": 0.05}
"""Distance of log-probs from those of a plain last layer and log-softmax, over their own from a uniform distribution, up to which they
are that: logits that are scaled or bent by more would have other gradients."""

WITHIN = {"float32": 1e-3, "reduced": 5e-2}
"""Relative distance of a loss from its formula up to which no other formula is tried; rule RLS801 has the same."""
OTHER_WITHIN = {"float32": 1e-4, "reduced": 1e-2}
"""Relative distance within which another formula gives a loss."""

_ROUNDING = torch.finfo(torch.float32).eps

_TO_NAME = "another"
"""What a loss is that is not the documented one, until it is known what all such losses of a vector are."""

_OF_LOSSES = frozenset(("loss", "documented", "terms", "gradient_factor", "factor_gap", "head_understood"))


class LossColumns(Columns, frozen=True):
    """Columns of `MicroBatchMeter`, with those of its losses."""

    losses: tuple[Formula[LossSettings], LossBatch] | None = None
    """What the losses were compared with, and what they were computed from, if they were compared."""
    told: list[str] = msgspec.field(default_factory=list)
    """What wrong losses of this trainer were, in words that follow "the loss is"; what these are is added.

    Of several mistakes that give the same losses, one that was told before is meant."""

    @property
    def own(self) -> frozenset[str]:
        """What is compared with the documented losses."""
        return _OF_LOSSES

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """The columns by field, and of losses that are not the documented ones what they are to rounding."""
        found = Columns.values(self, numbers)
        if "loss" not in self.names:
            return found
        losses, terms = self._of(numbers, "loss"), self._of(numbers, "terms")
        other = {
            place: loss
            for place, (index, loss) in enumerate(zip(self.indices, losses, strict=True))
            if found[index].get("loss_like") == _TO_NAME
        }
        # A loss whose terms cancel has the rounding of their sizes.
        cancelled = {
            place: FITS * _ROUNDING * terms[place] for place in other if "loss_gap" in found[self.indices[place]]
        }
        like = self._like(other, losses, cancelled) if other else ""
        self.told.extend([like] if like and like not in self.told else [])
        for place in other:
            found[self.indices[place]]["loss_like"] = like
        return found

    def fields(self, place: int, of: dict[str, float]) -> dict[str, Any]:
        """The fields of one micro-batch from its numbers."""
        fields = Columns.fields(self, place, of)
        if of.get("max_lone_advantage") == of["max_abs_advantage"]:
            del fields["max_lone_advantage"]
        return fields | {"gradient_gap": None, "head_gap": self._head_gap(of)} | self._loss(of)

    def _gap(self, of: dict[str, float]) -> float | None:
        """The distance of a loss whose terms cancel, in roundings of their sizes; None where other roundings are larger."""
        if self.losses is None or self.losses[0].settings.precision != "float32" or not of["terms"] > 0:
            return None
        return finite(abs(of["loss"] - of["documented"]) / (of["terms"] * _ROUNDING))

    def _fits(self, ratio: float) -> bool:
        """Whether a multiple of the documented loss is that loss."""
        return self.losses is None or abs(ratio - 1) <= WITHIN[self.losses[0].settings.precision]

    def _loss(self, of: dict[str, float]) -> dict[str, Any]:
        """What is known of a loss, from its value, and from its gradient where the value says nothing: fields of MicroBatchValues."""
        if "loss" not in of:
            return {}
        if not math.isfinite(of["loss"]) and math.isfinite(of["documented"]):
            return {"loss_gap": LOST, "loss_like": NO_NUMBER}
        ratio = _loss_ratio(of["documented"], of["terms"], of["loss"])
        if ratio is not None and not self._fits(ratio):
            return {"loss_ratio": ratio, "loss_like": _TO_NAME}
        gap = self._gap(of) if ratio is None else None
        if gap is not None and gap > FITS:
            return {"loss_gap": gap, "loss_like": _TO_NAME}
        gradient = finite(of["gradient_gap"]) if "gradient_gap" in of else None
        if ratio is None and gradient is not None:
            factor = of["gradient_factor"]
            if not self._fits(factor) and of["factor_gap"] <= FITS:
                return {"loss_ratio": finite(factor)}
        return {"loss_ratio": ratio, "loss_gap": gap, "gradient_gap": gradient}

    def _head_gap(self, of: dict[str, float]) -> float | None:
        """The distance of gradients at the model's layers; None where the last layer does not give these log-probs by itself."""
        if "head_gap" not in of or self.losses is None:
            return None
        return (
            finite(of["head_gap"]) if of["head_understood"] <= UNDERSTOOD[self.losses[0].settings.precision] else None
        )

    def _of(self, numbers: list[float], name: str) -> list[float]:
        first = self.names.index(name) * len(self.indices)
        return numbers[first : first + len(self.indices)]

    def _like(self, other: dict[int, float], losses: list[float], cancelled: dict[int, float]) -> str:
        """Which known mistake gives all of the losses that are others; empty if none: one that gives some of them does so by
        coincidence. It waits for the device.

        Args:
            other: These losses, by their places.
            losses: Those of all micro-batches.
            cancelled: What rounding explains of the losses whose terms cancel, by their places.
        """
        if self.losses is None:
            return ""
        formula, batch = self.losses
        within = OTHER_WITHIN[formula.settings.precision]
        with torch.no_grad():
            alike = [
                words
                for words, values in formula.mistaken(batch)
                if all(
                    _is_near(loss, float(values[place]), within, cancelled.get(place, 0.0))
                    for place, loss in other.items()
                )
            ]
        alone = next((words for words in alike if words in self.told), next(iter(alike), ""))
        if not unexplained(alone):
            return alone
        observed = torch.tensor(losses, device=batch.mask.device)
        wrong = torch.zeros_like(observed, dtype=torch.bool)
        wrong[[*other]] = True
        exact = formula.settings.precision == "float32"
        case = Case(formula, batch, observed, wrong, unit=_ROUNDING, relative=0.0 if exact else within)
        return named(alone, of_changed_inputs([case], self.told))


def _is_near(loss: float, other: float, within: float, absolute: float) -> bool:
    """Whether a loss is another one but for rounding."""
    return bool(other) and abs(loss - other) <= max(within * abs(other), absolute)


def _loss_ratio(expected: float, largest: float, loss: float) -> float | None:
    """The loss over the documented one; None where its terms cancel to less than a hundredth of their sizes."""
    return finite(loss / expected) if largest > 0 and abs(expected) > 0.01 * largest else None
