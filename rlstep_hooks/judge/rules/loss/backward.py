"""The loss on its way to the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rlstep_hooks.judge.rules.certain import ValueRule
from rlstep_hooks.judge.rules.loss.formula import RELATIVE_TOLERANCE, ROUNDINGS, loss_distance
from rlstep_hooks.record.values import SLOPE_EXPLAINED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.record.events import MicroBatch, MicroBatchValues, Rollout, RolloutValues


BELOW_LOG_PROBS = {"float32": 0.02, "reduced": 0.1}
"""Distance of a gradient at the output of the layers that rounding of the last layer explains, over the size of the largest."""
CERTAIN_BELOW = 0.25
"""Distance that no rounding explains."""


class BackwardScale(ValueRule):
    """What the loss teaches is not its gradient: it was multiplied on its way to the backward pass, or a token gets another one.

    What it checks:
        The gradient that arrives at the loss which the trainer's loss method returned: it is the product of everything that the
        loss was multiplied by afterwards. It has to be 1, or 1 over the micro-batches of the window where the framework divides after
        the loss method. And the gradient that arrives at each log-prob, or value of the critic, against that of the documented loss,
        because a loss can have its value and teach something else: advantages of a group add up to 0, with any token left out. In
        TRL also the gradient at the output of the model's layers, which is that at the log-probs times their derivative, and with an
        entropy bonus that at the entropies times theirs: for 16 tokens of one micro-batch of a cycle. In each micro-batch of TRL,
        whether a gradient flows into the entropies of a bonus at all.

    Why it matters:
        Such a factor scales every gradient. The loss that is logged is right, and clipping of the gradient norm hides the rest.

    Example:
        ERROR RLS805 Gradient is not that of the loss · data epoch 0, rollout 1,
        update 2, micro-batch 4
          expected  the loss as the trainer computed it, over the divisor that the
                    framework documents
          observed  0.25 times that
          why       every gradient of this micro-batch is scaled by this factor, and
                    no metric shows it
          fix       look for a second division by the accumulation, or for code
                    between the loss and its backward

    What to do:
        Look for a second division by the accumulation (accelerate's own `gradient_accumulation_steps`), a wrapped `backward`, or a
        factor between loss and backward. Where single tokens get another gradient: for `detach()` and hooks in the loss and in the
        method that computes log-probs, and for a fused kernel with a backward of its own. In verl and OpenRLHF the finding says what is
        detached in the formula, or which of its operations is another, where one such mistake gives the gradient of every token.

    Known limits:
        - A token whose ratio is at an end of the clip to rounding, or whose entropy is at the threshold of those that are
          trained, is not compared: either gradient is right.
        - The gradient at the layers is compared where a plain last layer and log-softmax give the same log-probs, so not with
          adapters on that layer, capped logits, an entropy bonus beside a choice of tokens by their entropy, or a last layer that is
          gathered for its own forward alone (ZeRO-3).

    Sources:
        - https://github.com/modelscope/ms-swift/issues/10117: a loss divided once more by the accumulation
        - https://github.com/huggingface/transformers/pull/35808: who divides the loss by the accumulation
    """

    code = "RLS805"
    title = "Gradient is not that of the loss"
    severity = "error"
    several = 1
    topics = ("loss", "log_ratio")
    nothing_seen = "no loss was followed into its backward pass"
    optional = True
    needs = (
        "microbatch_values.backward_ratio",
        "microbatch_values.gradient_gap",
        "microbatch_values.head_gap",
        "critic_microbatch_values.backward_ratio",
        "critic_microbatch_values.gradient_gap",
        "critic_microbatch_values.head_gap",
    )

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Compare the factor with 1, and the gradients of single tokens with those of the formula."""
        self.checks += (values.gradient_gap is not None) + (values.head_gap is not None)
        ratio = values.backward_ratio
        if ratio is None or self.holds(abs(ratio - 1) <= RELATIVE_TOLERANCE[self.progress.precision]):
            self._compare_gradient(values, event)
            return
        self.fail(
            expected="the loss as the trainer computed it, over the divisor that the framework documents",
            observed=(f"{ratio:.4g} times that" if ratio else "no gradient of it")
            + ("" if event.role == "policy" else ", for the critic"),
            why="every gradient of this micro-batch is scaled by this factor, and no metric shows it",
            fix="look for a second division by the accumulation, or for code between the loss and its backward",
            variant="" if event.role == "policy" else "critic",
        )

    critic_microbatch_values = microbatch_values

    def microbatch(self, event: MicroBatch) -> None:
        """Look at what the loss is configured to teach and does not."""
        for name in event.detached:
            self.fail(
                expected=f"a gradient of the loss at the {name}, which a bonus is to teach",
                observed=f"{name} without a gradient",
                why="the bonus is in the loss that is logged, and teaches the model nothing",
                fix=f"look for detach() or torch.no_grad() where the {name} are computed",
                variant=name,
            )

    def _compare_gradient(self, values: MicroBatchValues, event: MicroBatch) -> None:
        gap = values.gradient_gap
        if gap is None or gap <= ROUNDINGS:
            self._compare_below(values)
            return
        of = "log-probs or values" if event.role == "policy" else "values of the critic"
        self.fail_by(
            gap / ROUNDINGS,
            expected=f"the gradient of the documented loss at the {of}",
            observed=f"another at some token, {gap / ROUNDINGS:.3g} times as far as rounding explains",
            why=self._why(values),
            fix=f"look for detach(), torch.no_grad() and hooks between the {of} and the loss",
            variant=f"gradient {event.role}",
        )

    def _why(self, values: MicroBatchValues) -> str:
        """What is known of the value of the loss whose gradient is another."""
        distance = loss_distance(values, self.progress.precision)
        if distance is None:
            return "what the loss teaches is that of another loss; its value was not compared"
        if distance > 1:
            return "the loss itself is not that of its formula (RLS801), and its gradient is that of another loss too"
        if values.loss_like:
            return f"the loss has its value, and its gradient is {values.loss_like}"
        return "the loss has its value, and what it teaches is that of another loss"

    def _compare_below(self, values: MicroBatchValues) -> None:
        gap, tolerance = values.head_gap, BELOW_LOG_PROBS[self.progress.precision]
        if gap is None or gap <= tolerance:
            return
        self.fail_by(
            gap / tolerance,
            beyond=CERTAIN_BELOW / tolerance,
            expected="the gradient of the log-probs, and of an entropy bonus, at the output of the model's layers",
            observed=f"another for some token, {gap:.2g} of its size away",
            why="the log-probs are right, and what they, or entropies beside them, teach the model is not their gradient",
            fix="look for detach() in the method that computes log-probs and entropies, for hooks on logits, and for a fused "
            "kernel's backward",
            variant="below the log-probs",
        )


class LayersBackwardOtherwise(ValueRule):
    """The backward pass through the layers does not give the slope of what their forward computes.

    What it checks:
        The policy's layers at one row of a rollout, after the rollout. Its embeddings are moved a little to either side, in two
        directions drawn at random, and the layers' outputs say how they follow. A backward pass from the outputs to the embeddings has
        to give the same slopes, within 0.003 of the gradient's size, which is rounding. This takes about a hundredth of a cycle. Where
        it gives others, the steps may have been too long: six directions of a longer row are looked at then, steps of two lengths are
        compared, and what they differ by is doubt. Beyond 0.003 and this doubt the backward pass is wrong; ten times as much is an
        error. Then the same is measured from each layer on, which names the last one with another backward pass.

        With FSDP2 and ZeRO-3, and in verl, 9 copies of the shortest row of a micro-batch go beside training's own forward, 8 of them
        moved, in two directions by steps of two lengths. The gradients are those of training's own backward pass. Since there is no
        second look, both lengths have to tell the same within 0.005, and the backward pass something that is three times as far away as
        rounding and doubt explain. What that shows is told with the next rollout, in verl with its own, and no layer is named.

    Why it matters:
        Loss, log-probs and every metric are those of the right forward, and all layers below learn something else. No other number of
        a run shows it.

    Example:
        ERROR RLS813 Backward pass of the layers is not their slope · data epoch 0,
        rollout 1, update 2
          expected  the slopes that small steps of the embeddings show, within 0.003
                    of the gradient's size
          observed  slopes that are 0.16 of its size away
          why       the backward pass of layers.1 is not that of its forward
          fix       look in layers.1 for detach(), torch.no_grad(), a kernel or an
                    autograd function with a backward of its own

    What to do:
        Look in the named layer for `detach()` and `torch.no_grad()`, for a fused kernel or a `torch.autograd.Function` with a backward
        of its own, and for a checkpoint that computes another forward again. `torch.autograd.gradcheck` tries a function by itself.

    Known limits:
        - With FSDP2 and ZeRO-3 rows of up to 256 tokens with an advantage, and embeddings that are trained: not with adapters alone, a
          loss of the routers, or a loss that teaches padding.
        - The gradients of the weights themselves are not compared, nor those of the embeddings: a module that gives its input the
          right gradient and its weights a wrong one is not seen.
        - A function whose backward is another on purpose, such as a straight-through estimator, is named too.

    Sources:
        - https://docs.pytorch.org/docs/stable/notes/gradcheck.html: numerical slopes, and those in a direction drawn at random
        - https://docs.pytorch.org/docs/stable/notes/extending.html: functions that bring a backward of their own
    """

    code = "RLS813"
    title = "Backward pass of the layers is not their slope"
    several = 1
    beyond: ClassVar[Mapping[str, float]] = {"float32": 10, "reduced": 10}
    topics = ("layer_slope",)
    nothing_seen = "no slope of the layers was measured"
    optional = True
    needs = ("rollout_values.slope_gap",)

    def note(self) -> str:
        """Say in how many rollouts the slopes of layers were looked at."""
        rollouts = self.progress.own_rollouts
        return f"with the layers' slopes in {self.checks} of {rollouts} rollouts" if self.checks < rollouts else ""

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Compare the slopes that the backward pass gives with those that the outputs show."""
        gap, doubt = values.slope_gap, values.slope_doubt
        if gap is None or doubt is None:
            return
        if self.holds(gap <= SLOPE_EXPLAINED + doubt):
            return
        layer = values.slope_layer
        self.fail_by(
            gap / (SLOPE_EXPLAINED + doubt),
            expected=f"the slopes that small steps of the embeddings show, within {SLOPE_EXPLAINED + doubt:.1g} of the gradient's size",
            observed=f"slopes that are {gap:.2g} of its size away",
            why=f"the backward pass of {layer} is not that of its forward"
            if layer
            else "the backward pass of some module between embeddings and head is not that of its forward",
            fix=f"look in {layer or 'the layers'} for detach(), torch.no_grad(), a kernel or an autograd function with a backward of "
            "its own",
            variant=layer,
        )
