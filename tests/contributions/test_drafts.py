"""The drafts for other projects have the form that those ask for, and what they say is so."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from rlstep_hooks.cli import main
from rlstep_hooks.cli.app import parser
from rlstep_hooks.judge.rules.catalogue import BY_CODE
from tests.contributions.ready import DRAFTS, drafts

SKILL = Path(__file__).parents[2] / "skills" / "rlstep"
PAGES = [path for path in drafts() if path.suffix == ".md"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in BLOCK.findall(drafts()[page]) if language in languages]


def commands() -> list[str]:
    """Every command of `rlstep` in a block of a page."""
    found = [line for page in PAGES for text in blocks(page, "bash") for line in text.splitlines()]
    found += [
        console.partition("$ ")[2].replace("\\\n", " ").splitlines()[0]
        for page in PAGES
        for console in blocks(page, "console")
    ]
    return sorted({line for line in found if line.startswith("rlstep ")})


def test_there_are_commands() -> None:
    assert {line.split()[1] for line in commands()} == {"plan", "run", "report", "ci"}


@pytest.mark.parametrize("command", commands())
def test_a_command_has_options_that_exist(command: str) -> None:
    words = shlex.split(command)[1:]
    cut = words.index("--") if "--" in words else len(words)
    assert callable(parser().parse_args(words[:cut]).verb)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=str)
def test_a_plan_prints_what_stands_below_it(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for console in blocks(page, "console"):
        command, _, printed = re.sub(r"\\\n", " ", console).partition("\n")
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(command.removeprefix("$ "))[1:])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(printed)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_code_is_python(page: Path) -> None:
    for text in blocks(page, "python"):
        ast.parse(text)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_codes_are_rules(page: Path) -> None:
    assert set(re.findall(r"RLS\d{3}", drafts()[page])) <= set(BY_CODE)


def test_the_page_of_trl_has_the_form_of_its_integrations() -> None:
    """docs/source/*_integration.md: a title "... Integration", a line break at no width, no HTML head."""
    lines = (DRAFTS / "trl" / "rlstep_integration.md").read_text().splitlines()
    assert re.fullmatch(r"# \w+ Integration", lines[0])
    entry = yaml.safe_load((DRAFTS / "trl" / "toctree.yml").read_text())
    assert entry == [{"local": "rlstep_integration", "title": "rlstep"}]


def test_the_pull_request_of_trl_has_its_template() -> None:
    """Pull requests without it are closed without a review, and one of the three disclosures is chosen."""
    text = (DRAFTS / "trl" / "pull_request.md").read_text()
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    assert heads[1:] == [
        "What does this PR do?", "Before submitting", "AI writing disclosure", "Who can review?",
    ]  # fmt: skip
    disclosure = text.partition("AI writing disclosure")[2].partition("Who can")[0]
    assert disclosure.count("- [x]") == 1
    assert disclosure.count("- [ ]") == 2


def test_the_page_of_verl_has_the_form_of_its_pages() -> None:
    """A title, an author, and the line "Last updated: MM/DD/YYYY." that its tests look for."""
    lines = (DRAFTS / "verl" / "step_audit.md").read_text().splitlines()
    assert lines[0].startswith("# ")
    assert any(re.fullmatch(r"Last updated: \d\d/\d\d/\d{4}\.", line) for line in lines[:6])


def test_the_title_for_verl_passes_its_check() -> None:
    """`[{modules}] {type}: {description}`."""
    title = (DRAFTS / "verl" / "pull_request.md").read_text().splitlines()[0].removeprefix("# ")
    assert re.fullmatch(
        r"\[(doc|trainer|misc|ci)(, (doc|trainer|misc|ci))*\] (feat|fix|refactor|chore|test): .+", title
    )


def test_the_entry_of_the_marketplace_is_that_of_the_skill() -> None:
    """The project's checks compare the names of both and where the skill lies."""
    entry = json.loads((DRAFTS / "skills" / "marketplace.json").read_text())
    head = yaml.safe_load((SKILL / "SKILL.md").read_text().split("---")[1])
    assert set(entry) == {"name", "source", "skills", "description"}
    assert (entry["name"], entry["source"]) == (head["name"], f"./skills/{SKILL.name}")


def test_the_evaluation_asks_for_what_the_skill_says() -> None:
    cases = json.loads((DRAFTS / "skills" / "evals" / "rlstep" / "smoke.json").read_text())["cases"]
    text = (SKILL / "SKILL.md").read_text()
    wanted = {value for case in cases for check in case["verifiers"] for value in check["values"]}
    assert {value for value in wanted if value.startswith("rlstep ") and value not in text} == set()
    assert all(check["type"] == "contains" for case in cases for check in case["verifiers"])
