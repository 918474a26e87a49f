"""StepAuditRLlib: audits RLlib's PPO (new API stack, torch) with one learner in the algorithm's own process.

Read and trained: ray 2.60.0. Paths are below rllib/. N rows of a train batch: the timesteps of all pieces of episodes, and after each
piece one more, which only bootstraps its value and is masked in the loss. B rows of a mini-batch; P pieces of at most T timesteps.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlstep_hooks.observe.contained import Contained
from rlstep_hooks.observe.estimators import ROUNDINGS, Documented, Estimate, Estimator, Rewards
from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.observe.losses import LossBatch
from rlstep_hooks.observe.optimizer_tensors import optimizer_tensors
from rlstep_hooks.observe.versions import versions_of
from rlstep_hooks.record.events import UNSENT, WeightSync
from rlstep_hooks.systems.engine import index, reader
from rlstep_hooks.systems.own_loop.attached import AttachedAudit
from rlstep_hooks.systems.own_loop.loop import LoopAudit
from rlstep_hooks.systems.own_loop.numbers import Moved
from rlstep_hooks.systems.rllib.observe.followed import MODULE, refusal
from rlstep_hooks.systems.rllib.observe.loss import LossSettings, formula
from rlstep_hooks.systems.rllib.system import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.planning.schedule import Schedule

_PLACE = "rlstep_place"
"""Column with the place of each row in the train batch, from when it is made until its mini-batch is taken."""
_TIMESTEPS = "num_env_steps_sampled_lifetime"
_KEPT = 16
"""Rollouts whose sequence number of weights is remembered; a runner that is further behind has weights of no known version."""


class StepAuditRLlib(AttachedAudit):
    """Records the training of an algorithm that RLlib's PPO has built, judges it while it trains, and reports.

        algo = config.build_algo()
        with StepAuditRLlib(algo) as audit:
            for _ in range(100):
                algo.train()
        audit.report.verdict

    The hooks sit on the algorithm, its learner, module and optimizer, and are gone when the block ends.
    """

    def _refusal(self) -> str:
        return refusal(self._trainer)

    def _attach(self) -> None:
        algorithm = self._trainer
        self._config, self._learner = algorithm.config, algorithm.learner_group._learner
        self._module, optimizer = self._learner.module[MODULE], self._learner.get_optimizer(MODULE)
        self._values = self._places = None
        self._known: dict[str, Tensor] = {}
        """What the loss of the latest rollout is computed from, by place; empty where it is not compared."""
        self._versions = {self._learner._weights_seq_no: 0}
        """RLlib's number of weights -> policy version."""
        self._timestep = algorithm.metrics.peek(("env_runners", _TIMESTEPS), default=0)
        """What schedules of settings count, after the latest rollout that was trained."""
        limited = self._config.grad_clip_by == "global_norm"
        self._planned = plan_algorithm(algorithm)
        held = optimizer_tensors(self._module.parameters(), optimizer)
        audit = LoopAudit(
            self._planned,
            optimizer=optimizer,
            facts={"reference_log_probs": "none", "optimizer_tensors": held} | index.link_facts("rllib"),
            versions=versions_of("ray", "gymnasium", "torch"),
            max_grad_norm=self._config.grad_clip if limited else None,
            rate_of_rollout=True,
            session=self._session,
        )
        audit.begin()
        assert audit.observer is not None  # begun
        self._observer = observer = audit.observer
        self._loss_guard = Contained(audit, ("loss",))
        if limited or not self._config.grad_clip:
            observer.follow_gradients(self._module.named_parameters())
        else:
            audit.cannot("gradient", f"grad_clip_by={self._config.grad_clip_by} clips each gradient in another way")
        observer.set_apart(
            of for name, of in self._module.named_parameters() if name.startswith(("vf.", "encoder.critic"))
        )
        hooks = Hooks(audit)
        self._session.take_off(hooks.take_off)
        # algorithms/ppo/ppo.py: one rollout, its updates and the sync of weights.
        hooks.wrap(algorithm, "training_step", before=lambda call: observer.rollout_begins(), topics=("order",))
        hooks.wrap(algorithm.env_runner_group, "sync_weights", after=self._synced, topics=("sampler",))
        # core/learner/learner.py: the train batch of a rollout, and each of its mini-batches.
        hooks.wrap(self._learner, "_make_batch_if_necessary", around=self._batch, topics=("order", "advantages"))
        hooks.wrap(self._learner, "_update", before=self._minibatch, topics=("samples",))
        hooks.wrap(self._learner, "after_gradient_based_update", after=self._trained, topics=("learning_rate",))
        # algorithms/ppo/torch: the critic's values (for GAE, then of each mini-batch), and the loss.
        hooks.wrap(self._module, "compute_values", after=self._valued, topics=("advantages", "formula"))
        hooks.wrap(self._learner, "compute_loss_for_module", after=self._loss, topics=("order", "formula", "log_ratio"))
        # core/learner/torch/torch_learner.py `compute_gradients`: right before the backward.
        hooks.wrap(optimizer, "zero_grad", after=lambda call: observer.cleared(), topics=("weights",))
        self._raise_from(algorithm, "training_step")

    # A rollout

    def _valued(self, call: Call) -> None:
        self._values = call.result.detach()

    def _batch(self, call: Call) -> Iterator[None]:
        episodes = call.argument("training_data", 0).episodes
        # The connectors add a timestep to each.
        rewards = [torch.tensor(of.get_rewards()) for of in episodes]
        ended = torch.tensor([bool(of.is_terminated) for of in episodes])
        yield
        rows, observer = call.result.policy_batches[MODULE], self._observer
        sizes = [len(of) + 1 for of in rewards]
        given = rows["rewards"].cpu().split(sizes) if len(rows) == sum(sizes) else ()
        moved = sum(int((of[:-1] != sent.to(of.dtype)).sum()) for of, sent in zip(given, rewards, strict=False))
        observer.moved(Moved(moved if given else None))
        numbers = rows["weights_seq_no"]
        oldest = None if numbers.is_cuda else self._versions.get(int(numbers.min()), UNSENT)
        observer.rollout_ended(len(rows), oldest, due=self._due(sum(sizes) - len(sizes)) + len(sizes))
        observer.refreshed(rows["action_logp"])
        observer.rate_is_due(scheduled(self._config.lr, self._timestep))
        self._known = {}
        if observer.compares:
            names = ("obs", "actions", "advantages", "value_targets")
            self._known = {name: rows[name].clone() for name in names if isinstance(rows[name], Tensor)}
            self._compare(rows, rewards, ended)
        rows[_PLACE] = torch.arange(len(rows))

    def _due(self, timesteps: int) -> int:
        """The timesteps that a rollout should have: where some environments of a runner reset, the others step on to its share, and
        may pass it by one each (env/single_agent_env_runner.py `_sample`)."""
        config, least = self._config, self._planned.samples_per_rollout
        if config.batch_mode == "complete_episodes":
            return timesteps
        return max(least, min(timesteps, least + max(config.num_env_runners, 1) * (config.num_envs_per_env_runner - 1)))

    def _compare(self, rows: Any, rewards: list[Tensor], ended: Tensor) -> None:
        """Advantages and targets of the train batch with those that the episodes give.

        Targets are GAE's (utils/postprocessing/value_predictions.py). Advantages are targets less values, standardised over all rows,
        the additional ones included (connectors/learner/general_advantage_estimation.py).
        """
        sizes = [len(of) + 1 for of in rewards]
        values, targets = (of.detach().cpu().split(sizes) for of in (self._values, rows["value_targets"]))

        def padded(pieces: Any) -> Tensor:
            return pad_sequence([of[:-1] for of in pieces], batch_first=True)

        made_from = Rewards(
            tokens=pad_sequence(rewards, batch_first=True),
            mask=padded([torch.ones(size) for size in sizes]),
            values=padded(values),
            last_values=torch.stack([of[-1] for of in values]) * ~ended,
        )
        raw = torch.cat(targets) - torch.cat(values)
        estimator = Estimator(tokens="gae", gamma=self._config.gamma, lam=self._config.lambda_, skips=True)
        gae = Documented(estimator, made_from, padded(raw.split(sizes)), padded(targets))
        counted, used = rows["loss_mask"].cpu(), rows["advantages"].detach().cpu()
        off = standardised(raw, raw).off(used, counted)

        def fit() -> str:
            others = {
                "not normalised": Estimate(raw.double(), raw.abs() * 1e-6),
                "normalised over the timesteps of the loss alone": standardised(raw, raw[counted]),
            }
            found = (words for words, other in others.items() if float(other.off(used, counted)) <= 1)
            return gae.fit() if float(gae.off()) > 1 else next(found, "")

        self._observer.compare_advantages(torch.maximum(gae.off(), off), fit, rows["advantages"].detach())

    # A mini-batch

    def _minibatch(self, call: Call) -> None:
        self._places = call.argument("batch", 0)[MODULE].pop(_PLACE, None)

    def _loss(self, call: Call) -> None:
        batch, outputs, observer = call.kwargs["batch"], call.kwargs["fwd_out"], self._observer
        places, self._places = self._places, None
        mask, logits = batch["loss_mask"], outputs["action_dist_inputs"]
        with torch.no_grad():
            policy = self._module.get_train_action_dist_cls().from_logits(logits.detach())
            before = self._module.get_exploration_action_dist_cls().from_logits(batch["action_dist_inputs"])
            log_probs = policy.logp(batch["actions"])
        observer.microbatch(
            samples=len(mask),
            indices=places,
            role="policy",
            old_logprobs=batch["action_logp"],
            new_logprobs=log_probs,
            mask=mask,
            advantages=batch["advantages"],
            targets=batch["value_targets"],
        )
        # The total is the loss itself, so its own gradient is 1.
        self._follow(call.result, "backward_ratio")
        self._follow(logits, "log_prob_gradient")
        if not self._known:
            return
        with torch.no_grad():
            if places is not None:
                differing = {name: (of[places] != batch[name]).sum() for name, of in self._known.items()}
                inputs = [differing[name] for name in ("obs", "actions") if name in differing]
                observer.add_columns({
                    "advantages_differ": differing["advantages"],
                    "targets_differ": differing["value_targets"],
                    "timesteps_differ": torch.stack(inputs).sum(),
                })  # fmt: skip
            tensors = {
                "log_probs": log_probs,
                "old": batch["action_logp"],
                "advantages": batch["advantages"],
                "values": self._values if self._config.use_critic else batch["value_targets"],
                "targets": batch["value_targets"],
                "entropies": policy.entropy(),
                "kl": before.kl(policy),
            }
            columns = {name: torch.where(mask, of.detach().double(), 0.0)[:, None] for name, of in tensors.items()}
            given = LossBatch(
                tensors=columns, mask=mask.double()[:, None], epsilons={"policy": torch.finfo(log_probs.dtype).eps}
            )
            documented = formula(self._settings())
            expected, rounding = documented.value(given)
            loss = call.result.detach().double()
            gap = (loss - expected).abs() / rounding.clamp(min=1e-30)

        def like() -> str:
            others = documented.others(given, 1)
            return next(
                (words for words, other in others if abs(float(loss) - other) <= ROUNDINGS * float(rounding)), ""
            )

        observer.add_columns({"loss_gap": gap, "loss_ratio": loss / expected}, like)

    def _settings(self) -> LossSettings:
        config = self._config
        return LossSettings(
            clip=config.clip_param,
            value_clip=config.vf_clip_param,
            value=config.vf_loss_coeff if config.use_critic else 0.0,
            entropy=scheduled(config.entropy_coeff, self._timestep),
            kl=float(self._learner.curr_kl_coeffs_per_module[MODULE]) if config.use_kl_loss else 0.0,
        )

    def _follow(self, tensor: Tensor, column: str) -> None:
        """The largest gradient that arrives there in the backward."""

        def arrives(gradient: Tensor) -> None:
            with self._loss_guard:
                self._observer.add_columns({column: gradient.detach().abs().max()})

        if tensor.requires_grad:
            tensor.register_hook(arrives)

    # After the updates

    def _trained(self, call: Call) -> None:
        self._timestep = call.kwargs["timesteps"].get(_TIMESTEPS, 0)
        self._versions[self._learner._weights_seq_no] = self._observer.version
        for number in sorted(self._versions)[:-_KEPT]:
            del self._versions[number]

    def _synced(self, call: Call) -> None:
        recorder = self._session.recorder
        if recorder is not None:
            recorder.emit(WeightSync(at=recorder.now(), policy_version=self._observer.version))


