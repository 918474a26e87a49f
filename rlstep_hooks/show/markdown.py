"""A report, or a plan, as GitHub-flavoured Markdown, to paste into an issue or a pull request."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from rlstep_hooks.judge.causes import groups
from rlstep_hooks.judge.count_rows import count_rows
from rlstep_hooks.judge.links import links_of
from rlstep_hooks.planning.words import number, percent, printable
from rlstep_hooks.show.plan import headline, plan_headline, plan_rows, steps_rows
from rlstep_hooks.show.summary import in_part, not_evaluated, sentence, verdict_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.launched import Plan
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.planning.token_row import TokenRow

_SPECIAL = re.compile(r"([\\`*_{}\[\]|~])")
_LINE_START = re.compile(r"^([-+=]|\d+[.)](?=\s|$))")
_LINKED = re.compile(r"[@#]|(?<=:)//|\bwww(?=\.)", re.IGNORECASE)
_INVISIBLE = "\u200b"
_ICONS = {"error": "❌", "warning": "⚠️", "info": "ℹ️"}  # noqa: RUF001 - the sign that GitHub shows
_VERDICTS = {"PASS": "✅", "FAIL": "❌", "NOT_EVALUATED": "⚠️"}


def escaped(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no table cell of its own, and no person or issue named by it."""
    return _LINE_START.sub(lambda found: f"{found[1][:-1]}\\{found[1][-1]}", _SPECIAL.sub(r"\\\1", escaped_html(text)))


