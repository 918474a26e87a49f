"""PPOTrainer seeds torch, and nothing else: RLS120 looks at no other generator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy
import torch

from tests.systems.trl.helpers import codes, problems

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_generator_of_numpy_that_nobody_seeded_is_no_finding(build: Callable[..., Any]) -> None:
    trainer, audit = build(rows=8, total_episodes=8)
    before = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.MT19937())
    try:
        trainer.train()
    finally:
        numpy.random.set_bit_generator(before)
    assert not problems(audit.report)
    assert next(rule for rule in audit.report.rules if rule.code == "RLS120").checks == 1


def test_a_generator_of_torch_that_nobody_seeded_is_one(build: Callable[..., Any]) -> None:
    trainer, audit = build(rows=8, total_episodes=8)
    torch.seed()
    trainer.train()
    torch.manual_seed(1)
    assert codes(audit.report) == {"RLS120"}
