"""What a finding explains is shown below it, in every view of a report."""

from __future__ import annotations

import json
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from rlstep_hooks.cli import answers
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.record.events import ConfigChanged, Measured, MicroBatch, Rollout, Update
from rlstep_hooks.record.wire import encode
from rlstep_hooks.show.console import verdict_block
from rlstep_hooks.show.markdown import report_markdown
from rlstep_hooks.show.page.writer import page_html
from rlstep_hooks.show.summary import first_problem, sentence
from tests.reports import recorded_page, report_of
from tests.scripted import make_plan, scripted_run

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.events import AnyEvent

PLAN = make_plan(iterations=2, max_steps=16)


def rewritten() -> list[AnyEvent]:
    """From rollout 2 on the accumulation is 1 instead of 2, and the settings say so."""
    events: list[AnyEvent] = []
    rollouts = 0
    for event in scripted_run(PLAN):
        if isinstance(event, Measured) or (isinstance(event, Update) and rollouts > 2):
            continue
        events.append(event)
        if isinstance(event, Rollout):
            rollouts += 1
            if rollouts == 3:
                name = "gradient_accumulation_steps"
                events.append(ConfigChanged(name=name, before=2, after=1, since="train_begin"))
        if isinstance(event, MicroBatch) and rollouts > 2:
            events.append(Update(index=event.index, applied=True, version=event.policy_version + 1, microbatches=1))
    return events


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rlstep")
    (folder / "run.rank0.jsonl").write_bytes(b"".join(encode(event) for event in rewritten()))
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    return report_of(folder)


def test_the_headline_is_the_cause(report: Report) -> None:
    problem = first_problem(report)
    assert problem is not None
    assert (report.verdict, problem.code) == ("FAIL", "RLS101")
    assert sentence(report).startswith("Configuration rewritten: expected gradient_accumulation_steps = 2")
    assert {each.explained_by for each in report.findings[1:] if each.severity != "info"} == {"RLS101"}


def test_the_verdict_is_what_it_was_without_the_folding(report: Report) -> None:
    judge = Judge()
    found = [each for event in rewritten() for each in judge.observe(event)]
    assert {each.code for each in report.findings} == {each.code for each in found}
    assert report.exit_status(strict=False) == 1


def test_the_console_has_one_line_for_each_below_it(report: Report) -> None:
    file = StringIO()
    Console(file=file, width=160, color_system=None).print(verdict_block(report))
    text = file.getvalue()
    assert text.index("WARNING RLS101") < text.index("explains  ERROR RLS203 Update too early")
    assert text.count("look for an optimizer step outside") == 0, "an echo's own way out leads away from the cause"


def test_markdown_has_them_within_the_headline(report: Report) -> None:
    text = report_markdown(report)
    assert "- **explains** ❌ <b>RLS203</b>" in text


def test_the_page_has_them_folded_below_the_headline(folder: Path) -> None:
    html = page_html(recorded_page(folder))
    assert html.index("Configuration rewritten") < html.index("<summary>explained by RLS101:")


def test_json_says_what_explains_each(report: Report) -> None:
    findings = json.loads(report.to_json())["findings"]
    assert "explained_by" not in findings[0]
    assert findings[1]["explained_by"] == "RLS101"


def test_agents_get_them_within_the_headline(folder: Path) -> None:
    answer = answers.findings(folder, None, None)
    assert answer.answer.startswith("1 finding, which explains ")
    first = answer.details["findings"][0]
    assert first["code"] == "RLS101"
    assert "RLS203" in {each["code"] for each in first["explains"]}
    errors = answers.findings(folder, None, "error").details["findings"]
    assert errors[0]["explained_by"] == "RLS101", "without its headline it says where that is"
