"""Hooks on one trainer's micro-batches: the forward and backward of each, and the loss that it trains on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.compared import is_compared, is_compared_whole
from rlstep_hooks.observe.guard import Guard, contained
from rlstep_hooks.observe.head_gradient import HeadWatch
from rlstep_hooks.observe.module_hooks import ModuleHookWatch
from rlstep_hooks.record.events import Constant, FactsRead, MicroBatch, OldSource, Refresh
from rlstep_hooks.systems.trl.observe.backward import Backward, BackwardWatch
from rlstep_hooks.systems.trl.observe.calls import Activity
from rlstep_hooks.systems.trl.observe.measure import entropy_split, token_mask
from rlstep_hooks.systems.trl.observe.sampled_log_probs import SAMPLED
from rlstep_hooks.systems.trl.observe.scored_alone import Computed
from rlstep_hooks.systems.trl.observe.settings import of_autocast, of_forwards

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.observe.settings import SettingsWatch
    from rlstep_hooks.systems.trl.observe.calls import LogProbCall
    from rlstep_hooks.systems.trl.observe.loss_inputs import LossTerms
    from rlstep_hooks.systems.trl.observe.observation import Observation


_ADVANTAGES: tuple[Constant, ...] = ("advantages",)
_AND_OLD: tuple[Constant, ...] = ("advantages", "old_logprobs")


class MicroBatchHooks:
    """Gives MicroBatch, and Refresh where a loss computes its own old log-probs."""

    def __init__(self, observation: Observation) -> None:
        self._observation = observation
        self.recorder = observation.recorder
        """The recorder that events go to."""
        self._backward = BackwardWatch(observation.trainer, divided_before=observation.adapter.divides_loss())
        self._hooks = ModuleHookWatch(Guard(self.recorder, ("gradient",)))
        temperature = float(getattr(observation.trainer, "temperature", 1.0))  # 0.16.0 has none in the loss
        # Is decided for the whole run; an adaptive coefficient that is 0 for a while leaves the bonus in the graph
        # (grpo_trainer.py 1.16.0:848, 3189).
        self._bonus = bool(getattr(observation.trainer, "_entropy_bonus_enabled", False))
        self._head = HeadWatch(temperature, Guard(self.recorder, ("gradient",)), entropies=self._bonus)
        if observation.adapter.rows_hidden:
            self.recorder.cannot("gradient", observation.adapter.rows_hidden)
        self._modes: tuple[SettingsWatch, ...] = ()
        """Follow the modes of modules that drop something, and autocast, from the first update on that is compared."""
        self._replaced: list[tuple[str, Tensor]] = []
        """Modules whose backward hooks replaced gradients of the micro-batch that is trained."""
        self._dtype = torch.float32
        """The dtype of the log-probs of the latest loss."""
        self._microbatches = 0
        self._per_cycle = observation.schedule.microbatches_per_cycle
        self.in_epoch = 0
        """Micro-batches of this pass of the loader."""

    def attach(self, hooks: Hooks) -> None:
        """Place the hooks."""
        trainer = self._observation.trainer
        self._observation.adapter.attach(hooks)
        # One forward and backward: gives MicroBatch. transformers' Trainer in 0.16 to 0.25, GRPOTrainer's own after.
        hooks.wrap(trainer, "training_step", around=self._trains, topics=("order", "samples", "log_ratio"))
        # The loss, and the inputs it really gets. 0.16 has compute_loss only; from 0.17 it hands over to _compute_loss.
        topics = ("log_ratio", "loss", "samples")
        hooks.wrap(trainer, "compute_loss", around=self._computes_loss, topics=topics)
        if hasattr(trainer, "_compute_loss"):
            hooks.wrap(trainer, "_compute_loss", before=self._loss_gets, topics=topics)
        if self._observation.adapter.shares_entropies and hasattr(trainer, "get_high_entropy_mask"):
            hooks.wrap(trainer, "get_high_entropy_mask", after=self._keeps, topics=("loss",))

    def _keeps(self, call: Call) -> None:
        """The entropies of all processes say which tokens of this one are trained."""
        activity = self._observation.activity
        if activity is not None and isinstance(call.result, torch.Tensor):
            activity.kept = call.result

    def _trains(self, call: Call) -> Iterator[None]:
        seen = self._observation
        activity = seen.activity = Activity("training")
        self._window_begins()
        cycle, place = divmod(self._microbatches, self._per_cycle)
        # One micro-batch of a cycle, not always the same: what is between log-probs and layers is there in all of them.
        if place == cycle % self._per_cycle:
            activity.sloped_in = cycle
        looks = is_compared_whole(cycle)
        self._replaced = []
        try:
            if looks:
                self._look_at_layers(activity)
            yield
        finally:
            seen.activity = None
            if looks:
                self._hooks.end()
        if activity.backward is not None:
            activity.backward.over = True
            if activity.backward.at_loss is not None:
                seen.updates.steps.see_seed(activity.backward.at_loss)
        self._emit_microbatch(activity)

    @contained("weights")
    def _window_begins(self) -> None:
        seen = self._observation
        seen.reference.goes_on(seen.updates.latest)
        seen.updates.microbatch_begins()

    @contained("gradient")
    def _look_at_layers(self, activity: Activity) -> None:
        """Follow what the backward pass of a micro-batch brings to the layers, in a cycle where numbers of the whole model are
        recomputed."""
        seen = self._observation
        self._replaced = self._hooks.begin(seen.trainer.model)
        if activity.sloped_in is not None and not seen.adapter.rows_hidden:
            activity.head = self._head
            activity.scored_in = activity.sloped_in

    def _computes_loss(self, call: Call) -> Iterator[None]:
        activity = self._observation.activity
        if activity is None:
            yield
            return
        activity.loss_inputs = self._observation.adapter.loss_inputs(call.argument("inputs", 1))
        yield
        activity.loss = call.result
        if activity.purpose == "training":
            self._look_at_modes()
            self._measure_loss(activity)

    def _look_at_modes(self) -> None:
        """Compare the modes that the policy's modules had in this forward with those of the first one, and autocast with the
        configuration."""
        if is_compared(self._microbatches // self._per_cycle):
            trainer = self._observation.trainer
            self._modes = self._modes or (of_forwards(trainer), of_autocast(trainer, self._head))
            for watch in self._modes:
                watch.tell(self.recorder)

    def _loss_gets(self, call: Call) -> None:
        activity = self._observation.activity
        if activity is not None:
            inputs = self._observation.adapter.loss_inputs(call.argument("inputs", 1))
            activity.loss_inputs = inputs if inputs is not None else activity.loss_inputs

    def _measure_loss(self, activity: Activity) -> None:
        """Keep, on the device, what this micro-batch's loss was computed from."""
        seen, inputs = self._observation, activity.loss_inputs
        old = None if inputs is None else seen.adapter.old_log_probs(inputs)
        trained = [call for call in activity.calls if call.grad and call.log_probs is not old]
        if inputs is None or not trained:
            self.recorder.cannot("log_ratio", "the loss computes its log-probs where they cannot be seen")
            return
        if len(trained) > 1:
            self.recorder.cannot("log_ratio", f"the loss computes {len(trained)} sets of log-probs with a gradient")
            return
        [call] = trained
        new = call.log_probs
        self._tell_dtype(new)
        activity.detached = ("entropies",) if self._bonus and _is_detached(call.others) else ()
        compared = is_compared(self._microbatches // self._per_cycle)
        kept = self._kept(activity, inputs, call, compared=compared)
        weights = seen.adapter.token_weights(inputs, call, kept)
        if not compared:
            activity.backward = backward = Backward()
            seen.meter.hold(self._microbatches, inputs, new.detach(), old, None, backward, weights=weights)
            _let_go(activity, old)
            return
        terms = None
        if activity.loss is not None and (kept is not None or not seen.adapter.shares_entropies):
            terms = seen.adapter.loss_terms(activity.loss, inputs, call, self._reference_of(activity.calls))
            if terms is not None and terms.settings.beta and terms.reference is None:
                self.recorder.cannot("loss", "the loss has a KL term, and no log-probs of the reference were seen")
                terms = None
        terms = self._with_counted(terms, inputs) if terms is not None else None
        activity.backward = backward = self._backward.follow(activity.loss, new)
        trained_rows = seen.identities.trained(inputs)
        fresh = trained_rows.sampled == seen.updates.version
        entropies = seen.drawing.entropies(call) if fresh else None
        reference = self._first_reference(inputs, activity.calls)
        clean = self._scored_alone(
            activity.scored_in, inputs, call, old if fresh and self._scores_old(old) else None, fresh=fresh
        )
        seen.meter.hold(
            self._microbatches,
            inputs,
            new.detach(),
            old,
            terms,
            backward,
            entropies,
            reference,
            weights=weights,
            sampled=inputs.get(SAMPLED) if fresh else None,
            head=None if activity.head is None else activity.head.take(new),
            replaced=self._replaced,
            whole=True,
            clean=clean,
            weighed=seen.adapter.weighed(inputs),
            drawn_in=trained_rows.rollout if fresh and seen.drawing.are_draws else None,
        )
        _let_go(activity, old)

    def _kept(self, activity: Activity, inputs: dict[str, Any], call: LogProbCall, *, compared: bool) -> Tensor | None:
        """The tokens that the trainer keeps for their entropy, where those of all processes decide which these are; None elsewhere, and
        where it was not seen. In compared micro-batches the record gets what shows, with those of the others, whether it is right."""
        seen, kept, new = self._observation, activity.kept, call.log_probs
        if not seen.adapter.shares_entropies:
            return None
        entropies = call.others[0] if call.others else None
        if kept is None or kept.shape != new.shape or not isinstance(entropies, torch.Tensor):
            self.recorder.cannot("loss", "which tokens the trainer keeps for their entropy was not seen")
            return None
        if compared:
            split = entropy_split(entropies, token_mask(inputs), kept)
            seen.numbers.add_entropy_split(self._microbatches, split)
        return kept

    def _scored_alone(
        self, cycle: int | None, inputs: dict[str, Any], call: LogProbCall, old: Tensor | None, *, fresh: bool
    ) -> dict[str, Any]:
        """Rows of one micro-batch of a cycle, scored again alone."""
        # As many samples later in each compared cycle: what is wrong in some rows is met in some of them.
        if cycle is None:
            return {}
        new, others = call.log_probs.detach(), call.others
        entropies = others[0] if others and isinstance(others[0], torch.Tensor) else None
        computed = Computed(
            policy=new,
            policy_is="the loss",
            old=old,
            reference=self._reference_now(inputs, fresh=fresh),
            entropies=entropies.detach() if entropies is not None and entropies.shape == new.shape else None,
        )
        return self._observation.alone.look(cycle, inputs, computed)

    def _reference_now(self, inputs: dict[str, Any], *, fresh: bool) -> Tensor | None:
        """The reference's log-probs that the loss takes; None where it gave them before the latest update: whether it has changed
        since, by `sync_ref_model` or by mistake, is a question of its own (RLS411)."""
        trainer, activity = self._observation.trainer, self._observation.activity
        if not getattr(trainer, "beta", 0.0) or activity is None:
            return None
        reference = self._reference_of(activity.calls)
        if reference is not None:
            return reference.detach()
        return inputs.get("ref_per_token_logps") if fresh else None

    def _scores_old(self, old: Tensor | None) -> bool:
        """Whether old log-probs are one for each token, and the trainer's own."""
        return old is not None and old.dim() == 2 and self._observation.schedule.old_logprob_source != "engine"

    def _tell_dtype(self, log_probs: Tensor) -> None:
        """Say once in which dtype log-probs are kept: it decides which updates they can show."""
        if log_probs.dtype != self._dtype:
            self._dtype = log_probs.dtype
            if self._dtype != torch.float32:
                dtype = {"log_prob_dtype": str(self._dtype).removeprefix("torch.")}
                self.recorder.emit(FactsRead(at=self.recorder.now(), facts=dtype))

    def _with_counted(self, terms: LossTerms, inputs: dict[str, Any]) -> LossTerms:
        """Give the terms, with the tokens that the masks of the rollout count in the place of those that the loss was given; among
        several processes with the rollout whose tokens those should be."""
        trained = self._observation.identities.trained(inputs)
        given = terms.generation_tokens
        if given is None or trained.samples is None or len(trained.samples) != 1:
            return terms
        if self._observation.adapter.sums_tokens():
            return msgspec.structs.replace(terms, tokens_of=trained.rollout)
        counted = self._observation.counted.get(trained.rollout)
        if counted is None:
            return terms
        return msgspec.structs.replace(terms, generation_tokens=counted.to(given.dtype), given_tokens=given)

    def _emit_microbatch(self, activity: Activity) -> None:
        seen, inputs = self._observation, activity.loss_inputs
        if inputs is None:
            return
        old = seen.adapter.old_log_probs(inputs)
        recomputed = self._recomputed(activity.calls, old) if old is not None else None
        samples = int(inputs["completion_mask"].shape[0])
        trained = seen.identities.trained(inputs)
        if recomputed is not None:
            self.recorder.emit(
                Refresh(
                    at=self.recorder.now(),
                    rollout=trained.rollout,
                    samples=samples,
                    positions=recomputed.log_probs.numel(),
                    policy_version=recomputed.version,
                    in_loss=True,
                )
            )
        old_version: int | None = None
        if recomputed is not None:
            old_version = recomputed.version
        elif old is not None:
            old_version = trained.sampled if seen.schedule.old_logprob_source == "engine" else trained.refreshed
        constants = _ADVANTAGES if old is None else _AND_OLD
        values: tuple[Tensor, ...] = (inputs["advantages"],) if old is None else (inputs["advantages"], old)
        microbatch = MicroBatch(
            at=self.recorder.now(),
            index=self._microbatches,
            samples=samples,
            trained=trained.samples,
            policy_version=seen.updates.version,
            sampled_version=trained.sampled,
            old_version=old_version,
            old_source=self._source(old, recomputed),
            constants=constants,
            with_gradient=tuple([name for name, value in zip(constants, values, strict=True) if value.requires_grad]),
            detached=activity.detached,
        )
        # The last one of a window is followed by its update, with nothing but the clipping of gradients between them.
        if seen.updates.follows_microbatch:
            self.recorder.emit_with_next(microbatch)
        else:
            self.recorder.emit_soon(microbatch)
        self._microbatches += 1
        self.in_epoch += 1
        seen.updates.trained_microbatch()

    def _source(self, old: Tensor | None, recomputed: LogProbCall | None) -> OldSource:
        """Where the old log-probs of a loss come from."""
        if old is None:
            return "detach"
        if recomputed is not None:
            return "recompute"
        return "engine" if self._observation.schedule.old_logprob_source == "engine" else "at_rollout"

    def _recomputed(self, calls: list[LogProbCall], old: Tensor) -> LogProbCall | None:
        """The forward of the policy, inside the loss, that gave its old log-probs; None where they came with it.

        One without a gradient can only serve as that, unless it is the reference that 0.18 computes there with adapters
        switched off.
        """
        for call in calls:
            serves = call.log_probs is old or not (call.grad or self._reference_in_loss())
            if serves and self._observation.is_policy(call.model):
                return call
        return None

    def _first_reference(self, inputs: dict[str, Any], calls: list[LogProbCall]) -> Tensor | None:
        """The reference's log-probs where no update has parted it from the policy; with adapters it may be the base model."""
        trainer = self._observation.trainer
        if (
            self._observation.updates.version
            or not getattr(trainer, "beta", 0.0)
            or hasattr(trainer.model, "peft_config")
        ):
            return None
        reference = self._reference_of(calls)
        return inputs.get("ref_per_token_logps") if reference is None else reference

    def _reference_of(self, calls: list[LogProbCall]) -> Tensor | None:
        """The reference's log-probs, where the loss computes them itself."""
        if self._observation.schedule.reference_source != "in_loss":
            return None
        return next((call.log_probs for call in reversed(calls) if not call.grad), None)

    def _reference_in_loss(self) -> bool:
        seen = self._observation
        return seen.schedule.reference_source == "in_loss" and seen.trainer.ref_model is None


def _let_go(activity: Activity, old: Tensor | None) -> None:
    """Keep no reference to the graph: the framework frees it after the backward pass, as without the audit."""
    activity.loss = None
    activity.calls = [call for call in activity.calls if not call.grad or call.log_probs is old]


def _is_detached(others: tuple[Any, ...]) -> bool:
    """Whether the entropies that came with log-probs are there without a gradient."""
    entropies = others[0] if others else None
    return isinstance(entropies, torch.Tensor) and not entropies.requires_grad
