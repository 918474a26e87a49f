"""A plan as JSON: one shape, whether the launch is accepted, refused, or not read; `plan.schema.json` is its JSON Schema.

The schema is made of the types here (`python -m tests.show.plan_schema` writes it), and a test holds both against each other.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlstep_hooks.launch.edits import Edit
from rlstep_hooks.planning.finding import Finding
from rlstep_hooks.planning.reading import Formula, Note
from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.planning.steps import StepReading, all_readings
from rlstep_hooks.show.plan import report_of

if TYPE_CHECKING:
    from rlstep_hooks.planning.launched import Plan

SCHEMA = Path(__file__).with_name("plan.schema.json")


class PlanFinding(Finding, frozen=True, kw_only=True, omit_defaults=False):
    """A finding, with the public report that taught its rule."""

    report: str = ""


class UnusedSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that is given and that the plan did not read."""

    value: Any
    no_effect: bool
    """Whether the schedule is known not to depend on the setting; otherwise nobody has looked."""
    place: str
    """The place where the setting is written: "run.sh:12:5", "argument 3 of the command"."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why the launch could not be read."""

    message: str
    """What is wrong, and what to do."""
    place: str = ""


class OfferedFix(msgspec.Struct, frozen=True, kw_only=True):
    """One way to mend a finding; the launch was planned again with it."""

    changes: dict[str, Any]
    """New values of settings, by name."""
    edits: tuple[Edit, ...]
    """Where to write them; empty if a value is computed where it stands."""
    kept: tuple[str, ...]
    """Fields of the schedule that are as before: sizes and lengths."""
    lost: tuple[str, ...]
    """Fields of the schedule that are no longer as before."""
    schedule: Schedule


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """What mends one finding, the smallest change first."""

    code: str
    offers: tuple[OfferedFix, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What `rlstep plan --json` prints."""

    shape: Literal[1] = msgspec.field(default=1, name="schema")
    """Number of this shape; a change that takes something away gives it another."""
    accepted: bool
    """Whether the framework would start training with this launch, as far as the plan can say."""
    framework: str = ""
    """The framework's name as people write it; empty if the launch could not be read."""
    version: str = ""
    """Release whose formulas were used."""
    source: str = ""
    """Where the launch was read: "the launch command" or a file's name."""
    schedule: Schedule | None = None
    """The schedule; of a launch that is refused what its sizes mean, if they can be worked out; else null."""
    findings: tuple[PlanFinding, ...] = ()
    """What is wrong; the framework's own refusal is RLS110."""
    notes: tuple[Note, ...] = ()
    """What happens silently, and units that are easily mistaken."""
    assumptions: tuple[str, ...] = ()
    """What the plan takes for granted because the launch does not say it."""
    not_evaluated: dict[str, str] = {}
    """Fields of the schedule that cannot be known before the run, each with its reason; they are null."""
    formulas: tuple[Formula, ...] = ()
    """The formulas behind the schedule, with their sources."""
    unused_settings: dict[str, UnusedSetting] = {}
    """Settings that were given and that the plan did not read, by name."""
    foreign: tuple[str, ...] = ()
    """Settings that no release has: the launch is one of a fork."""
    steps: tuple[StepReading, ...] = ()
    """A number of steps read in every unit (`--steps N`; else those that the framework counts in this run)."""
    fixes: tuple[Fixed, ...] = ()
    """What mends each finding, where `--fix` asked for it."""
    error: Failure | None = None
    """Why there is no plan at all; null if there is one."""


def answer_of(plan: Plan, steps: int | None) -> Answer:
    """What is printed for a plan.

    Args:
        plan: The plan.
        steps: A number of steps to read in every unit; None for none.
    """
    schedule = plan.shown
    return Answer(
        accepted=plan.schedule is not None,
        framework=plan.title,
        version=plan.version,
        source=plan.source,
        schedule=schedule,
        findings=tuple(
            PlanFinding(**msgspec.structs.asdict(finding), report=report_of(finding.code, plan.framework))
            for finding in plan.findings
        ),
        notes=tuple(note for note in plan.notes if note.kind != "assumes"),
        assumptions=tuple(note.text for note in plan.notes if note.kind == "assumes"),
        not_evaluated=schedule.not_evaluated if schedule is not None else {},
        formulas=plan.formulas,
        unused_settings={
            setting.name: UnusedSetting(
                value=setting.value, no_effect=setting.name in plan.no_effect, place=str(setting.place)
            )
            for setting in plan.unused
        },
        foreign=plan.foreign,
        steps=tuple(all_readings(schedule, steps)) if schedule is not None and steps else (),
    )
