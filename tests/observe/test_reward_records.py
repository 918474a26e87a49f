"""What scoring processes told of samples, and what is said of the rewards that these have in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.observe.reward_records import Given, RewardRecords, Scored, write

if TYPE_CHECKING:
    from pathlib import Path

TENTH = 0.10000000149011612
"""0.1 in float32."""


def given(folder: Path, lines: list[Scored], samples: list[tuple[int, list[float]]]) -> Given:
    for line in lines:
        write(folder, "r", line)
    records = RewardRecords(folder, "r")
    records.collect()
    return records.compare(samples)


@pytest.mark.parametrize(
    ("rewards", "moved"),
    [
        ([0.0, 0.0, TENTH], 0),
        ([TENTH], 0),
        ([TENTH, 0.0, 0.0], 1),
        ([0.0, 0.0, 0.25], 1),
        ([0.5, 0.0, TENTH], 1),
        ([], 1),
    ],
)
def test_a_reward_is_the_score_at_the_last_token(tmp_path: Path, rewards: list[float], moved: int) -> None:
    assert given(tmp_path, [Scored(7, 0.1)], [(7, rewards)]) == Given(1, 0, moved, 0, "")


def test_equal_samples_may_have_been_given_several_scores(tmp_path: Path) -> None:
    lines = [Scored(7, 0.5), Scored(7, 1.0)]
    assert given(tmp_path, lines, [(7, [1.0]), (7, [0.5]), (7, [0.75])]).moved == 1


def test_what_a_function_was_asked_otherwise_is_said(tmp_path: Path) -> None:
    lines = [Scored(7, 0.5), Scored(8, 0.5, "asked about another text"), Scored(9, 0.5, "x"), Scored(9, 0.5)]
    found = given(tmp_path, lines, [(7, [0.5]), (8, [0.5]), (9, [0.5])])
    assert (found.asked_wrong, found.asked_like) == (1, "asked about another text"), (
        "one of two equal samples was asked about rightly"
    )


def test_samples_of_which_nobody_told_are_no_finding(tmp_path: Path) -> None:
    assert given(tmp_path, [Scored(7, 0.5)], [(8, [0.25])]) == Given(0, 1, 0, 0, "")
    assert given(tmp_path, [], [(8, [0.25])]) == Given(0, 1, 0, 0, "")


def test_lines_are_read_as_they_come(tmp_path: Path) -> None:
    records = RewardRecords(tmp_path, "r")
    records.collect()
    write(tmp_path, "r", Scored(7, 0.5))
    write(tmp_path, "another run", Scored(8, 0.5))
    records.collect()
    assert records.compare([(7, [0.5]), (8, [0.5])]) == Given(1, 1, 0, 0, "")


def test_a_score_that_is_not_finite_is_not_compared_and_hides_no_other(tmp_path: Path) -> None:
    """JSON has no NaN, and a reward function may answer with one."""
    lines = [Scored(7, None), Scored(8, 0.5)]
    assert given(tmp_path, lines, [(7, [float("nan")]), (8, [0.25])]) == Given(2, 0, 1, 0, "")
