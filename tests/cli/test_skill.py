"""The skill for agents: its form, and every command in it as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from rlstep_hooks.cli import main
from rlstep_hooks.judge.symptoms import SYMPTOMS
from rlstep_hooks.record.ledger import FolderLedger, rank_process
from tests.golden.questions_by_tools import QUESTIONS, unanswered
from tests.scripted import make_plan, scripted_run

if TYPE_CHECKING:
    from collections.abc import Iterator

SKILL = Path(__file__).parents[2] / "skills" / "rlstep"
PAGES = sorted(SKILL.rglob("*.md"))


def commands() -> Iterator[str]:
    """The lines of shell blocks, and the commands in tables."""
    for page in PAGES:
        text = page.read_text()
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
            yield from block.splitlines()
        yield from re.findall(r"^\|[^|]*\| `(rlstep why [^`]*)` \|$", text, re.MULTILINE)


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_every_command_runs_as_it_stands(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = FolderLedger(tmp_path / "DIR", "run", rank_process(0))
    ledger.write(*scripted_run(make_plan(iterations=2, max_steps=8)))
    ledger.close()
    program, *words = shlex.split(command)
    assert program == "rlstep"
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    assert ended.value.code in (0, 1), said.err
    assert said.out


def test_it_has_the_open_form() -> None:
    """https://agentskills.io/specification: a name that is the folder's, a description of at most 1 024 characters."""
    head = yaml.safe_load((SKILL / "SKILL.md").read_text().split("---")[1])
    assert head["name"] == SKILL.name
    assert 0 < len(head["description"]) <= 1024
    assert len((SKILL / "SKILL.md").read_text().splitlines()) < 500


def test_its_links_lead_to_files() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).is_file()


def test_it_names_every_symptom() -> None:
    text = (SKILL / "references" / "symptoms.md").read_text()
    assert all(f"rlstep why DIR {symptom.name}`" in text for symptom in SYMPTOMS)


def test_the_tools_alone_answer_real_questions() -> None:
    """At least 90 % of the questions that have a command."""
    assert len(unanswered()) <= len(QUESTIONS) // 10, unanswered()
