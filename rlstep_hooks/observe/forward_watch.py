"""Whether a given model generates, seen from its forwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class ForwardWatch:
    """Sees whether a model makes a forward itself. It is a forward hook, so nothing of the model is replaced.

    It removes itself at the first forward, so that long generations cost nothing. It hooks the input embeddings: wrappers (such as
    PEFT's) generate with the inner model and never call themselves, but every forward with these weights embeds its tokens here.

    Args:
        embeddings: The module whose call is a forward.
        look: Called at the first forward, just before it, if given; raises nothing.
    """

    def __init__(self, embeddings: Any, look: Callable[[], None] | None = None) -> None:
        self._look = look
        self.seen = False
        self.paused = False
        """Set while code other than generation makes forwards."""
        self._handle = embeddings.register_forward_pre_hook(self._see)

    @classmethod
    def of(cls, model: Any, look: Callable[[], None] | None = None) -> ForwardWatch | None:
        """A watch on a transformers model; None if its embeddings cannot be found."""
        try:
            embeddings = model.get_input_embeddings()
        except (AttributeError, NotImplementedError):
            return None
        return cls(embeddings, look) if hasattr(embeddings, "register_forward_pre_hook") else None

    def _see(self, module: Any, args: Any) -> None:
        if not self.paused:
            self.seen = True
            self._handle.remove()
            if self._look is not None:
                self._look()

    def remove(self) -> None:
        """Remove the hook if it has not removed itself."""
        if not self.seen:
            self._handle.remove()
