"""Recorded runs as the command line reads them: with the known deviations of all systems."""

from __future__ import annotations

from functools import partial

from rlstep_hooks.judge import replay
from rlstep_hooks.judge.controlled import run as controlled
from rlstep_hooks.judge.run_diff import recorded, run_and_plan
from rlstep_hooks.systems.index import deviations_of

report_of = partial(replay.report_of, deviations_of=deviations_of)
recorded_run = partial(recorded.recorded_run, deviations_of=deviations_of)
compare_with_plan = partial(run_and_plan.compare_with_plan, deviations_of=deviations_of)
ControlledRun = partial(controlled.ControlledRun, deviations_of=deviations_of)
