"""The mini-batches of `train`: which samples they hold, what their loss is computed from, and what arrives in the backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.contained import Contained
from rlstep_hooks.observe.module_hooks import ModuleHookWatch
from rlstep_hooks.observe.surprisal import surprises
from rlstep_hooks.systems.sb3.observe import sampled
from rlstep_hooks.systems.sb3.observe.beside import beside_differ, beside_of
from rlstep_hooks.systems.sb3.observe.loss import MiniBatch, Settings, learning, read_settings
from rlstep_hooks.systems.sb3.observe.padding import Padding, padding_of
from rlstep_hooks.systems.sb3.observe.rate import due_rate, own_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.patches import Patches
    from rlstep_hooks.systems.own_loop.loop import LoopAudit
    from rlstep_hooks.systems.own_loop.recorder import LoopObserver
    from rlstep_hooks.systems.sb3.observe.timesteps import TimestepsWatch


class TrainingWatch:
    """Follows each mini-batch of one call of `learn`, from the buffer to the optimizer's step.

    Args:
        model: Of a class that is followed.
        audit: Takes the mini-batches.
        observer: Takes their numbers.
        timesteps: Knows what the samples were when they were made.
    """

    def __init__(self, model: Any, audit: LoopAudit, observer: LoopObserver, timesteps: TimestepsWatch) -> None:
        self._model = model
        self._audit = audit
        self._observer = observer
        self._timesteps = timesteps
        self._guard = Contained(audit, ("order", "refresh", "log_ratio"))
        self._advantage_guard = Contained(audit, ("advantages",))
        self._timesteps_guard = Contained(audit, ("timesteps",))
        self._loss_guard = Contained(audit, ("formula",))
        self._rate_guard = Contained(audit, ("learning_rate",))
        self._drawn_guard = Contained(audit, ("drawn",))
        self._hooks = ModuleHookWatch(Contained(audit, ("gradient",)))
        self._limited = bool(limit_facts(model))
        """Whether a divergence ends the updates on a rollout."""
        self._rate = own_function(model)
        """The learning-rate schedule where it is a function of the user's that may be called once more."""
        self._drawn_cap: float | None = sampled.facts_of(model).get("surprise_cap")
        """The cut of -log p where actions are tested against the policy's distributions; None where they are not."""
        # Of the latest rollout.
        self._targets: tuple[Tensor, Tensor] | None = None
        self._settings: Settings | None = None
        """The settings of the loss, read when it is first trained."""
        self._is_new = False
        """Whether none of its mini-batches has been trained: the weights are still those that sampled it."""
        self._asked = False
        """Whether the learning-rate schedule was asked for it."""
        # Of the latest mini-batch.
        self._samples: tuple[Any, Any] | None = None
        """Their places in the rollout, and what the buffer gave for them, without padding."""
        self._padding: Padding | None = None
        """Of RecurrentPPO's mini-batch."""
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

    def attach(self, patches: Patches, take_off: Callable[[Callable[[], None]], None]) -> None:
        """Place the hooks.

        Args:
            patches: Takes those on methods.
            take_off: Is told how to take off the others.
        """
        policy = self._model.policy
        # Each mini-batch, with the places of its samples in the rollout (common/buffers.py `get`, 2.7.0 and 2.9.2).
        patches.wrap(self._model.rollout_buffer, "_get_samples", self._around_get_samples)
        # Its log-probs under the current weights.
        patches.wrap(policy, "evaluate_actions", self._around_evaluate_actions)
        # A mini-batch that is trained: `train` calls this right before the backward; target_kl may end it before.
        patches.wrap(policy.optimizer, "zero_grad", self._around_zero_grad)
        # torch's own hook: the backward is over, and the gradients of the mini-batch have arrived.
        take_off(policy.optimizer.register_step_pre_hook(self._before_step).remove)
        take_off(self._hooks.end)

    def rollout_ended(self, targets: tuple[Tensor, Tensor] | None) -> None:
        """The rollout that is trained next is complete.

        Args:
            targets: The critic's targets and values in the buffer, (samples,) by place; None where they are not compared.
        """
        self._targets, self._settings, self._is_new, self._asked = targets, None, True, False

    # Hooks

    def _around_get_samples(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        samples = wrapped(*args, **kwargs)
        if self._rate is not None and not self._asked:
            self._asked = True
            with self._rate_guard:
                self._observer.rate_is_due(due_rate(self._rate, self._model))
        places, unpadded = args[0] if args else kwargs.get("batch_inds"), samples
        with self._guard:
            self._padding = padding_of(instance, len(places))
            unpadded = samples if self._padding is None else self._padding.of_samples(samples)
        self._samples = places, unpadded
        return samples

    def _around_evaluate_actions(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        # A module's backward hooks are taken at its forward.
        with self._loss_guard:
            self._replaced = self._hooks.begin(self._model.policy) if self._observer.compares_whole else []
        try:
            result = wrapped(*args, **kwargs)
        finally:
            self._hooks.end()
        with self._guard:
            values, log_probs, entropies = result
            self._log_probs = self._unpadded(log_probs.detach())
            self._entropies = None if entropies is None else self._unpadded(entropies.detach())
        with self._timesteps_guard:
            # evaluate_actions(obs, actions, ...), of all policies.
            held = None if self._samples is None else self._samples[1]
            given = dict(zip(("obs", "actions", *beside_of(held)), args, strict=False)) | kwargs
            self._altered = self._differing(self._unpadded(given["obs"]), self._unpadded(given["actions"]))
            if self._altered is not None and held is not None:
                self._altered = self._altered + beside_differ(held, given).to(self._altered.device)
        with self._loss_guard:
            self._followed = self._follow(values, log_probs, entropies)
            if log_probs.requires_grad:
                log_probs.register_hook(self._keep_gradient)
        return result

    def _unpadded(self, of: Any) -> Any:
        return of if self._padding is None else self._padding.taken_off(of)

    def _differing(self, observations: Any, actions: Tensor) -> Tensor | None:
        """How far the loss is not that of the observations and actions of its samples."""
        if self._samples is None:
            return None
        with torch.no_grad():
            return self._timesteps.differing(self._samples[0], observations, actions)

    def _keep_gradient(self, gradient: Tensor) -> None:
        """What arrives at the log-probs in the backward: the optimizer is shared with the critic, and may leave the policy alone."""
        self._arrived = gradient.detach().abs().max()

    def _follow(self, values: Tensor, log_probs: Tensor, entropies: Tensor | None) -> MiniBatch | None:
        """The mini-batch of these samples, with hooks on its gradients; None if its loss is not compared."""
        if not self._observer.compares or not log_probs.requires_grad:
            return None
        if self._settings is None:
            self._settings = read_settings(self._model, ratio=self._audit.schedule.old_logprob_source != "none")
        tensors = {"log_probs": log_probs, "values": values}
        if entropies is not None:
            tensors["entropies"] = entropies
        found = MiniBatch(
            settings=self._settings,
            leaves=tuple(tensors),
            epsilon=torch.finfo(log_probs.dtype).eps,
            log_probs=self._unpadded(log_probs.detach()),
            values=self._unpadded(values.detach()),
            padding=self._padding,
        )
        found.follow(tensors)
        return found

    def _around_zero_grad(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        held, self._samples = self._samples, None
        if held is not None:
            places, samples = held
            if self._log_probs is None or len(self._log_probs) == len(places):
                self._trained(places, samples)
            else:
                # Code between the buffer and the loop changed how many there are, and nobody knows which.
                self._followed = None
                self._audit.microbatch(len(self._log_probs))
        result = wrapped(*args, **kwargs)
        if held is not None:
            self._observer.cleared()
        return result

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        followed, self._followed = self._followed, None
        arrived, self._arrived = self._arrived, None
        replaced, self._replaced = self._replaced, []
        with self._loss_guard, torch.no_grad():
            self._observer.add_replaced(replaced)
            if arrived is not None:
                self._observer.add_columns({"log_prob_gradient": arrived})
            if followed is not None and followed.samples is not None:
                self._observer.add_columns(followed.columns(), followed.like)

    # A mini-batch that is trained

    def _trained(self, places: Any, samples: Any) -> None:
        """Hand over a mini-batch with its numbers.

        Args:
            places: (B,) its samples in the rollout.
            samples: What the buffer gave for them.
        """
        self._audit.microbatch(
            indices=places,
            # A2C has no ratio; its one update still begins with the policy that sampled.
            old_logprobs=samples.old_log_prob,
            new_logprobs=self._log_probs,
            advantages=samples.advantages,
            targets=samples.returns,
        )
        self._compare_targets(places, samples)
        self._add_learning(samples)
        self._add_surprise()
        if self._altered is not None:
            self._observer.add_columns({"timesteps_intact": self._altered})
        if self._followed is not None:
            self._followed.samples = samples
            self._add_divergence(samples)

    def _compare_targets(self, places: Any, samples: Any) -> None:
        """The critic's targets of a mini-batch, and where its loss clips them the old values, are those that the rollout came with."""
        if self._targets is None:
            return
        with self._advantage_guard, torch.no_grad():
            targets, values = (of[torch.as_tensor(places, device=of.device)] for of in self._targets)
            differing = (targets != samples.returns).sum()
            if getattr(self._model, "clip_range_vf", None) is not None:
                differing = differing + (values != samples.old_values).sum()
            self._observer.add_columns({"targets_intact": differing})

    def _add_learning(self, samples: Any) -> None:
        """Whether the clip leaves some sample a gradient: an update on a mini-batch without one moves nothing, and is no fault."""
        if self._log_probs is None:
            return
        columns = {"learning": torch.zeros(()), "undecided": torch.ones(())}
        with self._loss_guard, torch.no_grad():
            if self._settings is None:
                self._settings = read_settings(self._model, ratio=self._audit.schedule.old_logprob_source != "none")
            columns = learning(self._settings, self._log_probs, samples)
        self._observer.add_columns(columns)

    def _add_surprise(self) -> None:
        """How surprising the actions of a rollout's first mini-batch are, whose log-probs are those of the weights that sampled it."""
        new, self._is_new = self._is_new, False
        if not new or self._drawn_cap is None or self._entropies is None or self._log_probs is None:
            return
        with self._drawn_guard, torch.no_grad():
            log_probs, entropies = self._log_probs.reshape(1, 1, -1), self._entropies.reshape(1, 1, -1)
            found = surprises(log_probs, entropies, torch.ones_like(log_probs), self._drawn_cap)
            self._observer.add_columns({name: of[0] for name, of in found.items()})

    def _add_divergence(self, samples: Any) -> None:
        """The estimate of the KL divergence that `train` compares with target_kl (ppo/ppo.py 2.7.0 and 2.9.2)."""
        if self._log_probs is None or not self._limited:
            return
        with self._loss_guard, torch.no_grad():
            log_ratio = self._log_probs - samples.old_log_prob
            self._observer.add_columns({"divergence": ((log_ratio.exp() - 1) - log_ratio).mean()})


def limit_facts(model: Any) -> dict[str, Any]:
    """The divergence at which `train` ends the updates on a rollout: 1.5 times target_kl (ppo/ppo.py 2.7.0 and 2.9.2)."""
    target = getattr(model, "target_kl", None)
    return {} if target is None else {"kl_limit": 1.5 * float(target)}
