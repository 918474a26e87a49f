"""Reports and plans as Markdown, read back with a Markdown parser: hostile text is shown as text."""

from __future__ import annotations

import re
from html import unescape

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from rlstep_hooks.judge.health import health_of
from rlstep_hooks.judge.readings import LagValues, Readings
from rlstep_hooks.judge.report import Report
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.planning.token_row import Piece, TokenRow
from rlstep_hooks.planning.words import printable
from rlstep_hooks.record.events import Update
from rlstep_hooks.show.markdown import escaped, escaped_html, report_markdown
from tests.judge.test_judge import judge
from tests.scripted import make_plan, scripted_run

PLAN = msgspec.structs.replace(make_plan(iterations=3, max_steps=60, rows=60), settings={})
GITHUB = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
"""As much of GitHub's reading as decides what is markup."""
HOSTILE = [
    "a | b || c",
    "`code` and ``more`` and `",
    "@torvalds, see #1 and https://example.org/x and www.example.org",
    "<script>alert(1)</script> </details><details open>",
    "**bold** _italic_ ~~gone~~ [link](https://example.org) ![image](x)",
    "1. a list",
    "- a list",
    "# a title",
    "> a quote",
    "two\n\nparagraphs",
    "&amp; &lt;b&gt; \\| \\",
    "right \u202eto left",
    "$x^2$ and $$y$$",
]


def shown(markdown: str) -> str:
    """The text that a reader of it sees, without marks that nobody sees."""
    return unescape(re.sub("<[^>]*>", "", GITHUB.render(markdown))).replace("\u200b", "")


def as_read(text: str) -> str:
    return " ".join(printable(text).split())


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("frame", ["{}", "- {}", "- **why** {}"])
def test_text_is_shown_as_it_is(text: str, frame: str) -> None:
    inner = shown(frame.format(escaped(text))).strip().removeprefix("why").strip()
    assert inner == as_read(text)
    assert not re.search("<(?!/?(p|li|ul|span|strong)>)", GITHUB.render(frame.format(escaped(text))))


@given(st.text(max_size=60))
def test_any_text_is_shown_as_it_is(text: str) -> None:
    assert shown(f"x {escaped(text)}").split() == ["x", *as_read(text).split()]


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_stays_in_its_cell(left: str, right: str) -> None:
    rows = GITHUB.render(f"| a | b |\n|---|---|\n| {escaped(left)} | {escaped(right)} |\n")
    cells = [unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall("<td>(.*?)</td>", rows)]
    assert [cell.replace("\u200b", "") for cell in cells] == [as_read(left), as_read(right)]


@pytest.mark.parametrize("name", ["@torvalds", "#12", "https://example.org", "www.example.org"])
def test_nothing_names_a_person_an_issue_or_an_address(name: str) -> None:
    for text in (escaped(name), escaped_html(name)):
        assert name not in text
        assert text.replace("\u200b", "") == name


def report() -> Report:
    return judge([e for e in scripted_run(PLAN) if not (isinstance(e, Update) and e.index == 7)])


def test_a_report_says_the_verdict_first_and_then_counts_and_findings() -> None:
    text = report_markdown(report())
    lines = text.splitlines()
    assert lines[0] == "### ❌ FAIL: TRL 1.16.0 · GRPO"
    assert lines[2].startswith("Update missing: expected an update after 2 micro-batches, observed")
    assert "| updates | 60 | 59 |" in lines
    assert "| rollouts | 20 | 20 |" in lines
    html = GITHUB.render(text)
    assert html.count("<details") == html.count("</details>") >= 3
    assert html.count("<details open>") == 1
    assert html.count("<table>") == 3
    assert re.search("<summary>❌ <b>RLS204</b> Update missing · data epoch 0, rollout 2", html)
    assert "<li><strong>fix</strong> " in html


def test_a_report_of_a_run_as_planned() -> None:
    text = report_markdown(judge(scripted_run(PLAN)))
    assert text.startswith("### ✅ PASS: TRL 1.16.0 · GRPO\n\nNo difference from the plan in 20 rollouts")
    assert "#### Findings" not in text
    assert "#### Not evaluated" in text
    assert "Settings" not in text


def test_settings_are_code() -> None:
    schedule = msgspec.structs.replace(PLAN, settings={"num_iterations": 3})
    text = report_markdown(Report(verdict="PASS", schedule=schedule))
    assert "| <code>num\\_iterations</code> | <code>3</code> |" in text


def test_a_report_without_a_plan() -> None:
    text = report_markdown(Report(verdict="NOT_EVALUATED", not_evaluated={"record": "no | plan"}))
    assert text.startswith("### ⚠️ NOT EVALUATED: the configuration could not be read")
    assert "- record: no \\| plan" in text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_findings_and_settings_are_text(text: str) -> None:
    finding = Finding(
        code="RLS101",
        severity="error",
        title=text,
        expected=text,
        observed=text,
        where=Where(rollout=1),
        why=text,
        fix=text,
    )
    schedule = msgspec.structs.replace(PLAN, settings={text: text, "plain": 1}, framework=text)
    explained = msgspec.structs.replace(finding, code="RLS204", explained_by="RLS101")
    hostile = Report(verdict="FAIL", findings=[finding, explained], schedule=schedule, not_evaluated={text: text})
    html = GITHUB.render(report_markdown(hostile))
    tags = set(re.findall("<([a-z0-9]+)", html))
    allowed = {"h3", "h4", "p", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "b", "ul", "li"}
    assert tags <= allowed | {"strong", "code", "sub", "span"}
    assert html.count("<details") == html.count("</details>") == 3
    seen = unescape(re.sub("<[^>]*>", "", html)).replace("\u200b", "")
    assert seen.count(as_read(text)) >= 8
    rows = re.findall("<tr>(.*?)</tr>", html, re.DOTALL)
    assert all(row.count("<td") + row.count("<th") in (2, 3) for row in rows)


def test_a_pass_far_from_published_runs_does_not_look_calm() -> None:
    lags = [LagValues(lag=1, microbatches=8, max_abs_log_ratio=25.0, mean_abs_log_ratio=1.9, clipped=0.35)]
    plan = make_plan(iterations=2)
    calm = Report(verdict="PASS", ending="completed", schedule=plan, lags=lags)
    far = msgspec.structs.replace(calm, health=health_of(lags, Readings(), plan))
    assert report_markdown(calm).startswith("### ✅ PASS")
    text = report_markdown(far)
    assert text.startswith("### ⚠️ PASS")
    assert r"Far from published runs: \|log ratio\| up to 25" in text
    assert "core\\_algos.py:1255" in text
    assert "35 % clipped" in text


@pytest.mark.parametrize("text", HOSTILE)
def test_a_row_of_a_finding_is_a_list_whatever_its_text(text: str) -> None:
    pieces = (Piece("prompt", trained=False, tokens=3, text=text), Piece("written", True, 2, text, wrong=True))
    finding = Finding(
        code="RLS518",
        severity="error",
        title="Mask",
        expected="one",
        observed="other",
        where=Where(rollout=2),
        why="because",
        fix="look",
        row=TokenRow("sample 1", pieces, left_out=7),
    )
    report = report_markdown(Report(verdict="FAIL", findings=[finding]))
    seen = as_read(shown(report))
    quoted = as_read(repr(text)[1:-1])
    assert (
        f"row sample 1 prompt, not trained (3): {quoted} ✗ tool or template, trained (2): {quoted} … 7 tokens" in seen
    )
    assert GITHUB.render(report).count("<ul>") == 2
