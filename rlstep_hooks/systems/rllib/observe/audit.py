"""StepAuditRLlib: audits RLlib's PPO (new API stack, torch) with one learner in the algorithm's own process.

Read and trained: ray 2.60.0. Paths are below rllib/. Rows of a train batch are the timesteps of all pieces of episodes, and after each
piece one more, which only gives the value of its last observation and is masked in the loss.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.classic_ppo import ClassicPPO
from rlstep_hooks.observe.episodes import Pieces
from rlstep_hooks.observe.rates import on_lines
from rlstep_hooks.record.events import UNSENT
from rlstep_hooks.systems.engine import reader
from rlstep_hooks.systems.own_loop.attached import AttachedAudit
from rlstep_hooks.systems.own_loop.rows import RowWatch
from rlstep_hooks.systems.rllib.observe.followed import MODULE, refusal
from rlstep_hooks.systems.rllib.system import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.planning.schedule import Schedule

_PLACE = "rlstep_place"
"""Column with the place of each row in the train batch, from when it is made until its mini-batch is taken."""
_INPUTS = {
    "advantages_intact": ("advantages",),
    "targets_intact": ("value_targets",),
    "timesteps_intact": ("obs", "actions"),
}
_TIMESTEPS = "num_env_steps_sampled_lifetime"
_LEAST_DEVIATION = 1e-4  # connectors/learner/general_advantage_estimation.py


class StepAuditRLlib(AttachedAudit):
    """Records the training of an algorithm that RLlib's PPO has built, judges it while it trains, and reports.

    algo = config.build_algo()
    with StepAuditRLlib(algo) as audit:
        for _ in range(100):
            algo.train()
    audit.report.verdict
    """

    def _refusal(self) -> str:
        return refusal(self._trainer)

    def _attach(self) -> None:
        algorithm = self._trainer
        self._config, learner = algorithm.config, algorithm.learner_group._learner
        self._learner, self._module, optimizer = learner, learner.module[MODULE], learner.get_optimizer(MODULE)
        self._values: Any = None
        self._places: Any = None
        self._versions = {learner._weights_seq_no: 0}
        """RLlib's number of the latest weights and of those before them -> policy version."""
        self._timestep = algorithm.metrics.peek(("env_runners", _TIMESTEPS), default=0)
        """What schedules of settings count, after the latest rollout that was trained."""
        clips = self._config.grad_clip_by if self._config.grad_clip else ""
        limit = self._config.grad_clip if clips == "global_norm" else None
        planned = self._planned = plan_algorithm(algorithm)
        self._observer = observer = self._begin_run(
            "rllib", planned, self._module, optimizer, apart=("vf.", "encoder.critic"), max_grad_norm=limit
        )
        self._rows, hooks = RowWatch(observer, self._hooks.recorder, _INPUTS), self._hooks
        if clips in ("", "global_norm"):
            observer.updates.follow_gradients(self._module.named_parameters())
        else:
            hooks.recorder.cannot("gradient", f"grad_clip_by={clips} clips each gradient by itself")
        # algorithms/ppo/ppo.py `training_step`: a rollout, its updates, and the sync of weights.
        hooks.wrap(algorithm, "training_step", before=lambda call: observer.rollout_begins(), topics=("order",))
        hooks.wrap(
            algorithm.env_runner_group, "sync_weights", after=lambda call: observer.synced(), topics=("sampler",)
        )
        # core/learner/learner.py `update`: the train batch of a rollout, its mini-batches, and what follows them.
        hooks.wrap(learner, "_make_batch_if_necessary", around=self._batch, topics=("order", "advantages"))
        hooks.wrap(learner, "_update", before=self._minibatch, topics=("samples",))
        hooks.wrap(learner, "after_gradient_based_update", after=self._trained, topics=("learning_rate", "sampler"))
        # algorithms/ppo/torch: the critic's values (of the train batch, then of each mini-batch), and the loss.
        hooks.wrap(self._module, "compute_values", after=self._valued, topics=("advantages", "formula"))
        hooks.wrap(learner, "compute_loss_for_module", after=self._loss, topics=("order", "formula", "log_ratio"))
        # core/learner/torch/torch_learner.py `compute_gradients`: right before the backward.
        hooks.wrap(optimizer, "zero_grad", after=lambda call: observer.updates.window_begins(), topics=("weights",))
        self._raise_from(algorithm, "training_step")

    # A rollout

    def _valued(self, call: Call) -> None:
        self._values = call.result

    def _batch(self, call: Call) -> Iterator[None]:
        episodes = call.argument("training_data", 0).episodes
        rewards = [torch.tensor(of.get_rewards()) for of in episodes]
        ended = torch.tensor([bool(of.is_terminated) for of in episodes])
        yield  # the connectors add a row to each
        rows, observer, timesteps = call.result.policy_batches[MODULE], self._observer, sum(map(len, rewards))
        columns = {name: rows[name].cpu() for name in ("rewards", "loss_mask", "weights_seq_no")}
        kept = columns["rewards"][columns["loss_mask"]]
        if len(kept) == timesteps:
            observer.moved({"rewards_moved": int((kept != torch.cat(rewards).to(kept.dtype)).sum())})
        sampled = self._versions.get(int(columns["weights_seq_no"].min()), UNSENT)
        observer.rollout_ended(len(rows), sampled, due=self._due(timesteps) + len(episodes))
        observer.refreshed(rows["action_logp"])
        observer.updates.rate_is_due(on_lines(self._config.lr, self._timestep))
        self._rows.keep(rows)
        if observer.compares and len(rows) == timesteps + len(episodes):
            given = (of.detach().cpu() for of in (self._values, rows["value_targets"], rows["advantages"]))
            pieces = Pieces(rewards, ended, *given)
            settings = self._config.gamma, self._config.lambda_, _LEAST_DEVIATION
            observer.compare_advantages(pieces.off(*settings), partial(pieces.fit, *settings), rows["advantages"])
        rows[_PLACE] = torch.arange(len(rows))

    def _due(self, timesteps: int) -> int:
        """The timesteps that a rollout should have: where some environments of a runner reset, the others step on to its share, and
        may pass it by one each (env/single_agent_env_runner.py `_sample`)."""
        config, least = self._config, self._planned.samples_per_rollout
        if config.batch_mode == "complete_episodes":
            return timesteps
        runners, more = int(config.num_env_runners or 1), int(config.num_envs_per_env_runner) - 1
        return max(least, min(timesteps, least + runners * more))

    # A mini-batch

    def _minibatch(self, call: Call) -> None:
        self._places = call.argument("batch", 0)[MODULE].pop(_PLACE, None)

    def _loss(self, call: Call) -> None:
        batch, logits = call.kwargs["batch"], call.kwargs["fwd_out"]["action_dist_inputs"]
        outputs = {"logits": logits} | ({"values": self._values} if self._config.use_critic else {})
        self._values, computed = None, partial(self._computed, batch)
        with torch.no_grad():
            self._rows.trained(batch, self._places, computed(**outputs), batch["loss_mask"])
        if self._observer.compares:
            self._rows.compare_loss(self._settings(), outputs, computed, batch["loss_mask"], call.result)
        # The total that is differentiated is the loss itself, so its own gradient is 1.
        self._rows.follow({"backward_ratio": call.result, "log_prob_gradient": logits})

    def _computed(self, batch: Any, logits: Any, values: Any = None) -> dict[str, Any]:
        policy = self._module.get_train_action_dist_cls().from_logits(logits)
        given = {"old": batch["action_logp"], "advantages": batch["advantages"], "targets": batch["value_targets"]}
        given |= {"log_probs": policy.logp(batch["actions"]), "values": given["targets"] if values is None else values}
        if self._observer.compares:
            before = self._module.get_exploration_action_dist_cls().from_logits(batch["action_dist_inputs"])
            given |= {"entropies": policy.entropy(), "kl": before.kl(policy)}
        return given

    def _settings(self) -> ClassicPPO:
        config, kl = self._config, self._learner.curr_kl_coeffs_per_module[MODULE]
        return ClassicPPO(
            clip=config.clip_param,
            largest_error=config.vf_clip_param,
            value=config.vf_loss_coeff,
            entropy=on_lines(config.entropy_coeff, self._timestep),
            kl=float(kl) if config.use_kl_loss else 0.0,
        )

    # After the updates

    def _trained(self, call: Call) -> None:
        self._timestep = call.kwargs["timesteps"].get(_TIMESTEPS, 0)
        self._versions = dict([*self._versions.items()][-16:]) | {self._learner._weights_seq_no: self._observer.version}


def plan_algorithm(algorithm: Any) -> Schedule:
    """The Schedule of a live algorithm; the script's loop decides how many rollouts it makes."""
    settings = {name: getattr(algorithm.config, name) for name in SYSTEM.settings if hasattr(algorithm.config, name)}
    planned = reader.read_config(SYSTEM, settings, version=version("ray"), world_size=1, checked=True).schedule
    return msgspec.structs.replace(planned, syncs="after_updates", samples_per_microbatch=planned.samples_per_update)
