"""What hooks on one trainer have seen so far, between the beginning and the end of one of its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.observe.engine_distance import KeptLogits
    from rlstep_hooks.observe.forward_watch import ForwardWatch
    from rlstep_hooks.observe.head_gradient import HeadWatch
    from rlstep_hooks.record.events import Purpose, Taught
    from rlstep_hooks.systems.trl.observe.backward import Backward


class LogProbCall:
    """One call of the trainer's log-prob method."""

    __slots__ = ("grad", "log_probs", "model", "others", "version")

    def __init__(self, model: Any, log_probs: Tensor, others: tuple[Any, ...], version: int, grad: bool) -> None:
        self.model = model
        self.log_probs = log_probs
        self.others = others
        """What the method returned besides: entropies (0.20 and later), the auxiliary loss (1.7 and later)."""
        self.version = version
        self.grad = grad


class Activity:
    """A training step or a step of an evaluation: the calls seen since it began."""

    __slots__ = (
        "backward", "calls", "detached", "head", "kept", "loss", "loss_inputs", "purpose", "scored_in", "sloped_in"
    )  # fmt: skip

    def __init__(self, purpose: Purpose) -> None:
        self.purpose = purpose
        self.loss_inputs: dict[str, Any] | None = None
        self.calls: list[LogProbCall] = []
        self.loss: Tensor | None = None
        self.backward: Backward | None = None
        """What the backward pass of its loss brings; None where that is not compared."""
        self.detached: tuple[Taught, ...] = ()
        """What its loss is configured to teach, and no gradient flows into."""
        self.kept: Tensor | None = None
        """The tokens that the trainer keeps for their entropy, among those of all processes; None where it was not asked."""
        self.head: HeadWatch | None = None
        """Follows gradients of its log-probs to the output of the model's layers; None where they are not."""
        self.scored_in: int | None = None
        """The cycle of rollouts in which rows of its micro-batch are scored alone; None where they are not."""
        self.sloped_in: int | None = None
        """The cycle of rollouts in which the backward pass of its layers may be followed; None where it is not."""


class Generation:
    """A rollout that is being made: the calls seen since it began."""

    __slots__ = ("calls", "forwards", "logits", "sampling_weights")

    def __init__(self) -> None:
        self.calls: list[LogProbCall] = []
        self.forwards: ForwardWatch | None = None
        """Counts the policy's forwards; None where these cannot be counted."""
        self.sampling_weights: tuple[Tensor, Tensor] | None = None
        """Probed weights that the policy generates with, and those that the update before had left."""
        self.logits: KeptLogits | None = None
        """Keeps logits of the trainer's own forward, which explain a distance from the engine's log-probs; None if not needed."""
