"""Runs a rehearsal: the script in a child process, once from the beginning and once more from its own checkpoint."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.cli.rehearse.confine import confining, scratch
from rlstep_hooks.cli.rehearse.parts import Part, Rehearsed
from rlstep_hooks.cli.rehearse.processes import end
from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.record.ledger import records
from rlstep_hooks.rehearse import SITE
from rlstep_hooks.rehearse.messages import VARIABLE, Rehearsal, said
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.entry import named
from rlstep_hooks.systems.injection import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlstep_hooks.cli.rehearse.command import Runnable
    from rlstep_hooks.cli.rehearse.parts import Asked
    from rlstep_hooks.rehearse.framework import Framework

TAIL = 400
"""Lines of a failed script's output that are kept: others may follow the exception that ended it."""
RETRIES = 3
"""Times that a column which only the run shows is added to made rows."""
GRACE = 5
"""Seconds that a script has to end by itself after it need not go on."""

_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_QUIET = {
    "WANDB_MODE": "disabled", "WANDB_DISABLED": "true", "COMET_MODE": "disabled", "MLFLOW_TRACKING_URI": "", "TRACKIO_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONUNBUFFERED": "1",
    "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
_LAUNCHED = (
    "RAY_ADDRESS",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_USE_FSDP",
)
_NOT_LINKED = {
    ".git",
    ".nox",
    ".venv",
    "venv",
    "__pycache__",
    "node_modules",
    "wandb",
    "outputs",
    "runs",
    "checkpoints",
}
_MOST_LINKS = 5000


def rehearse(command: Runnable, asked: Asked, *, told: Callable[[str], None] = lambda _: None) -> Rehearsed:
    """Run a launch in small. Everything that it writes is removed before this returns.

    Raises:
        OSError: The interpreter cannot be started.
    """
    framework: Framework = named(command.rehearsed_by)
    with _folder(framework.longest_folder) as folder:
        settings = Rehearsal(
            rehearsed_by=command.rehearsed_by,
            folder=str(folder),
            user_folder=os.getcwd(),
            processes=command.processes or 1,
            budget=asked.budget,
            rollouts=asked.rollouts,
            rows=asked.rows,
            columns=asked.columns,
            online=asked.online,
            cuda=asked.cuda,
        )
        told("rehearsing: the run from its beginning")
        first = _part(command, settings)
        for _ in range(RETRIES):
            column = _missing_column(first)
            if not column:
                break
            settings = msgspec.structs.replace(settings, columns=(*settings.columns, column))
            told(f"rehearsing: once more, with the column {column}")
            first = _part(command, settings)
        if asked.html is not None and first.report is not None:
            _write_page(folder / "rlstep", first.report.run, asked.html)
        checkpoint, why = _checkpoint(framework, first, asked)
        if not checkpoint:
            return Rehearsed(first=first, no_resume=why)
        told("rehearsing: the resume from its checkpoint")
        return Rehearsed(first=first, resumed=_part(command, msgspec.structs.replace(settings, checkpoint=checkpoint)))


def real_refusal(command: Runnable, asked: Asked) -> str:
    """What the framework itself says to the real sizes; empty if it takes them.

    Raises:
        OSError: The interpreter cannot be started.
    """
    with _folder(named(command.rehearsed_by).longest_folder) as folder:
        settings = Rehearsal(
            rehearsed_by=command.rehearsed_by,
            folder=str(folder),
            user_folder=os.getcwd(),
            processes=command.processes or 1,
            refuse=True,
            columns=asked.columns,
        )
        part = _part(command, settings)
        if part.status == 0:
            return ""
        return part.last or f"it ended with status {part.status}"


@contextmanager
def _folder(longest: int | None) -> Iterator[Path]:
    """A temporary folder, removed whatever happens.

    Args:
        longest: Characters that its path may have; where the usual place has more, it is made in /tmp.
    """
    folder = Path(tempfile.mkdtemp(prefix="rlstep-rehearse-"))
    if longest is not None and len(str(folder)) > longest:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="rlstep-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _part(command: Runnable, settings: Rehearsal) -> Part:
    folder = Path(settings.folder)
    lines = folder / "said.jsonl"
    lines.unlink(missing_ok=True)
    file = folder / "rehearsal.json"
    variables = _variables(command, settings, file)
    places = scratch(command.arguments[0], Path(settings.user_folder), variables)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(settings, writable=tuple(places))))
    confine = confining([settings.folder, *places])
    recorded = folder / "rlstep"
    before = set(records(recorded)) if recorded.exists() else set()
    began = time.monotonic()
    status, timed_out = _run(command, variables, folder, confine, limit=4 * settings.budget)
    new = [run for run in (records(recorded) if recorded.exists() else []) if run not in before]
    report = report_of(recorded, new[-1], deviations_of=index.deviations_of) if new else None
    output = (folder / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    return Part(
        status=status,
        said=said(settings),
        output=[line for line in output if line.strip()][-TAIL:],
        report=report,
        seconds=time.monotonic() - began,
        timed_out=timed_out,
        confined=confine is not None,
        scratch=tuple(places),
    )


def _variables(command: Runnable, settings: Rehearsal, file: Path) -> dict[str, str]:
    folder = Path(settings.folder)
    inherited = {name: value for name, value in os.environ.items() if name not in _LAUNCHED}
    variables = environment(folder / "rlstep", inherited | command.environment)
    paths = [str(SITE), *variables["PYTHONPATH"].split(os.pathsep)]
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) // 2))} if "OMP_NUM_THREADS" not in inherited else {}
    return {
        **variables,
        **_QUIET,
        **threads,
        **({} if settings.online else _OFFLINE),
        **({} if settings.cuda else {"CUDA_VISIBLE_DEVICES": ""}),
        **named(settings.rehearsed_by).environment(settings),
        "PYTHONPATH": os.pathsep.join(paths),
        "TMPDIR": str(_made(folder / "tmp")),
        VARIABLE: str(file),
    }


