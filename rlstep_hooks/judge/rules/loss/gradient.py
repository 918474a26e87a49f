"""The gradient of an update: whether there is one where there has to be, and whether it is that of its micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.effects import STANDING_STILL, here
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.rules.certain import ValueRule
from rlstep_hooks.judge.rules.loss.optimizer import NORM_TOLERANCE
from rlstep_hooks.judge.rules.precision import how_far
from rlstep_hooks.judge.rules.progress import RECENT_UPDATES, Place, is_certain, teaches
from rlstep_hooks.record.events import Update, UpdateValues

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.record.events import MicroBatch, MicroBatchValues, Rollout, RolloutValues

KEPT = RECENT_UPDATES
"""Updates whose numbers wait for those of their micro-batches, or the other way round: numbers of a whole run can come together."""

NEAR_ONE = 1e-4
"""Largest |log ratio| that no clip range touches, where the clipped part is not known. GSPO clips at 3e-4."""

FAINT = 9.0
"""|log ratio| from which on the ratio of some token is less than 1e-4, or more than 1e4: where the tokens that keep a gradient are not
known, nobody can say that one is left."""


class _Window(msgspec.Struct):
    """What is known of one update."""

    update: tuple[UpdateValues, Update, Place] | None = None
    alive: bool = False
    """Whether an earlier update had a gradient."""
    microbatches: int = 0
    signal: bool = False
    """Whether some micro-batch had an advantage other than 0, and nothing that ends its gradient."""


class GradientMissing(Rule):
    """An update had no gradient although its advantages are not 0.

    What it checks:
        Each update at a learning rate above 0 with a micro-batch that has an advantage other than 0 on a token that no clip and no mask
        leaves out: some probed weight has a gradient. Only after an update that had one, because probed tensors can be without gradient
        at first (half of a LoRA adapter).

    Why it matters:
        Gradients that are set to zero by a guard, or that are lost on the way, waste the rollout. Momentum and weight decay still move
        the weights, so nothing looks wrong. Where all advantages are 0, RLS505 says so.

    Example:
        ERROR RLS809 Update without a gradient · data epoch 0, rollout 2, update 4
          expected  a gradient in some probed weight, since advantages differ from 0
          observed  none in 9 probed weights
          why       the step uses a gradient of 0: only momentum and decay move the
                    weights
          fix       look for code that zeroes gradients before the step, or detaches
                    the loss

    What to do:
        Look for code that zeroes gradients before the step (a guard against NaN, a second `zero_grad`), and for losses that are
        detached.

    Known limits:
        - An update whose tokens are all left out by clips and masks is not compared (where the clip is not known: one whose ratio
          is not 1), nor one of a collapsed policy, which is certain of every token: its log-probs have no gradient. Nor one in
          which each token is either certain, or has a ratio that has all but vanished: its gradient is the product of both.
        - An update whose completions with an advantage each come more than once in their rollout is not compared: gradients of
          equal completions can cancel.
        - Where no update has a gradient it is RLS406.

    Sources:
        - https://github.com/OpenRLHF/OpenRLHF/issues/1297: a run that ends well and trained nothing
        - https://github.com/huggingface/trl/issues/3857: runs without a learning signal
    """

    code = "RLS809"
    title = "Update without a gradient"
    topics = ("weights", "log_ratio", "trained_tokens")
    nothing_seen = "no update that is not clipped, with advantages other than 0, followed one that had a gradient"
    optional = True
    produces = (here("RLS408", "RLS810", *STANDING_STILL),)
    needs = ("microbatch_values.max_abs_advantage",)

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._windows: dict[int, _Window] = {}
        self._alive = False
        """Whether some update before had a gradient."""

    def update_values(self, values: UpdateValues, event: Update) -> None:
        """Keep the numbers of an update, and judge it if its micro-batches are known."""
        if event.role != "policy" or not event.applied or not event.learning_rate or not values.probed:
            return
        window = self._window(event.index)
        window.update, window.alive = (values, event, self.progress.place_shown), self._alive
        self._alive = self._alive or values.with_gradient > 0
        self._judge(event.index)

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Keep whether a micro-batch has something to learn, and judge its update if that is known."""
        if values.max_abs_advantage is None:
            return
        index = self.progress.place_shown[1]
        window = self._window(index)
        window.microbatches += 1
        window.signal = window.signal or (teaches(values) is True and _flows(values))
        self._judge(index)

    def _window(self, index: int) -> _Window:
        if index not in self._windows and len(self._windows) >= KEPT:
            del self._windows[next(iter(self._windows))]
        return self._windows.setdefault(index, _Window())

    def _judge(self, index: int) -> None:
        window = self._windows[index]
        if window.update is None or window.microbatches < window.update[1].microbatches:
            return
        values, event, place = window.update
        del self._windows[index]
        unknown = values.gradient_norm is None and bool(
            values.gradient_limit
        )  # computed, and no number: there may be gradients
        if not (window.signal and window.alive) or (unknown and not values.with_gradient):
            return
        if not self.holds(bool(values.with_gradient or values.gradient_norm)):
            self.fail(
                expected="a gradient in some probed weight, since advantages differ from 0",
                observed=f"none in {values.probed} probed weights",
                where=self.progress.where_at(place, event),
                why="the step uses a gradient of 0: only momentum and decay move the weights",
                fix="look for code that zeroes gradients before the step, or detaches the loss",
            )