def plan_algorithm(algorithm: Any) -> Schedule:
    """The Schedule of a live algorithm; the script's loop decides how many rollouts it makes.

    Raises:
        PlanError: RLlib fails on these sizes.
    """
    settings = {name: getattr(algorithm.config, name) for name in SYSTEM.settings if hasattr(algorithm.config, name)}
    planned = reader.read_config(SYSTEM, settings, version=version("ray"), world_size=1, checked=True).schedule
    return msgspec.structs.replace(planned, syncs="after_updates", samples_per_microbatch=planned.samples_per_update)


def scheduled(setting: Any, timestep: int) -> float:
    """A setting that is a number, or [[timestep, value], ...] with straight lines between (utils/schedules/scheduler.py)."""
    if not isinstance(setting, list | tuple):
        return float(setting)
    for (begins, first), (ends, second) in zip(setting, setting[1:], strict=False):
        if begins <= timestep < ends:
            return float(first + (second - first) * (timestep - begins) / (ends - begins))
    return float(setting[-1][1])


def standardised(raw: Tensor, over: Tensor) -> Estimate:
    """(N,), less the mean and over the standard deviation of some of them."""
    over, deviation = over.double(), over.double().std(correction=0).clamp(min=1e-4)
    values = (raw.double() - over.mean()) / deviation
    rounding = ROUNDINGS * torch.finfo(raw.dtype).eps * raw.double().abs().max() / deviation
    return Estimate(values, rounding * (1 + values.abs()))
