"""Settings in force beside the right ones, without any framework."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.settings import SameValues, SettingsWatch, attributes, optimizer_settings, values_of
from rlstep_hooks.record.events import ConfigChanged

if TYPE_CHECKING:
    from rlstep_hooks.record.events import AnyEvent


class Record:
    """Takes what is recorded."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.gaps: list[tuple[str, str]] = []

    def now(self) -> float:
        return 1.5

    def emit(self, *events: AnyEvent) -> None:
        self.events.extend(events)

    def cannot(self, what: str, why: str) -> None:
        self.gaps.append((what, why))

    def taken(self) -> list[tuple[str, Any, Any]]:
        """Name, before and after of the changes since the last call."""
        changes = [(e.name, e.before, e.after) for e in self.events if isinstance(e, ConfigChanged)]
        assert len(changes) == len(self.events)
        self.events.clear()
        return changes


def test_a_setting_is_told_when_it_becomes_wrong_and_not_when_it_becomes_right() -> None:
    owner, record = SimpleNamespace(size=8, rate=0.1), Record()
    watch = SettingsWatch(
        lambda: attributes(owner, ("size", "rate", "not of this release"))(owner), since="train_begin"
    )
    assert not watch.tell(record)
    owner.size = 16
    assert watch.tell(record)
    assert record.events == [ConfigChanged(at=1.5, name="size", before=8, after=16, since="train_begin")]
    assert record.taken() == [("size", 8, 16)]
    assert not watch.tell(record), "nothing new"
    owner.size = 32
    watch.tell(record)
    assert record.taken() == [("size", 8, 32)], "the right value is that of the beginning"
    owner.size = 8
    assert not watch.tell(record)
    owner.size = 16
    watch.tell(record)
    assert record.taken() == [("size", 8, 16)], "wrong again"


def test_configured_settings_are_compared_with_the_configuration_and_others_with_the_first_look() -> None:
    owner, record = SimpleNamespace(beta=0.5, other=1), Record()
    watch = SettingsWatch(
        lambda: attributes(owner, ("beta", "other", "later"), "trainer.")(owner),
        lambda: {"trainer.beta": 0.1},
        since="configuration",
        allowed={"trainer.other": (0,)},
    )
    watch.tell(record)
    assert record.taken() == [("trainer.beta", 0.1, 0.5)]
    owner.other, owner.later = 0, 7
    assert not watch.tell(record), "an allowed value, and one that is seen for the first time"
    owner.other, owner.later = 2, 8
    watch.tell(record)
    assert record.taken() == [("trainer.other", 1, 2), ("trainer.later", 7, 8)]


def test_lists_are_compared_by_their_values_and_functions_by_identity() -> None:
    def rate() -> float:
        return 0.1

    owner, record = SimpleNamespace(weights=[1.0, 2.0], rate=rate), Record()
    watch = SettingsWatch(lambda: attributes(owner, ("weights", "rate"))(owner), since="train_begin")
    owner.weights = (1.0, 2.0)
    assert not watch.tell(record)
    owner.weights = [1.0, 2.0]
    assert not watch.tell(record)
    owner.weights[1] = 3.0
    owner.rate = lambda: 0.1
    watch.tell(record)
    assert record.taken() == [("weights", (1.0, 2.0), (1.0, 3.0)), ("rate", "rate", "<lambda>")]


def test_what_training_does_on_purpose_is_marked() -> None:
    owner, record = SimpleNamespace(ent_coef=0.1), Record()
    watch = SettingsWatch(
        lambda: attributes(owner, ("ent_coef",))(owner), since="train_begin", by_design=lambda name, value: value >= 0
    )
    marks = []
    for owner.ent_coef in (0.05, -0.05):
        watch.tell(record)
        marks.append(record.events.pop().by_design)  # type: ignore[union-attr]  # ConfigChanged
    assert marks == [True, False]


