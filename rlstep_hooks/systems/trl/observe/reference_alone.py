"""Rows scored again alone by the reference that TRL documents, beside the log-probs of the reference that training takes.

The reference is a model of its own, or the policy with its adapters switched off, or with those named "ref" switched on
(grpo_trainer.py 1.16.0:981, 2711; rloo_trainer.py 1.16.0:1604). A model of its own is in evaluation mode from its loading on
(transformers 5.23.0, `from_pretrained`). Shapes: C tokens of one completion.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.clean_forward import CleanForward, LayersAndHead, hooked_by_others, why_not_alone
from rlstep_hooks.observe.model_modes import adapters, evaluating, merged_adapters, switched_layers
from rlstep_hooks.systems.trl.observe.facts import active_dropout, embedding_noise
from rlstep_hooks.systems.trl.observe.unwrapped import Unwrapped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from rlstep_hooks.observe.clean_forward import CleanGap, Row

POLICY = "the model: the policy scored it in the place of the reference, with its adapters on if it has any"
TELLING = 4
"""Tokens to which policy and reference must give different log-probs, before equal ones mean something."""
_COPY = "ref"
"""The name of the adapters that TRL copies when it trains adapters that were there before."""


class ReferenceAlone:
    """Scores rows with the reference of one trainer.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer whose training begins.
        temperature: By which logits are divided.
    """

    def __init__(self, trainer: Any, temperature: float) -> None:
        self._trainer = trainer
        self._temperature = temperature
        self._unwrapped = Unwrapped(trainer.accelerator)
        self._own = getattr(trainer, "ref_model", None) is not None
        self.why_not = _why_not(trainer)
        """Why no row can be scored with the reference; empty where rows can."""

    def is_hooked(self) -> bool:
        """Whether somebody's own hooks would see its forwards."""
        return hooked_by_others(self._model())

    def compare(self, row: Row, observed: Tensor, tolerance: float, neighbours: list[Row]) -> tuple[Tensor, CleanGap]:
        """Compare the reference's log-probs of one row with those of a forward of it alone; waits for the device.

        Args:
            row: The row.
            observed: (C,), what training takes.
            tolerance: Mean distance that rounding explains.
            neighbours: Other rows of the batch, nearest first.

        Returns:
            (C,), the log-probs of the row alone; and how far the observed ones are from those.
        """
        with self._as_reference():
            clean = self._forward(self._model())
            scored = clean.score(row)
            return scored, clean.compare(row, scored, observed, tolerance, neighbours, more=lambda: self._others(row))

    def _others(self, row: Row) -> Iterator[tuple[str, Tensor]]:
        with adapters(self._policy(), switched_off=False):
            yield POLICY, self._forward(self._policy()).score(row)

    def _forward(self, model: Any) -> CleanForward:
        return CleanForward(LayersAndHead(model, self._trainer.accelerator.autocast), self._temperature)

    def _policy(self) -> Any:
        return self._unwrapped.of(self._trainer.model)

    def _model(self) -> Any:
        return self._unwrapped.of(self._trainer.ref_model) if self._own else self._policy()

    @contextmanager
    def _as_reference(self) -> Iterator[None]:
        model = self._model()
        if self._own:
            with evaluating(model):
                yield
        elif _COPY in model.peft_config:
            with adapters(model, switched_off=False, name=_COPY):
                yield
        else:
            with adapters(model, switched_off=True):
                yield


def is_the_policys(reference: Tensor, policy: Tensor, of_reference: Tensor, of_policy: Tensor) -> bool | None:
    """Whether the reference's log-probs of a row are the policy's, bit for bit; None where they may well be.

    Where the weights of both give most tokens of the row other bits, a forward of the batch gives other bits too.

    Args:
        reference: (C,), those that training takes.
        policy: (C,), those of the policy, from the same weights.
        of_reference: (C,), those of a forward of the row alone.
        of_policy: (C,), those of a forward of the row alone.
    """
    differ = int((of_reference != of_policy).sum())
    if differ < TELLING or 2 * differ <= of_policy.numel():
        return None
    return bool((reference == policy).all())


def _why_not(trainer: Any) -> str:
    own, policy = getattr(trainer, "ref_model", None), trainer.accelerator.unwrap_model(trainer.model)
    if own is not None:
        return why_not_alone(trainer.accelerator.unwrap_model(own))
    if not hasattr(policy, "peft_config"):
        return "there is no model that the reference could be"
    if why := why_not_alone(policy):
        return why
    if merged_adapters(policy):
        return "adapters are merged into the weights, and switching them off would write to these"
    if embedding_noise(trainer):
        return "NEFTune makes each forward in training mode another one"
    of_adapters = {id(module) for layer in switched_layers(policy) for module in _of_adapters(layer)}
    kept = [module for module in policy.modules() if _COPY in policy.peft_config or id(module) not in of_adapters]
    return "dropout makes each forward in training mode another one" if active_dropout(kept) else ""


def _of_adapters(layer: Any) -> list[Any]:
    """The modules in a layer that do nothing while its adapters are off."""
    base = getattr(layer, "base_layer", None) or getattr(layer, "original_module", None)
    kept = set() if base is None else {id(module) for module in base.modules()}
    return [module for module in layer.modules() if module is not layer and id(module) not in kept]
