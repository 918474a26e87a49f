"""`python -m tests.systems.trl.random_runs`: see the package."""

from __future__ import annotations

import argparse
import sys

from tests.systems.trl.random_runs.draws import Draw
from tests.systems.trl.random_runs.isolation import prepare
from tests.systems.trl.random_runs.soak import judged, soak


def main() -> int:
    """Exit status 0 if no healthy run was accused."""
    parser = argparse.ArgumentParser(
        prog="random_runs", description="Random legal TRL configurations, trained for real."
    )
    parser.add_argument("--runs", type=int, default=50, help="healthy runs to train")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-shrink", action="store_true", help="print what was drawn, without making it smaller")
    parser.add_argument("--reasons", action="store_true", help="print why draws were drawn again")
    parser.add_argument("--only", metavar="JSON", help="train this one draw")
    arguments = parser.parse_args()
    prepare()

    def say(text: str) -> None:
        print(text, flush=True)

    if arguments.only:
        outcome = judged(Draw.from_json(arguments.only))
        say(f"{outcome.ending} {outcome.why}\n" + "\n".join(outcome.findings))
        return int(bool(outcome.findings))
    numbers = range(arguments.first, arguments.first + arguments.runs)
    tally = soak(arguments.seed, numbers, say=say, shrink=not arguments.no_shrink)
    if arguments.reasons:
        for drawn, outcome in tally.reasons:
            say(
                f"{outcome.ending} after {outcome.seconds:.1f} s: {outcome.why.partition(chr(10))[0]}: {drawn.to_json()}"
            )
    say(
        f"seed {arguments.seed}, numbers {numbers.start} to {numbers.stop - 1}: {tally.trained} healthy runs in {tally.seconds:.0f} s, "
        f"{len(tally.failures)} accused; drawn again: {dict(tally.refused)}; true findings: {dict(tally.true)}"
    )
    return int(bool(tally.failures))


if __name__ == "__main__":
    sys.exit(main())
