"""Samples of a refresh are recognised in the micro-batches that train on them."""

from __future__ import annotations

from rlstep_hooks.observe.identity import RefreshedSamples, recognise
from rlstep_hooks.record.events import SampleRows


def refresh(number: int, version: int, *samples: tuple[str, int]) -> RefreshedSamples:
    """A refresh of samples by key, each with the checksum of its old log-probs."""
    made = RefreshedSamples(number, version)
    for key, log_probs in samples:
        made.add(key, log_probs)
    return made


def test_samples_are_found_with_the_version_of_their_refresh() -> None:
    found = recognise(["b", "a"], [2, 1], [refresh(3, 7, ("a", 1), ("b", 2))])
    assert found.trained == (SampleRows(3, (1, 0)),)
    assert (found.old_version, found.old_intact) == (7, True)


def test_other_old_log_probs_are_told() -> None:
    assert recognise(["a"], [9], [refresh(0, 0, ("a", 1))]).old_intact is False


def test_equal_samples_are_told_apart_by_their_old_log_probs_and_else_taken_in_turn() -> None:
    made = refresh(0, 0, ("a", 1), ("a", 2), ("a", 2))
    assert recognise(["a"], [2], [made]).trained == (SampleRows(0, (1,)),)
    assert recognise(["a"], [2], [made]).trained == (SampleRows(0, (2,)),)
    assert recognise(["a"], [1], [made]).trained == (SampleRows(0, (0,)),)


def test_samples_of_two_refreshes_have_no_one_version() -> None:
    found = recognise(["a", "b"], [1, 2], [refresh(1, 5, ("b", 2)), refresh(0, 4, ("a", 1))])
    assert found.trained == (SampleRows(0, (0,)), SampleRows(1, (0,)))
    assert found.old_version is None


def test_a_sample_of_no_refresh_makes_the_micro_batch_unknown() -> None:
    found = recognise(["a", "x"], [1, 1], [refresh(0, 0, ("a", 1))])
    assert (found.trained, found.old_version, found.old_intact) == (None, None, None)
    assert recognise(None, [], [refresh(0, 0)]).trained is None
    assert recognise(["a"], [1], []).trained is None


def test_a_sample_with_a_name_is_known_whatever_its_tokens_are() -> None:
    made = RefreshedSamples(2, 4)
    made.add(("a", "tokens"), 1, owner="a")
    made.add(("b", "tokens"), 2, owner="b")
    whole = recognise([("b", "tokens")], [2], [made], ["b"])
    assert (whole.trained, whole.tokens_intact, whole.unknown) == ((SampleRows(2, (1,)),), True, 0)
    altered = recognise([("a", "others")], [1], [made], ["a"])
    assert (altered.trained, altered.tokens_intact, altered.old_version) == ((SampleRows(2, (0,)),), False, 4)
    unknown = recognise([("a", "tokens"), ("c", "tokens")], [1, 3], [made], ["a", "c"])
    assert (unknown.trained, unknown.unknown) == (None, 1)
