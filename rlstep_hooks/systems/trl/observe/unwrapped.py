"""The models of a trainer inside of what accelerate wraps them in."""

from __future__ import annotations

from typing import Any


class Unwrapped:
    """Models inside of their wrappers. Each is asked for once: accelerate searches for DeepSpeed's package at each call
    (utils/other.py 1.15.0:274), which takes as long as a forward of a tiny model.

    Args:
        accelerator: The trainer's.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._found: dict[int, tuple[Any, Any]] = {}
        """Identity of a wrapped model -> that model, and what is inside of it."""

    def of(self, wrapped: Any) -> Any:
        """The model inside of its wrappers."""
        found = self._found.get(id(wrapped))
        if found is None or found[0] is not wrapped:
            found = self._found[id(wrapped)] = wrapped, self._accelerator.unwrap_model(wrapped)
        return found[1]
