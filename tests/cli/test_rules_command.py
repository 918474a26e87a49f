"""`rlstep rules`: a rule by its code, with or without letters, and rules by what they speak of."""

from __future__ import annotations

import pytest

from rlstep_hooks.cli import main
from rlstep_hooks.cli.rules import about
from rlstep_hooks.judge.rules import BY_CODE


def status(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["rules", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("code", ["RLS302", "rls302", "302"])
def test_a_code_gives_its_page(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(code) == 0
    assert "RLS302 Ratio stuck at 1" in capsys.readouterr().out


def test_a_word_gives_the_rules_about_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("ratio") == 0
    printed = capsys.readouterr().out
    assert {code for code in BY_CODE if code in printed} >= {"RLS301", "RLS302", "RLS310"}
    assert "RLS206" not in printed


def test_a_word_that_only_a_page_has() -> None:
    assert [rule.code for rule in about("NEFTune")] != []
    assert all("neftune" in (rule.__doc__ or "").lower() for rule in about("NEFTune"))


@pytest.mark.parametrize("text", ["999", "RLS999", "nothing speaks of this", " "])
def test_nothing_found(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(text) == 2
    assert "rlstep rules" in capsys.readouterr().err
