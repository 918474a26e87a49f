"""Short answers for agents: a sentence, the numbers behind it, their sources, and what to ask next.

Nothing is run or written, but by `rehearse`, which runs the launch in small in a child process.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlstep_hooks.cli.launches import options_of, side
from rlstep_hooks.judge.causes import groups
from rlstep_hooks.judge.following import FollowedRun
from rlstep_hooks.judge.measures import measures_of
from rlstep_hooks.judge.replay import NoRecordError, latest_run, report_of
from rlstep_hooks.judge.rules import BY_CODE
from rlstep_hooks.judge.rules.page import page
from rlstep_hooks.judge.settings import RunSettings
from rlstep_hooks.judge.symptoms import SYMPTOMS, why
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.comparison import compare
from rlstep_hooks.planning.words import number
from rlstep_hooks.record.ledger import records
from rlstep_hooks.show.plan import plan_rows
from rlstep_hooks.show.summary import sentence
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.fixes import fixes_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rlstep_hooks.judge.health import HealthLine
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.launched import Options, Plan
    from rlstep_hooks.planning.schedule import Schedule

MOST_FINDINGS = 20
"""Findings in one answer; the sentence says how many there are."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    answer: str
    """One sentence, to be said as it is."""
    details: dict[str, Any] = {}
    sources: tuple[str, ...] = ()
    """Where formulas were read, and public reports of the same problem."""
    next_step: str = ""
    """What to ask or do next; empty if there is nothing."""


class LaunchGiven(msgspec.Struct, frozen=True, kw_only=True):
    """A launch, as an agent gives it."""

    launch: str
    """A command, or the path of a script, YAML, TOML or Python file."""
    rows: int | None = None
    world_size: int | None = None
    framework: str | None = None
    version: str | None = None
    set: tuple[str, ...] = ()
    """NAME=VALUE for variables of a script."""

    def read(self) -> tuple[list[str], Options]:
        """The words and options of `rlstep plan`.

        Raises:
            LaunchError: An option is impossible.
        """
        options = options_of(
            framework=self.framework,
            version=self.version,
            rows=self.rows,
            world_size=self.world_size,
            assignments=list(self.set),
        )
        return [self.launch], options


def plan(given: LaunchGiven) -> Answer:
    """What a launch means."""
    words, options = given.read()
    found = side(words, options)
    schedule = found.shown
    details: dict[str, Any] = {
        "accepted": found.schedule is not None,
        "table": [" | ".join(part for part in row if part) for row in plan_rows(schedule)]
        if schedule is not None
        else [],
        "findings": [_finding(each) for each in found.findings],
        "notes": [f"{note.kind} {note.text}" for note in found.notes if note.kind != "assumes"],
        "assumptions": [note.text for note in found.notes if note.kind == "assumes"],
        "not_evaluated": schedule.not_evaluated if schedule is not None else {},
        "unread_settings": [setting.name for setting in found.unused if setting.name not in found.no_effect],
    }
    mendable = any(each.severity != "info" for each in found.findings)
    return Answer(
        answer=_plan_sentence(found),
        details=details,
        sources=tuple(dict.fromkeys(formula.source for formula in found.formulas)),
        next_step="fix, with the same launch, for the smallest changes that mend the findings" if mendable else "",
    )


def fix(given: LaunchGiven) -> Answer:
    """What mends the findings of a launch."""
    words, options = given.read()
    found, _, fixes = fixes_of(words, options)
    offers = [
        {
            "code": each.finding.code,
            "changes": {change.name: change.after for change in offer.mend.changes},
            "edits": [{"place": edit.place, "before": edit.before, "after": edit.after} for edit in offer.edits],
            "keeps": list(offer.mend.kept),
            "changes_also": list(offer.mend.lost),
        }
        for each in fixes
        for offer in each.offers
    ]
    codes = [each.finding.code for each in fixes if each.finding.severity != "info"]
    mended = [each.finding.code for each in fixes if each.offers and each.finding.severity != "info"]
    answer = f"{found.title}: {len(mended)} of {number(len(codes), 'errors and warnings')} can be mended by a setting"
    return Answer(
        answer=answer, details={"offers": offers}, next_step="plan, with the changed launch" if offers else ""
    )


