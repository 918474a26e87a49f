"""What a rehearsal proved: one line for each thing that a user wants to know before the GPUs are rented."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import msgspec

from rlstep_hooks.judge.causes import groups
from rlstep_hooks.planning.finding import Finding
from rlstep_hooks.planning.schedule import Schedule, decode_fraction
from rlstep_hooks.planning.words import approximate, number

if TYPE_CHECKING:
    from rlstep_hooks.cli.rehearse.parts import Part, Rehearsed

State = Literal["proved", "wrong", "doubtful", "not proved"]

SHOWN = 40
"""Lines of a failed script that are shown."""

NOT_REHEARSED = (
    "memory",
    "the real sizes and their speed",
    "several processes (NCCL, sharding)",
    "the quality of what is learned",
)
"""What no rehearsal proves."""

_OF_SHORTNESS = frozenset({"RLS114", "RLS506", "RLS512"})
"""Warnings about the length or the sizes that only the small run has; the real plan has its own."""
_OF_RANDOMNESS = frozenset({"RLS505"})
"""Warnings that any random model causes; the table's line on the reward signal says what they would."""
_OF_RATE = frozenset({"RLS601", "RLS603", "RLS604", "RLS605"})
"""Rules about the learning rate over the whole run; where a script built the schedule, the real updates are looked at instead."""

_OF_RESUMES = "RLS7"
"""The hundred of rules about resuming: what they warn of in the resumed run is not proved by it."""

_FUNCTION = "the reward function"

_OF_THIS_MACHINE = (
    "ModuleNotFoundError", "ImportError", "PackageNotFoundError", "FileNotFoundError", "not compiled with CUDA", "No CUDA GPUs",
    "Found no NVIDIA driver",
)  # fmt: skip
"""In the last line of a script that needs a package, a file or a device which this machine lacks."""


_OF_CONFINEMENT = ("PermissionError: [Errno 13]", "Permission denied", "OSError: [Errno 18]")
"""What stands in the last line of a script that was kept from writing: EACCES, and EXDEV where a file was to be moved out of its
place."""

_OF_ANOTHER_RELEASE = re.compile(
    r"TypeError: \w*(Config|Arguments|Trainer)\.__init__\(\) got an unexpected keyword argument"
)
"""In the last line of a script that was written for another release: whatever the rows are."""

