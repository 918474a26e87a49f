"""The hook on the trainer's log-prob method: it gives no event, but tells rollouts and losses which log-probs were computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.contained import Contained
from rlstep_hooks.systems.trl.observe.calls import LogProbCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.engine_distance import KeptLogits
    from rlstep_hooks.observe.head_gradient import HeadWatch
    from rlstep_hooks.observe.patches import Patches
    from rlstep_hooks.systems.trl.observe.observation import Observation


class LogProbHooks:
    """Adds each call to the rollout or the loss that it is made in."""

    def __init__(self, observation: Observation) -> None:
        self._observation = observation
        self._guard = Contained(observation.recorder, ("log_ratio", "refresh"))
        self._distance_guard = Contained(observation.recorder, ("engine_distance",))
        self._head_guard = Contained(observation.recorder, ("gradient",))

    def attach(self, patches: Patches) -> None:
        """Place the hook."""
        trainer = self._observation.trainer
        # The policy's log-probs: in the rollout they become the old ones, in the loss the new ones. Renamed in 0.20.
        # DPPO's loss has a method of its own for its top-k divergences (dppo_trainer.py 1.0.0).
        for name in (
            "_get_per_token_logps",
            "_get_per_token_logps_and_entropies",
            "_get_per_token_logps_with_topk",
        ):
            if hasattr(trainer, name):
                patches.wrap(trainer, name, self._around_log_probs)

    def _around_log_probs(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        seen = self._observation
        watch = seen.generation.forwards if seen.generation is not None else None
        kept, head = self._begin_to_keep(args, kwargs), self._begin_to_follow(args, kwargs)
        if watch is not None:
            watch.paused = True  # it looks for forwards of generation, not of log-prob passes
        try:
            result = wrapped(*args, **kwargs)
        finally:
            if watch is not None:
                watch.paused = False
            for placed in (kept, head):
                if placed is not None:
                    placed.end()
        calls = self._calls()
        if seen.active and calls is not None:
            with self._guard:
                log_probs, *others = result if isinstance(result, tuple) else (result,)
                model = args[0] if args else kwargs["model"]
                version, grad = seen.updates.version, log_probs.requires_grad
                calls.append(LogProbCall(model, log_probs, tuple(others) if grad else (), version, grad))
        return result

    def _begin_to_keep(self, args: Any, kwargs: Any) -> KeptLogits | None:
        """Keep logits of a rollout's first pass, which is the policy's; the reference's comes after it."""
        generation = self._observation.generation
        if generation is None or generation.logits is None or generation.calls:
            return None
        with self._distance_guard:
            model, given = self._given(args, kwargs)
            generation.logits.begin(model, given["input_ids"], int(given["logits_to_keep"]))
        return generation.logits

    def _begin_to_follow(self, args: Any, kwargs: Any) -> HeadWatch | None:
        """Follow gradients of the loss's own log-probs."""
        activity = self._observation.activity
        if activity is None or activity.head is None or not torch.is_grad_enabled():
            return None
        with self._head_guard:
            model, given = self._given(args, kwargs)
            activity.head.begin(model, given["input_ids"], given["attention_mask"], int(given["logits_to_keep"]))
        return activity.head

    def _given(self, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """The model, unwrapped, and the arguments by their names, whose order is the same in grpo_trainer.py 0.16.0 to 1.16.0."""
        names = ("model", "input_ids", "attention_mask", "logits_to_keep")
        given = dict(zip(names, args, strict=False)) | kwargs
        return self._observation.trainer.accelerator.unwrap_model(given["model"]), given

    def _calls(self) -> list[LogProbCall] | None:
        """Those of the rollout or the loss that is computed now; None outside both."""
        seen = self._observation
        if seen.generation is not None:
            return seen.generation.calls
        if seen.activity is not None and seen.activity.loss_inputs is not None:
            return seen.activity.calls
        return None
