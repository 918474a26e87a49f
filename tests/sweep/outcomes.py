"""What `rlstep plan` makes of one file."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import msgspec

from rlstep_hooks.launch.text import LaunchError, NoLaunchError
from rlstep_hooks.planning.finding import kind_of
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.fuzz.limits import HangError, time_limit

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.launched import Options, Plan

Kind = Literal["planned", "findings", "refused", "asks", "unknown", "unreadable", "crashed"]
KINDS: tuple[Kind, ...] = ("planned", "findings", "refused", "asks", "unknown", "unreadable", "crashed")
"""A plan; a plan with an error; what the framework refuses; a question to the user; no launch that a system knows; not readable;
an exception or a hang."""

LONGEST = 20.0
"""Seconds of processor time that one file may take."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What was made of one file."""

    path: str
    kind: Kind
    seconds: float
    system: str = ""
    version: str = ""
    reason: str = ""
    numbers: dict[str, str] = {}
    """Fields of the Schedule that a reader checks first."""

    @property
    def class_of(self) -> str:
        """The reason without the numbers and names of this file, so that reasons of a class fall together."""
        first = self.reason.partition(": ")
        return kind_of((first[2] if "/" in first[0] else self.reason).splitlines()[0] if self.reason else "")


SHOWN = (
    "algorithm",
    "world_size",
    "prompts_per_rollout",
    "samples_per_prompt",
    "samples_per_rollout",
    "reuse_epochs",
    "samples_per_update",
    "microbatches_per_update",
    "updates_per_rollout",
    "rollouts",
    "updates",
)


def outcome_of(file: Path, options: Options) -> Outcome:
    """What `rlstep plan FILE` makes of a file. Never raises."""
    began = time.process_time()

    def outcome(kind: Kind, reason: str, plan: Plan | None = None) -> Outcome:
        numbers = {} if plan is None else {name: str(getattr(plan.schedule, name, None)) for name in SHOWN}
        return Outcome(
            path=str(file),
            kind=kind,
            seconds=time.process_time() - began,
            system=plan.title if plan is not None else "",
            version=plan.version if plan is not None else "",
            reason=reason,
            numbers=numbers,
        )

    try:
        with time_limit(LONGEST):
            plan = plan_launch([str(file)], options)
    except NoLaunchError as error:
        return outcome("unknown", error.reason)
    except LaunchError as error:
        return outcome("asks" if _asks(str(error)) else "unreadable", str(error))
    except (Exception, HangError) as error:  # noqa: BLE001 - a crash is what is looked for
        return outcome("crashed", f"{type(error).__name__}: {error}")
    errors = [finding for finding in plan.findings if finding.severity == "error"]
    if plan.schedule is None or any(finding.code == "RLS110" for finding in errors):
        return outcome("refused", "; ".join(f"{one.code} {one.observed}" for one in errors), plan)
    return outcome("findings" if errors else "planned", "; ".join(f"{one.code} {one.observed}" for one in errors), plan)


def _asks(message: str) -> bool:
    return any(option in message for option in ("--world-size", "--set ", "--rows", "--line", "--version"))
