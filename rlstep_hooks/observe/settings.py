"""The settings that a framework computes with, beside the right ones: those that are configured, or those of the beginning.

A system gives a table: which attributes of a live object, under which names, and what the configuration says of them. Reading them,
remembering, comparing and recording is done here. Nothing of the device is read.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.events import ConfigChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rlstep_hooks.observe.sync_watch import EventRecorder

Setting = tuple[str, Any]
"""Name and value. Several settings may have one name, such as those of an optimizer's groups."""

Change = tuple[str, Any, Any]
"""Name, right value, value now."""

_STEPPED_WITH = (
    "alpha", "amsgrad", "betas", "centered", "dampening", "decoupled_weight_decay", "eps", "lr_decay", "maximize", "momentum",
    "momentum_decay", "nesterov", "rho", "weight_decay",
)  # fmt: skip
"""Settings of torch's optimizers that decide where a step goes, besides the rate, which is the scheduler's. Others are not looked at:
some optimizers keep numbers in their groups that change at each step."""
_CYCLED = ("betas", "momentum")
"""Settings of optimizers that some schedulers change at every tick (`cycle_momentum`)."""

_PLAIN = (bool, int, float, str, tuple, list, type(None))
_WRITTEN_INTO = (list, dict, set)
_ABSENT = object()


