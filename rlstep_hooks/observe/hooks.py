"""The one way to look at a running framework: a hook on a method, which contains its own errors.

A system's observer reads as a table: this method of the framework, looked at before or after it runs, and the topics that are not
observed any more if looking fails. What a hook raises costs these topics and nothing else; an interrupt or an exit passes through.

    hooks = Hooks(recorder)
    # grpo_trainer.py 1.16.0:1650: generation with rewards and old log-probs. Gives Rollout. Verified in 0.16.1 to 1.16.0.
    hooks.wrap(trainer, "_generate_and_score_completions", around=self._generation, topics=("order", "samples"))

    def _generation(self, call: Call) -> Iterator[None]:
        began = self._recorder.now()
        yield  # the framework's own call runs here; a `finally` around it also runs where that raises
        self._emit_rollout(call.result, began)
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.patches import Patches, take_off
from rlstep_hooks.observe.spending import SPENDING
from rlstep_hooks.record.logger import not_evaluated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlstep_hooks.observe.guard import GapRecorder


class LateRecorder:
    """Stands for the record of a process that has none yet: until it has one, what cannot be observed is told to its log.

    Args:
        find: Gives the record; None as long as there is none.
    """

    def __init__(self, find: Callable[[], GapRecorder | None]) -> None:
        self._find = find

    def cannot(self, what: str, why: str) -> None:
        """Record once that a topic cannot be observed."""
        recorder = self._find()
        if recorder is None:
            not_evaluated(f"{what}: {why}")
        else:
            recorder.cannot(what, why)


@dataclass(slots=True)
class Call:
    """One call of a framework's method.

    Attributes:
        owner: The object whose method is called; None for a function.
        args: Positional arguments. A hook that hands other arguments on replaces them before the call runs.
        kwargs: Arguments by name.
        result: What the method returned, once it has. A hook that hands something else on replaces it.
    """

    owner: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any = None

    def argument(self, name: str, place: int, default: Any = None) -> Any:
        """An argument that may be given by its name or at its place; the default where it is left out."""
        return self.kwargs.get(name, self.args[place] if len(self.args) > place else default)

    def named(self, *names: str) -> dict[str, Any]:
        """The arguments by name, also those that were given at their places.

        Args:
            names: The names of all arguments that may be given at a place, in their order.
        """
        return dict(zip(names, self.args, strict=False)) | self.kwargs

    def replace_argument(self, name: str, place: int, value: Any) -> None:
        """Hand another value on, in the way in which the argument was given."""
        if name in self.kwargs or len(self.args) <= place:
            self.kwargs = self.kwargs | {name: value}
        else:
            self.args = (*self.args[:place], value, *self.args[place + 1 :])


class Hooks:
    """Hooks on the methods and modules of a framework. All can be taken off, and then every attribute is what it was before.

    Args:
        recorder: Learns which topics are not observed any more.
        patches: What takes the hooks off, where somebody else does so.
    """

    def __init__(self, recorder: GapRecorder, patches: Patches | None = None) -> None:
        self.recorder = recorder
        """The recorder that hooks give their events to."""
        self._patches = Patches() if patches is None else patches
        self._handles: list[Any] = []
        self.active = True
        """Whether the hooks look. A call that was running when they were taken off is not looked at any more."""

    def wrap(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[[Call], None] | None = None,
        after: Callable[[Call], None] | None = None,
        around: Callable[[Call], Iterator[None]] | None = None,
        topics: tuple[str, ...],
    ) -> Sleep:
        """Look at the calls of one method. Several hooks on one method look one outside the other, the latest outermost.

        Args:
            owner: The object, class or module; only its own attributes change (`Patches.wrap`).
            name: The method. It may be a coroutine function.
            before: Called before the method runs.
            after: Called once it has returned. A `before` that failed does not keep `after` from being called.
            around: A generator that yields once, where the method runs. It stands in the place of the other two. If its first half
                fails, there is no second half.
            topics: What is not observed any more where a hook fails.

        Returns:
            What lets the hook sleep. It does not hold the hook, so who keeps it waits for no garbage collector.
        """
        sleep = Sleep()
        seen = _Looks(self, before, after, around, Guard(self.recorder, topics), sleep)
        self._patches.wrap(
            owner, name, seen.awaits if inspect.iscoroutinefunction(getattr(owner, name)) else seen.calls
        )
        return sleep

    def forward(
        self,
        module: Any,
        *,
        before: Callable[[Call], None] | None = None,
        after: Callable[[Call], None] | None = None,
        topics: tuple[str, ...],
    ) -> None:
        """Look at the forwards of a torch module, through torch's own hooks. They cannot change anything.

        Args:
            module: The module.
            before: Called before each forward.
            after: Called with the result after each forward.
            topics: What is not observed any more where a hook fails.
        """
        guard = Guard(self.recorder, topics)
        if before is not None:
            see = before

            def begins(owner: Any, args: Any, kwargs: Any) -> None:
                with guard:
                    see(Call(owner, args, kwargs))

            self._handles.append(module.register_forward_pre_hook(begins, with_kwargs=True))
        if after is not None:
            look = after

            def ended(owner: Any, args: Any, kwargs: Any, output: Any) -> None:
                with guard:
                    look(Call(owner, args, kwargs, output))

            self._handles.append(module.register_forward_hook(ended, with_kwargs=True))

    def steps(
        self,
        optimizer: Any,
        *,
        before: Callable[[Call], None] | None = None,
        after: Callable[[Call], None] | None = None,
        topics: tuple[str, ...],
    ) -> None:
        """Look at the steps of a torch optimizer, through torch's own hooks. Those that are placed first look first.

        Args:
            optimizer: The optimizer.
            before: Called before each step, when gradients are final.
            after: Called after each step.
            topics: What is not observed any more where a hook fails.
        """
        guard = Guard(self.recorder, topics)

        def looking(see: Callable[[Call], None]) -> Callable[[Any, Any, Any], None]:
            def look(owner: Any, args: Any, kwargs: Any) -> None:
                with guard:
                    see(Call(owner, args, kwargs))

            return look

        if before is not None:
            self._handles.append(optimizer.register_step_pre_hook(looking(before)))
        if after is not None:
            self._handles.append(optimizer.register_step_post_hook(looking(after)))

    def take_off(self) -> None:
        """Take all hooks off, and have the record say which stay because somebody else has wrapped them since."""
        self.active = False
        while self._handles:
            self._handles.pop().remove()
        take_off(self._patches, self.recorder)


@dataclass(slots=True)
class Sleep:
    """Whether a hook sleeps."""

    asleep: bool = False
    """Whether calls go straight on, as long as there is nothing to look at. Entering a hook takes some ten microseconds between two
    forwards, whatever it does."""


@dataclass(frozen=True, slots=True)
class _Looks:
    """What looks at the calls of one method."""

    hooks: Hooks
    before: Callable[[Call], None] | None
    after: Callable[[Call], None] | None
    around: Callable[[Call], Iterator[None]] | None
    guard: Guard
    sleep: Sleep

    def calls(self, wrapped: Callable[..., Any], owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the method, and look."""
        if self.sleep.asleep:
            return wrapped(*args, **kwargs)
        call = Call(owner, args, kwargs)
        running = self._begin(call)
        try:
            call.result = result = wrapped(*call.args, **call.kwargs)
        except BaseException:
            self._broken_off(running)
            raise
        return self._end(call, running, result)

    async def awaits(
        self, wrapped: Callable[..., Any], owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a coroutine function, await it, and look."""
        if self.sleep.asleep:
            return await wrapped(*args, **kwargs)
        call = Call(owner, args, kwargs)
        running = self._begin(call)
        try:
            call.result = result = await wrapped(*call.args, **call.kwargs)
        except BaseException:
            self._broken_off(running)
            raise
        return self._end(call, running, result)

    # Errors are caught without entering the guard: it would be entered some thirty times an update, each time with cold caches.

    def _begin(self, call: Call) -> Iterator[None] | None:
        """The generator that waits for the method to return; None where there is none, or where it failed."""
        given = call.args, call.kwargs
        measures = SPENDING.measures
        if measures:
            SPENDING.enter()
        try:
            if self.before is not None:
                self.before(call)
                given = call.args, call.kwargs
            if self.around is not None:
                running = self.around(call)
                next(running)
                return running
        except Exception as error:  # noqa: BLE001 - a hook's error must not reach training
            call.args, call.kwargs = given
            self.guard.failed(error)
        finally:
            if measures:
                SPENDING.leave()
        return None

    def _end(self, call: Call, running: Iterator[None] | None, result: Any) -> Any:
        """What the caller gets: the method's result, or what a hook that did not fail has put in its place."""
        if not self.hooks.active:
            self._broken_off(running)
            return result
        if running is None and self.after is None:
            return result
        measures = SPENDING.measures
        if measures:
            SPENDING.enter()
        try:
            if running is not None:
                next(running, None)
            if self.after is not None:
                self.after(call)
            result = call.result
        except Exception as error:  # noqa: BLE001 - as above
            self.guard.failed(error)
        finally:
            if measures:
                SPENDING.leave()
        return result

    def _broken_off(self, running: Iterator[None] | None) -> None:
        """The generator does not go on: what stands in a `finally` of it still runs."""
        if running is not None:
            with self.guard:
                running.close()  # type: ignore[attr-defined]  # every generator has it