def escaped_html(text: str) -> str:
    """Text for a place where GitHub reads HTML and no Markdown, such as a summary.

    An invisible space parts an `@`, a `#` or the `//` of an address from what follows, because GitHub makes links of them even
    where the character is escaped; its documentation gives `<span>` as the way to write a dollar that begins no formula.
    """
    line = html.escape(" ".join(printable(text).split()), quote=False)
    return _LINKED.sub(lambda found: found[0] + _INVISIBLE, line).replace("$", "<span>$</span>")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: int = 0) -> list[str]:
    """A table's lines.

    Args:
        head: Titles of the columns, escaped.
        rows: Cells, escaped.
        right: How many columns at the end hold numbers, which are aligned to the right.
    """
    rule = ["---"] * (len(head) - right) + ["---:"] * right
    return [_line(head), _line(rule), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def plan_markdown(plan: Plan, steps: int | None) -> str:
    """The plan of a launch.

    Args:
        plan: The plan.
        steps: A number of steps whose possible meanings are shown; None to show none.
    """
    schedule = plan.shown
    if schedule is None:
        return "\n".join(f"- {_in_a_line(finding)}" for finding in plan.findings)
    lines = [f"**{escaped(plan_headline(plan))}**", "", *_plan_table(schedule)]
    if steps:
        head, rows = steps_rows(schedule, steps)
        cells = [[escaped(cell) for cell in row] for row in rows]
        lines += ["", *table([escaped(cell) for cell in head], cells, right=len(head) - 1)]
    lines += ["", *(f"- {escaped(note.kind)}: {escaped(note.text)}" for note in plan.notes)]
    lines += [f"- {_in_a_line(finding)}" for finding in plan.findings]
    return "\n".join(lines)


def _in_a_line(finding: Finding) -> str:
    text = f"{finding.title}: {finding.observed}. {finding.why}. Fix: {finding.fix}"
    return f"**{finding.severity} {finding.code}** {escaped(text)}"


def _plan_table(schedule: Schedule) -> list[str]:
    return table(["", "", ""], [[escaped(cell) for cell in row] for row in plan_rows(schedule)])


def report_markdown(report: Report) -> str:
    """The report: verdict, plan, counts, findings, what was not evaluated."""
    lines = [
        f"### {_icon(report)} {verdict_words(report)}: {_whose(report)}",
        "",
        escaped(sentence(report)),
    ]
    for line in report.health:
        said = f"bound of the {line.quantity}: {line.source.name}: “{line.source.quote}”"
        lines += ["", f"> {escaped(said)}"]
    planned = [[row.name, _planned(row.planned), number(row.observed)] for row in count_rows(report)]
    lines += ["", *table(["", "planned", "observed"], planned, right=2)]
    if report.counts_explained:
        lines += ["", escaped(report.counts_explained)]
    if report.findings:
        lines += ["", "#### Findings"]
        for position, (finding, explained) in enumerate(groups(report.findings)):
            lines += _finding(finding, explained, unfolded=position == 0 and finding.severity != "info")
    lines += _lags(report)
    lines += _links(report)
    lines += _not_evaluated(report)
    if report.schedule is not None:
        settings = [[_code(name), _code(str(value))] for name, value in report.schedule.settings.items()]
        lines += _folded("The plan", _plan_table(report.schedule))
        lines += _folded("Settings", table(["setting", "value"], settings)) if settings else []
    lines += ["", f"<sub>{escaped(_signature(report))}</sub>"]
    return "\n".join(lines)


def _icon(report: Report) -> str:
    """The verdict's sign; a pass over numbers far from those of published runs must not look calm."""
    return _VERDICTS["NOT_EVALUATED" if report.verdict == "PASS" and report.health else report.verdict]


def _whose(report: Report) -> str:
    return escaped(headline(report.schedule)) if report.schedule is not None else "the configuration could not be read"


def _planned(value: int | None) -> str:
    return "–" if value is None else number(value)  # noqa: RUF001 - a dash in a table


def _finding(finding: Finding, explained: Sequence[Finding], *, unfolded: bool) -> list[str]:
    title = _finding_title(finding, escaped_html(finding.title))
    parts = [("observed", finding.observed), ("why", finding.why), ("fix", finding.fix)]
    if finding.severity != "info":
        parts.insert(0, ("expected", finding.expected))
    body = [f"- **{name}** {escaped(text)}" for name, text in parts]
    body += [] if finding.row is None else _row(finding.row)
    body += [
        f"- **explains** {_finding_title(each, escaped(each.title))}: {escaped(each.observed)}" for each in explained
    ]
    return ["", f"<details{' open' if unfolded else ''}><summary>{title}</summary>", "", *body, "", "</details>"]


def _row(row: TokenRow) -> list[str]:
    """A row token by token; a cross marks what is wrong."""
    lines = [f"- **row** {escaped(row.name)}"]
    for piece in row.pieces:
        mark = "✗ " if piece.wrong else ""
        lines.append(f"  - {mark}{piece.words} ({piece.tokens}): {escaped(repr(piece.text)[1:-1])}")
    return lines + ([f"  - … {number(row.left_out, 'tokens')}"] if row.left_out else [])


def _finding_title(finding: Finding, title: str) -> str:
    """Code, title (escaped for the place where it stands) and place."""
    head = f"{_ICONS[finding.severity]} <b>{finding.code}</b> {title} · {finding.where}"
    return f"{head} · {finding.repeated}" if finding.occurrences > 1 else head


def _lags(report: Report) -> list[str]:
    clips = any(lag.clipped is not None for lag in report.lags)
    rows = [
        [
            str(lag.lag),
            number(lag.microbatches),
            f"{lag.mean_abs_log_ratio:.2g}",
            f"{lag.max_abs_log_ratio:.2g}",
            "–" if lag.clipped is None else percent(lag.clipped),  # noqa: RUF001 - a dash in a table
        ][: None if clips else -1]
        for lag in report.lags
    ]
    head = ["lag", "micro-batches", r"mean \|log ratio\|", r"max \|log ratio\|", *(["clipped"] if clips else [])]
    return _folded("Log ratio by lag", table(head, rows, right=len(head))) if rows else []


def _links(report: Report) -> list[str]:
    """The outcome of each link of the run, and how many of its checks could be made."""
    lines = []
    for link in links_of(report.rules, report.findings):
        if link.state not in ("absent", "not observed", "in part"):
            more = ", ".join(link.codes) or link.note
            lines.append(f"- {escaped(link.name)}: {link.state}" + (f" ({escaped(more)})" if more else ""))
    lines += [f"- in part: {escaped(text)}" for text in in_part(report)]
    return ["", "#### What was shown", "", *lines] if lines else []


def _not_evaluated(report: Report) -> list[str]:
    unknown = not_evaluated(report)
    lines = [f"- {escaped(name)}: {escaped(reason)}" for name, reason in unknown.reasons.items()]
    if unknown.absent:
        lines.append(f"- not in this run: {', '.join(unknown.absent)}")
    return ["", "#### Not evaluated", "", *lines] if lines else []


def _folded(title: str, body: Sequence[str]) -> list[str]:
    return ["", f"<details><summary>{title}</summary>", "", *body, "", "</details>"]


def _code(text: str) -> str:
    """Text as code. HTML instead of backticks, because these cannot be escaped within a table."""
    return f"<code>{escaped(text)}</code>"


def _signature(report: Report) -> str:
    from importlib.metadata import version

    whose = f" · {report.schedule.framework} {report.schedule.version}" if report.schedule is not None else ""
    return f"rlstep-hooks {version('rlstep-hooks')}{whose} · run {report.run}"
