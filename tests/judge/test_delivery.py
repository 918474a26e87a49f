"""Both sides of a sync of weights, compared without torch."""

from __future__ import annotations

import struct

from rlstep_hooks.judge.delivery import REMEMBERED, Deliveries, Delivery
from rlstep_hooks.record.events import Probe, WeightsHeld, WeightsSent


def probe(name: str, *values: float, dtype: str = "float32") -> Probe:
    bits = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
    return Probe(name, dtype, bits)


def sent(number: int, *policy: Probe, sent_as: tuple[Probe, ...] = ()) -> WeightsSent:
    return WeightsSent(number=number, policy_version=number, tensors=None, sent=2, policy=policy, sent_as=sent_as)


def held(number: int, before: tuple[Probe, ...], after: tuple[Probe, ...]) -> WeightsHeld:
    return WeightsHeld(number=number, engine="the engine", arrived=2, before=before, after=after)


def one(found: list[Delivery]) -> Delivery:
    (delivery,) = found
    return delivery


Q0, Q1 = "layers.0.q_proj.weight", "layers.1.q_proj.weight"


def test_either_side_may_come_first() -> None:
    first = Deliveries()
    assert first.sent(sent(0, probe(Q0, 1.0))) == []
    then = one(first.held(held(0, (probe(Q0, 0.5),), (probe(Q0, 1.0),))))
    second = Deliveries()
    assert second.held(held(0, (probe(Q0, 0.5),), (probe(Q0, 1.0),))) == []
    assert one(second.sent(sent(0, probe(Q0, 1.0)))) == then
    assert (then.compared, then.moved, then.wrong) == (1, 1, ())


def test_an_engine_that_was_started_again_counts_anew_and_is_no_fault() -> None:
    seen = Deliveries()
    for number in range(4):
        seen.sent(sent(number, probe(Q0, number + 1.0)))
    again = one(seen.held(held(0, (probe(Q0, 0.5),), (probe(Q0, 4.0),))))
    assert (again.sent.number, again.wrong) == (3, ())
    assert seen.held(held(1, (probe(Q0, 4.0),), (probe(Q0, 1.0),))) == [], "the trainer's side is still to come"
    assert one(seen.sent(sent(4, probe(Q0, 5.0)))).wrong == (Q0,), "weights of an earlier sync are wrong"


def test_after_a_sync_that_never_came_the_engine_may_tell_first() -> None:
    seen = Deliveries()
    for number in range(3):
        assert seen.sent(sent(number, probe(Q0, float(number)))) == []
    # The second of them never came: what the engine calls its second sync has the weights of the third.
    first = one(seen.held(held(0, (probe(Q0, -1.0),), (probe(Q0, 0.0),))))
    third = one(seen.held(held(1, (probe(Q0, 0.0),), (probe(Q0, 2.0),))))
    assert [(each.sent.number, each.wrong) for each in (first, third)] == [(0, ()), (2, ())]
    # The last one is told by the engine before the trainer's own line is read.
    assert seen.held(held(2, (probe(Q0, 2.0),), (probe(Q0, 3.0),))) == []
    last = one(seen.sent(sent(3, probe(Q0, 3.0))))
    assert (last.sent.number, last.wrong) == (3, ())


def test_weights_that_do_not_change_shift_no_count() -> None:
    seen = Deliveries()
    for number in range(2):
        seen.sent(sent(number, probe(Q0, 1.0)))
    assert one(seen.held(held(0, (probe(Q0, 0.0),), (probe(Q0, 1.0),)))).sent.number == 0
    assert one(seen.held(held(1, (probe(Q0, 1.0),), (probe(Q0, 1.0),)))).sent.number == 1
    seen.sent(sent(2, probe(Q0, 2.0)))
    assert one(seen.held(held(2, (probe(Q0, 1.0),), (probe(Q0, 2.0),)))).wrong == ()


def test_an_engine_that_counts_anew_reads_fewer_elements_of_a_tensor() -> None:
    seen = Deliveries()
    seen.sent(sent(0, probe(Q0, 1.0)))
    seen.sent(sent(3, probe(Q0, 4.0, 5.0, 6.0)))
    again = one(seen.held(held(0, (probe(Q0, 0.5),), (probe(Q0, 4.0),))))
    assert (again.sent.number, again.names, again.wrong) == (3, (Q0,), ())


def test_several_engines_are_each_compared() -> None:
    both = Deliveries()
    both.held(held(0, (), (probe(Q0, 1.0),)))
    both.held(held(0, (), (probe(Q0, 2.0),)))
    assert [delivery.wrong for delivery in both.sent(sent(0, probe(Q0, 1.0)))] == [(), (Q0,)]


def test_a_tensor_in_another_layout_is_not_called_wrong() -> None:
    """An engine that transposes one kind of tensor: what was never seen equal is not compared once others were."""
    seen = Deliveries()
    policy = probe(Q0, 1.0), probe("embed.weight", 3.0)
    engine = probe(Q0, 7.0), probe("embed.weight", 3.0)
    seen.sent(sent(0, *policy))
    delivery = one(seen.held(held(0, engine, engine)))
    assert (delivery.compared, delivery.wrong) == (1, ())


def test_layers_prove_each_other() -> None:
    """Half of the layers is not loaded: the kind is known from the other half."""
    seen = Deliveries()
    seen.sent(sent(0, probe(Q0, 1.0), probe(Q1, 2.0)))
    old = probe(Q0, 0.1), probe(Q1, 0.2)
    delivery = one(seen.held(held(0, old, (probe(Q0, 1.0), probe(Q1, 0.2)))))
    assert (delivery.wrong, delivery.kept, delivery.moved) == ((Q1,), 1, 2)


def test_nothing_equal_at_all_is_wrong() -> None:
    seen = Deliveries()
    seen.sent(sent(0, probe(Q0, 1.0)))
    assert one(seen.held(held(0, (probe(Q0, 0.1),), (probe(Q0, 0.1),)))).wrong == (Q0,)


def test_an_engine_may_round_to_its_own_dtype() -> None:
    value = 1.00390625 + 2**-12  # between two values of bfloat16, above the tie
    seen = Deliveries()
    seen.sent(sent(0, probe(Q0, value, 65536.0)))
    delivery = one(seen.held(held(0, (), (probe(Q0, 1.0078125, 65536.0, dtype="bfloat16"),))))
    assert delivery.wrong == ()


def test_a_dtype_on_the_way_is_named() -> None:
    value = 1.00390625 + 2**-12
    seen = Deliveries()
    seen.sent(sent(0, probe(Q0, 1.0)))
    seen.held(held(0, (), (probe(Q0, 1.0),)))
    seen.sent(sent(1, probe(Q0, value)))
    delivery = one(seen.held(held(1, (probe(Q0, 1.0),), (probe(Q0, 1.0078125),))))
    assert (delivery.wrong, delivery.through) == ((Q0,), "bfloat16")


def test_not_a_number_is_equal_to_itself() -> None:
    seen = Deliveries()
    seen.sent(sent(0, probe(Q0, float("nan"))))
    assert one(seen.held(held(0, (), (probe(Q0, float("nan")),)))).wrong == ()


def test_sides_that_wait_are_forgotten() -> None:
    seen = Deliveries()
    for number in range(REMEMBERED + 1):
        seen.sent(sent(number, probe(Q0, float(number))))
    assert seen.held(held(0, (), (probe(Q0, 0.0),))) == []
    assert seen.held(held(REMEMBERED, (), (probe(Q0, float(REMEMBERED)),))) != []
