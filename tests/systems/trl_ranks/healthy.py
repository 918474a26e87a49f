"""`python -m tests.systems.trl_ranks.healthy DEPLOYMENT --runs 25`: random legal configurations on two ranks. None may be accused.

The draws are those of one process (`tests.systems.trl.random_runs`), with settings of the deployment's own. What the framework refuses
is drawn again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

from tests.systems.trl.random_runs.drawing import draw
from tests.systems.trl_ranks.cases import Case, Deployment, Outcome
from tests.systems.trl_ranks.launching import outcomes

AT_ONCE = 30
"""Draws of one launch."""
ATTEMPTS = 20
"""Draws for one run before it is given up."""

BUCKET = [2_000, 500_000_000]
"""Elements of a bucket: of the tiny model several, or one."""
ZERO: dict[str, list[Any]] = {
    "reduce_scatter": [True, False],
    "contiguous_gradients": [True, False],
    "overlap_comm": [False, True],
    "reduce_bucket_size": BUCKET,
}
OWN: dict[str, dict[str, list[Any]]] = {
    "fsdp2": {"reshard_after_forward": [True, False], "activation_checkpointing": [False, False, True]},
    "zero2": {**ZERO, "allgather_bucket_size": BUCKET},
    "zero3": {
        **ZERO,
        # Smaller parameters stay gathered: all of the tiny model by default, and few of a real one.
        "stage3_param_persistence_threshold": [0, 0, 100, 100_000],
        "stage3_prefetch_bucket_size": [0, *BUCKET],
        "sub_group_size": [1_000, 1_000_000_000],
    },
}
"""Settings that a deployment has for itself, and their values."""


def own_settings(deployment: Deployment, seed: int, number: int) -> dict[str, Any]:
    """What is drawn of a deployment's own settings, as `Case.sharding` has it."""
    rng = random.Random(f"{deployment}/{seed}/{number}")
    values = OWN.get(deployment, {})
    drawn = {name: rng.choice(values[name]) for name in values if rng.random() < 0.5}
    if not deployment.startswith("zero"):
        return drawn
    return {"zero": drawn, "offload": rng.random() < 0.3}


def main() -> int:
    """Exit status 0 if no healthy run was accused."""
    parser = argparse.ArgumentParser(prog="healthy")
    parser.add_argument("deployment", choices=get_args(Deployment))
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--draw", help="train this one draw, as JSON")
    parser.add_argument("--sharding", default="{}", help="with these settings of the deployment's own, as JSON")
    arguments = parser.parse_args()
    deployment: Deployment = arguments.deployment
    folder = Path(tempfile.mkdtemp(prefix="ranks-"))
    print(folder, flush=True)
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
            f"{name}: {first.verdict} in {first.seconds:.1f} s {first.not_evaluated if first.verdict != 'PASS' else ''}",
            flush=True,
        )
        for text in false:
            print("  " + text, flush=True)
        if false:
            print(f"  {draws[name].draw}\n  {json.dumps(draws[name].sharding)}", flush=True)

    draws: dict[str, Case] = {}
    number = arguments.first
    while trained < arguments.runs and number < arguments.first + arguments.runs * ATTEMPTS:
        numbers = range(number, number + AT_ONCE)
        cases = [
            Case(
                name=f"{arguments.seed}-{place}",
                draw=draw(arguments.seed, place).to_json(),
                sharding=own_settings(deployment, arguments.seed, place),
            )
            for place in numbers
        ]
        if arguments.draw:
            cases = [Case(name="given", draw=arguments.draw, sharding=json.loads(arguments.sharding))]
        draws |= {case.name: case for case in cases}
        outcomes(folder / deployment, deployment, cases, say=say)
        number += AT_ONCE
        if arguments.draw:
            break
    print(f"{deployment}: {trained} healthy runs, {accused} accused; {refused} draws refused")
    return int(bool(accused))


if __name__ == "__main__":
    sys.exit(main())
