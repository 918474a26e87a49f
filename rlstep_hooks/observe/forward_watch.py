"""Whether a given model generates, seen from its forwards."""

from __future__ import annotations

from typing import Any


class ForwardWatch:
    """Sees whether a model makes a forward itself. It is a forward hook, so nothing of the model is replaced.

    It removes itself at the first forward, so that long generations cost nothing. It hooks the input embeddings: wrappers (such as
    PEFT's) generate with the inner model and never call themselves, but every forward with these weights embeds its tokens here.
    """

    def __init__(self, embeddings: Any) -> None:
        self.seen = False
        self.paused = False
        """Set while code other than generation makes forwards."""
        self._handle = embeddings.register_forward_pre_hook(self._see)

    @classmethod
    def of(cls, model: Any) -> ForwardWatch | None:
        """A watch on a transformers model; None if its embeddings cannot be found."""
        try:
            embeddings = model.get_input_embeddings()
        except (AttributeError, NotImplementedError):
            return None
        return cls(embeddings) if hasattr(embeddings, "register_forward_pre_hook") else None

    def _see(self, module: Any, args: Any) -> None:
        if not self.paused:
            self.seen = True
            self._handle.remove()

    def remove(self) -> None:
        """Remove the hook if it has not removed itself."""
        if not self.seen:
            self._handle.remove()
