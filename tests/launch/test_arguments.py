"""Flags and overrides as settings, and typed reads of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstep_hooks.launch.arguments import read_arguments
from rlstep_hooks.launch.settings import MISSING, Settings
from rlstep_hooks.launch.text import LaunchError, Place, SettingError, Token, UnknownText, UnknownValueError


def tokens(*texts: str) -> list[Token]:
    return [Token(text, Place("the command", 0, index)) for index, text in enumerate(texts, 1)]


def test_flags() -> None:
    found, loose = read_arguments(
        tokens("file.yaml", "--rollout-batch-size", "32", "--colocate", "--eval-data", "aime", "a.jsonl", "--lr=1e-6",
        "--max-steps", "-1")
    )  # fmt: skip
    values = {name: setting.value for name, setting in found.items()}
    assert values == {
        "rollout_batch_size": "32",
        "colocate": "true",
        "eval_data": ["aime", "a.jsonl"],
        "lr": "1e-6",
        "max_steps": "-1",
    }
    assert [token.text for token in loose] == ["file.yaml"]
    assert str(found["rollout_batch_size"]) == "--rollout-batch-size"
    assert str(found["lr"].place) == "argument 8 of the command"


def test_a_later_flag_replaces_an_earlier() -> None:
    found, _ = read_arguments(tokens("--a", "1", "--b", "2", "--a", "3"))
    assert found["a"].value == "3"


def test_overrides() -> None:
    found, loose = read_arguments(
        tokens("data.train_batch_size=8", "+trainer.x=1", "++trainer.y=[1,2]", "~trainer.z", "algorithm=grpo", "--config-name", "ppo"),
        overrides=True,
    )  # fmt: skip
    assert found["data.train_batch_size"].value == 8
    assert found["trainer.x"].value == 1
    assert found["trainer.y"].value == [1, 2]
    assert found["trainer.z"].deleted
    assert found["config_name"].value == "ppo"
    assert not loose


DEFAULTS = {"a": 1, "b.c": "${a}", "d": MISSING, "flag": False, "loop": "${loop}"}


def made(**given_values: Any) -> Settings:
    found, _ = read_arguments(tokens(*(f"{name}={value}" for name, value in given_values.items())), overrides=True)
    return Settings(found, DEFAULTS)


def test_defaults_references_and_reads() -> None:
    settings_ = made(a=4, other=2)
    assert settings_.count("b.c") == 4
    assert settings_.flag("flag") is False
    assert [setting.name for setting in settings_.unused] == ["other"]
    assert settings_.written("a", "b.c") == {"a": 4, "b.c": 4}


@pytest.mark.parametrize("value", ["0", "-3", "1.5", "abc", "true", "[1]", "nan"])
def test_a_count_is_a_whole_number_of_at_least_one(value: str) -> None:
    with pytest.raises(SettingError, match="argument 1 of the command: a = "):
        made(a=value).count("a")


def test_settings_that_cannot_be() -> None:
    with pytest.raises(SettingError, match="d is missing"):
        made().count("d")
    with pytest.raises(SettingError, match="refers to itself"):
        made().value("loop")
    with pytest.raises(SettingError, match="neither true nor false"):
        made(flag="maybe").flag("flag")
    found, _ = read_arguments(tokens("--batch.size", "4", "--batch_size", "5"))
    with pytest.raises(SettingError, match=r"--batch\.size = 4 and --batch_size = 5 contradict"):
        Settings(found, {}).count("batch.size", "batch_size")


def test_an_unknown_value_is_asked_for_only_when_it_is_read() -> None:
    token = Token("$N", unknown=(UnknownText("N", "$N is not set in the script", Place("run.sh", 3, 7)),))
    found, _ = read_arguments([Token("--m"), Token("1"), Token("--n"), token])
    settings_ = Settings(found, {})
    assert settings_.count("m") == 1
    with pytest.raises(
        UnknownValueError,
        match=r"run\.sh:3:7: --n cannot be known: \$N is not set .*; give it with --set N=VALUE",
    ):
        settings_.count("n")


def test_misspelt_settings_are_named() -> None:
    found, _ = read_arguments(tokens("--train_batchsize", "4", "--save", "x"))
    settings_ = Settings(found, {"train_batch_size": 8, "steps": 1})
    settings_.count("train_batch_size")
    assert [(setting.name, near) for setting, near in settings_.look_alikes()] == [
        ("train_batchsize", "train_batch_size")
    ]


@given(st.lists(st.text(max_size=12), max_size=8))
@settings(deadline=None)
def test_any_arguments_are_read_or_refused(texts: list[str]) -> None:
    for overrides in (False, True):
        try:
            found, loose = read_arguments(tokens(*texts), overrides=overrides)
        except LaunchError:
            continue
        assert len(found) + len(loose) <= len(texts)
