"""What the numbers of micro-batches mean, once they have arrived from the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import torch

from rlstep_hooks.observe.deferred import finite
from rlstep_hooks.observe.losses import FITS, Formula, LossBatch
from rlstep_hooks.record.events import MicroBatchValues
from rlstep_hooks.systems.trl.observe.loss_inputs import LossSettings

if TYPE_CHECKING:
    from rlstep_hooks.record.values import Learns

UNDERSTOOD = {"float32": 2e-3, "reduced": 0.05}
"""Distance of log-probs from those of a plain last layer and log-softmax, over their own from a uniform distribution, up to which they
are that: logits that are scaled or bent by more would have other gradients."""

Scope = Literal["token", "sequence"]

WITHIN = {"float32": 1e-3, "reduced": 5e-2}
"""Relative distance of a loss from its formula up to which no other formula is tried; rule RLS801 has the same."""
OTHER_WITHIN = {"float32": 1e-4, "reduced": 1e-2}
"""Relative distance within which another formula gives a loss."""

_ROUNDING = torch.finfo(torch.float32).eps


class MicroBatchSource(msgspec.Struct, frozen=True):
    """What a vector of `MicroBatchMeter` means: `columns` one after the other, each with a number for each micro-batch."""

    of: ClassVar = MicroBatchValues
    indices: tuple[int, ...]
    columns: tuple[str, ...]
    scope: Scope
    losses: tuple[Formula[LossSettings], LossBatch] | None = None
    """What the losses were compared with, and what they were computed from, if they were compared."""
    replacing: str = ""
    """The first module whose backward hook replaced gradients."""
    left_out: bool = False
    """Whether old log-probs and tokens were to be compared with those of the rollout in other cycles only."""
    masks_unknown: bool = False
    """Whether the loss leaves tokens out in a way that nobody follows."""

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """The vector's numbers, micro-batch by micro-batch."""
        count = len(self.indices)
        return {
            index: self._values(place, dict(zip(self.columns, numbers[place::count], strict=True)))
            for place, index in enumerate(self.indices)
        }

    def _gap(self, of: dict[str, float]) -> float | None:
        """The distance of a loss whose terms cancel, in roundings of their sizes; None where other roundings are larger."""
        if self.losses is None or self.losses[0].settings.precision != "float32" or not of["terms"] > 0:
            return None
        return finite(abs(of["loss"] - of["documented"]) / (of["terms"] * _ROUNDING))

    def _fits(self, ratio: float) -> bool:
        """Whether a multiple of the documented loss is that loss."""
        return self.losses is None or abs(ratio - 1) <= WITHIN[self.losses[0].settings.precision]

    def _loss(self, place: int, of: dict[str, float]) -> dict[str, Any]:
        """What is known of a loss, from its value, and from its gradient where the value says nothing: fields of MicroBatchValues."""
        if "loss" not in of:
            return {}
        ratio = _loss_ratio(of["documented"], of["terms"], of["loss"])
        if ratio is not None and not self._fits(ratio):
            return {"loss_ratio": ratio, "loss_like": self._like(place, of["loss"])}
        gap = self._gap(of) if ratio is None else None
        if gap is not None and gap > FITS:
            return {"loss_gap": gap}
        gradient = finite(of["gradient_gap"]) if "gradient_gap" in of else None
        if ratio is None and gradient is not None:
            factor = of["gradient_factor"]
            if not self._fits(factor) and of["factor_gap"] <= FITS:
                return {"loss_ratio": finite(factor)}
        return {"loss_ratio": ratio, "loss_gap": gap, "gradient_gap": gradient}

    def _learns(self, of: dict[str, float]) -> Learns:
        if self.masks_unknown:
            return "unknown"
        if "trained" not in of:
            return ""
        return "yes" if of["trained"] else "unknown" if of["undecided"] else "no"

    def _head_gap(self, of: dict[str, float]) -> float | None:
        """The distance of gradients at the model's layers; None where the last layer does not give these log-probs by itself."""
        if "head_gap" not in of or self.losses is None:
            return None
        return (
            finite(of["head_gap"]) if of["head_understood"] <= UNDERSTOOD[self.losses[0].settings.precision] else None
        )

    def _like(self, place: int, loss: float) -> str:
        """Which known mistake gives a loss that is not the documented one; empty if none. It waits for the device."""
        if self.losses is None:
            return ""
        formula, batch = self.losses
        within = OTHER_WITHIN[formula.settings.precision]
        with torch.no_grad():
            others = ((words, float(values[place])) for words, values in formula.mistaken(batch))
            return next((words for words, other in others if other and abs(loss / other - 1) <= within), "")

    def _values(self, place: int, of: dict[str, float]) -> dict[str, Any]:
        tokens = max(of["tokens"], 1.0)
        ratio_is_one = "largest" not in of  # the current log-probs in the place of old ones
        clipped = 0.0 if ratio_is_one else of.get("clipped")
        return dict(
            tokens=int(of["tokens"]),
            max_abs_advantage=finite(of["signal"]) if "signal" in of else None,
            max_lone_advantage=finite(of["lone"]) if "lone" in of and of["lone"] != of["signal"] else None,
            learns=self._learns(of),
            max_abs_log_ratio=0.0 if ratio_is_one else finite(of["largest"]),
            mean_abs_log_ratio=0.0 if ratio_is_one else finite(of["sum"] / tokens),
            max_abs_log_prob=finite(of["improbable"]) if "improbable" in of else None,
            clipped=None if clipped is None else finite(clipped / tokens),
            scope=self.scope,
            old_intact=of["old_differ"] == 0 if "old_differ" in of else None,
            tokens_intact=of["tokens_differ"] == 0 if "tokens_differ" in of else None,
            left_out=self.left_out,
            advantages_intact=of["advantages_differ"] == 0 if "advantages_differ" in of else None,
            mask_intact=of["mask_differs"] == 0 if "mask_differs" in of else None,
            backward_ratio=finite(of["backward"]) if "backward" in of else None,
            prompts_intact=of["prompts_differ"] == 0 if of.get("prompts_compared") else None,
            reference_intact=of["reference_differ"] == 0 if of.get("reference_compared") else None,
            copied=int(of["copied"]) if "copied" in of else None,
            copied_nats=finite(of["copied_nats"]) if "copied" in of else None,
            gradients_replaced=int(of["replaced"]) if "replaced" in of else None,
            replacing_module=self.replacing,
            reference_gap=finite(of["reference_gap"] / tokens) if "reference_gap" in of else None,
            sampling_gap=finite(of["sampling_gap"] / of["sampling_known"]) if of.get("sampling_known") else None,
            max_sampling_gap=finite(of["largest_sampling_gap"]) if of.get("sampling_known") else None,
            surprise=finite(of["surprise"]) if "surprise" in of else None,
            surprise_squares=finite(of["surprise_squares"]) if "surprise" in of else None,
            surprise_largest=finite(of["surprise_largest"]) if "surprise" in of else None,
            mean_abs_log_prob=finite(of["improbability"] / tokens) if "improbability" in of else None,
            entropy=finite(of["entropy"] / tokens) if "entropy" in of else None,
            reference_kl=finite(of["reference_kl"] / tokens) if "reference_kl" in of else None,
            **self._loss(place, of),
            head_gap=self._head_gap(of),
        )


def _loss_ratio(expected: float, largest: float, loss: float) -> float | None:
    """The loss over the documented one; None where its terms cancel to less than a hundredth of their sizes."""
    return finite(loss / expected) if largest > 0 and abs(expected) > 0.01 * largest else None
