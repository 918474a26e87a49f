"""`rlstep doctor`: what is installed and what can be done with it."""

from __future__ import annotations

import pytest

from rlstep_hooks.cli import doctor
from rlstep_hooks.judge.rules import BY_CODE
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.links import NAMES, RULES, in_words


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Package and release of all that is installed."""
    packages: dict[str, str] = {}
    monkeypatch.setattr(doctor, "release_here", lambda package: packages.get(package, ""))
    return packages


def test_without_a_framework_nothing_can_be_audited(
    installed: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor.show() == 2
    printed = capsys.readouterr().out
    (missing,) = " ".join(printed.split()).split("Not here: ")[1:]
    assert all(f"{name} (" in missing for name in ("TRL", "verl", "OpenRLHF", "Stable-Baselines3"))
    assert "a loop of your own (torch 2.2 to before 3)" in missing


def test_a_release_that_was_not_read_is_not_supported(
    installed: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    installed["stable-baselines3"] = "2.10.0"
    assert doctor.show() == 2
    printed = capsys.readouterr().out
    said = "Stable-Baselines3 (stable-baselines3 2.10.0 is here, 2.7 to before 2.10 are observed)"
    assert f"Not observed in the release that is here: {said}" in " ".join(printed.split())
    assert "Observed here" not in printed
    assert doctor.show("sb3") == 2
    printed = capsys.readouterr().out
    assert "Stable-Baselines3 (stable-baselines3 2.10.0): not supported; supported are 2.7 to before 2.10" in printed


def test_releases_of_which_only_launches_are_planned_are_told_apart(
    installed: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    installed["verl"] = "0.8.0"
    assert doctor.show("verl") == 2
    assert "supported are 0.9 to before 0.10 (plans: 0.2 to before 0.10)" in " ".join(capsys.readouterr().out.split())


def test_torch_alone_is_enough_for_a_loop_of_ones_own(installed: dict[str, str]) -> None:
    installed["torch"] = "2.13.0"
    assert doctor.show() == 0


def test_what_is_said_of_a_system_that_is_here_is_its_declaration(
    installed: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "600")
    installed["trl"] = "1.16.0"
    assert doctor.show("trl") == 0
    printed = capsys.readouterr().out
    (system,) = (system for system in index.observed() if system.name == "trl")
    assert "TRL (trl 1.16.0): supported" in printed
    assert all(words in printed for words in (*system.observes, *system.does_not_observe))
    assert all(in_words(link) in printed for link in system.links.values())


def test_each_observed_system_says_what_is_observed_and_how_to_attach() -> None:
    observed = index.observed()
    assert {system.name for system in observed} == {
        "trl", "trl_async", "trl_ppo", "trl_ppo_step", "verl", "openrlhf", "sb3", "own_loop", "swift", "llamafactory", "rllib",
        "tinker", "areal", "skyrl",
    }  # fmt: skip
    for system in observed:
        assert system.package, system.name
        assert system.observed_releases or system.releases, system.name
        assert system.observes, system.name
        assert system.does_not_observe, system.name
        assert tuple(sorted(system.links)) == tuple(sorted(NAMES)), system.name
        assert all(link.compared or link.not_compared for link in system.links.values()), system.name
        assert system.attaches_by.endswith("."), system.name


def test_each_link_has_its_rules() -> None:
    assert tuple(RULES) == NAMES
    assert {code for codes in RULES.values() for code in codes} <= set(BY_CODE)


def test_all_that_is_here_is_one_screen_with_a_line_for_each_framework(
    installed: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    installed |= {"trl": "1.16.0", "torch": "2.13.0", "transformers": "5.23.0", "verl": "0.9.1", "openrlhf": "0.11.2"}
    assert doctor.show() == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) <= 24
    lines = [line for line in printed.splitlines() if line.startswith("TRL ") and line.rstrip().endswith(" trl")]
    (system,) = (system for system in index.observed() if system.name == "trl")
    compared = sum(bool(link.compared) for link in system.links.values())
    there = sum(link.exists for link in system.links.values())
    assert len(lines) == 1
    assert f"{compared} of {there} links, " in lines[0]
    ends = [line.split()[-1] for line in printed.splitlines() if " links, " in line]
    assert sorted(ends) == ["openrlhf", "own_loop", "trl", "trl_async", "verl"], "a line for each, and none is wrapped"
    assert "torch 2.13.0 · transformers 5.23.0" in printed


def test_a_system_that_is_planned_only_and_one_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.show("slime") == 2
    assert "launches are planned; runs are not observed" in capsys.readouterr().out
    with pytest.raises(LaunchError, match=r"did you mean trlx\? There are areal, baselines, cleanrl, "):
        doctor.show("trlx2")
