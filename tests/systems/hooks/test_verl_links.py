"""The links of a verl run that its controller compares: rows with their set, advantages with rewards, samples with what is due."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlstep_hooks.systems.verl.observe.rewards import (
    Groups,
    Sample,
    Spread,
    compare_groups,
    last_of_sessions,
    spread_of,
)
from rlstep_hooks.systems.verl.observe.rollouts import counted, samples_due
from rlstep_hooks.systems.verl.observe.rows import FIELDS, Rows, countable, text


def group(prompt: str, rewards: list[float], advantages: list[float], tokens: int = 1) -> list[Sample]:
    return [Sample(prompt, tokens, r, a) for r, a in zip(rewards, advantages, strict=True)]


HEALTHY = group("a", [0.0, 1.0, 1.0], [-1.15, 0.575, 0.575]) + group("b", [2.0, 2.0], [0.0, 0.0])


def test_advantages_that_follow_their_rewards() -> None:
    assert compare_groups(HEALTHY, "grpo") == Groups(groups=2)
    alone = group("c", [1.0], [1.0])
    assert compare_groups(HEALTHY + alone, "grpo").groups == 2, "one sample alone is compared with nothing"


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        (group("a", [0.0, 1.0], [0.7, -0.7]), Groups(1, unordered=1)),
        (group("a", [1.0, 1.0], [0.7, -0.7]), Groups(1, unordered=1)),
        (group("a", [0.0, 1.0], [0.0, 0.0]), Groups(1, unordered=1)),
        (group("a", [0.0, 1.0], [0.7, 1.4]), Groups(1, off_centre=1)),
        (group("a", [0.0], [-0.7]) + group("a", [1.0], [0.7], tokens=2), Groups(1, mixed=1)),
        # Rounding of float32, and rewards that hardly differ.
        (group("a", [0.5, 0.5000001], [1e-5, -1e-5]), Groups(1)),
        (group("a", [0.1, 0.1, 0.1], [2e-8, 2e-8, 2e-8]), Groups(1)),
        # What rounding leaves of a KL penalty where no other reward is: verl divides by a deviation of 2e-7, and 1e-6.
        (group("a", [-3.62e-05, -3.58e-05], [-0.16, 0.16]), Groups(1)),
    ],
)
def test_advantages_of_others(samples: list[Sample], found: Groups) -> None:
    assert compare_groups(samples, "grpo") == found


def test_what_an_estimator_does_not_promise_is_not_asked_for() -> None:
    shifted = group("a", [0.0, 1.0], [0.7, 1.4])
    assert compare_groups(shifted, "opo") == Groups(1)
    assert compare_groups(group("a", [0.0, 1.0], [0.7, -0.7]), "gae") == Groups(1)


def test_the_spread_of_rewards() -> None:
    spread = spread_of(group("a", [1.0, 1.0], [0.0, 0.0]) + group("b", [0.0, 2.0], [-0.7, 0.7]), "grpo")
    assert (spread.reward_mean, spread.equal_groups) == (1.0, 1)
    assert spread.reward_deviation == pytest.approx((2 / 3) ** 0.5)
    assert spread_of(HEALTHY, "gae").equal_groups is None, "GAE compares no groups"
    assert spread_of([], "grpo") == Spread(equal_groups=0)


def test_the_last_sample_of_a_session_stands_for_it() -> None:
    assert last_of_sessions(["u_0_0", "u_0_1", "u_1_0", "v_0_1", "v_0_0"]) == [1, 2, 3]


class Table(list[dict[str, Any]]):
    """Rows as the `datasets` library holds them, as far as they are looked at."""

    column_names = (*FIELDS, "prompt")

    def select_columns(self, names: list[str]) -> list[dict[str, Any]]:
        return [{name: row[name] for name in names} for row in self]


def table(*numbers: int, split: str = "train") -> Any:
    rows = [
        {
            "data_source": "sums",
            "reward_model": {"ground_truth": str(n % 3)},
            "extra_info": {"index": n, "split": split},
        }
        for n in numbers
    ]
    return SimpleNamespace(dataframe=Table(rows))


def served(*numbers: int, split: str = "train") -> list[tuple[str, ...]]:
    return [tuple(text(row[name]) for name in FIELDS) for row in table(*numbers, split=split).dataframe]


def test_rows_of_a_pass_and_of_the_next() -> None:
    rows = Rows(table(0, 1, 2, 2), table(0, split="validation"))
    assert rows.take() == (None, None), "nothing was submitted"
    rows.submit(served(2, 0, 2, 1), passes=1)
    rows.submit(served(0, 1), passes=2)
    assert rows.take() == (0, 0)
    rows.submit(served(1), passes=2)
    assert rows.take() == (1, 0)


def test_rows_of_the_validation_set() -> None:
    rows = Rows(table(0, 1), table(0, split="validation"))
    rows.submit(served(0, split="validation") + served(1), passes=1)
    assert rows.take() == (0, 1)
    both = Rows(table(0, 1), table(0))
    both.submit(served(0), passes=1)
    assert both.take() == (0, 0), "a row that is in both sets is one of the training set"


def test_rows_that_are_not_those_of_the_table_are_not_judged() -> None:
    rows = Rows(table(0), table(1))
    rows.submit(served(5, 5, 5), passes=1)
    assert rows.take() == (0, 0)
    assert countable(table(0))
    assert not countable(SimpleNamespace(dataframe=None))
    assert not countable(None)


def buffer(*keys: str, failed: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(partitions={"train": dict.fromkeys(keys)}, failure_keys={"train": set(failed)})


def due(keys: tuple[str, ...], stored: Any, **settings: Any) -> int | None:
    return samples_due(keys, stored, **{"prompts": 2, "group": 2, "asked": {}, "own_loop": False} | settings)


WHOLE = ("a_0_0", "a_1_0", "b_0_0", "b_1_0")


def test_what_the_plan_says_is_due() -> None:
    assert due(WHOLE, buffer(*WHOLE)) is None


def test_sessions_that_failed_are_not_due() -> None:
    assert due(WHOLE[:3], buffer(*WHOLE[:3], failed=("b",))) == 3
    assert due(WHOLE[:2], buffer(*WHOLE[:2], failed=("b",))) == 2, "all sessions of a prompt"
    assert due(WHOLE[:2], buffer(*WHOLE[:3], failed=("b",))) == 3, "one of them was lost on the way"


def test_the_data_ask_for_sessions_of_their_own() -> None:
    keys = ("a_0_0", "b_0_0", "b_1_0", "b_2_0")
    assert due(keys, buffer(*keys), asked={"a": 1, "b": 3}) == 4
    assert due(keys[1:], buffer(*keys[1:]), asked={"b": 3}) == 5, "a prompt that is not there counts as planned"


def test_an_own_agent_loop_decides() -> None:
    keys = ("a_0_0", "a_0_1", "b_1_0")
    assert due(keys, buffer(*keys, "c_0_0"), own_loop=True) == 3
    assert due(keys[:2], buffer(*keys), own_loop=True) == 2


def test_labels_are_counted() -> None:
    assert counted([3, None, 2, 3]) == ((2, 1), (3, 2))
