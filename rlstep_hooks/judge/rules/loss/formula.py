"""RLS8xx: the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rlstep_hooks.judge.effects import LOSS, here
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.rules.carried import carried
from rlstep_hooks.judge.rules.certain import BEYOND_ROUNDING, ValueRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.judge.rules.precision import Precision
    from rlstep_hooks.record.events import Carried, Constant, MicroBatch, MicroBatchValues, Update, UpdateValues

RELATIVE_TOLERANCE = {"float32": 1e-3, "reduced": 5e-2}
"""Relative distance between the loss and the documented formula on the same log-probs that rounding explains.

float32 sums of n terms differ by about n * 6e-8 relative to the sum of absolute values; micro-batches in which the terms
cancel to less than a hundredth of that sum are not compared. Reduced precision has a unit roundoff of 4e-3 (bf16)."""

ROUNDINGS = 32
"""Distance in roundings that the order of sums and the exponential explain, where the observer counts in those."""

LARGEST_FACTOR = 64
"""Whole numbers up to this one are tried as the factor of a loss."""


class LossScale(ValueRule):
    """The loss is not what its documented formula gives.

    What it checks:
        The loss of each micro-batch against the documented formula, evaluated on the same log-probs, advantages and masks.
        In TRL that is the formula of every loss type (grpo, bnpo,
        dr_grpo, dapo, cispo, sapo, vespo, luspo; RLOO), with KL, entropy bonus, entropy mask, auxiliary loss and the engine's
        correction. In verl the formula is evaluated in float64 with all terms: ratio, clip, aggregation, KL, entropy,
        importance weights. In OpenRLHF and verl the critic's loss too, with its clip of values. In Stable-Baselines3 it is the
        gradients that the loss sends to log-probs, values and entropies; in TRL's PPOTrainer those that it sends to logits and values.
        Beyond what rounding explains it is a warning. It is an error in three micro-batches if it is 100 times as far (10 times in
        reduced precision), or twice as far and the same known mistake gives this loss to rounding; and in one where the comparison is
        in float64 (verl), it is 100 times as far, and a known mistake gives it. A loss that is NaN or infinite where the formula gives
        a number is an error at once. Where TRL's processes train only tokens whose entropy is high among all of theirs, each compares
        its loss for the tokens that it keeps, and the records of all say whether these are the documented ones: none may be left out
        that has a higher entropy than one that is trained, and as many are trained as the quantile leaves. Else it is an error.

    Why it matters:
        A loss with the wrong normaliser scales every gradient by a constant. Clipping of the gradient norm hides that, and
        without it the learning rate is off by the same factor. A term that is left out, a wrong sign, another mask or another
        aggregation trains something else than was configured.

    Example:
        ERROR RLS801 Loss is not that of its formula · data epoch 0, rollout 1,
        update 2, micro-batch 4 · 4 times, in rollout 1
          expected  the loss of the documented formula
          observed  0.25 times that
          why       the loss is the documented one divided by 4
          fix       compare the loss function, its normaliser and what goes into it
                    with the documented ones

    What to do:
        The finding names the mistake if a known one gives the same loss to rounding. A change of what goes into the loss
        (advantages, old and reference log-probs, importance weights, returns, old values) is named if it explains the losses of
        all micro-batches that are wrong: look for code between the rollout and the loss that writes to it. Where none does, each
        operation of the formula is exchanged for others (a minimum for a maximum, one side alone, other bounds, a sum for a mean), and
        what explains all of them is named: look for that operation in the loss function. Otherwise compare the loss function, its
        normaliser and what goes into it with the documented ones.

    Known limits:

    Sources:
        - https://github.com/huggingface/trl/pull/6024: a loss off by accumulation over steps per generation
        - https://github.com/verl-project/verl/issues/5625: a token mean over the micro-batch instead of the mini-batch
    """

    code = "RLS801"
    title = "Loss is not that of its formula"
    topics = ("formula", "loss", "log_ratio")
    nothing_seen = "no micro-batch had a loss that the formula covers, with terms that do not cancel"
    produces = (here("RLS801", "RLS805"),)
    needs = tuple(
        f"{handler}.{name}"
        for handler in ("microbatch_values", "critic_microbatch_values")
        for name in ("loss_gap", "loss_ratio")
    )
    # Terms that cancel to a hundredth of their sizes make a relative distance of 0.4 of the rounding of bf16; ten tolerances are 0.5.
    beyond: ClassVar[Mapping[str, float]] = {"float32": BEYOND_ROUNDING, "reduced": 10}

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Compare the loss with its formula."""
        distance = loss_distance(values, self.progress.precision)
        if distance is None:
            return
        if self.holds(distance <= 1):
            return
        ratio = values.loss_ratio
        like = values.loss_like or (_whole_factor(ratio, self._tolerance) if ratio is not None else "")
        whose = "the critic's loss" if event.role == "critic" else "the loss"
        self.fail_by(
            distance,
            expected=f"{whose} of the documented formula",
            observed=f"{ratio:.4g} times that" if ratio is not None else "another",
            why=f"{whose} is {like}"
            if like
            else f"it is {distance:.3g} times as far as rounding explains, and no known mistake gives it",
            fix="compare the loss function, its normaliser and what goes into it with the documented ones",
            variant=f"critic {like}" if event.role == "critic" else like,
            degree="near",
            known=like,
            exact=values.loss_gap is not None and bool(values.loss_like),
        )

    critic_microbatch_values = microbatch_values

    @property
    def _tolerance(self) -> float:
        return RELATIVE_TOLERANCE[self.progress.precision]


