"""Keeps this package's own errors away from the run that it observes.

A system's observer enters no guard. Its hooks contain their own errors (`Hooks`), and where one moment of a framework gives several
topics, each is a method that says which it gives, and costs only these where it fails:

    @contained("learning_rate")
    def _see_rate(self, optimizer: Any) -> None: ...
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from rlstep_hooks.observe.spending import SPENDING
from rlstep_hooks.record.describe import describe

if TYPE_CHECKING:
    from collections.abc import Callable


class GapRecorder(Protocol):
    """Records that something cannot be observed."""

    def cannot(self, what: str, why: str) -> None:
        """Record once that a topic cannot be observed."""


class Observer(Protocol):
    """What has contained methods."""

    @property
    def recorder(self) -> GapRecorder:
        """Learns which topics are not observed any more."""


Self = TypeVar("Self", bound=Observer)
Given = ParamSpec("Given")
Result = TypeVar("Result")


def contained(
    *topics: str,
) -> Callable[[Callable[Concatenate[Self, Given], Result]], Callable[Concatenate[Self, Given], Result | None]]:
    """A method of an observer that contains its own errors: what it raises costs these topics, and the method then returns None.

    An interrupt or an exit passes through.

    Args:
        topics: What is not observed any more where the method fails.
    """

    def contain(
        method: Callable[Concatenate[Self, Given], Result],
    ) -> Callable[Concatenate[Self, Given], Result | None]:
        @wraps(method)
        def calls(observer: Self, /, *args: Given.args, **kwargs: Given.kwargs) -> Result | None:
            measures = SPENDING.measures
            if measures:
                SPENDING.enter()
            try:
                return method(observer, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - an observer's error must not reach training
                _cannot(observer.recorder, topics, error)
                return None
            finally:
                if measures:
                    SPENDING.leave()

        return calls

    return contain


def _cannot(recorder: GapRecorder, topics: tuple[str, ...], error: Exception) -> None:
    for topic in topics:
        recorder.cannot(topic, f"a hook failed: {describe(error)}")


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
        self.failed(error)
        return True

    def failed(self, error: Exception) -> None:
        """Record an error that was caught where entering a context for each of many calls would cost too much."""
        _cannot(self._recorder, self._topics, error)

    def after(self, see: Callable[..., None]) -> Callable[..., Any]:
        """A wrapper that looks at a call once it has returned: `see(result, args)`."""

        def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            result = wrapped(*args, **kwargs)
            with self:
                see(result, args)
            return result

        return wrapper
