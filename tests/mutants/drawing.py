"""Which mutants are trained: drawn by a seed, evenly over the lines that the runs execute."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.mutants.operators import Mutation


def drawn(
    mutations: list[Mutation], lines: Mapping[str, Mapping[str, list[int]]], number: int, seed: int
) -> list[tuple[Mutation, str]]:
    """Mutations with the run that each is tried in.

    Each line that a run executes is drawn as often as any other, whatever the number of mistakes that fit on it; none is drawn again
    before all had their turn. The run is one of those that execute the line.

    Args:
        mutations: All that can be made.
        lines: Executed lines, by run and module.
        number: How many to draw; fewer if there are fewer.
        seed: Of the draw.
    """
    chance = random.Random(seed)
    runs: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for run in sorted(lines):
        for module, executed in lines[run].items():
            for line in executed:
                runs[module, line].append(run)
    of_line: defaultdict[tuple[str, int], list[Mutation]] = defaultdict(list)
    for mutation in mutations:
        if (mutation.module, mutation.line) in runs:
            of_line[mutation.module, mutation.line].append(mutation)
    for found in of_line.values():
        chance.shuffle(found)
    result: list[tuple[Mutation, str]] = []
    while len(result) < number and of_line:
        places = sorted(of_line)
        chance.shuffle(places)
        for place in places:
            result.append((of_line[place].pop(), chance.choice(runs[place])))
            if not of_line[place]:
                del of_line[place]
    return result[:number]