def loss_distance(values: MicroBatchValues, precision: Precision) -> float | None:
    """How far a loss is from its formula, in tolerances; None if it was not compared."""
    if values.loss_gap is not None:
        return values.loss_gap / ROUNDINGS
    return None if values.loss_ratio is None else abs(values.loss_ratio - 1) / RELATIVE_TOLERANCE[precision]


def _whole_factor(ratio: float, tolerance: float) -> str:
    """The whole number that a loss is multiplied or divided by, in words; empty if none fits, or several do."""
    if abs(ratio + 1) <= tolerance:
        return "the documented one with its sign flipped"
    for number in range(2, LARGEST_FACTOR + 1):
        if 2 * number * tolerance > 1:
            break
        if abs(ratio * number - 1) <= tolerance:
            return f"the documented one divided by {number}"
        if abs(ratio / number - 1) <= tolerance:
            return f"the documented one multiplied by {number}"
    return ""


class MaskAltered(Rule):
    """The loss counts other tokens than the rollout did.

    What it checks:
        The mask of each sample when it is trained, against its mask in the rollout (TRL), or when old log-probs were computed
        (verl). Samples are told apart by their tokens. Exact; in verl in the rollouts whose losses are compared.

    Why it matters:
        A mask that leaves out the last token takes away the gradient of the end of each completion, and the policy does not
        learn to stop. A mask that counts a tool's tokens trains the policy to write the tool's answers.

    Example:
        ERROR RLS804 Mask altered on the way · data epoch 0, rollout 1, update 2,
        micro-batch 4
          expected  the tokens that counted before
          observed  others
          why       the loss trains other tokens than the rollout gave it: masks
                    were changed on the way
          fix       look for code between the rollout and the loss that writes to
                    the mask

    What to do:
        Look for code between old log-probs and training that writes to the mask, and for a shift by one.

    Known limits:
        - A mask that was wrong from the beginning is not seen here: it is RLS518's.
        - Not compared where samples are rejected in between as configured, or where a trainer of one's own has another loop.

    Sources:
        - https://github.com/meta-pytorch/torchtune/issues/2792: the end of a sequence masked out, and models that do not stop
    """

    code = "RLS804"
    title = "Mask altered on the way"
    topics = ("samples", "log_ratio")
    nothing_seen = "the observer does not see masks both with old log-probs and in training"
    produces = (here("RLS313", "RLS314", *LOSS),)
    needs = ("microbatch_values.mask_intact", "critic_microbatch_values.mask_intact")

    def carried(self, event: Carried) -> None:
        """Look at what was carried through a controlled run."""
        carried(self, event, "mask", "masks")

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Look at the comparison."""
        if not self.progress.started.facts.get("masks_change") and not self.holds(values.mask_intact):
            self.fail(
                expected="the tokens that counted before",
                observed="others" if event.role == "policy" else "others in the critic's loss",
                why="the loss trains other tokens than the rollout gave it: masks were changed on the way",
                fix="look for code between the rollout and the loss that writes to the mask",
                variant="" if event.role == "policy" else "critic",
            )

    critic_microbatch_values = microbatch_values


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
    produces = (here(*LOSS),)

    def microbatch(self, event: MicroBatch) -> None:
        """Look at the constants of the loss, the policy's or the critic's."""
        self.checks += len(event.constants)
        for constant in event.with_gradient:
            name, why = _CONSTANTS[constant]
            self.fail(
                expected=f"{name} without a gradient",
                observed=f"{name} that require a gradient",
                why=why,
                fix=f"compute the {name} under torch.no_grad(), or detach() them before the loss",
                variant=constant,
            )

    critic_microbatch = microbatch


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

    Sources:
        - https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html: what zero_grad does
        - https://github.com/huggingface/trl/issues/583: the cadence of zero_grad
    """

    code = "RLS803"
    title = "Gradients not cleared"
    topics = ("weights",)
    nothing_seen = "the observer does not see when gradients are cleared"
    produces = (here("RLS808", "RLS810"),)
    needs = ("update_values.left_over",)

    def update_values(self, values: UpdateValues, event: Update) -> None:
        """Look at the gradients before the first backward."""
        if self.any_wrong(values.left_over):
            self.fail(
                expected="no gradient before the first backward of an update",
                observed=f"a gradient in {values.left_over} of {values.probed} probed weights",
                why="the update steps along its own gradient and those of updates before it",
                fix="clear the gradients before each update (optimizer.zero_grad), before its first backward",
            )
