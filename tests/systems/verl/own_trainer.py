"""A trainer with a loop of its own, in the shape of verl's recipes: a subclass of `RayPPOTrainer` that overrides `fit`.

verl imports this module in every process (`VERL_USE_EXTERNAL_MODULES`), and `trainer.use_v1=False` then builds this trainer. At the
rollout that `RLSTEP_TEST_RAISES_AT` names, its loop raises.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import wrapt

MODULE = __name__
RAISES_AT = "RLSTEP_TEST_RAISES_AT"
OWN_BUILDING = "RLSTEP_TEST_OWN_BUILDING"
"""Set where the trainer also loads checkpoints in its own way."""


def own_trainer(base: Any) -> Any:
    """The class; verl's is known once it is imported."""
    import numpy as np
    from verl import DataProto
    from verl.trainer.ppo.metric_utils import compute_data_metrics
    from verl.trainer.ppo.ray_trainer import compute_advantage, compute_response_mask
    from verl.trainer.ppo.reward import extract_reward
    from verl.utils.tracking import Tracking

    class OwnTrainer(base):  # type: ignore[misc]
        """Trains GRPO with its own loop."""

        def _load_checkpoint(self) -> None:
            if OWN_BUILDING not in os.environ:
                super()._load_checkpoint()

        def fit(self) -> None:
            tracking = Tracking(
                project_name=self.config.trainer.project_name,
                experiment_name=self.config.trainer.experiment_name,
                default_backend=self.config.trainer.logger,
                config={},
            )
            self.global_steps = 0
            self._load_checkpoint()
            self.checkpoint_manager.update_weights(self.global_steps)
            for _ in range(self.config.trainer.total_epochs):
                for rows in self.train_dataloader:
                    self.global_steps += 1
                    if self.global_steps == int(os.environ.get(RAISES_AT, 0)):
                        raise RuntimeError("a loop of one's own broke")
                    batch = self._rollout(rows)
                    batch = batch.union(self._log_probs(batch))
                    tracking.log(data=self._train(batch), step=self.global_steps)
                    self.checkpoint_manager.update_weights(self.global_steps)
                    if self.global_steps >= self.total_training_steps:
                        return

        def _rollout(self, rows: Any) -> Any:
            batch = DataProto.from_single_dict(rows)
            batch.meta_info["temperature"] = self.config.actor_rollout_ref.rollout.temperature
            copies = self.config.actor_rollout_ref.rollout.n
            asked = self._get_gen_batch(batch)
            asked.meta_info["global_steps"] = self.global_steps
            generated = self.async_rollout_manager.generate_sequences(
                asked.repeat(repeat_times=copies, interleave=True)
            )
            self.checkpoint_manager.sleep_replicas()
            generated.meta_info.pop("timing", None)
            batch.non_tensor_batch["uid"] = np.array([str(uuid.uuid4()) for _ in range(len(batch))], dtype=object)
            batch = batch.repeat(repeat_times=copies, interleave=True).union(generated)
            batch.batch["response_mask"] = compute_response_mask(batch)
            batch.meta_info["global_token_num"] = batch.batch["attention_mask"].sum(-1).tolist()
            return batch

        def _log_probs(self, batch: Any) -> Any:
            computed, _ = self._compute_old_log_prob(batch)
            computed.batch.pop("entropys")
            return computed

        def _train(self, batch: Any) -> dict[str, Any]:
            rewards, _ = extract_reward(batch)
            batch.batch["token_level_scores"] = batch.batch["token_level_rewards"] = rewards
            batch = compute_advantage(
                batch,
                adv_estimator=self.config.algorithm.adv_estimator,
                num_repeat=self.config.actor_rollout_ref.rollout.n,
                config=self.config.algorithm,
            )
            self._update_actor(batch)
            metrics: dict[str, Any] = compute_data_metrics(batch=batch, use_critic=False)
            return metrics

    return OwnTrainer


def _take_its_place(module: Any) -> None:
    module.RayPPOTrainer = own_trainer(module.RayPPOTrainer)


wrapt.when_imported("verl.trainer.main_ppo_v0")(_take_its_place)
