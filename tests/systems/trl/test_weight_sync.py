"""Weights synced to vLLM. The engine itself needs hardware that is not here: a stand-in takes its place, TRL's gate is real.

TRL syncs when `global_step` has changed since the last sync (0.17 to 1.16). The stand-in keeps that gate, generates with the
policy, and returns; what is tested is that syncs are seen, and that a rollout on older weights is a finding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.record.events import WeightSync
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import codes, events_of, problems

if TYPE_CHECKING:
    from collections.abc import Callable


class Engine:
    """Takes the place of TRL's vLLM object."""

    def __init__(self) -> None:
        self.syncs = 0

    def sync_weights(self) -> None:
        """TRL 0.28 and later call this to sync weights."""
        self.syncs += 1


def use_engine(trainer: Any, *, sync: Callable[[int], bool]) -> Engine:
    """Make a trainer sync weights to the stand-in before a rollout, where `sync(global_step)` says so."""
    engine = Engine()
    if RELEASE.release >= (0, 28):
        trainer.vllm_generation = engine
    else:
        trainer._move_model_to_vllm = engine.sync_weights
    original = trainer._generate_and_score_completions

    def generate(*args: Any, **kwargs: Any) -> Any:
        if sync(trainer.state.global_step):
            if RELEASE.release >= (0, 28):
                trainer.vllm_generation.sync_weights()
            else:
                trainer._move_model_to_vllm()
        trainer.use_vllm = False  # the policy generates in the engine's place
        try:
            return original(*args, **kwargs)
        finally:
            trainer.use_vllm = True

    trainer._generate_and_score_completions = generate
    # The stand-in returns no log-probs to correct with.
    trainer.vllm_importance_sampling_correction = trainer.args.vllm_importance_sampling_correction = False
    trainer.use_vllm = True
    return engine


@pytest.mark.parametrize("fails_from", [None, 2])
def test_a_sync_that_stops_is_found(build: Callable[..., Any], fails_from: int | None) -> None:
    trainer, audit = build(gradient_accumulation_steps=2, max_steps=4)
    last = [-1]

    def sync(step: int) -> bool:
        if step == last[0] or (fails_from is not None and step >= fails_from):
            return False
        last[0] = step
        return True

    engine = use_engine(trainer, sync=sync)
    trainer.train()
    syncs = [event.policy_version for event in events_of(audit) if isinstance(event, WeightSync)]
    assert len(syncs) == engine.syncs == audit.report.counts.weight_syncs
    if fails_from is None:
        assert syncs == [0, 1, 2, 3]
        assert not problems(audit.report)
    else:
        assert syncs == [0, 1]
        assert codes(audit.report) == {"RLS402"}
        finding = audit.report.findings[0]
        assert finding.where.update == 2
        assert "version 1" in finding.observed
