"""Whether a given model generates, seen from its forwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class ForwardWatch:
    """Sees whether a model makes a forward itself. It is a forward hook, so nothing of the model is replaced.

    From `begin` it is in place until the first forward or `end`, so that long generations cost nothing. It hooks the input embeddings:
    wrappers (such as PEFT's) generate with the inner model and never call themselves, but every forward with these weights embeds
    its tokens here.

    Args:
        model: A transformers model.
        embeddings: The module of the model whose call is a forward.
    """

    def __init__(self, model: Any, embeddings: Any) -> None:
        self._model = model
        self._embeddings = embeddings
        self._look: Callable[[], None] | None = None
        self.seen = False
        self.paused = False
        """Set while code other than generation makes forwards."""
        # Registered once: torch's handle keeps its place, so that putting the hook there again costs next to nothing.
        self._handle = embeddings.register_forward_pre_hook(self._see)
        self._handle.remove()

    @classmethod
    def of(cls, model: Any) -> ForwardWatch | None:
        """A watch on a transformers model; None if its embeddings cannot be found."""
        embeddings = _embeddings_of(model)
        return cls(model, embeddings) if hasattr(embeddings, "register_forward_pre_hook") else None

    def watches(self, model: Any) -> bool:
        """Whether this is the model that is watched."""
        return model is self._model

    def is_on(self) -> bool:
        """Whether the model still embeds its tokens where the watch is. Costs as much as all the rest, so asked only in doubt."""
        return _embeddings_of(self._model) is self._embeddings

    def begin(self, look: Callable[[], None] | None = None) -> None:
        """Watch for the next forward.

        Args:
            look: Called just before it, if given; raises nothing.
        """
        self.seen = self.paused = False
        self._look = look
        hooks = self._handle.hooks_dict_ref()
        if hooks is None:  # the module has another table now
            self._handle = self._embeddings.register_forward_pre_hook(self._see)
        else:
            hooks[self._handle.id] = self._see

    def end(self) -> None:
        """Watch no longer."""
        self._look = None
        if not self.seen:
            self._handle.remove()

    def _see(self, module: Any, args: Any) -> None:
        if not self.paused:
            self.seen = True
            self._handle.remove()
            if self._look is not None:
                self._look()


def _embeddings_of(model: Any) -> Any:
    try:
        return model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None
