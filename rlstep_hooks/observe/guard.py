"""Keeps this package's own errors away from the run that it observes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from rlstep_hooks.observe.spending import SPENDING
from rlstep_hooks.record.describe import describe

if TYPE_CHECKING:
    from collections.abc import Callable


class GapRecorder(Protocol):
    """Records that something cannot be observed."""

    def cannot(self, what: str, why: str) -> None:
        """Record once that a topic cannot be observed."""


class Guard:
    """A context in which an exception costs an observation and nothing else. One object can be entered many times."""

    def __init__(self, recorder: GapRecorder, topics: tuple[str, ...]) -> None:
        self._recorder = recorder
        self._topics = topics

    def __enter__(self) -> None:
        """A hook looks."""
        if SPENDING.measures:
            SPENDING.enter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        """Record an error and let training continue; interrupts and exits pass through."""
        if SPENDING.measures:
            SPENDING.leave()
        if not isinstance(error, Exception):
            return False
        self._note(error)
        return True

    def _note(self, error: Exception) -> None:
        for topic in self._topics:
            self._recorder.cannot(topic, f"a hook failed: {describe(error)}")

    def failed(self, error: Exception) -> None:
        """Record an error that was caught where entering a context for each of many calls would cost too much."""
        self._note(error)

    def after(self, see: Callable[..., None]) -> Callable[..., Any]:
        """A wrapper that looks at a call once it has returned: `see(result, args)`."""

        def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            result = wrapped(*args, **kwargs)
            with self:
                see(result, args)
            return result

        return wrapper
