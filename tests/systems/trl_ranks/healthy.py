"""`python -m tests.systems.trl_ranks.healthy DEPLOYMENT --runs 25`: random legal configurations on two ranks. None may be accused.

The draws are those of one process (`tests.systems.trl.random_runs`). What the framework refuses is drawn again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import get_args

from tests.systems.trl.random_runs.drawing import draw
from tests.systems.trl_ranks.cases import Case, Deployment, Outcome
from tests.systems.trl_ranks.launching import outcomes

AT_ONCE = 12
"""Draws of one launch."""
ATTEMPTS = 20
"""Draws for one run before it is given up."""


def main() -> int:
    """Exit status 0 if no healthy run was accused."""
    parser = argparse.ArgumentParser(prog="healthy")
    parser.add_argument("deployment", choices=get_args(Deployment))
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--draw", help="train this one draw, as JSON")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ranks-"))
    print(folder)
    trained = accused = refused = 0

    def say(name: str, of_ranks: list[Outcome]) -> None:
        nonlocal trained, accused, refused
        first = of_ranks[0]
        if first.error:
            refused += 1
            print(f"{name}: {first.error.splitlines()[0][:160]}", flush=True)
            return
        trained += 1
        false = [f"rank {rank}: {text}" for rank, of in enumerate(of_ranks) for text in of.false]
        accused += bool(false)
        print(
            f"{name}: {first.verdict} in {first.seconds:.1f} s {first.not_evaluated if first.verdict != 'PASS' else ''}"
        )
        for text in false:
            print("  " + text, flush=True)
        if false:
            print(f"  {draws[name].draw}", flush=True)

    draws: dict[str, Case] = {}
    number = arguments.first
    while trained < arguments.runs and number < arguments.first + arguments.runs * ATTEMPTS:
        names = [f"{arguments.seed}-{number + place}" for place in range(AT_ONCE)]
        texts = [draw(arguments.seed, number + place).to_json() for place in range(AT_ONCE)]
        if arguments.draw:
            names, texts = ["given"], [arguments.draw]
        draws |= {name: Case(name=name, draw=text) for name, text in zip(names, texts, strict=True)}
        outcomes(folder / arguments.deployment, arguments.deployment, [draws[name] for name in names], say=say)
        number += AT_ONCE
        if arguments.draw:
            break
    print(f"{arguments.deployment}: {trained} healthy runs, {accused} accused; {refused} draws refused")
    return int(bool(accused))


if __name__ == "__main__":
    sys.exit(main())