_OF_A_BUSY_MACHINE = ("node timed out during startup", "Timed out waiting for file")
"""What stands in the last line of a script whose Ray did not start in its own time limits (ray/_private/node.py, 2.60)."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table."""

    what: str
    state: State
    detail: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a rehearsal."""

    status: int
    """The exit status: 0 proved, 1 something is wrong, 2 it could not be rehearsed."""
    sentence: str
    lines: tuple[Line, ...]
    replaced: tuple[str, ...] = ()
    schedule: Schedule | None = None
    """The real schedule, by the live settings."""
    findings: tuple[Finding, ...] = ()
    """What the audit found in the small run."""
    output: tuple[str, ...] = ()
    """The last lines of a script that failed, without the exception where the sentence says it."""
    cause: str = ""
    """What ended a script that failed: the exception that it raised, or its last line."""
    seconds: float = 0.0


def outcome_of(rehearsed: Rehearsed, *, strict: bool = False) -> Outcome:
    """Read what two runs showed."""
    first, resumed = rehearsed.first, rehearsed.resumed
    parts = [first, *([resumed] if resumed is not None else [])]
    everything = [each for part in parts for each in part.said]
    schedule = _schedule(first)
    own_rate = any(each.values.get("own") for each in first.of("learning rate"))
    findings = _findings(parts, own_rate)
    rewards = _rewards(first)
    # What names the cause comes before the exception that it may have ended in.
    lines = (
        *_of(first, "settings", "the settings"),
        *_of(first, "rows", "rows"),
        *(line for line in rewards if line.state == "wrong"),
        _script(first),
        *_plan(first, schedule),
        *_audit(first, findings),
        *(line for line in rewards if line.state != "wrong"),
        *_tools(first),
        *_rate(first),
        *_evaluation(first),
        *_resume(rehearsed, own_rate),
    )
    impossible = [each.text for each in everything if each.level == "impossible"] or _not_here(first)
    wrong = [line for line in lines if line.state == "wrong"]
    doubtful = [line for line in lines if line.state == "doubtful"]
    if impossible and not any(each.level == "problem" for each in everything):
        status, sentence = 2, f"could not be rehearsed: {impossible[0]}"
        lines = tuple(Line(what=each.what, state=_unproved(each.state), detail=each.detail) for each in lines)
    elif wrong:
        status, sentence = 1, f"{wrong[0].what}: {wrong[0].detail}"
    elif not first.of("trained"):
        status, sentence = 2, "could not be rehearsed: the script trained with no trainer that is known here"
    elif doubtful and strict:
        status, sentence = 1, f"{doubtful[0].what}: {doubtful[0].detail}"
    else:
        doubts = f"; {number(len(doubtful), 'doubts')}" if doubtful else ""
        status, sentence = 0, f"the launch trains as planned, in small{doubts}"
    return Outcome(
        status=status,
        sentence=sentence,
        lines=lines,
        replaced=tuple(
            dict.fromkeys(
                [*(each.text for each in everything if each.level == "replaced"), *_sizes(first), _writes(first)]
            )
        ),
        schedule=schedule,
        findings=tuple(findings),
        output=_output(parts, sentence),
        cause=next((part.last for part in parts if part.status), ""),
        seconds=sum(part.seconds for part in parts),
    )


def _output(parts: list[Part], sentence: str) -> tuple[str, ...]:
    """The last lines of the script that failed. The exception that ended it comes last, or not at all where the sentence has it."""
    failed = next((part for part in parts if part.status), None)
    if failed is None:
        return ()
    shown = failed.story if failed.last in sentence else [*failed.story, failed.last]
    return tuple(shown[-SHOWN:])


def _unproved(state: State) -> State:
    return "not proved" if state == "wrong" else state


def _schedule(part: Part) -> Schedule | None:
    told = [each.values["schedule"] for each in part.of("schedule") if "schedule" in each.values]
    return (
        msgspec.json.decode(told[-1], type=Schedule, dec_hook=lambda kind, value: decode_fraction(value))
        if told
        else None
    )


def _findings(parts: list[Part], own_rate: bool) -> list[Finding]:
    left = _OF_SHORTNESS | _OF_RANDOMNESS | (_OF_RATE if own_rate else frozenset())
    found = [each for part in parts if part.report is not None for each in part.report.findings]
    kept = [each for each in found if each.severity != "info" and each.code not in left]
    return list({(each.code, each.severity): each for each in kept}.values())


def _script(part: Part) -> Line:
    what = "the script runs to its end"
    if part.timed_out:
        return Line(what=what, state="not proved", detail=f"it did not end within {part.seconds:.0f} s")
    if part.status == 0:
        return Line(what=what, state="proved", detail=f"{part.seconds:.0f} s")
    if part.of("stop"):
        return Line(what=what, state="not proved", detail="it was ended there")
    last = part.last
    moment = "before training"
    if part.of("training"):
        moment = "after training" if part.of("trained") else "while it trained"
    return Line(
        what=what, state="wrong", detail=f"it raised {moment}: {last}" if last else f"it ended with {part.status}"
    )


def _plan(part: Part, schedule: Schedule | None) -> list[Line]:
    refused = [each.text for each in part.of("schedule") if each.level == "problem"]
    if refused:
        return [Line(what="the framework takes the sizes", state="wrong", detail=refused[0])]
    small = part.report.schedule if part.report is not None else None
    if schedule is None or small is None or not part.of("trained"):
        return []
    real, seen = schedule.updates_per_rollout, small.updates_per_rollout
    if real != seen or schedule.reuse_epochs != small.reuse_epochs:
        detail = f"{real} as planned, {seen} in small"
        return [Line(what="updates per rollout", state="not proved", detail=detail)]
    lags = " ".join(map(str, schedule.lags[:8]))
    return [
        Line(what="updates per rollout", state="proved", detail=str(real)),
        Line(
            what="lags of the old log-probs", state="proved", detail=lags + (" ..." if len(schedule.lags) > 8 else "")
        ),
    ]


def _finding(finding: Finding, explained: list[Finding]) -> Line:
    """A headline, with the codes of what it explains."""
    detail = f"{finding.observed}, where {finding.expected} was expected" if finding.expected else finding.observed
    more = f"; it explains {', '.join(dict.fromkeys(each.code for each in explained))}" if explained else ""
    worst = "error" in {each.severity for each in (finding, *explained)}
    return Line(
        what=f"{finding.code} {finding.title}", state="wrong" if worst else "doubtful", detail=f"{detail}{more}"
    )


def _audit(part: Part, findings: list[Finding]) -> list[Line]:
    report = part.report
    if report is None:
        return [Line(what="order and arithmetic of the updates", state="not proved", detail="nothing was recorded")]
    wrong = [_finding(each, explained) for each, explained in groups(findings)]
    counts = report.counts
    made = ", ".join([number(counts.rollouts, "rollouts"), number(counts.updates, "updates"), *_epochs(part)])
    if wrong:
        return wrong
    if not part.of("trained"):
        return [
            Line(what="order and arithmetic of the updates", state="not proved", detail=f"training broke off: {made}")
        ]
    return [Line(what="order and arithmetic of the updates", state="proved", detail=made)]


def _epochs(part: Part) -> list[str]:
    """Data epochs that the small run made. The end of the last one is often the end of training, which is no event of its own."""
    report = part.report
    if report is None:
        return []
    planned = report.schedule.data_epochs if report.schedule is not None else None
    if report.complete and planned:
        return [f"{approximate(planned)} {'data epoch' if planned == 1 else 'data epochs'}"]
    ended = report.counts.data_epochs_ended
    return [number(ended, "data epochs")] if ended else []


def _of(part: Part, topic: str, what: str) -> list[Line]:
    return [Line(what=what, state="wrong", detail=each.text) for each in part.of(topic) if each.level == "problem"]


def _rewards(part: Part) -> list[Line]:
    told = part.of("reward")
    wrong = list(dict.fromkeys(each.text for each in told if each.level == "problem"))
    lines = [Line(what=_FUNCTION, state="wrong", detail=text) for text in wrong]
    for each in told:
        if each.level != "problem":
            state: State = "proved" if each.values.get("signal") and "different" in each.text else "not proved"
            state = "doubtful" if each.level == "warning" else state
            what = _FUNCTION if each.values.get("asked") else "reward signal"
            lines.append(Line(what=what, state=state, detail=each.text))
    return lines + _asked(part)


def _asked(part: Part) -> list[Line]:
    """What came of the other texts that a function was asked about the last time; nothing where that was wrong or doubtful."""
    named = {
        each.values.get("name") for each in part.of("reward") if each.level == "problem" or each.values.get("asked")
    }
    last = {each.values["name"]: each for each in part.of("asked")}
    return [
        Line(what=_FUNCTION, state="not proved" if each.values["refused"] else "proved", detail=f"{name}: {each.text}")
        for name, each in last.items()
        if name not in named
    ]


def _tools(part: Part) -> list[Line]:
    lines: list[Line] = []
    for each in part.of("tool"):
        state: State = "proved" if each.values["answered"] else "not proved"
        state = "doubtful" if each.level == "warning" else state
        lines.append(Line(what=f"the tool {each.values['name']}", state=state, detail=each.text))
    if lines:
        detail = "a random model calls no tool"
        lines.append(Line(what="turns after a tool's answer", state="not proved", detail=detail))
    return lines


def _rate(part: Part) -> list[Line]:
    lines = []
    for each in part.of("learning rate")[:1]:
        state: State = "wrong" if each.level == "problem" else "proved" if "highest" in each.text else "not proved"
        lines.append(Line(what="learning rate of the whole run", state=state, detail=each.text))
    return lines


def _evaluation(part: Part) -> list[Line]:
    trained = part.of("trained")
    if not trained or not trained[-1].values["evaluates"]:
        return []
    made = trained[-1].values["evaluations"]
    return [Line(what="evaluation", state="proved" if made else "not proved", detail=number(made, "evaluations"))]


def _resume(rehearsed: Rehearsed, own_rate: bool) -> list[Line]:
    what, part = "resume from a checkpoint", rehearsed.resumed
    if part is None:
        return [Line(what=what, state="not proved", detail=rehearsed.no_resume)]
    if part.timed_out:
        return [Line(what=what, state="not proved", detail=f"it did not end within {part.seconds:.0f} s")]
    if part.status:
        return [Line(what=what, state="wrong", detail=part.last or f"it ended with {part.status}")]
    report = part.report
    if report is None or not part.of("trained"):
        return [Line(what=what, state="not proved", detail="the resumed run recorded nothing")]
    findings = _findings([part], own_rate)
    errors = [each for each in findings if each.severity == "error"]
    doubted = errors or [each for each in findings if each.code.startswith(_OF_RESUMES)]
    if doubted:
        detail = f"{doubted[0].code} {doubted[0].title}: {doubted[0].observed}"
        return [Line(what=what, state="wrong" if errors else "not proved", detail=detail)]
    updates = part.of("trained")[-1].values["updates"]
    if [each.values for each in rehearsed.first.of("set")] != [each.values for each in part.of("set")]:
        detail = "the resumed run has other rows than the first: the script draws or splits them without a seed"
        return [Line(what=what, state="doubtful", detail=detail)]
    again = _rows_again(rehearsed.first, part)
    if again:
        detail = f"{number(again, 'rows')} of a data epoch that were trained before the checkpoint come again after it"
        return [Line(what=what, state="wrong", detail=detail)]
    return [
        Line(what=what, state="proved", detail=f"{number(report.counts.updates, 'updates')} more, to update {updates}")
    ]


def _rows_again(first: Part, resumed: Part) -> int:
    """Rows of a data epoch that were drawn before the checkpoint and again after it; 0 where rows cannot be told from each other."""
    before = [frozenset(each.values["rows"]) for each in first.of("drawn")]
    after = [frozenset(each.values["rows"]) for each in resumed.of("drawn")]
    each = first.of("sizes")[-1].values["rollouts_per_epoch"] if first.of("sizes") else 0
    had = len(before) - len(after)
    if not each or had <= 0:
        return 0
    epochs = [before[at : at + each] for at in range(0, len(before), each)]
    if any(len(frozenset().union(*epoch)) < sum(map(len, epoch)) for epoch in epochs):
        return 0
    rest = had % each
    served = frozenset().union(*before[had - rest : had])
    return len(served & frozenset().union(*after[: each - rest]))


def _sizes(part: Part) -> list[str]:
    told = part.of("sizes")
    if not told:
        return []
    values = told[-1].values
    texts = []
    factor = values["factor"]
    if factor > 1 or values["processes"] > 1:
        at = "at the real sizes" if factor == 1 else f"at 1/{factor} of the sizes"
        same = values["group"] == values["real_group"]
        groups = "" if same else f", {values['group']} for a prompt in the place of {values['real_group']}"
        texts.append(f"{at}: {values['samples']} samples in a rollout in the place of {values['real_samples']}{groups}")
    if values["processes"] > 1:
        texts.append(f"1 process in the place of {values['processes']}, with the samples of all of them")
    real = f" in the place of {values['real_updates']:,}" if values["real_updates"] else ""
    texts.append(f"{values['updates']} updates{real}; {values['rows']} rows; {values['limits']}")
    return texts


def _writes(part: Part) -> str:
    """What the script could write to, and what held it to that."""
    if not part.confined:
        return (
            "files: what Python opens to write outside of the temporary folder goes to a copy; other programs and compiled "
            "libraries are not confined here, which takes Landlock (Linux 5.19)"
        )
    places = f", and to what can be made again: {', '.join(part.scratch)}" if part.scratch else ""
    return f"files: all processes write to a temporary folder{places}; Landlock confines them"


def _not_here(part: Part) -> list[str]:
    """Why the script's end may be due to this machine and not to the launch."""
    if part.timed_out:
        text = f"the script did not end within {part.seconds:.0f} s, by itself or because this machine is busy: --budget gives it more"
        return [text]
    last = part.last
    if part.status and any(sign in last for sign in _OF_A_BUSY_MACHINE):
        return [f"Ray did not start in its time limit, maybe because this machine is busy: {last}"]
    if part.status and any(sign in last for sign in _OF_THIS_MACHINE) and not part.of("trained"):
        return [f"the script needs what is not here: {last}"]
    if part.status and part.confined and any(sign in last for sign in _OF_CONFINEMENT):
        return [
            f"the script writes where a rehearsal may not, outside of its folder, by another way than Python's own: {last}"
        ]
    if part.status and last.startswith("EOFError") and not part.of("trained"):
        return ["the script asks for something at the terminal, and a rehearsal has nobody there"]
    made = [each for each in part.of("data") if "columns" in each.values]
    refused = part.of("refused") or _OF_ANOTHER_RELEASE.search(last)
    if part.status and made and not part.of("sizes") and not refused:
        return [
            f"the script raised {last} before training, maybe on the rows that were made: give its files, --columns or --online"
        ]
    return []
