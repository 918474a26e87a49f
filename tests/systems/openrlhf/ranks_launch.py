"""Launches cases of two ranks (`train_ranks.py`), and judges what they record together with what a controller would have recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.record.events import RunStarted
from rlstep_hooks.record.ledger import CONTROLLER
from tests.reports import report_of
from tests.scripted_phases import PhaseCase, phase_plan, scripted_phases, write_records
from tests.systems.openrlhf.launch import CPU_FOLDER, ENVIRONMENT, ROOT
from tests.systems.openrlhf.train_ranks import ROLLOUT
from tests.systems.torchrun import torchrun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.events import AnyEvent
    from tests.systems.openrlhf.train_ranks import Case

SCRIPT = Path(__file__).with_name("train_ranks.py")
RANKS = 2
LIMIT = 900.0
"""Seconds after which a launch is ended."""


def reports(folder: Path, cases: Sequence[Case], extensions: Path) -> dict[str, Report]:
    """Train cases one after the other in one launch of two ranks.

    Args:
        folder: Where records go.
        cases: What is trained.
        extensions: Where DeepSpeed keeps what it compiles.
    """
    (folder / "cases.json").write_bytes(msgspec.json.encode(list(cases)))
    with (folder / "output.txt").open("wb") as output:
        subprocess.run(
            torchrun(RANKS, str(SCRIPT), str(folder)),
            env=os.environ | variables(extensions),
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=LIMIT,
            check=False,
        )
    for case in cases:
        done = [(folder / case.name / f"done{rank}").exists() for rank in range(RANKS)]
        assert all(done), (folder / "output.txt").read_text(errors="replace")[-6000:]
    return {case.name: judged(folder / case.name, case) for case in cases}


def variables(extensions: Path) -> dict[str, str]:
    """Variables of a launch.

    Args:
        extensions: Where DeepSpeed keeps what it compiles.
    """
    return ENVIRONMENT | {
        "TORCH_EXTENSIONS_DIR": str(extensions),
        "PYTHONPATH": os.pathsep.join(map(str, (CPU_FOLDER, ROOT))),
        # DeepSpeed looks for the `ninja` of its environment.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }


def _deployed(event: AnyEvent, stage: int) -> AnyEvent:
    """An event of the controller, which reads the deployment when the run starts."""
    if not isinstance(event, RunStarted):
        return event
    return msgspec.structs.replace(event, facts=event.facts | {"deployment": [f"ZeRO-{stage}"]})


def judged(folder: Path, case: Case) -> Report:
    """The report of one case, whose ranks left their records in a folder."""
    plan = phase_plan(
        framework="OpenRLHF",
        version=version("openrlhf"),
        world_size=RANKS,
        samples=RANKS * ROLLOUT,
        minibatches=(8, 8),
        # Dynamic batches are cut by their tokens.
        microbatch=None if case.settings.get("train.dynamic_batch_enable") else 4,
        reuse=int(case.settings.get("train.max_epochs", 1)),
        rollouts=case.rollouts,
        syncs="after_updates",
    )
    lines = [line for line in scripted_phases(PhaseCase(schedule=plan)) if line[0] == CONTROLLER]
    write_records(folder, [(process, _deployed(event, case.stage)) for process, event in lines])
    return report_of(folder)
