"""Hooks on what a PPOTrainer's loop calls between the scores and the gradients, so that its arithmetic can be done again.

`train` is one method that keeps its numbers in local variables. What goes into them comes from models, and the whitening of advantages
is a function of its module, so both can be seen. Verified by real training: 0.16.1, 0.18.2.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.systems.trl_ppo.observe.loss import FollowedLoss
from rlstep_hooks.systems.trl_ppo.observe.rollout import Documented, Sampled, Settings, Whitening

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.observe.numbers import NumberCollector
    from rlstep_hooks.systems.trl_ppo.observe.measure import RatioMeter

_MODULE = "trl.trainer.ppo_trainer"


class ArithmeticWatch:
    """Compares the advantages of each rollout, and the loss of each micro-batch, with those of the documentation.

    Args:
        trainer: The trainer.
        recorder: Learns what cannot be compared.
        meter: Knows the samples of the rollout and of the micro-batch.
        numbers: Takes what was found of a rollout.
        measured: Whether the current rollout is compared, and nothing else is being sampled.
    """

    def __init__(
        self,
        trainer: Any,
        recorder: Recorder,
        meter: RatioMeter,
        numbers: NumberCollector,
        *,
        measured: Callable[[], bool],
    ) -> None:
        self._trainer = trainer
        self.recorder = recorder
        """Learns what cannot be compared."""
        self._meter = meter
        self._numbers = numbers
        self._measured = measured
        self._on = False
        self._references: list[Tensor] = []
        self._values: list[Tensor] = []
        self._scores: list[Tensor] = []
        self._whitening: Whitening | None = None
        self._documented: Documented | None = None
        self._used: tuple[Tensor, Tensor] | None = None
        """Advantages and returns of the rollout, as they are trained, each (N, T)."""
        self._followed: FollowedLoss | None = None

    def attach(self, hooks: Hooks) -> None:
        """Place the hooks, or say why there are none."""
        reason = self._hidden()
        if reason:
            self.recorder.cannot("advantages", reason)
            self.recorder.cannot("formula", reason)
            return
        trainer = self._trainer
        self._on = True
        value_model = trainer.accelerator.unwrap_model(trainer.model).value_model
        # Values and scores of a rollout's responses (trl/trainer/utils.py `get_reward`), and the logits of the reference.
        topics = ("advantages", "formula")
        hooks.forward(value_model.score, after=self._valued, topics=topics)
        hooks.forward(trainer.reward_model.score, after=self._scored, topics=topics)
        if trainer.ref_model is None:
            self.recorder.cannot("advantages", "with adapters the reference is the policy itself")
        else:
            hooks.forward(trainer.ref_model, after=self._referred, topics=topics)
        # Advantages before and after they are whitened. The loop looks the function up in its module, by this name since 0.16.
        hooks.wrap(sys.modules[_MODULE], "masked_whiten", after=self._whitened, topics=topics)

    @property
    def of_another_loop(self) -> bool:
        """Whether a subclass trains in a loop that was not read."""
        return bool(type(self._trainer).train.__module__ != _MODULE)

    def _hidden(self) -> str:
        """Why nothing can be compared; empty where it can."""
        trainer = self._trainer
        if self.of_another_loop:
            return f"{type(trainer).__name__} has a training loop of its own"
        if getattr(trainer.accelerator, "scaler", None) is not None:
            return "a gradient scaler multiplies the loss by factors of its own"
        if getattr(trainer, "is_deepspeed_enabled", False) or getattr(trainer, "is_fsdp_enabled", False):
            return "gradients and models are sharded"
        value_model = trainer.accelerator.unwrap_model(trainer.model).value_model
        parts = [getattr(model, "score", None) for model in (value_model, trainer.reward_model)]
        if None in parts or parts[0] is parts[1]:
            return "reward and value model have no parts of their own that give scores"
        return ""

    # A rollout

    def begin(self) -> None:
        """The first samples of a rollout were generated."""
        self._references, self._values, self._scores = [], [], []
        self._whitening = self._documented = self._used = self._followed = None

    def _of_rollout(self) -> bool:
        return self._on and not torch.is_grad_enabled() and self._measured()

    def _valued(self, call: Call) -> None:
        if self._of_rollout():
            self._values.append(call.result.detach().squeeze(-1))

    def _scored(self, call: Call) -> None:
        if self._of_rollout():
            self._scores.append(call.result.detach().squeeze(-1))

    def _referred(self, call: Call) -> None:
        if self._of_rollout():  # at once: the loop writes to these logits
            self._references.append(self._meter.log_probs_of(call.kwargs["input_ids"], call.result.logits))

    def _whitened(self, call: Call) -> None:
        if self._of_rollout() and call.argument("shift_mean", 2, default=True):  # else it whitens rewards
            values, mask = call.argument("values", 0), call.argument("mask", 1)
            self._whitening = Whitening(values.detach(), mask.detach(), call.result.detach())

    def rollout_trained(self, index: int) -> None:
        """The first micro-batch of a rollout begins.

        Args:
            index: The rollout.
        """
        if self._on and self._measured():
            with torch.no_grad():
                self._compare_rollout(index)

    @contained("advantages", "formula")
    def _compare_rollout(self, index: int) -> None:
        """Compute the advantages of a rollout as documented, and compare them."""
        found = self._whitening
        if found is None:
            self.recorder.cannot("advantages", "the loop was not seen to whiten its advantages")
            self.recorder.cannot("formula", "the loop was not seen to whiten its advantages")
            return
        responses, old, counted = self._meter.rollout
        width = responses.shape[1]
        values = torch.cat([of[:, -width - 1 : -1] for of in self._values])
        sampled = Sampled(
            responses=responses,
            old=old,
            counted=counted,
            references=torch.cat(self._references) if self._references else torch.zeros_like(old),
            values=values,
            scores=torch.cat(self._scores),
        )
        shapes = {of.shape for of in (old, sampled.references, values, found.given, found.mask, found.gave)}
        if len(shapes) > 1 or len(sampled.scores) != len(old):
            raise ValueError(f"values of a rollout have several shapes: {sorted(map(tuple, shapes))}")
        documented = self._documented = Documented(Settings.of(self._trainer), sampled)
        self._used = torch.where(counted, found.gave, 0.0), found.given + documented.values
        if not self._references:
            if self._trainer.ref_model is not None:
                self.recorder.cannot("advantages", "the reference model was not asked for a rollout")
        else:
            self._numbers.add_estimate(
                index, documented.off(found), documented.masks_wrong(found), lambda: documented.fit(found)
            )

    # A micro-batch

    def follow(self, logits: Tensor, values: Tensor) -> None:
        """The policy and the value model have been asked about a micro-batch, whose log-probs the meter has measured.

        Args:
            logits: (B, L, V), with their graph.
            values: (B, L, 1), with theirs.
        """
        self._followed = None
        matched = self._meter.matched
        if self._documented is None or self._used is None or matched is None or not logits.requires_grad:
            return
        if logits.dtype != torch.float32:
            self.recorder.cannot("formula", f"the loss is computed in {logits.dtype}")
            return
        of, place, width = self._documented, matched.place, matched.tokens.shape[1]
        advantages, returns = self._used
        inputs = {
            "log_probs": matched.new,
            "old": of.sampled.old[place],
            "advantages": advantages[place],
            "counted": of.sampled.counted[place],
            "values": values.detach()[:, -width - 1 : -1, 0],
            "old_values": of.values[place],
            "returns": returns[place],
            "valued": of.valued[place],
            "known": matched.known.reshape(1, 1),
        }
        self._followed = FollowedLoss(
            settings=of.settings,
            temperature=self._meter.temperature,
            inputs=inputs,
            divisor=self._trainer.accelerator.gradient_accumulation_steps,
        )
        self._followed.follow(logits, values, matched.tokens)

    def backward_begins(self, loss: Any) -> None:
        """The loop hands a loss to its backward pass."""
        if self._followed is not None and hasattr(loss, "register_hook") and loss.requires_grad:
            self._followed.follow_loss(loss)

    def backward_is_over(self) -> None:
        """Gradients have arrived."""
        followed, self._followed = self._followed, None
        if followed is not None and "loss" in followed.arrived:
            self._meter.add(followed)
