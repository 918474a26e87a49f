"""Which model generates: a look at the forwards of one."""

from __future__ import annotations

from typing import Any


class ForwardWatch:
    """Sees whether a model made a forward of its own. A forward hook, so nothing of the model itself is replaced.

    It takes itself off at the first one, so that long generations cost nothing. It looks at the input embeddings: wrappers
    (PEFT's among them) generate with the model inside them and never call themselves, but every forward with these weights
    embeds its tokens here.
    """

    def __init__(self, embeddings: Any) -> None:
        self.seen = False
        self.paused = False
        """Set while something else than generation makes forwards."""
        self._handle = embeddings.register_forward_pre_hook(self._see)

    @classmethod
    def of(cls, model: Any) -> ForwardWatch | None:
        """A watch on a model of transformers; None where its embeddings cannot be found."""
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
        """Take the hook off, if it has not done so itself."""
        if not self.seen:
            self._handle.remove()
