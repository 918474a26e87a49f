"""NeMo-Aligner: golden case, REINFORCE, rollouts for the critic alone, refusals."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

PPO = "python examples/nlp/gpt/train_gpt_ppo_actor.py trainer.num_nodes=1 trainer.devices=8 "
REINFORCE = "python examples/nlp/gpt/train_gpt_reinforce_actor.py trainer.num_nodes=1 trainer.devices=8 "


def test_ppo_default() -> None:
    """golden.json: NeMo-Aligner ppo default."""
    reading = read(PPO, rows=5200)
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.samples_per_update, schedule.updates_per_rollout) == (512, 64, 8)
    assert schedule.lr_clock == "update"
    assert (schedule.rollouts, schedule.updates, schedule.lr_ticks) == (10, 80, 80)
    assert schedule.rows_dropped_per_epoch == 80
    assert schedule.lr_horizon is None
    assert "NeMo decides" in schedule.not_evaluated["lr_horizon"]
    assert (schedule.old_logprob_source, schedule.ratio_one_updates) == ("recompute", (1,))
    assert schedule.reference_source == "at_rollout"


def test_rows_that_fill_no_micro_batch_are_in_no_pass() -> None:
    """The sampler shuffles within a bucket for each process: 8 rows on each of 8 processes are a micro-batch."""
    assert read(PPO, rows=5120 + 64 + 16).schedule.rows_reshuffled is True
    assert read(PPO, rows=5120 + 16).schedule.rows_reshuffled is False
    assert read(PPO).schedule.rows_reshuffled is True


def test_steps_end_the_run_earlier() -> None:
    assert read(PPO + "trainer.ppo.max_steps=4", rows=5200).schedule.rollouts == 4
    assert read(PPO + "trainer.ppo.max_steps=40 trainer.ppo.max_epochs=2", rows=5200).schedule.rollouts == 20


def test_rollouts_for_the_critic_alone() -> None:
    reading = read(PPO + "trainer.ppo.critic_warmup_steps=3", rows=5200)
    schedule = reading.schedule
    assert (schedule.rollouts, schedule.frozen_rollouts, schedule.updates) == (13, 3, 80)
    assert schedule.data_epochs == Fraction(5120, 5200)
    assert [note.kind for note in reading.notes] == ["unit", "assumes", "unit"]


def test_reinforce_multiplies_the_prompts() -> None:
    reading = read(REINFORCE, rows=5200)
    schedule = reading.schedule
    assert (schedule.prompts_per_rollout, schedule.samples_per_rollout) == (512, 2048)
    assert schedule.updates_per_rollout == 32
    assert (schedule.old_logprob_source, schedule.lags) == ("detach", (0,))
    assert schedule.ratio_one_updates == tuple(range(1, 33))
    assert reading.notes[-1].text.endswith("512 of every 2048 rows are used")
    assert [note.kind for note in read(REINFORCE + "trainer.reinforce.num_rollouts_per_prompt=1").notes] == ["unit"]


def test_copies_of_the_model() -> None:
    assert read(PPO + "model.tensor_model_parallel_size=2").schedule.world_size == 4


@pytest.mark.parametrize(
    ("settings", "message", "fix"),
    [
        ("model.global_batch_size=60", "60 is not divisible by 8", "32 or 64"),
        ("model.ppo.num_rollout_samples=500", "500 is not divisible by 8", "448 or 512"),
        ("model.ppo.num_rollout_samples=488", "61 is not divisible by 8", "448 or 512"),
        ("model.global_batch_size=96", "64 is not divisible by 12", "64 or 128"),
    ],
)
def test_refusals(settings: str, message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(PPO + settings)
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert [finding.code for finding in planned(PPO + settings).findings] == ["RLS110"]
