"""Modes that a model makes a forward in, and what it was in before again afterwards. Nothing is written but flags that layers read."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def switched_layers(model: Any) -> list[Any]:
    """The layers with adapters, and modules trained in copies (peft 0.21.2, `BaseTunerLayer`, `AuxiliaryTrainingWrapper`)."""
    return [module for module in model.modules() if hasattr(module, "_disable_adapters")]


def merged_adapters(model: Any) -> bool:
    """Whether adapters are merged into the weights: to switch them off would write to these."""
    return any(getattr(layer, "merged", False) for layer in switched_layers(model))


@contextmanager
def adapters(model: Any, *, switched_off: bool, name: str = "") -> Iterator[None]:
    """Switch adapters by the flags that their layers read.

    PEFT's own context managers also write to `requires_grad` of all adapters (tuners_utils.py, `enable_adapters`, `set_adapter`), which
    a training step that is going on must not see.

    Args:
        model: The model with the adapters.
        switched_off: Whether none is active.
        name: The adapter that is active; empty for those that are.
    """
    layers = switched_layers(model)
    before = [(layer._disable_adapters, layer._active_adapter) for layer in layers]
    try:
        for layer in layers:
            layer._disable_adapters = switched_off
            if name:
                layer._active_adapter = name if isinstance(layer._active_adapter, str) else [name]
        yield
    finally:
        for layer, (off, active) in zip(layers, before, strict=True):
            layer._disable_adapters, layer._active_adapter = off, active


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """The mode in which nothing is dropped, and the mode of each module again after it."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True