def _flows(values: MicroBatchValues) -> bool:
    """Whether no clip ends the gradient of any token, no ratio has vanished, and the policy is not certain of all of them."""
    if is_certain(values):
        return False
    if values.learns:
        return values.learns == "yes"
    if values.clipped is not None:
        # A token whose ratio has vanished, beside others that are certain, leaves no gradient although nothing is clipped.
        return values.clipped == 0 and (values.max_abs_log_ratio or 0.0) < FAINT
    return values.max_abs_log_ratio is not None and values.max_abs_log_ratio <= NEAR_ONE


class GradientAltered(ValueRule):
    """The gradients that the optimizer used are not those that its micro-batches gave.

    What it checks:
        Of eight tensors, others in each update and first those that have hooks, up to 64 gradients: the sum of what each backward pass
        computed, before any hook of the tensor, against what the optimizer is about to use. The clip multiplies all gradients by one
        factor of at most 1, and by less only if the norm was above its limit. And there is one backward pass for each micro-batch. The
        backward hooks of the model's modules return no other gradients than they got. The tolerance is that of each tensor's dtype, and
        of the clip's factor in the dtype of most.

    Why it matters:
        A hook that scales one parameter, gradients that are cleared between micro-batches, a backward pass too many, noise, or a clip
        of each value alone: the loss is right, the optimizer is right, and something else is learned.

    Example:
        ERROR RLS810 Gradients altered before the step · data epoch 0, rollout 0,
        update 1
          expected  the sum of the gradients of 2 micro-batches, times one factor of
                    the clip
          observed  10 times as much in layers.1.weight as in most tensors
          why       something between the backward passes and the step changed
                    gradients
          fix       look for hooks on parameters, for zero_grad and further backward
                    passes within an update, and for code that writes to .grad

    What to do:
        Look for hooks on parameters (`register_hook`), for `zero_grad` between micro-batches, for a further backward pass, for clipping
        by value or by parameter, and for callbacks that write to `.grad`.

    Known limits:
        - With a gradient scaler gradients are scaled on the way. Among several processes they are reduced on the way: what is
          compared is what comes between the last backward pass and the step. RLS811 joins what all ranks gave before.
        - Hooks of modules are not seen in a model that torch compiles, which leaves them out.
        - Autograd itself is not checked here: a hook of a tensor between two layers, or a part of the log-probs that is detached,
          changes gradients before they arrive. RLS805 looks at those that arrive at the model's output, RLS813 at the way through the
          layers; where RLS813 compares nothing, a report says so beside the link.

    Sources:
        - https://docs.pytorch.org/docs/stable/generated/torch.Tensor.register_hook.html: what a hook of a tensor may change
        - https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html: one factor for all gradients
        - https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation: gradients of micro-batches are added
    """

    code = "RLS810"
    title = "Gradients altered before the step"
    topics = ("gradient", "weights", "order")
    nothing_seen = "gradients were not followed from the backward passes to the step"
    optional = True
    several = 1
    produces = (here("RLS408", "RLS808", "RLS810", *STANDING_STILL),)
    needs = ("update_values.gradient_off", "microbatch_values.gradients_replaced")

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._within_layers = False
        """Whether the run shows the backward pass inside of the layers too."""

    def update_values(self, values: UpdateValues, event: Update) -> None:
        """Compare the gradients of an update with those of its micro-batches."""
        off, factor = values.gradient_off, values.gradient_factor
        if off is None or factor is None:
            return
        self.checks += 1
        of = "the gradients of its micro-batch"
        if event.microbatches > 1:
            of = f"the sum of the gradients of {event.microbatches} micro-batches"
        expected = f"{of}, times one factor of the clip"
        if off > 1:
            self.fail_by(
                off,
                degree=how_far(off, 1.0),
                expected=expected,
                observed=_in_one_tensor(values, off, factor),
                why="something between the backward passes and the step changed gradients",
                fix=_LOOK,
            )
            return
        passes = values.gradient_passes
        if passes is not None and passes > event.microbatches:
            self.fail(
                severity="error",
                expected=f"{_passes(event.microbatches)}, one for each micro-batch",
                observed=f"{passes}",
                why="gradients of a further backward pass are added to those of the loss",
                fix=_LOOK,
                variant="passes",
            )
            return
        excess = self._excess(values, factor)
        if excess <= 1:
            return
        self.fail_by(
            excess,
            degree=how_far(excess, 1.0),
            expected=expected,
            observed=f"{factor:.4g} times that in all followed tensors",
            why="all gradients of the update were scaled, and the clip does not explain it",
            fix=_LOOK,
            variant="all",
        )

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Look at what backward hooks of modules returned."""
        if values.gradients_replaced:
            self.checks += 1
            self.fail(
                severity="error",
                expected="gradients as autograd computes them",
                observed=f"others, returned by a backward hook of {values.replacing_module or 'the whole model'}",
                why="all parameters before this module get the gradients of another loss",
                fix="look for register_full_backward_hook and its kin, and for what the hook returns",
                variant="module",
            )

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Note whether the backward pass inside of the layers is looked at (RLS813)."""
        self._within_layers = self._within_layers or values.slope_gap is not None

    def note(self) -> str:
        """What lies before the gradients that are compared."""
        return "" if self._within_layers else "without the backward pass inside of the layers"

    def _excess(self, values: UpdateValues, factor: float) -> float:
        """How far the common factor is from one that the clip may give, in tolerances."""
        tolerance = NORM_TOLERANCE[self.progress.precision]
        norm, limit = values.gradient_norm, values.gradient_limit
        # Where parameters are sharded, one process has a part of the norm that the clip compares; RLS812 joins it.
        if self.schedule.world_size > 1 and factor < 1 and limit != 0.0:
            return 0.0
        clipped = norm is not None and limit is not None and norm >= limit * (1 - 8 * tolerance)
        return 0.0 if clipped and factor < 1 else abs(factor - 1) / tolerance


def _in_one_tensor(values: UpdateValues, off: float, factor: float) -> str:
    """What the tensor has that is farthest off."""
    own = values.gradient_tensor_factor if values.gradient_tensor_factor is not None else 0.0
    if not factor:
        return f"{own:.3g} times that in {values.gradient_tensor}, and 0 in most tensors"
    share = f"{own / factor:.3g}"
    if share == "1":  # as large as the others, and other numbers: noise, or some of its numbers alone
        return f"other numbers in {values.gradient_tensor}, {off:.3g} times as far off as rounding explains"
    return f"{share} times as much in {values.gradient_tensor} as in most tensors"


def _passes(number: int) -> str:
    return f"{number} backward pass" + ("es" if number != 1 else "")


_LOOK = "look for hooks on parameters, for zero_grad and further backward passes within an update, and for code that writes to .grad"
