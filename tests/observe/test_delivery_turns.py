"""Which tensors and elements of a sync are read; no torch."""

from __future__ import annotations

from rlstep_hooks.observe.delivery import ELEMENTS, MORE_ELEMENTS, Turn, elements_of, turns_of
from rlstep_hooks.record.cadence import FEWEST_TURNS, MOST_TURNS, WHOLE_SYNCS

NAMES = [f"model.layers.{layer}.{part}" for layer in range(24) for part in ("q", "k", "v", "o", "gate", "up", "down")]


def taken(number: int, tensors: int) -> set[str]:
    turn = Turn(number, tensors)
    return {name for name in NAMES if turn.takes(name)}


def test_the_first_syncs_read_all_tensors() -> None:
    for number in range(WHOLE_SYNCS):
        assert taken(number, 0) == taken(number, 1000) == set(NAMES)
    assert Turn(0, 290).elements == ELEMENTS
    assert Turn(WHOLE_SYNCS, 290).elements == MORE_ELEMENTS


def test_each_tensor_has_its_turn_once() -> None:
    for tensors in (10, 168, 290, 40_000):
        turns = turns_of(tensors)
        syncs = [taken(number, tensors) for number in range(WHOLE_SYNCS, WHOLE_SYNCS + turns)]
        assert set().union(*syncs) == set(NAMES)
        assert sum(map(len, syncs)) == len(NAMES)


def test_larger_models_have_more_turns_and_a_bound() -> None:
    found = [turns_of(tensors) for tensors in (0, 26, 127, 128, 255, 256, 290, 100_000)]
    assert found == [8, 8, 8, 16, 16, 32, 32, 32]
    assert (found[0], found[-1]) == (FEWEST_TURNS, MOST_TURNS)


def test_sides_that_counted_differently_still_read_the_same() -> None:
    for number in range(2, 40):
        assert taken(number, 290) <= taken(number, 145) <= taken(number, 12)


def test_fewer_elements_are_the_first_of_more() -> None:
    for name in NAMES:
        for shape in ((3,), (7, 5), (896, 896)):
            few, more = elements_of(name, shape, ELEMENTS), elements_of(name, shape, MORE_ELEMENTS)
            assert more[: len(few)] == few
            assert len(set(more)) == len(more)
    assert len(elements_of("a", (896, 896), MORE_ELEMENTS)) == MORE_ELEMENTS
