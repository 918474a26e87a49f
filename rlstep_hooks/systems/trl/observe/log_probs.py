"""The hook on the trainer's log-prob method: it gives no event, but tells rollouts and losses which log-probs were computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.systems.trl.observe.calls import LogProbCall
from rlstep_hooks.systems.trl.observe.layer_slopes import TOPIC as SLOPE
from rlstep_hooks.systems.trl.observe.scored_alone import TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.head_gradient import HeadWatch
    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.systems.trl.observe.observation import Observation


class LogProbHooks:
    """Adds each call to the rollout or the loss that it is made in."""

    def __init__(self, observation: Observation) -> None:
        self.recorder = observation.recorder
        """Learns what is not observed."""
        self._observation = observation

    def attach(self, hooks: Hooks) -> None:
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
                if self._observation.adapter.samples_with_engine():
                    hooks.wrap(trainer, name, around=self._keep_logits, topics=("engine_distance",))
                hooks.wrap(trainer, name, around=self._computes, topics=("log_ratio", "refresh"))
                if self._observation.alone.looks_beside:
                    hooks.wrap(trainer, name, around=self._scores_beside, topics=TOPICS)
                if self._observation.slopes.looks_beside:
                    hooks.wrap(trainer, name, around=self._slopes_beside, topics=(SLOPE,))

    def _computes(self, call: Call) -> Iterator[None]:
        seen = self._observation
        watch = seen.generation.forwards if seen.generation is not None else None
        if watch is not None:
            watch.paused = True  # it looks for forwards of generation, not of log-prob passes
        head = None if seen.activity is None else seen.activity.head
        try:
            if head is not None and torch.is_grad_enabled():
                self._follow_gradients(call, head)
            yield
        finally:
            if watch is not None:
                watch.paused = False
            if head is not None:
                head.end()
        calls = self._calls()
        if calls is not None:
            log_probs, *others = call.result if isinstance(call.result, tuple) else (call.result,)
            version, grad = seen.updates.version, log_probs.requires_grad
            calls.append(
                LogProbCall(call.argument("model", 0), log_probs, tuple(others) if grad else (), version, grad)
            )

    def _keep_logits(self, call: Call) -> Iterator[None]:
        """Keep logits of a rollout's first pass, which is the policy's; the reference's comes after it."""
        generation = self._observation.generation
        if generation is None or generation.logits is None or generation.calls:
            yield
            return
        try:
            model, given = self._given(call)
            generation.logits.begin(model, given["input_ids"], int(given["logits_to_keep"]))
            yield
        finally:
            generation.logits.end()

    @contained("gradient")
    def _follow_gradients(self, call: Call, head: HeadWatch) -> None:
        """Follow gradients of the loss's own log-probs."""
        model, given = self._given(call)
        head.begin(model, given["input_ids"], given["attention_mask"], int(given["logits_to_keep"]))

    def _scores_beside(self, call: Call) -> Iterator[None]:
        """Let rows go beside the forward of the loss, or of the reference, where nobody may make a forward of them alone."""
        reference = self._observation.alone.reference_beside
        if reference is not None and self._observation.generation is not None:
            with reference.beside(call.argument("model", 0)):
                yield
            return
        inputs, activity = self._trained(), self._observation.activity
        cycle = None if activity is None else activity.scored_in
        if inputs is None or cycle is None:
            yield
            return
        with self._observation.alone.beside(cycle, inputs):
            yield

    def _slopes_beside(self, call: Call) -> Iterator[None]:
        """Follow the loss's own passes through the layers, where nobody may make others."""
        inputs, activity = self._trained(), self._observation.activity
        cycle = None if activity is None else activity.sloped_in
        if inputs is None or cycle is None:
            yield
            return
        with self._observation.slopes.beside(cycle, inputs):
            yield

    def _trained(self) -> dict[str, Any] | None:
        """The batch of the loss whose log-probs are computed with a gradient; None where they are not."""
        seen = self._observation
        if seen.generation is not None or seen.activity is None or not torch.is_grad_enabled():
            return None
        return seen.activity.loss_inputs

    def _given(self, call: Call) -> tuple[Any, dict[str, Any]]:
        """The model, unwrapped, and the arguments by their names, whose order is the same in grpo_trainer.py 0.16.0 to 1.16.0."""
        names = ("model", "input_ids", "attention_mask", "logits_to_keep")
        given = dict(zip(names, call.args, strict=False)) | call.kwargs
        return self._observation.trainer.accelerator.unwrap_model(given["model"]), given

    def _calls(self) -> list[LogProbCall] | None:
        """The calls of the rollout or the loss that is computed now; None outside both."""
        seen = self._observation
        if seen.generation is not None:
            return seen.generation.calls
        if seen.activity is not None and seen.activity.loss_inputs is not None:
            return seen.activity.calls
        return None
