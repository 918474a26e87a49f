"""Mini-batches of a framework's train batch: which of their rows are other than they were in it, their loss, and its gradients."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.classic_ppo import batch_of, gradients
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.loss_causes import columns
from rlstep_hooks.observe.losses import LossBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlstep_hooks.observe.classic_ppo import ClassicPPO
    from rlstep_hooks.observe.guard import GapRecorder
    from rlstep_hooks.observe.losses import Formula
    from rlstep_hooks.systems.own_loop.recorder import LoopObserver


class RowWatch:
    """Follows the rows of the latest train batch to the losses. B: rows of a mini-batch.

    Args:
        observer: Takes mini-batches and their numbers.
        recorder: Learns what is not observed.
        columns: Field of `MicroBatchValues` that says whether something is intact -> the columns that it is said of. Columns that
            are no tensors are left out.
    """

    def __init__(self, observer: LoopObserver, recorder: GapRecorder, columns: Mapping[str, tuple[str, ...]]) -> None:
        self._observer = observer
        self.recorder = recorder
        """Learns what is not observed."""
        self._columns = columns
        self._kept: dict[str, Tensor] = {}
        self._kept_of = -1
        """The rollout whose rows are kept."""

    def keep(self, rows: Any) -> None:
        """The train batch of the latest rollout is complete. In cycles that are not compared nothing is kept."""
        self._kept_of = self._observer.latest
        names = {name for columns in self._columns.values() for name in columns} if self._observer.compares else ()
        self._kept = {name: rows[name].clone() for name in names if isinstance(rows[name], Tensor)}

    def trained(self, rows: Any, places: Tensor | None, tensors: Mapping[str, Tensor], mask: Tensor) -> None:
        """A mini-batch, once its loss is computed.

        Args:
            rows: The columns of the mini-batch.
            places: (B,), which rows of the train batch it has; None if that is not known.
            tensors: `log_probs`, `old`, `advantages` and `targets`, (B,).
            mask: (B,), not 0 where a row counts.
        """
        self._observer.microbatch(
            samples=len(mask),
            indices=places,
            role="policy",
            old_logprobs=tensors["old"],
            new_logprobs=tensors["log_probs"],
            mask=mask,
            advantages=tensors["advantages"],
            targets=tensors["targets"],
        )
        if places is None or self._kept_of != self._observer.latest:
            return  # what is kept of an earlier rollout says nothing of this one
        with torch.no_grad():
            for number, columns in self._columns.items():
                counts = [(self._kept[of][places] != rows[of]).sum() for of in columns if of in self._kept]
                if counts:
                    self._observer.add_columns({number: torch.stack(counts).sum()})

    def compare_loss(
        self,
        settings: ClassicPPO,
        outputs: Mapping[str, Tensor],
        computed: Callable[..., Mapping[str, Tensor]],
        mask: Tensor,
        loss: Tensor,
    ) -> None:
        """The loss of the latest mini-batch against the documented one: its value, and in its backward the gradients at the outputs.

        Args:
            settings: The settings of the documented loss.
            outputs: What the model returned, with its graph, as `classic_ppo.gradients` says.
            computed: Gives the tensors of the loss from the outputs, which it gets by name.
            mask: (B,), not 0 where a row counts.
            loss: What the trainer computed.
        """
        with torch.no_grad():
            self._observer.add_columns(*columns(settings.formula(), batch_of(computed(**outputs), mask), loss))
        documented = gradients(settings, outputs, computed, mask)
        # Where no gradient comes, as of a tensor that is detached, the distance stays that from 0.
        gaps = {name: (of.abs() / rounding).amax() for name, (of, rounding) in documented.items()}
        self._observer.add_columns({"gradient_gap": torch.stack(list(gaps.values())).amax()})
        for name, output in outputs.items():
            if output.requires_grad:
                output.register_hook(partial(self._output_gets, name, gaps, *documented[name]))

    @contained("loss")
    def _output_gets(
        self, name: str, gaps: dict[str, Tensor], documented: Tensor, rounding: Tensor, gradient: Tensor
    ) -> None:
        with torch.no_grad():
            gaps[name] = ((gradient.double() - documented).abs() / rounding).amax()
            self._observer.add_columns({"gradient_gap": torch.stack(list(gaps.values())).amax()})

    def compare_tokens(self, formula: Formula[Any], batch: LossBatch, loss: Tensor, gradient: Tensor) -> None:
        """The loss of the latest mini-batch, and the gradients at its log-probs, which have arrived, against the documented ones.

        Args:
            formula: The documented loss.
            batch: What it is computed from.
            loss: What the trainer computed.
            gradient: (B, T), what arrived at the log-probs of tokens.
        """
        self._observer.add_columns(*columns(formula, batch, loss))
        documented, rounding, edges = formula.gradient(batch)
        gap = (gradient.double() - documented).abs() / rounding.clamp(min=torch.finfo(torch.float32).tiny)
        self._observer.add_columns({"gradient_gap": torch.where((batch.mask > 0) & ~edges, gap, 0.0).amax()})

    def follow(self, tensors: Mapping[str, Tensor]) -> None:
        """Note the largest gradient that arrives at each tensor in the backward, by the name of the number."""
        for name, tensor in tensors.items():
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient, name=name: self._arrives(name, gradient))

    @contained("loss")
    def _arrives(self, name: str, gradient: Tensor) -> None:
        self._observer.add_columns({name: gradient.detach().abs().max()})


def token_batch(mask: Tensor, *, samples: float | None = None, **columns: Tensor) -> LossBatch:
    """What the loss of a mini-batch of tokens in float32 is computed from.

    Args:
        mask: (B, T), true on tokens that count.
        samples: What a mean over samples is divided by; None for those that have a token that counts.
        columns: (B, T) by name.
    """
    tensors = {name: torch.where(mask, of.double(), 0.0) for name, of in columns.items()}
    epsilons = {"policy": torch.finfo(torch.float32).eps}
    return LossBatch(tensors=tensors, mask=mask.double(), samples=samples, epsilons=epsilons)