class SettingsWatch:
    """Follows settings from the moment at which it is made, and tells those that take on a wrong value.

    A setting is told when it is wrong and was not wrong in this way when it was looked at last. What cannot be read costs the topic
    "settings" and nothing else.

    Args:
        read: Reads the settings as they are.
        right: Reads what they must be. Those that it does not name must stay what they are when they are first seen.
        since: What a wrong value differs from, as `ConfigChanged` says it.
        allowed: Values by name that are right besides.
        by_design: Whether training runs give this setting this value on purpose.
        unchanged: Whether everything is what it was when this was called last, which takes less time than reading all settings by
            their names.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[Setting]],
        right: Callable[[], Mapping[str, Any]] | None = None,
        *,
        since: Literal["construction", "train_begin", "configuration"],
        allowed: Mapping[str, tuple[Any, ...]] | None = None,
        by_design: Callable[[str, Any], bool] | None = None,
        unchanged: Callable[[], bool] = lambda: False,
    ) -> None:
        self._read = read
        self._since = since
        self._allowed = allowed or {}
        self._by_design = by_design
        self._right: dict[str, Any] = {}
        self._wrong: list[Setting] = []
        self._latest: list[Setting] = []
        """All settings as they were read last; none where one of them was wrong."""
        self._failed = ""
        self._unchanged = unchanged
        try:
            self._right = {} if right is None else {name: _comparable(value) for name, value in right().items()}
            for name, value in read():
                self._right.setdefault(name, _comparable(value))
        except Exception as error:  # noqa: BLE001 - the run must not end because its settings cannot be read
            self._failed = describe(error)

    def tell(self, recorder: EventRecorder) -> bool:
        """Record what became wrong since the last call.

        Returns:
            Whether anything did.
        """
        events: list[ConfigChanged] = []
        if not self._failed:
            try:
                events = [self._event(recorder.now(), *change) for change in self.changes()]
            except Exception as error:  # noqa: BLE001 - as above
                self._failed = describe(error)
        if self._failed:
            recorder.cannot("settings", f"settings could not be read: {self._failed}")
        for event in events:
            recorder.emit(event)
        return bool(events)

    def _event(self, at: float, name: str, right: Any, value: Any) -> ConfigChanged:
        return ConfigChanged(
            at=at,
            name=name,
            before=_shown(right),
            after=_shown(value),
            since=self._since,
            by_design=self._by_design is not None and self._by_design(name, value),
        )

    def changes(self) -> list[Change]:
        """The settings that became wrong since the last call."""
        if self._unchanged() and self._latest:
            return []
        # `_comparable` written out: it would be called for each of some forty settings after each rollout.
        seen = [(name, tuple(value) if isinstance(value, list) else value) for name, value in self._read()]
        if seen == self._latest:
            return []  # as almost always
        before, self._wrong = self._wrong, []
        new = []
        for name, value in seen:
            right = self._right.setdefault(name, value)
            allowed = (right, *self._allowed.get(name, ()))
            if not any(_same(value, one) for one in allowed) and not _among(self._wrong, name, value):
                self._wrong.append((name, value))
                if not _among(before, name, value):
                    new.append((name, right, value))
        self._latest = [] if self._wrong else seen
        return new


class SameValues:
    """Whether values are what they were at the last look, by one comparison of all of them. Lists and dicts, into which somebody may
    write, are never said to be what they were.

    Args:
        read: Reads the values.
    """

    def __init__(self, read: Callable[[], tuple[Any, ...]]) -> None:
        self._read = read
        self._latest: tuple[Any, ...] | None = None
        """The values at the last look; None where there was none, and where somebody may write into one of them."""

    def __call__(self) -> bool:
        """Look."""
        now = self._read()
        if now == self._latest:
            return True
        self._latest = None if any(isinstance(value, _WRITTEN_INTO) for value in now) else now
        return False


def attributes(first: Any, names: Iterable[str], prefix: str = "") -> Callable[[Any], Iterable[Setting]]:
    """A function that reads attributes of an object, by their names with a prefix. It raises AttributeError once one of them is gone.

    Args:
        first: An object of this kind. It says which attributes there are: not every release has all that are asked for.
        names: Those that are asked for.
        prefix: What their names begin with.
    """
    present = [name for name in names if hasattr(first, name)]
    named = [prefix + name for name in present]
    read = values_of(present)
    return lambda owner: zip(named, read(owner), strict=True)


def values_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads attributes of an object, all by one call, which takes a fraction of the time that a call for each takes."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda owner: tuple(getattr(owner, name) for name in names)


def optimizer_settings(
    optimizer: Any, named: Callable[[str, int], str], *, scheduler: Any = None, also: tuple[str, ...] = ()
) -> Iterator[Setting]:
    """What a torch optimizer steps with besides its rate, of all its groups.

    Args:
        optimizer: Any optimizer of torch's kind.
        named: Gives the name of a group's setting: its own name, and the group's place.
        scheduler: The scheduler of its rate, where it may be one that changes other settings too.
        also: Further settings of the groups.
    """
    cycled = _CYCLED if getattr(scheduler, "cycle_momentum", False) else ()
    names = [name for name in (*_STEPPED_WITH, *also) if name not in cycled]
    for place, group in enumerate(optimizer.param_groups):
        for name in names:
            if isinstance(group.get(name, _ABSENT), _PLAIN):
                yield named(name, place), group[name]


def as_configured(optimizer: Any, built: Any, section: str, names: Mapping[str, str] | None = None) -> SettingsWatch:
    """What a torch optimizer is and steps with, beside one of torch's that was built here from the configuration.

    Args:
        optimizer: The one that trains.
        built: The one that the configuration means, of any tensor.
        section: Where the optimizer's settings stand in the configuration.
        names: What the configuration calls a setting of the optimizer, where it calls it otherwise.
    """
    called = names or {}

    def of(one: Any) -> Iterator[Setting]:
        yield f"{section}.type", type(one).__name__
        yield from optimizer_settings(one, lambda name, place: f"{section}.{called.get(name, name)}")

    return SettingsWatch(lambda: of(optimizer), lambda: dict(of(built)), since="configuration")


def _comparable(value: Any) -> Any:
    """A setting as it is compared: one list is the same as another, and a later write to it shows."""
    return tuple(value) if isinstance(value, list) else value


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same. Functions are where they are identical: of two nobody can say whether they compute the same."""
    return one is other or (not callable(one) and not callable(other) and bool(one == other))


def _among(settings: list[Setting], name: str, value: Any) -> bool:
    return any(name == known and _same(value, of_known) for known, of_known in settings)


def _shown(value: Any) -> Any:
    """A setting as it is recorded: a function by its name."""
    return getattr(value, "__name__", type(value).__name__) if callable(value) else value