def test_a_setting_that_cannot_be_read_costs_its_topic_alone() -> None:
    def missing() -> Any:
        raise RuntimeError("gone")

    record = Record()
    for watch in (
        SettingsWatch(missing, since="train_begin"),
        SettingsWatch(list, missing, since="configuration"),
    ):
        assert not watch.tell(record)
        assert record.gaps.pop() == ("settings", "settings could not be read: RuntimeError: gone")
    owner = SimpleNamespace(size=1)
    watch = SettingsWatch(lambda: [("size", owner.size)], since="train_begin")
    del owner.size
    assert not watch.tell(record)
    assert record.gaps.pop()[0] == "settings"
    assert not record.events


def optimizer(*groups: dict[str, Any]) -> Any:
    return SimpleNamespace(param_groups=list(groups))


def test_the_settings_of_an_optimizer_are_those_that_decide_a_step() -> None:
    group = {"params": [], "lr": 0.1, "initial_lr": 0.2, "betas": [0.9, 0.99], "eps": 1e-8, "maximize": False, "k": 7}
    many = optimizer(group, group | {"eps": 1e-6})

    def named(name: str, place: int) -> str:
        return f"{name} {place}"

    assert dict(optimizer_settings(many, named)) == {
        "betas 0": [0.9, 0.99],
        "eps 0": 1e-8,
        "maximize 0": False,
        "betas 1": [0.9, 0.99],
        "eps 1": 1e-6,
        "maximize 1": False,
    }
    cycles = SimpleNamespace(cycle_momentum=True)
    assert [name for name, _ in optimizer_settings(many, named, scheduler=cycles, also=("initial_lr",))] == [
        *("eps 0", "maximize 0", "initial_lr 0", "eps 1", "maximize 1", "initial_lr 1")
    ]


def test_groups_under_one_name_are_told_once() -> None:
    record, group = Record(), {"weight_decay": 0.1, "eps": 1e-8}
    groups = [dict(group), dict(group)]
    watch = SettingsWatch(
        lambda: optimizer_settings(optimizer(*groups), lambda name, place: name), since="configuration"
    )
    for each in groups:
        each["eps"] = 1e-3
    watch.tell(record)
    assert record.taken() == [("eps", 1e-8, 1e-3)]
    groups[1]["eps"] = 1.0
    watch.tell(record)
    assert record.taken() == [("eps", 1e-8, 1.0)]


def test_a_setting_that_is_gone_costs_the_settings_and_nothing_else() -> None:
    owner, record = SimpleNamespace(beta=0.1, rate=0.2), Record()
    read = attributes(owner, ("beta", "rate"))
    watch = SettingsWatch(lambda: read(owner), since="train_begin")
    assert not watch.tell(record)
    del owner.rate
    assert not watch.tell(record)
    assert [what for what, _ in record.gaps] == ["settings"]


def test_values_that_somebody_may_write_into_are_never_said_to_be_the_same() -> None:
    owner = SimpleNamespace(size=8, weights=[1.0])
    same = SameValues(lambda: values_of(("size", "weights"))(owner))
    assert [same(), same()] == [False, False]
    owner.weights = (1.0,)
    assert [same(), same()] == [False, True]
    owner.size = 9
    assert [same(), same()] == [False, True]


def test_a_change_is_told_where_settings_are_read_by_name_only_if_one_of_them_is_another() -> None:
    owner, record, reads = SimpleNamespace(size=8, names=("a",)), Record(), []

    def read() -> list[tuple[str, Any]]:
        reads.append(owner.size)
        return [("size", owner.size), ("names", owner.names)]

    unchanged = SameValues(lambda: values_of(("size", "names"))(owner))
    watch = SettingsWatch(read, since="train_begin", unchanged=unchanged)
    for _ in range(3):
        assert not watch.tell(record)
    assert len(reads) == 2, "when it was made, and at the first look"
    owner.size = 16
    assert [watch.tell(record), watch.tell(record)] == [True, False]
    assert record.taken() == [("size", 8, 16)]
    owner.names = ["a"]
    owner.size = 8
    assert not watch.tell(record)
    owner.names.append("b")
    assert watch.tell(record)
    assert record.taken() == [("names", ("a",), ("a", "b"))]
    del owner.size
    watch.tell(record)
    assert [topic for topic, _ in record.gaps] == ["settings"]
