"""References and functions of OmegaConf in settings."""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.launch.settings import Setting, Settings
from rlstep_hooks.launch.text import LaunchError, Place, UnknownText, UnknownValueError

if TYPE_CHECKING:
    from collections.abc import Mapping

FUNCTIONS = {"mul": operator.mul, "max": max}


def settings(given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, **environment: str) -> Settings:
    written = {
        name: Setting(name, value, Place("c.yaml", line, 1)) for line, (name, value) in enumerate(given.items(), 1)
    }
    return Settings(written, defaults or {}, functions=FUNCTIONS, environment=environment)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${a.b}", 8),
        ("${.y}", 3),
        ("${..b}", 8),
        ("${mul:${a.b},${.y}}", 24),
        ("${mul:${mul:2,3},${..b}}", 48),
        ("${max:${a.b},100}", 100),
        ("${oc.select:a.b}", 8),
        ("${oc.select:a.nothing,7}", 7),
        ("${oc.select:a.nothing,${a.b}}", 8),
        ("${oc.decode:'[1,2]'}", [1, 2]),
        ("${a.default}", 5),
        ("${mul:${a.default},2}", 10),
        ("${again}", 8),
    ],
)
def test_a_value_is_what_omegaconf_makes_of_it(text: str, value: Any) -> None:
    omegaconf = pytest.importorskip("omegaconf")
    given = {"a.b": 8, "a.x.y": 3, "again": "${a.b}", "a.x.z": text}
    assert settings(given, {"a.default": 5}).value("a.x.z") == value
    resolvers = {name: omegaconf.OmegaConf.has_resolver(name) for name in FUNCTIONS}
    for name, function in FUNCTIONS.items():
        omegaconf.OmegaConf.register_new_resolver(name, function)
    try:
        tree = {"a": {"b": 8, "x": {"y": 3, "z": text}, "default": 5}, "again": "${a.b}"}
        theirs = omegaconf.OmegaConf.create(tree).a.x.z
        assert theirs == value
    finally:
        omegaconf.OmegaConf.clear_resolvers()
    assert not any(resolvers.values())


def test_nothing_is_left_registered() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    assert settings({"a": 2, "b": "${mul:${a},3}"}).count("b") == 6
    assert not omegaconf.OmegaConf.has_resolver("mul")
    assert not any(omegaconf.OmegaConf.has_resolver(f"rlstep.{name}") for name in ("mul", "env", "unknown"))


def test_what_a_value_depends_on_is_used() -> None:
    pytest.importorskip("omegaconf")
    read = settings({"a": 2, "b": "${c}", "c": 3, "d": 4, "e": "${mul:${a},${b}}"})
    assert read.count("e") == 6
    assert [setting.name for setting in read.unused] == ["d"]


def test_the_environment_is_that_of_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("omegaconf")
    monkeypatch.setenv("WORKERS", "64")
    given = {"n": "${oc.decode:${oc.env:WORKERS}}", "m": "${oc.env:OTHER,5}"}
    assert settings(given, WORKERS="8").count("n") == 8
    with pytest.raises(UnknownValueError, match="--set WORKERS=VALUE"):
        settings(given).count("n")
    read = settings(given)
    assert read.count("m") == 5
    assert read.assumed == ("the environment variable OTHER is not set, so that it counts as 5",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${nowhere.at.all}", "refers to nowhere.at.all, which nothing sets"),
        ("${x}", "refers to itself"),
        ("${made_up:1,2}", "OmegaConf says: Unsupported interpolation type made_up"),
        ("${mul:${nowhere},2}", "cannot be known: OmegaConf says"),
        ("${mul:${hidden},2}", "cannot be known: it is a variable"),
        ("${mul:2", "cannot be known: OmegaConf says"),
        ("${mul:'a',${mul:'b','c'}}", "cannot be known: OmegaConf says"),
    ],
)
def test_what_cannot_be_worked_out_is_said(text: str, message: str) -> None:
    pytest.importorskip("omegaconf")
    hidden = Setting("hidden", "$N", Place("c.yaml", 9, 1), unknown=(UnknownText("N", "it is a variable"),))
    read = Settings({"x": Setting("x", text, Place("c.yaml", 1, 1)), "hidden": hidden}, {}, functions=FUNCTIONS)
    with pytest.raises(LaunchError) as caught:
        read.count("x")
    assert message in str(caught.value)


def test_without_omegaconf_plain_references_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "omegaconf", None)
    read = settings({"a": 2, "b": "${a}", "c": "${mul:${a},2}"})
    assert read.count("b") == 2
    with pytest.raises(UnknownValueError, match="OmegaConf, which is not installed"):
        read.count("c")
