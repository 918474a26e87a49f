"""Countdown problems as verl reads them: python rows.py FOLDER writes train.parquet and validation.parquet.

Given a few numbers and a target, the answer is an arithmetic expression that uses each number once and has the target's value.
Every problem here has one: the target is worked out from an expression.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import pandas as pd

PROMPT = (
    "Use the numbers {numbers} to reach {target}. Take each number exactly once, with +, -, * and / and parentheses as you like. "
    "Think first. Then give one expression between <answer> and </answer>, without an equals sign."
)


def problem(choose: random.Random) -> tuple[list[int], int]:
    """Three or four numbers, and a target between 1 and 99 that they reach."""
    while True:
        numbers = [choose.randint(1, 99) for _ in range(choose.choice((3, 4)))]
        value = numbers[0]
        for number in numbers[1:]:
            value = choose.choice((value + number, value - number, value * number))
        if 1 <= value <= 99:
            return choose.sample(numbers, len(numbers)), value


def row(split: str, index: int, choose: random.Random) -> dict[str, Any]:
    """One problem in verl's columns."""
    numbers, target = problem(choose)
    text = PROMPT.format(numbers=", ".join(map(str, numbers)), target=target)
    return {
        "data_source": "countdown",
        "prompt": [{"role": "user", "content": text}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": {"numbers": numbers, "target": target}},
        "extra_info": {"split": split, "index": index},
    }


def main() -> None:
    """Write both files; the same rows for the same seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=64)
    parser.add_argument("--validation", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    choose = random.Random(given.seed)
    given.folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", given.train), ("validation", given.validation)):
        rows = [row(split, index, choose) for index in range(count)]
        pd.DataFrame(rows).to_parquet(given.folder / f"{split}.parquet")


if __name__ == "__main__":
    main()
