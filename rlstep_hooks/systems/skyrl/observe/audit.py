"""StepAuditSkyRL: audits SkyRL's RayPPOTrainer, whose policy one FSDP worker trains in a process of its own, on the CPU.

The trainer's process sees rollouts, old log-probs and advantages, and has the record; `worker` sees the rest where the policy is
trained. Read and trained: skyrl 0.3.0; lines are those of skyrl/train/trainer.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray
import torch

from rlstep_hooks.observe.advantages import Rewards
from rlstep_hooks.observe.alternative_advantages import Documented
from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.divergence import divergence
from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.observe.spending import SPENDING
from rlstep_hooks.observe.token_distances import gap_fields
from rlstep_hooks.observe.versions import versions_of
from rlstep_hooks.record.events import UNSENT, EpochEnd
from rlstep_hooks.session.agreement import agree_on_run
from rlstep_hooks.session.session import Run
from rlstep_hooks.systems.own_loop.attached import AttachedAudit, facts_of
from rlstep_hooks.systems.skyrl.observe import worker
from rlstep_hooks.systems.skyrl.observe.advantages import documented
from rlstep_hooks.systems.skyrl.observe.followed import is_single_turn, plan_trainer, refusal
from rlstep_hooks.systems.skyrl.observe.loss import settings_of
from rlstep_hooks.systems.skyrl.observe.rate import Rates
from rlstep_hooks.systems.skyrl.observe.reduction import Reduction
from rlstep_hooks.systems.skyrl.observe.rows import PLACE, Sampled, columns
from rlstep_hooks.systems.skyrl.observe.served import ServedRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.session.recorder import Recorder

REMEMBERED = 64
"""Numbers of weights that are kept."""


class _Remote:
    """The watch in the worker's process, as the session sees hooks.

    Args:
        actor: Ray's handle of the worker.
        recorder: Gets the events.
    """

    def __init__(self, actor: Any, recorder: Recorder) -> None:
        self._actor = actor
        self._recorder = recorder
        self.updates_made = 0

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """Run a function in the worker's process; it waits there for what the trainer asked before."""
        return ray.get(self._actor.__ray_call__.remote(function, *given))

    def fetch(self) -> int | None:
        """Record what was observed there; the policy version of the weights that were sent last."""
        events, sent = self.call(worker.fetch)
        self._recorder.emit(*events)
        return sent  # type: ignore[no-any-return]  # Ray's answers have no types

    def finish(self) -> None:
        """Record the last events."""
        events, self.updates_made = self.call(worker.finish)
        self._recorder.emit(*events)

    def detach(self) -> None:
        """Take the hooks off."""
        self.call(worker.end)