def diff(a: LaunchGiven, b: LaunchGiven) -> Answer:
    """Where two launches, or two releases of one, differ."""
    one, other = (side(*each.read()) for each in (a, b))
    for each in (one, other):
        if each.schedule is None:
            raise LaunchError(f"{each.title} refuses {each.source}: {each.findings[0].observed}")
    differences = compare(one, other)
    details = {
        each.quantity: {"a": each.a.value, "b": each.b.value, "causes": list(each.causes)} for each in differences
    }
    names = f"{one.title} {one.version} and {other.title} {other.version}"
    answer = f"{names} differ in {', '.join(details)}" if details else f"{names} have the same schedule"
    return Answer(answer=answer, details=details)


def convert(given: LaunchGiven, to: str) -> Answer:
    """A launch in the settings of another framework."""
    found = side(*given.read())
    if found.schedule is None:
        raise LaunchError(f"{found.title} refuses this launch: {found.findings[0].observed}")
    conversion = index.system_of(to).write(found.schedule)
    lost = f"; not kept: {', '.join(conversion.lost)}" if conversion.lost else "; nothing is lost"
    return Answer(
        answer=" ".join(conversion.arguments) + lost,
        details={"arguments": list(conversion.arguments), "lost": list(conversion.lost)},
    )


def rehearse(given: LaunchGiven, *, budget: float, resume: bool) -> Answer:
    """What a launch proves in small. It is run by `rlstep rehearse` in a child process, which ends with all that it started.

    Args:
        given: A command, not a file.
        budget: Seconds that the rehearsal is made to fit into.
        resume: Whether a checkpoint is resumed from.

    Raises:
        LaunchError: The launch cannot be read or rehearsed, or took ten times its budget.
    """
    options = {"--rows": given.rows, "--world-size": given.world_size, "--budget": budget}
    flags = [f"{name}={value}" for name, value in options.items() if value is not None]
    flags += [] if resume else ["--no-resume"]
    command = [sys.executable, "-m", "rlstep_hooks", "rehearse", "--json", *flags, "--", *shlex.split(given.launch)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as child:
        try:
            printed, errors = child.communicate(timeout=10 * budget)
        except subprocess.TimeoutExpired:
            child.terminate()  # it ends the script and removes what it wrote
            raise LaunchError(f"the rehearsal took longer than {10 * budget:.0f} seconds and was ended") from None
    if not printed.strip():
        said = errors.strip().splitlines()
        raise LaunchError(said[-1].removeprefix("rlstep: ") if said else "the rehearsal said nothing")
    found = msgspec.json.decode(printed)
    word = ("proved: ", "wrong: ", "")[found["status"]]
    lines = [" | ".join(filter(None, (line["state"], line["what"], line.get("detail")))) for line in found["lines"]]
    details = {
        "status": found["status"],
        "table": lines,
        "in_place_of_the_real": found.get("replaced", []),
        "findings": found.get("findings", []),
        "output": found.get("output", []),
        "never_proved_in_small": found["not_rehearsed"],
    }
    step = (
        "fix, where a setting is at fault; otherwise the script's own lines in output" if found["status"] == 1 else ""
    )
    return Answer(answer=f"{word}{found['sentence']}", details=details, next_step=step)


def report(folder: Path, run: str | None) -> Answer:
    """The verdict on a recorded run."""
    found = _report(folder, run)
    worst = found.findings[0] if found.findings else None
    details = {
        "verdict": found.verdict,
        "counts": msgspec.structs.asdict(found.counts),
        "counts_explained": found.counts_explained,
        "findings": _folded(found.findings),
        "not_evaluated": found.not_evaluated,
        "health": [_far(line) for line in found.health],
    }
    step = (
        f"rule {worst.code}, or why"
        if worst is not None
        else "why, with what was noticed, or without to see what shows"
    )
    return Answer(answer=f"{found.verdict}: {sentence(found)}", details=details, next_step=step)


def findings(folder: Path, run: str | None, severity: Literal["error", "warning", "info"] | None) -> Answer:
    """The findings of a recorded run."""
    found = [each for each in _report(folder, run).findings if severity in (None, each.severity)]
    heads = len(groups(found))
    echoes = f", which explain{'s' if heads == 1 else ''} {len(found) - heads} more" if len(found) > heads else ""
    first = f"; first {found[0].code} {found[0].title}" if found else ""
    answer = f"{number(heads, 'findings')}{echoes}{first}"
    return Answer(
        answer=answer, details={"findings": _folded(found)}, next_step=f"rule {found[0].code}" if found else ""
    )


def causes(folder: Path, run: str | None, symptom: str | None) -> Answer:
    """The conclusion about a symptom, or about those that the record shows."""
    names = [each.name for each in SYMPTOMS]
    if symptom is not None and symptom not in names:
        raise LaunchError(f"{symptom!r} is none of the symptoms {', '.join(names)}")
    judged = _report(folder, run)
    knobs = index.knobs_of(judged.schedule)
    found = why(judged, () if symptom is None else (symptom,), knobs=knobs)
    shown = found if symptom is not None else [each for each in found if each.shown]
    measures = measures_of(judged, RunSettings(judged.schedule, knobs))
    details: dict[str, Any] = {
        "health": [_far(line) for line in judged.health],
        "measured": {each.name: each.words for each in measures.held},
        "not_in_the_record": list(measures.missing),
        "symptoms": [msgspec.to_builtins(each) for each in shown],
    }
    answer = "; ".join(f"{each.words}: {each.conclusion}" for each in shown) or "no symptom shows in this record"
    step = "" if shown else f"why with what was noticed: {', '.join(names)}"
    return Answer(
        answer=answer, details=details, sources=tuple(str(line["source"]) for line in details["health"]), next_step=step
    )


def _far(line: HealthLine) -> dict[str, str]:
    return {"words": line.words, "source": line.source.name, "quote": line.source.quote}


def follow(folder: Path, run: str | None) -> Answer:
    """How far a run is."""
    found = records(folder)
    if not found:
        raise LaunchError(f"there is no record in {folder}")
    name = run or latest_run(found)
    where = found[name][0].path.parent if name in found else folder
    followed = FollowedRun(where, name, deviations_of=index.deviations_of)
    news = followed.look()
    state = "over" if followed.over else "running"
    now = news.now
    planned = now.schedule
    details = {
        "verdict": news.verdict,
        "rollouts": now.rollouts,
        "updates": now.updates,
        "planned_rollouts": planned.rollouts if planned is not None else None,
        "planned_updates": planned.updates if planned is not None else None,
        "lag": now.lag,
        "errors": [_finding(each) for each in news.errors],
    }
    made = f"{number(now.rollouts, 'rollouts')} and {number(now.updates, 'updates')}"
    answer = f"the run is {state}: {made}, {news.verdict} so far, {number(len(news.errors), 'errors')}"
    return Answer(answer=answer, details=details, next_step="report" if followed.over else "follow again")


def rule(code: str) -> Answer:
    """The page of a rule."""
    found = BY_CODE.get(code.upper())
    if found is None:
        raise LaunchError(f"there is no rule {code}; there are {', '.join(BY_CODE)}")
    sections = {section.heading or "summary": " ".join(section.blocks) for section in page(found)}
    return Answer(answer=f"{found.code} {found.title} ({found.severity}): {sections['summary']}", details=sections)


def _report(folder: Path, run: str | None) -> Any:
    try:
        return report_of(folder, run, deviations_of=index.deviations_of)
    except NoRecordError as error:
        raise LaunchError(str(error)) from None


def _folded(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The first headlines, each with the findings that it explains."""
    return [
        _finding(headline) | ({"explains": [_finding(each) for each in explained]} if explained else {})
        for headline, explained in groups(findings)[:MOST_FINDINGS]
    ]


def _finding(finding: Finding) -> dict[str, str]:
    names = ("code", "severity", "title", "expected", "observed", "why", "fix")
    explained = {"explained_by": finding.explained_by} if finding.explained_by else {}
    return {name: getattr(finding, name) for name in names} | {"where": str(finding.where)} | explained


def _plan_sentence(found: Plan) -> str:
    title = f"{found.title} {found.version}".rstrip()
    refused = "" if found.schedule is not None else f"; refused: {found.findings[-1].observed}"
    if found.shown is None:
        return f"{title}{refused}"
    counted = [each.code for each in found.findings if each.severity != "info" and each.code != "RLS110"]
    wrong = f"; findings: {', '.join(counted)}" if counted else ""
    return f"{title}: {_sizes(found.shown)}{refused}{wrong}"


def _sizes(schedule: Schedule) -> str:
    rollout = f"a rollout is {number(schedule.prompts_per_rollout, 'prompts')} x {number(schedule.samples_per_prompt, 'samples')}"
    lags = f", lag {' '.join(map(str, schedule.lags[:8]))}" if schedule.lags else ""
    run = f"; the run has {number(schedule.rollouts, 'rollouts')} and {number(schedule.updates, 'updates')}"
    return f"{rollout}, {number(schedule.updates_per_rollout, 'updates')} on each{lags}{run}"