def _run(
    command: Runnable, variables: dict[str, str], folder: Path, confine: Callable[[], None] | None, *, limit: float
) -> tuple[int, bool]:
    """Run the script in a session of its own; all processes that came of it end with it, also those that left the session."""
    place = _linked(Path.cwd(), _made(folder / "here"))
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen(
            command.arguments,
            cwd=place,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=confine,
        )
        try:
            return _wait(process, folder, limit)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            end(VARIABLE, variables[VARIABLE])
            process.wait()


def _wait(process: subprocess.Popen[bytes], folder: Path, limit: float) -> tuple[int, bool]:
    """The exit status, and whether the limit ended it; the script also ends where the child said that it need not go on."""
    lines, until = folder / "said.jsonl", time.monotonic() + limit
    while time.monotonic() < until:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(0.5), False
        if lines.exists() and b'{"topic":"stop"' in lines.read_bytes():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(GRACE), False
            return 1, False
    return 124, True


def _linked(source: Path, target: Path) -> Path:
    """A folder with links to the user's files, so that what the script writes under a relative path does not lie among them."""
    count = 0
    for parent, folders, files in os.walk(source):
        here = target / Path(parent).relative_to(source)
        for name in [name for name in folders if name in _NOT_LINKED or count > _MOST_LINKS]:
            folders.remove(name)
            if name not in ("wandb", "outputs", "runs", "checkpoints", "__pycache__"):
                _link(Path(parent, name), here / name)
        for name in folders:
            (here / name).mkdir(exist_ok=True)
        for name in files:
            _link(Path(parent, name), here / name)
        count += len(files) + len(folders)
    return target


def _link(source: Path, target: Path) -> None:
    if not target.exists():
        with suppress(OSError):
            target.symlink_to(source)


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _write_page(recorded: Path, run: str, target: Path) -> None:
    from rlstep_hooks.show.page.build import page_of
    from rlstep_hooks.show.page.timeline import TimelineWatcher
    from rlstep_hooks.show.page.writer import write_page

    watcher = TimelineWatcher()
    report = report_of(recorded, run, deviations_of=index.deviations_of, watcher=watcher)
    write_page(page_of(report, records(recorded)[run], watcher, knobs=index.knobs_of(report.schedule)), target)


def _missing_column(part: Part) -> str:
    """The column that made rows lack, by the exception that ended the script; empty if it is something else."""
    made = [each for each in part.of("data") if "columns" in each.values]
    if part.status == 0 or not made or not part.output:
        return ""
    found = re.match(r"KeyError: ['\"](\w+)['\"]$", part.last) or re.search(
        r"missing \d+ required (?:positional|keyword-only) arguments?: '(\w+)'", part.last
    )
    name = found.group(1) if found else ""
    return "" if name in ("role", "content") or any(name in each.values["columns"] for each in made) else name


def _checkpoint(framework: Framework, first: Part, asked: Asked) -> tuple[str, str]:
    """The checkpoint to resume from, and why there is none."""
    if not asked.resume:
        return "", "--no-resume"
    trained = first.of("trained")
    if not trained:
        return "", "the first run did not reach its end"
    return framework.checkpoint(trained[-1].values)
