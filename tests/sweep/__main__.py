"""Plan every launch of some folders: `python -m tests.sweep DIR [DIR ...]`.

Each folder is one row of the table; of a folder that only holds folders (one a repository), each is. Reasons stand below, those that
differ only in their numbers together. The exit status is 1 if a file crashed the plan, or a plan has other numbers than
those that are known of its script.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.planning.launched import Options
from tests.sweep.facts import compared
from tests.sweep.outcomes import KINDS, Outcome, outcome_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
CONFIGS = (".yaml", ".yml", ".toml")


def files_below(folder: Path, endings: Sequence[str]) -> list[Path]:
    """The files of a folder that can be launches, in order; hidden folders are left out."""
    found = (path for path in folder.rglob("*") if path.suffix in endings and path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def repositories(folders: Iterable[Path]) -> list[Path]:
    """The folders themselves; of one that holds no files of its own, the folders in it."""
    found: list[Path] = []
    for folder in folders:
        inner = sorted(folder.iterdir())
        only_folders = inner and all(path.is_dir() or path.name.startswith(".") for path in inner)
        found += [path for path in inner if path.is_dir()] if only_folders else [folder]
    return found


def row(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    """One row of the table: files of each kind, the median and the longest time."""
    counts = Counter(outcome.kind for outcome in outcomes)
    known = [1000 * outcome.seconds for outcome in outcomes if outcome.kind != "unknown"]
    times = f"{statistics.median(known):.0f} / {max(known):.0f}" if known else "-"
    return [name, str(len(outcomes)), *(str(counts[kind]) for kind in KINDS), times]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, the first to the left."""
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join([cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))])
        for cells in rows
    )


def reasons(outcomes: Iterable[Outcome], most: int) -> str:
    """The reasons of each kind, the most frequent first, each with one file that has it."""
    lines: list[str] = []
    for kind in KINDS[1:]:
        classes: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            if outcome.kind == kind:
                classes.setdefault(outcome.class_of, []).append(outcome)
        lines += [f"\n{kind}"] * bool(classes)
        for members in sorted(classes.values(), key=len, reverse=True)[:most]:
            lines.append(f"{len(members):5}  {members[0].path}: {members[0].reason[:300]}")
    return "\n".join(lines)


def main() -> int:
    """Print the table and the reasons; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--configs", action="store_true", help="YAML and TOML files too, not only scripts")
    for name in ("--world-size", "--rows"):
        parser.add_argument(name, type=int, metavar="N", help="as of `rlstep plan`, for every file")
    parser.add_argument("--most", type=int, default=12, metavar="N", help="reasons of each kind (default: 12)")
    parser.add_argument("--jsonl", type=Path, metavar="FILE", help="write what was made of each file")
    given = parser.parse_args()
    endings = (*SCRIPTS, *(CONFIGS if given.configs else ()))
    outcomes: list[Outcome] = []
    right, wrong = 0, []
    rows = [["folder", "files", *KINDS, "ms, median / most"]]
    with ProcessPoolExecutor(2) as pool:
        for folder in repositories(given.folders):
            plan = partial(outcome_of, options=Options(world_size=given.world_size, rows=given.rows))
            found = list(pool.map(plan, files_below(folder, endings), chunksize=8))
            rows.append(row(folder.name, found))
            outcomes += found
            as_known, others = compared(folder, found)
            right, wrong = right + as_known, wrong + others
    print(table([*rows, row("all", outcomes)]))
    print(
        f"\n{right} plans have the numbers that are known of their scripts, {len(wrong)} numbers differ",
        *wrong,
        sep="\n",
    )
    print(reasons(outcomes, given.most))
    if given.jsonl is not None:
        given.jsonl.write_bytes(b"".join(msgspec.json.encode(outcome) + b"\n" for outcome in outcomes))
    return 1 if wrong or any(outcome.kind == "crashed" for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
