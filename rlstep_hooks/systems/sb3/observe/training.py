"""The mini-batches of `train`: which samples they hold, what their loss is computed from, and what arrives in the backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.guard import Guard, contained
from rlstep_hooks.observe.module_hooks import ModuleHookWatch
from rlstep_hooks.observe.surprisal import surprisal_sums
from rlstep_hooks.record.events import PassesEnded
from rlstep_hooks.systems.sb3.observe import sampled
from rlstep_hooks.systems.sb3.observe.beside import beside_differ, beside_of
from rlstep_hooks.systems.sb3.observe.loss import MiniBatch, Settings, read_settings
from rlstep_hooks.systems.sb3.observe.padding import Padding, padding_of
from rlstep_hooks.systems.sb3.observe.rate import due_rate, own_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlstep_hooks.observe.guard import GapRecorder
    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.observe.patches import Patches
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.own_loop.loop import LoopAudit
    from rlstep_hooks.systems.own_loop.recorder import LoopObserver
    from rlstep_hooks.systems.sb3.observe.timesteps import TimestepsWatch


class TrainingWatch:
    """Follows each mini-batch of one call of `learn`, from the buffer to the optimizer's step.

    Args:
        model: A model of a class that is followed.
        audit: Takes the mini-batches.
        observer: Takes their numbers.
        timesteps: Knows what the samples were when they were made.
    """

    def __init__(self, model: Any, audit: LoopAudit, observer: LoopObserver, timesteps: TimestepsWatch) -> None:
        self._model = model
        self._audit = audit
        self.recorder: GapRecorder = audit
        """Learns what is not observed."""
        self._observer = observer
        self._timesteps = timesteps
        self._modules = ModuleHookWatch(Guard(audit, ("gradient",)))
        self._rate = own_function(model)
        """The learning-rate schedule where it is a function of the user's that may be called once more."""
        self._drawn_cap: float | None = sampled.facts_of(model).get("surprise_cap")
        """The cut of -log p where actions are tested against the policy's distributions; None where they are not."""
        self._is_limited = bool(limit_facts(model))
        """Whether a divergence ends the updates on a rollout."""
        # Of the latest rollout.
        self._targets: tuple[Tensor, Tensor] | None = None
        self._settings: Settings | None = None
        """The settings of the loss, read when it is first trained."""
        self._handed_over = 0
        """Mini-batches that were trained."""
        self._is_new = False
        """Whether none of its mini-batches has been trained: the weights are still those that sampled it."""
        self._asked = False
        """Whether the learning-rate schedule was asked for it."""
        # Of the latest mini-batch.
        self._samples: tuple[Any, Any] | None = None
        """Places of its samples in the rollout, and what the buffer gave for them, without padding; None once it is trained."""
        self._trained: tuple[Any, Any] | None = None
        """Places and samples of the mini-batch while it is trained; None where nobody knows which samples it has."""
        self._padding: Padding | None = None
        """Padding of RecurrentPPO's mini-batch."""
        self._log_probs: Tensor | None = None
        self._entropies: Tensor | None = None
        self._altered: Tensor | None = None
        """How many of their observations' and actions' numbers are others; None where that is not known."""
        self._followed: MiniBatch | None = None
        """The gradients of the loss."""
        self._arrived: Tensor | None = None
        """The largest gradient at a log-prob."""
        self._replaced: list[tuple[str, Tensor]] = []
        """Modules whose backward hooks replaced gradients."""

    def attach(self, hooks: Hooks, patches: Patches, take_off: Callable[[Callable[[], None]], None]) -> None:
        """Place the hooks.

        Args:
            hooks: Takes those that look at methods.
            patches: Takes that in which `on_fail="raise"` may end training.
            take_off: Is told how to take off the others.
        """
        buffer, policy = self._model.rollout_buffer, self._model.policy
        optimizer, order = policy.optimizer, ("order", "refresh", "log_ratio")
        # Each mini-batch, with the places of its samples in the rollout (common/buffers.py `get`, 2.7.0 and 2.9.2).
        if self._rate is not None:
            hooks.wrap(buffer, "_get_samples", after=self._ask_rate, topics=("learning_rate",))
        hooks.wrap(buffer, "_get_samples", after=self._given, topics=order)
        # Its log-probs under the current weights. A module's backward hooks are taken at its forward.
        hooks.wrap(policy, "evaluate_actions", around=self._look_at_modules, topics=("formula",))
        hooks.wrap(policy, "evaluate_actions", after=self._evaluated, topics=order)
        hooks.wrap(policy, "evaluate_actions", after=self._compare_inputs, topics=("timesteps",))
        hooks.wrap(policy, "evaluate_actions", after=self._follow, topics=("formula",))
        # A mini-batch that is trained: `train` calls this right before the backward; target_kl may end it before. Where it is not
        # called, the backward shows the mini-batch (`_keep_gradient`), and gradients that nobody cleared. A patch and no hook: one
        # would contain the error with which `on_fail="raise"` ends training here.
        patches.wrap(optimizer, "zero_grad", self._around_zero_grad)
        # torch's own hook: the backward is over, and the gradients of the mini-batch have arrived.
        hooks.steps(optimizer, before=self._before_step, topics=("formula",))
        take_off(self._modules.end)

    def rollout_ended(self, targets: tuple[Tensor, Tensor] | None) -> None:
        """The rollout that is trained next is complete.

        Args:
            targets: The critic's targets and values in the buffer, (samples,) by place; None where they are not compared.
        """
        self._targets, self._settings, self._is_new, self._asked = targets, None, True, False
        self._handed_over, self._samples = 0, None

    def passes_ended(self, recorder: Recorder) -> None:
        """Whatever is trained of the latest rollout has been: say at which divergence, where that is less than planned."""
        planned = self._audit.schedule.updates_per_rollout
        if not limit_facts(self._model) or not 0 < self._handed_over < planned:
            return
        self._see_limit(recorder)

    @contained("log_ratio")
    def _see_limit(self, recorder: Recorder) -> None:
        """Record the divergence at which the updates on a rollout ended."""
        with torch.no_grad():
            untrained = self._samples is not None and self._log_probs is not None
            # Training is between two rollouts, where it has waited for the device in any case.
            divergence = float(self._divergence(self._samples[1])) if untrained else None  # type: ignore[index]  # not None
            recorder.emit(PassesEnded(at=recorder.now(), divergence=divergence))

    # Hooks

    def _ask_rate(self, call: Call) -> None:
        if not self._asked:
            self._asked = True
            self._observer.updates.rate_is_due(due_rate(self._rate, self._model))

    def _given(self, call: Call) -> None:
        places = call.argument("batch_inds", 0)
        self._samples = places, call.result
        self._padding = padding_of(call.owner, len(places))
        if self._padding is not None:
            self._samples = places, self._padding.of_samples(call.result)

    def _look_at_modules(self, call: Call) -> Iterator[None]:
        try:
            self._replaced = self._modules.begin(self._model.policy) if self._observer.compares_whole else []
            yield
        finally:
            self._modules.end()

    def _evaluated(self, call: Call) -> None:
        _, log_probs, entropies = call.result
        self._log_probs = self._unpadded(log_probs.detach())
        self._entropies = None if entropies is None else self._unpadded(entropies.detach())

    def _compare_inputs(self, call: Call) -> None:
        """How far the loss is not that of the observations and actions of its samples."""
        self._altered = None
        if self._samples is None:
            return
        places, samples = self._samples
        # evaluate_actions(obs, actions, ...), of all policies.
        given = dict(zip(("obs", "actions", *beside_of(samples)), call.args, strict=False)) | call.kwargs
        with torch.no_grad():
            altered = self._timesteps.differing(places, self._unpadded(given["obs"]), self._unpadded(given["actions"]))
        if altered is not None:
            self._altered = altered + beside_differ(samples, given).to(altered.device)

    def _unpadded(self, of: Any) -> Any:
        return of if self._padding is None else self._padding.taken_off(of)

    def _keep_gradient(self, gradient: Tensor) -> None:
        """What arrives at the log-probs in the backward: the optimizer is shared with the critic, and may leave the policy alone."""
        if self._samples is not None:
            self._hand_over()  # nothing was cleared
        self._arrived = gradient.detach().abs().max()

    def _follow(self, call: Call) -> None:
        """Place hooks on the gradients of the loss, where it is compared, and of the log-probs."""
        self._followed = None
        values, log_probs, entropies = call.result
        if not log_probs.requires_grad:
            return
        if self._observer.compares:
            self._followed = MiniBatch.of(
                self._unpadded(log_probs.detach()),
                self._unpadded(values.detach()),
                entropies,
                settings=self._loss_settings(),
                epsilon=torch.finfo(log_probs.dtype).eps,
            )
            self._followed.follow({"log_probs": log_probs, "values": values, "entropies": entropies}, self._padding)
        log_probs.register_hook(self._keep_gradient)

    def _loss_settings(self) -> Settings:
        if self._settings is None:
            self._settings = read_settings(self._model, ratio=self._audit.schedule.old_logprob_source != "none")
        return self._settings

    def _before_step(self, call: Call) -> None:
        followed, self._followed = self._followed, None
        arrived, self._arrived = self._arrived, None
        replaced, self._replaced = self._replaced, []
        with torch.no_grad():
            self._observer.add_replaced(replaced)
            if arrived is not None:
                self._observer.add_columns({"log_prob_gradient": arrived})
            if followed is not None:
                followed.stepped = True

    # A mini-batch that is trained

    def _around_zero_grad(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        if self._samples is not None:
            self._hand_over()
        return result

    def _hand_over(self) -> None:
        """Record that a mini-batch is trained: its backward comes next, or has begun without anything being cleared."""
        held, self._samples, self._trained = self._samples, None, None
        assert held is not None  # asked by the caller
        places, samples = held
        self._handed_over += 1
        if self._log_probs is None or len(self._log_probs) == len(places):
            self._audit.microbatch(
                indices=places,
                # A2C has no ratio; its one update still begins with the policy that sampled.
                old_logprobs=samples.old_log_prob,
                new_logprobs=self._log_probs,
                advantages=samples.advantages,
                targets=samples.returns,
            )
            self._trained = held
            if self._altered is not None:
                self._observer.add_columns({"timesteps_intact": self._altered})
        else:
            # Code between the buffer and the loop changed how many there are, and nobody knows which.
            self._followed = None
            self._audit.microbatch(len(self._log_probs))
        self._compare_targets()
        self._hold_loss()
        self._add_surprisal()
        if self._is_limited:
            self._add_divergence()
        self._observer.updates.window_begins()

    @contained("advantages")
    def _compare_targets(self) -> None:
        """The critic's targets of a mini-batch, and where its loss clips them the old values, are those that the rollout came with."""
        if self._trained is None or self._targets is None:
            return
        places, samples = self._trained
        with torch.no_grad():
            targets, values = (of[torch.as_tensor(places, device=of.device)] for of in self._targets)
            differing = (targets != samples.returns).sum()
            if getattr(self._model, "clip_range_vf", None) is not None:
                differing = differing + (values != samples.old_values).sum()
            self._observer.add_columns({"targets_intact": differing})

    @contained("formula")
    def _hold_loss(self) -> None:
        """Keep what the loss is computed from. Of each mini-batch it says whether the clip leaves some sample a gradient: an update on
        one without any moves nothing, and is no fault."""
        if self._trained is None or self._log_probs is None:
            return
        self._observer.know(learns="unknown")  # until that is worked up
        if self._followed is None:
            inputs = {"log_probs": self._log_probs}
            loss = MiniBatch(settings=self._loss_settings(), leaves=(), inputs=inputs)
        else:
            loss = self._followed
        loss.add_samples(self._trained[1])
        self._observer.hold_loss(loss)

    @contained("drawn")
    def _add_surprisal(self) -> None:
        """How surprising the actions of a rollout's first mini-batch are, whose log-probs are those of the weights that sampled it."""
        if self._trained is None:
            return
        new, self._is_new = self._is_new, False
        if not new or self._drawn_cap is None or self._entropies is None or self._log_probs is None:
            return
        with torch.no_grad():
            log_probs, entropies = self._log_probs.reshape(1, 1, -1), self._entropies.reshape(1, 1, -1)
            found = surprisal_sums(log_probs, entropies, torch.ones_like(log_probs), self._drawn_cap)
            self._observer.add_columns({name: of[0] for name, of in found.items()})

    @contained("formula")
    def _add_divergence(self) -> None:
        """The estimate of the KL divergence that `train` compares with target_kl (ppo/ppo.py 2.7.0 and 2.9.2)."""
        if self._trained is None or self._followed is None or self._log_probs is None:
            return
        with torch.no_grad():
            self._observer.add_columns({"divergence": self._divergence(self._trained[1])})

    def _divergence(self, samples: Any) -> Tensor:
        """The estimate of the KL divergence in the mini-batch whose log-probs were computed last, ()."""
        assert self._log_probs is not None  # asked by the caller
        log_ratio = self._log_probs - samples.old_log_prob
        return ((log_ratio.exp() - 1) - log_ratio).mean()


def limit_facts(model: Any) -> dict[str, Any]:
    """The divergence at which `train` ends the updates on a rollout: 1.5 times target_kl (ppo/ppo.py 2.7.0 and 2.9.2)."""
    target = getattr(model, "target_kl", None)
    return {} if target is None else {"kl_limit": 1.5 * float(target)}
