"""Fuzz the plan parser and the ledger's reader for some time: `python -m tests.fuzz [--minutes N] [--only NAME]`.

Hypothesis draws the inputs and shrinks what fails; each round has a seed of its own, which is printed. The exit status is 1 at
the first failure.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz import files, launches

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY = 4 << 30
"""Bytes of address space; an input that needs more is a failure."""
ROUND = 300
"""Inputs of one round."""

Target = tuple["Callable[..., None]", tuple[st.SearchStrategy[Any], ...]]


def targets(folder: Path) -> dict[str, Target]:
    """Each fuzzed function with what it is given."""
    scripts = st.sampled_from([path.read_text() for path in launches.SCRIPTS])
    pieces = st.lists(st.sampled_from(launches.SHELL_PIECES) | st.text(max_size=3), max_size=12).map("".join)
    given_options = launches.options()

    def text(launch: str, options: launches.Options) -> None:
        launches.check_launch([launch], options)

    def script(launch: str, options: launches.Options) -> None:
        launches.check_file(folder, ".sh", launch, options)

    def config(file: tuple[str, str], options: launches.Options) -> None:
        launches.check_file(folder, *file, options)

    def record(damaged: tuple[dict[str, bytes], str, int]) -> None:
        files.check_records(folder, *damaged)

    return {
        "commands": (launches.check_launch, (launches.commands(), given_options)),
        "scripts": (script, (scripts.flatmap(launches.broken), given_options)),
        "configuration files": (config, (launches.config_files(), given_options)),
        "text": (text, (st.text() | pieces, given_options)),
        "records": (record, (files.damaged_records(),)),
    }


def main() -> None:
    """Go round the targets until the time is over."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--minutes", type=float, default=10)
    arguments.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    arguments.add_argument("--only", metavar="NAME")
    options = arguments.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    each = settings(
        max_examples=ROUND, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True
    )
    end, number, inputs = time.monotonic() + 60 * options.minutes, options.seed, 0
    with tempfile.TemporaryDirectory() as scratch:
        chosen = {name: t for name, t in targets(Path(scratch)).items() if options.only in (None, name)}
        while time.monotonic() < end:
            for name, (check, strategies) in chosen.items():
                print(f"{name}, seed {number}", flush=True)
                seed(number)(each(given(*strategies)(check)))()
                inputs += ROUND
            number += 1
    print(f"{inputs} inputs, no failure")


if __name__ == "__main__":
    main()
