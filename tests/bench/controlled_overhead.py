"""What the audit costs verl and OpenRLHF for each rollout: real runs of tiny models on the CPU, controller, trainer and engine apart.

Two ways, a launch each:

Timed. Every call of a hook is timed in its process, without the framework's own call within it, and summed from one weight sync
to the next. Quoted are medians over the rollouts, by the wall and by the processor's time of the thread, and the share of the
median rollout. Processes wait for each other in these runs, so the sum over controller, one trainer and one engine is what
a rollout gets longer. The watch itself is in these figures, by what is printed for an empty hook. Not in them: what hooks leave
behind in the framework's own code (cold caches), and the judgement after training.

Switched. The hooks of all processes are called in some rollouts and left out in others of the same run, in a pattern of four; the
mean of the two with them is compared with that of the two without: of the time, and of the processor time of each process. This
counts everything, and is as exact as the machine is quiet: on a tiny model a rollout varies by more than the hooks cost.

    python -m tests.bench.controlled_overhead verl|openrlhf [--rollouts N] [--prompts N] [--way timed|switched|both]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections import defaultdict
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.bench.hook_meter import FOLDER, MODULE, PATTERN, SWITCH, SYNCS, WAY, Timing, calls, syncs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.judge.report import Report
    from tests.bench.hook_meter import Call, Sync

TIMED = "timed"
SETTLING = 4
"""Rollouts at the beginning that are left out."""
LIMIT = 1500.0
"""Seconds of a launch."""
SLOW = 0.001
"""Seconds; hooks whose median call takes longer are named in any case."""


class Size(NamedTuple):
    """How much a run samples. Two samples a prompt, two updates a rollout, micro-batches of four."""

    rollouts: int
    prompts: int


def verl(size: Size, folder: Path, environment: dict[str, str]) -> Report:
    """Train with verl; what the audit found."""
    from tests.systems.verl.audited import audited
    from tests.systems.verl.launch import Assets, grpo

    assets = Assets.write(folder / "assets", train_rows=size.prompts * size.rollouts)
    overrides = grpo(assets) | {
        "data.train_batch_size": size.prompts,
        "actor_rollout_ref.actor.ppo_mini_batch_size": size.prompts // 2,
    }
    run = audited(overrides, folder / "run", modules=[MODULE], environment=environment, limit=LIMIT)
    assert run.outcome.status == 0, run.outcome.tail
    return run.report


def openrlhf(size: Size, folder: Path, environment: dict[str, str]) -> Report:
    """Train with OpenRLHF; what the audit found."""
    from tests.systems.openrlhf.audited import audited, tracked
    from tests.systems.openrlhf.launch import Assets, reinforce

    rows = size.prompts * size.rollouts
    assets = Assets.write(folder / "assets", rows=rows)
    flags = reinforce(assets, folder / "run", rows=rows) | tracked(folder / "run")
    flags |= {
        "rollout.batch_size": size.prompts,
        "train.batch_size": size.prompts,
        # The engine's own log-probs, which the audit compares with the trainer's.
        "algo.advantage.is_correction_level": "token",
        "algo.advantage.is_correction_mode": "clip",
    }
    extensions = Path(os.environ.get("TORCH_EXTENSIONS_DIR", folder / "extensions"))
    run = audited(
        flags,
        folder / "run",
        extensions=extensions,
        environment=environment | {"RLSTEP_TEST_MODULE": MODULE},
        limit=LIMIT,
    )
    assert run.outcome.status == 0, run.outcome.tail
    return run.report


def train(framework: str, way: str, size: Size, scratch: Path) -> Path:
    """One launch; the folder with what was measured."""
    folder = scratch / way
    folder.mkdir()
    (folder / SWITCH).write_bytes(bytes([PATTERN[0]]))
    begun = time.monotonic()
    report = (verl if framework == "verl" else openrlhf)(size, scratch / f"{way}-run", {FOLDER: str(folder), WAY: way})
    # With a switch the audit misses rollouts, and says so.
    assert way == SWITCH or report.verdict == "PASS", "\n".join(str(finding) for finding in report.findings)
    print(
        f"{way}: {size.rollouts} rollouts of {2 * size.prompts} samples, {time.monotonic() - begun:.0f} s with start and end, "
        f"load of the machine {_load()}"
    )
    return folder


# Timed


def by_rollout(found: Sequence[Call]) -> list[tuple[float, list[Call]]]:
    """Seconds of each rollout, from one weight sync to the next, and the calls that ended in it."""
    ends = sorted(call.end for call in found if call.process == "controller" and call.hook in SYNCS)
    parts = [(end - begin, [call for call in found if begin < call.end <= end]) for begin, end in pairwise(ends)]
    return parts[SETTLING:]


def show_timed(found: Sequence[Call]) -> None:
    """Print what the hooks took, process by process, and hook by hook where one is slow."""
    rollouts = by_rollout(found)
    seconds = statistics.median(duration for duration, _ in rollouts)
    print(
        f"  {len(rollouts)} rollouts, median {1e3 * seconds:.0f} ms ({_quartiles([1e3 * s for s, _ in rollouts], 0)})"
    )
    processes = sorted({call.process for _, part in rollouts for call in part})
    for process in processes:
        mine = [[call for call in part if call.process == process] for _, part in rollouts]
        _show_row(process, mine, seconds)
    _show_row("sum", [part for _, part in rollouts], seconds)
    hooks = defaultdict(list)
    for call in (call for _, part in rollouts for call in part):
        hooks[call.process, call.hook].append(call)
    totals = {name: sum(call.processor for call in made) for name, made in hooks.items()}
    print("  hooks that take most, processor time:")
    for place, name in enumerate(sorted(totals, key=lambda name: -totals[name])):
        made = [call.processor for call in hooks[name]]
        if place < 10 or statistics.median(made) > SLOW:
            print(
                f"    {name[0]:11} {name[1]:45} {len(made) / len(rollouts):5.1f} a rollout, "
                f"{1e6 * statistics.median(made):6.0f} us each (largest {1e6 * max(made):.0f}), "
                f"{1e6 * totals[name] / len(rollouts):6.0f} us a rollout"
            )


def _show_row(process: str, rollouts: list[list[Call]], seconds: float) -> None:
    processor = [sum(call.processor for call in part) for part in rollouts]
    wall = [sum(call.wall for call in part) for part in rollouts]
    count = statistics.median(len(part) for part in rollouts)
    middle = statistics.median(processor), statistics.median(wall)
    print(
        f"  {process:11} {count:5.0f} calls, processor {1e6 * middle[0]:7.0f} us ({_quartiles([1e6 * p for p in processor], 0)}) "
        f"= {100 * middle[0] / seconds:.3f} %, wall {1e6 * middle[1]:7.0f} us ({_quartiles([1e6 * w for w in wall], 0)}) "
        f"= {100 * middle[1] / seconds:.3f} % of a rollout"
    )


def show_watch() -> None:
    """Print what the watch adds to each call: an empty hook around an empty function."""
    with tempfile.TemporaryDirectory() as folder:
        empty = Timing(Path(folder)).wrapper("empty", lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))
        for _ in range(2000):
            empty(lambda: None, None, (), {})
        watched = list(calls(Path(folder)))
    print(
        f"  an empty hook: processor {1e6 * statistics.median(c.processor for c in watched):.1f} us, "
        f"wall {1e6 * statistics.median(c.wall for c in watched):.1f} us"
    )


# Switched


def groups(rollouts: Sequence[tuple[bool, float]]) -> list[tuple[float, float]]:
    """For each turn of the pattern, the mean of what was measured of a rollout with the hooks, and of one without."""
    kept = rollouts[SETTLING:]
    turns = [kept[i : i + len(PATTERN)] for i in range(0, len(kept) - len(PATTERN) + 1, len(PATTERN))]
    return [
        (
            statistics.mean(value for audited, value in turn if audited),
            statistics.mean(v for audited, v in turn if not audited),
        )
        for turn in turns
    ]


def show_switched(found: Sequence[Sync]) -> None:
    """Print the ratio of rollouts with the hooks to rollouts without: their time, and the processor time of each process."""
    _show_ratio("time", [(later.audited, later.end - earlier.end) for earlier, later in pairwise(found)])
    for process in sorted(found[-1].processor):
        used = [(later.audited, _used(later, process) - _used(earlier, process)) for earlier, later in pairwise(found)]
        _show_ratio(f"processor time of {process}", used)
    totals = [(sync.audited, sum(sync.processor.values())) for sync in found]
    _show_ratio("processor time of all of these", [(b[0], b[1] - a[1]) for a, b in pairwise(totals)])


def _used(sync: Sync, process: str) -> float:
    return sync.processor.get(process, 0.0)


def _show_ratio(name: str, rollouts: Sequence[tuple[bool, float]]) -> None:
    pairs = groups(rollouts)
    ratios = [audited / bare for audited, bare in pairs]
    print(
        f"  {name}: {len(pairs)} groups of {len(PATTERN)}, {1e3 * statistics.median(bare for _, bare in pairs):.0f} ms a rollout "
        f"without the hooks; with / without: median {statistics.median(ratios):.4f} (quartiles {_quartiles(ratios, 4)}), "
        f"{1e3 * statistics.median(audited - bare for audited, bare in pairs):+.1f} ms"
    )


def _quartiles(values: Sequence[float], digits: int) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.{digits}f} to {high:.{digits}f}"


def _load() -> str:
    return ", ".join(f"{load:.1f}" for load in os.getloadavg())


def main() -> None:
    """Train and print all figures."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("framework", choices=("verl", "openrlhf"))
    arguments.add_argument("--rollouts", type=int, default=48)
    arguments.add_argument("--prompts", type=int, default=8)
    arguments.add_argument("--way", choices=(TIMED, SWITCH, "both"), default="both")
    options = arguments.parse_args()
    size = Size(options.rollouts, options.prompts)
    print(
        f"{options.framework} {version(options.framework)}, torch {version('torch')}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, load {_load()}"
    )
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        if options.way != SWITCH:
            show_timed(list(calls(train(options.framework, TIMED, size, Path(scratch)))))
            show_watch()
        if options.way != TIMED:
            show_switched(syncs(train(options.framework, SWITCH, size, Path(scratch))))


if __name__ == "__main__":
    main()