class StepAuditSkyRL(AttachedAudit):
    """Records the training of a RayPPOTrainer, judges it while it trains, and reports.

    trainer.build_models(PolicyWorker, CriticWorker, RefWorker)
    with StepAuditSkyRL(trainer) as audit:
        asyncio.run(trainer.train())
    audit.report.verdict
    """

    def _refusal(self) -> str:
        return refusal(self._trainer)

    def _attach(self) -> None:
        trainer, settings = self._trainer, self._trainer.cfg.trainer
        self._algorithm = algorithm = settings.algorithm
        planned, horizon = plan_trainer(trainer)
        actor = trainer.policy_model._actor_handlers[0]
        facts = facts_of("skyrl") | ray.get(actor.__ray_call__.remote(worker.facts_of))
        facts |= {
            "engine_dtype": trainer.cfg.generator.inference_engine.model_dtype,
            "compares_settings": True,
            "temperature": algorithm.temperature,
        }
        versions = versions_of("skyrl", "ray", "torch", "transformers")
        name, _ = agree_on_run(0, 1)
        recorder = self._session.begin(Run(name=name, schedule=planned, versions=versions, facts=facts))
        # Two processes recompute the same rollouts, whatever either of them spends.
        SPENDING.begin(alone=False)
        self._remote = remote = _Remote(actor, recorder)
        self._session.follow(remote)
        loss = settings_of(algorithm)
        self._documented, optimizer = documented(algorithm), settings.policy.optimizer_config
        if isinstance(self._documented, str):
            recorder.cannot("advantages", self._documented)
        group = trainer.cfg.generator.n_samples_per_prompt
        per_update, micro = settings.policy_mini_batch_size * group, settings.micro_train_batch_size_per_gpu
        self._reduction = Reduction(algorithm.loss_reduction, per_update, group, micro, algorithm.max_seq_len)
        self._single_turn = is_single_turn(trainer)
        self._served = ServedRows(trainer.train_dataset)
        self._rollouts = 0
        self._versions: dict[int, int] = {}
        """SkyRL's number of the engine's weights -> policy version."""
        self._version: int | None = None
        """The policy version of the weights that were sent last."""
        self._sampled: Sampled | None = None
        self._sampled_by = UNSENT
        self._old: Tensor | None = None
        self._reference = False
        """Whether the rollout came with log-probs of a reference."""
        self._probed = None if trainer.ref_model is None else self._probe_reference()
        """Some weights of the reference as they were at first; None where there is no reference."""
        self._passes = 0
        """Passes over the rows that have begun."""
        self._recorder = recorder
        self._seen: dict[str, Any] = {}
        """Fields of `RolloutSeen` that are known when a rollout has its advantages."""
        told = worker.Told(
            schedule=planned,
            facts=facts,
            now=recorder.now(),
            interval=self._session.interval,
            max_grad_norm=optimizer.max_grad_norm,
            rates=Rates(optimizer, horizon),
            temperature=trainer.cfg.generator.sampling_params.temperature,
            loss=loss,
            reduction=algorithm.loss_reduction,
            per_update=per_update,
            reference=algorithm.use_kl_loss,
            normalised=algorithm.advantage_batch_normalize,
            optimizer=optimizer,
        )
        remote.call(worker.begin, told)
        self._hooks = hooks = Hooks(recorder)
        self._session.take_off(hooks.take_off)
        # :324 a pass over the rows begins; :376 a rollout; :419 its old log-probs; :428 its advantages; :446 its updates; :491 the
        # weights that are sent after them.
        # The trainer's own `generate` is a coroutine function inside a decorator, and adds nothing to the generator's.
        hooks.wrap(trainer, "_fire", before=self._fires, topics=("order",))
        hooks.wrap(trainer.generator, "generate", around=self._generates, topics=("order", "samples"))
        hooks.wrap(trainer, "fwd_logprobs_values_reward", after=self._scored, topics=("refresh", "log_ratio"))
        hooks.wrap(trainer, "compute_advantages_and_returns", around=self._advantages, topics=("order", "advantages"))
        hooks.wrap(trainer, "train_critic_and_policy", around=self._trains, topics=("order", "samples"))
        hooks.wrap(trainer.dispatch, "save_weights_for_sampler", after=self._sent, topics=("sampler",))
        self._raise_from(trainer, "train_critic_and_policy")

    # A rollout

    def _fires(self, call: Call) -> None:
        # The last pass has no end of its own: the run is over then.
        if call.argument("event_name", 0) == "on_epoch_start":
            if self._passes:
                self._recorder.emit(EpochEnd(at=self._recorder.now(), epoch=self._passes))
            self._passes += 1

    def _generates(self, call: Call) -> Iterator[None]:
        about = call.argument("input_batch", 0).get("batch_metadata")
        if about is not None and about.training_phase != "train":
            yield
            return
        self._sampled = self._old = None
        self._sampled_by = self._versions.get(self._trainer.inference_engine_client.weight_version, UNSENT)
        yield
        self._sampled = Sampled(call.result) if is_compared(self._rollouts) else None

    def _scored(self, call: Call) -> None:
        old = call.result["action_log_probs"]
        self._reference = call.result.get("base_action_log_probs") is not None
        self._old = None if old is None else old * (call.result["loss_mask"] != 0)

    def _advantages(self, call: Call) -> Iterator[None]:
        data = call.argument("data", 0)
        rewards, names = data["rewards"].clone(), list(data.metadata["uids"])
        groups = _numbers(names)
        yield
        made, compared = call.result, is_compared(self._rollouts)
        again = self._served.again(names, self._passes)
        self._seen = {"samples": len(made), "old": self._old, "reference": self._reference, "repeated": again}
        self._seen |= {"moved": {}, "off": None}
        if not compared:
            return
        advantages, mask = made["advantages"].clone(), made["loss_mask"]
        if self._sampled is not None:
            self._seen["moved"] = self._moved(self._sampled, made, rewards)
        self._seen["moved"] |= {"max_abs_advantage": float((advantages * (mask != 0)).abs().max())}
        if not isinstance(self._documented, str):
            given = Rewards(tokens=self._shaped(made, rewards), mask=made["response_mask"], groups=groups)
            comparison = Documented((self._documented,), given, advantages)
            self._seen |= {"off": comparison.off(), "fit": comparison.fit}
        due = self._reduction.of_all(advantages, mask)
        reference = made["base_action_log_probs"] if self._algorithm.use_kl_loss else None
        rows = columns(made["sequences"], mask, due[self._reduction.name], reference)
        self._seen |= {"rows": {name: of.clone() for name, of in rows.items()}, "due": due}

    def _shaped(self, made: Any, rewards: Tensor) -> Tensor:
        """(S, T), the rewards that the documentation has advantages computed from: a KL penalty is taken from those of the sampler."""
        if not self._algorithm.use_kl_in_reward or self._sampled is None:
            return rewards
        apart = (made["action_log_probs"].double() - made["base_action_log_probs"].double()) * (made["loss_mask"] != 0)
        penalty = self._algorithm.kl_loss_coef * divergence(self._algorithm.kl_estimator_type, apart)
        return self._sampled.token_rewards(rewards.shape[1]).double() - penalty

    def _moved(self, sampled: Sampled, made: Any, rewards: Tensor) -> dict[str, Any]:
        """What the batch of a rollout has otherwise than its generator handed over, as fields of RolloutValues."""
        found: dict[str, Any] = {"tokens_moved": sampled.tokens_moved(made["sequences"], made["attention_mask"])}
        if not self._algorithm.use_kl_in_reward:
            found["rewards_moved"] = int((sampled.token_rewards(rewards.shape[1]) != rewards).any(1).sum())
        mask, width = made["loss_mask"] != 0, rewards.shape[1]
        if self._single_turn:
            found["masks_wrong"] = int((mask != (sampled.drawn(width) != 0)).any(1).sum())
        if self._probed is not None:
            found["reference_changed"] = int((self._probe_reference() != self._probed).sum())
        reference = made.get("base_action_log_probs")
        if reference is not None and self._old is not None and self._begins_as_reference:
            found["reference_gap"] = float((self._old - reference)[mask].abs().mean()) if mask.any() else None
        of_engine = sampled.engine_log_probs(width)
        if self._old is not None and of_engine is not None and self._sampled_by == self._version:
            apart = (self._old - of_engine)[mask & (sampled.drawn(width) != 0)].float()
            found |= gap_fields(apart) if len(apart) else {}
            found["sampler_gap_fresh"] = found.get("sampler_gap_mean")
        return found

    def _probe_reference(self) -> Tensor:
        (actor,) = self._trainer.ref_model._actor_handlers[:1]
        return torch.as_tensor(ray.get(actor.__ray_call__.remote(worker.probe_of)))

    @property
    def _begins_as_reference(self) -> bool:
        """Whether nothing was trained yet, and policy and reference are of one path."""
        settings = self._trainer.cfg.trainer
        return not self._rollouts and bool(settings.policy.model.path == settings.ref.model.path)

    # Its updates, and what follows them

    def _trains(self, call: Call) -> Iterator[None]:
        data, seen, self._seen = call.argument("data", 0), self._seen, {}
        how_often = SPENDING.one_of, SPENDING.whole_one_of
        self._remote.call(worker.rollout, worker.RolloutSeen(sampled=self._sampled_by, one_of=how_often, **seen))
        self._rollouts += 1
        data[PLACE] = torch.arange(len(data))
        try:
            yield
        finally:
            data.pop(PLACE, None)
        self._remote.fetch()

    def _sent(self, call: Call) -> None:
        self._version = self._remote.fetch()
        numbered = {
            self._trainer.inference_engine_client.weight_version: UNSENT if self._version is None else self._version
        }
        self._versions = dict([*self._versions.items()][-REMEMBERED:]) | numbered


def _numbers(names: list[str]) -> Tensor:
    """(S,), the number of each sample's prompt."""
    known: dict[str, int] = {}
    return torch.tensor([known.setdefault(name, len(known)) for name in names])
