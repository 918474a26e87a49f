"""verl's recipe that samples ahead, in a copy of verl: its loop waits for batches, and is read as that over the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from tests.systems.plans.checkouts import schedule_of
from tests.systems.plans.test_verl_programs import copy_of_verl, planned

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = "recipe.one_step_off_policy.main_ppo"
MAIN = """
from .ray_trainer import OneStepOffRayTrainer
from .fsdp_workers import ActorRolloutRefWorker
def main(config):
    of_actor = [config.trainer.n_gpus_per_node] * config.trainer.nnodes
    of_engine = [config.rollout.n_gpus_per_node] * config.rollout.nnodes
    resource_pool_spec = {"actor": of_actor, "engine": of_engine}
    trainer = OneStepOffRayTrainer(config=config)
    trainer.fit()
"""
TRAINER = """
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
class OneStepOffRayTrainer(RayPPOTrainer):
    def _create_continuous_iterator(self):
        '''All rows of all passes.'''
        for epoch in range(self.config.trainer.total_epochs):
            iterator = iter(self.train_dataloader)
            for batch_dict in iterator:
                yield epoch, batch_dict

    def _async_gen_next_batch(self, rows):
        try:
            epoch, batch_dict = next(rows)
        except StopIteration:
            return None
        batch = DataProto.from_single_dict(batch_dict)
        gen_batch = batch.pop(batch_keys=['input_ids'])
        gen_batch = gen_batch.repeat(repeat_times=self.config.actor_rollout_ref.rollout.n, interleave=True)
        self.sync_rollout_weights()
        return GenerationBatchFuture(epoch, batch, self.rollout_wg.async_generate_sequences(gen_batch))

    def fit(self):
        self.global_steps = 0
        self.global_steps += 1
        rows = self._create_continuous_iterator()
        future = self._async_gen_next_batch(rows)
        while future is not None:
            is_last_step = self.global_steps >= self.total_training_steps
            epoch, batch, output = future.get()
            if not is_last_step:
                future = self._async_gen_next_batch(rows)
            batch = batch.repeat(repeat_times=self.config.actor_rollout_ref.rollout.n, interleave=True)
            batch = batch.union(output)
            old_log_prob = self.actor_wg.compute_log_prob(batch)
            batch = batch.union(old_log_prob)
            self.actor_wg.update_actor(batch)
            self.global_steps += 1
            if is_last_step:
                return
"""
WORKERS = """
from verl.workers.fsdp_workers import ActorRolloutRefWorker as Worker
class ActorRolloutRefWorker(Worker):
    def sync_rollout_weights(self):
        send(self.module)
class AsyncActorRolloutRefWorker(ActorRolloutRefWorker):
    def __init__(self, *args):
        raise NotImplementedError
"""


def files(*, main: str = MAIN, trainer: str = TRAINER, workers: str = WORKERS) -> dict[str, str]:
    folder = "recipe/one_step_off_policy"
    return {
        **copy_of_verl("verl"),
        f"{folder}/main_ppo.py": main,
        f"{folder}/ray_trainer.py": trainer,
        f"{folder}/fsdp_workers.py": workers,
    }


def test_the_recipe_that_samples_ahead_is_read_in_a_copy_of_verl(tmp_path: Path) -> None:
    made = planned(tmp_path, files(), PROGRAM)
    schedule = schedule_of(made)
    assert (schedule.rollouts, schedule.updates_per_rollout, schedule.max_age) == (20, 2, 1)
    assert schedule.old_logprob_source == "recompute"
    assert any("(recipe/one_step_off_policy/ray_trainer.py:" in note.text for note in made.notes)


def test_its_length_may_be_given(tmp_path: Path) -> None:
    assert schedule_of(planned(tmp_path, files(), PROGRAM, "trainer.total_training_steps=7")).rollouts == 7


@pytest.mark.parametrize(
    ("word", "old", "new", "says"),
    [
        ("trainer", "yield epoch, batch_dict", "yield epoch, batch_dict[::2]", "uses nothing that trains with it"),
        ("trainer", "= next(rows)", "= next(rows)\n            next(rows)", "uses nothing that trains with it"),
        ("trainer", "batch.pop(", "batch.select(", "uses nothing that trains with it"),
        (
            "trainer",
            "            self.actor_wg.update",
            "            batch = batch[kept]\n            self.actor_wg.update",
            "kept",
        ),
        ("trainer", "            if is_last_step:\n                return\n", "", "uses nothing that trains with it"),
        ("workers", "def sync_rollout_weights", "def update_actor", "has a update_actor of its own"),
        (
            "workers",
            "raise NotImplementedError",
            "self.config.actor.ppo_mini_batch_size = 7",
            "has a __init__ of its own",
        ),
        ("main", "[config.trainer.n_gpus_per_node]", "[config.trainer.n_gpus_per_node // 2]", "may be a part of them"),
    ],
)
def test_what_a_fork_changes_of_it_is_asked_about(tmp_path: Path, word: str, old: str, new: str, says: str) -> None:
    text = {"main": MAIN, "trainer": TRAINER, "workers": WORKERS}[word]
    assert old in text
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, files(**{word: text.replace(old, new)}), PROGRAM)
