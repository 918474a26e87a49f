"""RLS8xx: the scale of the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Place
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import Constant, MicroBatch, MicroBatchValues, Update, UpdateValues

RELATIVE_TOLERANCE = {"float32": 1e-3, "reduced": 5e-2}
"""Relative distance between the loss and the documented formula on the same log-probs that rounding explains.

float32 sums of n terms differ by about n * 6e-8 relative to the sum of absolute values; micro-batches in which the terms
cancel to less than a hundredth of that sum are not compared. Reduced precision has a unit roundoff of 4e-3 (bf16)."""


class LossScale(Rule):
    """The loss is not what its documented formula gives.

    What it checks:
        The loss of each micro-batch, as the trainer returns it, over the documented formula evaluated on the same log-probs,
        advantages and masks, in the first eight cycles of rollouts and every seventh later. Only for the clipped token losses
        without corrections (no engine, sequence-level ratio, entropy or off-policy mask), and where the terms do not cancel.

    Why it matters:
        A loss normalised by the wrong window scales every gradient by a constant: with clipping of the gradient norm it is
        hardly visible, without it the learning rate is off by that factor (trl PR#6024: GA / steps_per_generation).

    What to do:
        Use a release whose normaliser is right for your accumulation, or make both periods equal.
    """

    code = "RLS801"
    title = "Loss is not that of its formula"
    severity = "warning"
    topics = ("formula", "loss", "log_ratio")
    nothing_seen = "no micro-batch had a loss that the formula covers, with terms that do not cancel"

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch, place: Place) -> Finding | None:
        """Compare the ratio of both losses with 1."""
        if values.loss_ratio is None:
            return None
        self.checks += 1
        if abs(values.loss_ratio - 1) <= RELATIVE_TOLERANCE[self.progress.precision]:
            return None
        return self.fail(
            expected="the loss of the documented formula",
            observed=f"{values.loss_ratio:.4g} times that",
            where=self.progress.where_at(place, event),
            why="every gradient of this run is scaled by this factor",
            fix="compare the loss normaliser with the accumulation window",
        )


_CONSTANTS: dict[Constant, tuple[str, str]] = {
    "old_logprobs": ("old log-probs", "the gradient of the ratio is not that of the policy alone"),
    "advantages": ("advantages", "the policy's loss also trains whatever computed them, usually the critic"),
    "targets": (
        "targets of the critic",
        "the critic's values are moved towards their targets and the targets towards the values",
    ),
}


class ConstantWithGradient(Rule):
    """A constant of the loss carries a gradient.

    What it checks:
        Old log-probs, advantages and targets of the critic, as the loss gets them: none of them requires a gradient.
        Exact, and read from torch itself.

    Why it matters:
        PPO's loss takes all three as given. A critic whose target is not detached follows the gradient of its own
        target (residual instead of temporal-difference learning). Old log-probs that are not detached cancel the
        gradient of the ratio. Nothing fails: the loss falls, and the return rises late or not at all.

    Example:
        ERROR RLS802 Gradient through a constant of the loss · data epoch 0, rollout
        0, update 0, micro-batch 0 · 16 times, in rollouts 0 to 3
          expected  advantages without a gradient
          observed  advantages that require a gradient
          why       the policy's loss also trains whatever computed them, usually
                    the critic
          fix       compute the advantages under torch.no_grad(), or detach() them
                    before the loss

    What to do:
        Compute them under `torch.no_grad()`, or `detach()` them before the loss. In a loop of your own, hand the audit
        the very tensors that the loss gets.

    Known limits:
        - It is seen in TRL's GRPO and RLOO trainers, in OpenRLHF, in Stable-Baselines3, and in loops of your own that
          hand over these tensors. In verl and in TRL's PPOTrainer it is not evaluated.
        - It sees whether a tensor requires a gradient, not what it was computed from.

    Sources:
        - https://arxiv.org/abs/1707.06347: what PPO's loss takes as given
        - http://incompleteideas.net/book/the-book-2nd.html: semi-gradient and residual-gradient methods, chapter 11
        - https://github.com/meta-pytorch/torchforge/pull/571: log-probs minus their detached selves
    """

    code = "RLS802"
    title = "Gradient through a constant of the loss"
    topics = ("loss",)
    nothing_seen = "no micro-batch showed its old log-probs, advantages or targets"

    def microbatch(self, event: MicroBatch) -> Finding | None:
        """Look at the constants of the loss, the policy's or the critic's."""
        self.checks += len(event.constants)
        if not event.with_gradient:
            return None
        found = [self._report(event, constant) for constant in event.with_gradient]
        return next((finding for finding in found if finding is not None), None)

    critic_microbatch = microbatch

    def _report(self, event: MicroBatch, constant: Constant) -> Finding | None:
        name, why = _CONSTANTS[constant]
        return self.fail(
            expected=f"{name} without a gradient",
            observed=f"{name} that require a gradient",
            where=self.progress.where(microbatch=event.index),
            why=why,
            fix=f"compute the {name} under torch.no_grad(), or detach() them before the loss",
            variant=constant,
        )


class GradientsNotCleared(Rule):
    """Gradients of the update before were still there when the next one began.

    What it checks:
        Where the observer sees gradients being cleared before the first micro-batch of an update: the gradients of the
        probed weights at that moment are all 0, or there are none.

    Why it matters:
        Without `zero_grad` every update steps along the sum of all gradients so far. Loss and ratio look right, the
        gradient norm grows, and clipping hides even that.

    Example:
        ERROR RLS803 Gradients not cleared · data epoch 0, rollout 0, update 1
          expected  no gradient before the first backward of an update
          observed  a gradient in 7 of 9 probed weights
          why       the update steps along its own gradient and those of updates
                    before it
          fix       clear the gradients before each update (optimizer.zero_grad),
                    before its first backward

    What to do:
        Clear gradients before the first backward of each update, and once only.

    Known limits:
        - Only verl's trainers show when gradients are cleared.
        - A probe reads up to 256 weights of each of up to four tensors.

    Sources:
        - https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html: what zero_grad does
        - https://github.com/huggingface/trl/issues/583: the cadence of zero_grad
    """

    code = "RLS803"
    title = "Gradients not cleared"
    topics = ("weights",)
    nothing_seen = "the observer does not see when gradients are cleared"

    def update_values(self, values: UpdateValues, event: Update, place: Place) -> Finding | None:
        """Look at the gradients before the first backward."""
        if values.left_over is None:
            return None
        self.checks += 1
        if not values.left_over:
            return None
        return self.fail(
            expected="no gradient before the first backward of an update",
            observed=f"a gradient in {values.left_over} of {values.probed} probed weights",
            where=self.progress.where_at(place, event),
            why="the update steps along its own gradient and those of updates before it",
            fix="clear the gradients before each update (optimizer.zero_grad), before its first backward",
        )
