"""Numbers of micro-batches: log ratios, clipped tokens, checksums, the loss against its formula.

At each loss only what cannot wait is computed (the log ratio, checksums, now and then the documented loss); everything else is
computed for all micro-batches of a rollout at once, when the next rollout comes. Shapes: B samples, T completion tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from torch import Tensor

from rlstep_hooks.events import MicroBatchValues
from rlstep_hooks.frameworks.trl.loss import clipped_token_loss, clipped_tokens, documented_loss, kl_estimate

if TYPE_CHECKING:
    from rlstep_hooks.frameworks.deferred import DeferredValues
    from rlstep_hooks.frameworks.trl.loss import LossSettings

ROWS = "rlstep_rows"
"""Key added to a rollout's tensors: identity of each sample, on the CPU. TRL shuffles and splits it with all others."""
TOKENS = "rlstep_tokens"
"""Key added to a rollout's tensors: a checksum of each sample's completion tokens."""
OLD = "rlstep_old"
"""Key added to a rollout's tensors: a checksum of each sample's old log-probs, bit for bit."""

COMPARED_TENSORS = 256
"""Tensors of the sample buffer that are remembered as compared; all are forgotten when there are more."""
HELD_ELEMENTS = 1 << 22
"""Elements of log ratios that are held for the next rollout; beyond, they are worked up at once, so memory stays bounded."""

Key = tuple[str, tuple[int, ...]]
"""Kind of numbers, and the micro-batches (or the rollout, or the update) that they belong to, in order."""
Scope = Literal["token", "sequence"]


class _Held(msgspec.Struct, frozen=True):
    """What one micro-batch leaves until the next rollout."""

    index: int
    scope: Scope | None
    """None where the current log-probs take the place of old ones."""
    log_ratio: Tensor | None
    mask: Tensor
    advantages: Tensor | None
    """For the clipped tokens; None where the loss has no clip of this form."""


class MicroBatchMeter:
    """Measures the micro-batches of one trainer."""

    def __init__(self, values: DeferredValues[Key], settings: LossSettings | None) -> None:
        self._values = values
        self._settings = settings
        self._positions: Tensor | None = None
        self._compared: dict[int, tuple[Tensor, int]] = {}
        self._held: list[_Held] = []
        self._held_elements = 0

    def mark(self, output: dict[str, Any], rows: Tensor, old: Tensor | None) -> None:
        """Add identities and checksums to the tensors of a rollout."""
        output[ROWS] = rows
        output[TOKENS] = self.token_checksum(output["completion_ids"])
        if old is not None:
            output[OLD] = bit_checksum(old)

    def measure(self, index: int, inputs: dict[str, Any], new: Tensor, old: Tensor | None) -> Tensor | None:
        """Take what a loss was computed from.

        Args:
            index: The micro-batch.
            inputs: What the loss got.
            new: (B, T), log-probs of the loss, detached.
            old: (B, T) or (B,), old log-probs; None where the loss takes the current ones.

        Returns:
            (B, T), the log ratio, 0 on masked tokens; None where it is 0 throughout or not kept for each token.
        """
        mask = token_mask(inputs)
        scope: Scope | None = None
        log_ratio: Tensor | None = None
        if old is not None:
            scope = "token" if old.dim() == 2 else "sequence"
            log_ratio = (new - old) * mask if scope == "token" else (new * mask).sum(1) - old
            checksum = inputs.get(OLD)
            if checksum is not None and checksum.shape[0] == old.shape[0] and not self._was_compared(old):
                self._values.add(("old", (index,)), _any(bit_checksum(old) != checksum))
        checksum, tokens = inputs.get(TOKENS), inputs["completion_ids"]
        if checksum is not None and checksum.shape[0] == tokens.shape[0] and not self._was_compared(tokens):
            self._values.add(("tokens", (index,)), _any(self.token_checksum(tokens) != checksum))
        clips = scope == "token" and self._settings is not None
        advantages = as_column(inputs["advantages"]) if clips else None
        self._held.append(_Held(index, scope, log_ratio, mask, advantages))
        self._held_elements += mask.numel()
        if self._held_elements > HELD_ELEMENTS:
            self.work_up()
        return log_ratio if scope == "token" else None

    def compare_loss(
        self,
        index: int,
        loss: Tensor,
        inputs: dict[str, Any],
        *,
        new: Tensor,
        log_ratio: Tensor | None,
        beta: float,
        weighs_kl: bool,
        window: int,
        backward_divides_by: int,
    ) -> None:
        """Evaluate the documented loss of a micro-batch, once as it is and once with terms that cannot cancel.

        Args:
            index: The micro-batch.
            loss: What the trainer returned.
            inputs: What the loss got.
            new: (B, T), log-probs of the loss, detached.
            log_ratio: (B, T), or None where it is 0.
            beta: Weight of the KL term.
            weighs_kl: Whether the KL term is multiplied by the ratio (`use_bias_correction_kl`).
            window: Micro-batches of this accumulation window.
            backward_divides_by: What accelerate divides the loss by before the backward pass; 1 in a healthy run.
        """
        import torch

        settings = self._settings
        if settings is None:
            return
        mask, advantages = token_mask(inputs), as_column(inputs["advantages"])
        free = -advantages.expand(mask.shape)
        token_loss = free if log_ratio is None else clipped_token_loss(log_ratio, advantages, settings)
        reference = inputs.get("ref_per_token_logps")
        if reference is not None and beta != 0.0:
            kl = kl_estimate(reference, new)
            token_loss = token_loss + beta * (kl * torch.exp(log_ratio) if weighs_kl and log_ratio is not None else kl)
        tokens = inputs.get("num_items_in_batch")
        numbers = [
            documented_loss(terms, mask, settings=settings, window=window, generation_tokens=tokens)
            for terms in (token_loss, token_loss.abs())
        ]
        numbers.append(loss.detach() / backward_divides_by)
        self._values.add(("loss", (index,)), torch.stack([number.float() for number in numbers]))

    def work_up(self) -> None:
        """Compute the numbers of all micro-batches held, those of one shape together."""
        groups: dict[tuple[Any, ...], list[_Held]] = {}
        for held in self._held:
            shape = held.advantages.shape if held.advantages is not None else None
            groups.setdefault((held.scope, held.mask.shape, shape), []).append(held)
        for (scope, _, _), group in groups.items():
            self._add_ratios(scope, group)
        self._held.clear()
        self._held_elements = 0
        if len(self._compared) > COMPARED_TENSORS:
            self._compared.clear()

    def _add_ratios(self, scope: Scope | None, group: list[_Held]) -> None:
        import torch

        indices = tuple(held.index for held in group)
        rows = [torch.stack([held.mask for held in group]).sum((1, 2), dtype=torch.float32)]
        kind: str = scope or "current"
        if scope is not None:
            ratios = torch.stack([held.log_ratio for held in group if held.log_ratio is not None]).float()
            size = ratios.abs().flatten(1)
            rows += [size.amax(1), size.sum(1)]
            advantages = [held.advantages for held in group if held.advantages is not None]
            if advantages and self._settings is not None:
                rows.append(clipped_tokens(ratios, torch.stack(advantages), self._settings))
                kind = "clipped"
        self._values.add((kind, indices), torch.cat(rows))

    def _was_compared(self, tensor: Tensor) -> bool:
        """Whether this very tensor was compared with its checksum in an earlier pass and not written to since.

        torch counts in-place writes in a tensor's version; asking costs no work on the device.
        """
        version = -1 if tensor.is_inference() else tensor._version
        known = self._compared.get(id(tensor))
        self._compared[id(tensor)] = (tensor, version)
        return known is not None and known[0] is tensor and known[1] == version >= 0

    def token_checksum(self, completion_ids: Tensor) -> Tensor:
        """(B, T) token ids -> (B,) int64 that changes with any token and with their order."""
        import torch

        width, known = completion_ids.shape[1], self._positions
        if known is None or known.shape[0] < width or known.device != completion_ids.device:
            known = torch.arange(1, width + 1, device=completion_ids.device, dtype=torch.int64) * 2654435761
            self._positions = known
        return (completion_ids * known[:width]).sum(-1)


class MicroBatchNumbers:
    """Puts together what has arrived for micro-batches, in whatever order and parts it came."""

    def __init__(self) -> None:
        self._fields: dict[int, dict[str, Any]] = {}

    def take(self, kind: str, indices: tuple[int, ...], numbers: list[float]) -> None:
        """Unpack one vector of `MicroBatchMeter`."""
        count = len(indices)
        for place, index in enumerate(indices):
            fields = self._fields.setdefault(index, {"tokens": 0})
            if kind in ("old", "tokens"):
                fields[f"{kind}_intact"] = numbers[0] == 0
            elif kind == "loss":
                fields["loss_ratio"] = _loss_ratio(*numbers)
            else:
                tokens = numbers[place]
                divisor = max(tokens, 1.0)
                fields["tokens"] = int(tokens)
                if kind == "current":  # the current log-probs in the place of old ones: the ratio is 1
                    fields |= {"max_abs_log_ratio": 0.0, "mean_abs_log_ratio": 0.0, "clipped": 0.0}
                    continue
                fields["max_abs_log_ratio"] = finite(numbers[count + place])
                fields["mean_abs_log_ratio"] = finite(numbers[2 * count + place] / divisor)
                if kind == "clipped":
                    fields["clipped"] = finite(numbers[3 * count + place] / divisor)
                else:
                    fields["scope"] = kind

    def values(self) -> tuple[MicroBatchValues, ...]:
        """All micro-batches, in order."""
        return tuple(MicroBatchValues(index=index, **self._fields[index]) for index in sorted(self._fields))


def _loss_ratio(expected: float, largest: float, loss: float) -> float | None:
    """The loss over the documented one; None where its terms cancel to less than a hundredth of their sizes."""
    return finite(loss / expected) if largest > 0 and abs(expected) > 0.01 * largest else None


def bit_checksum(values: Tensor) -> Tensor:
    """(B,) or (B, T) floating point -> (B,) int64: the sum of the bit patterns, exact in any order of summation."""
    import torch

    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    bits = values.detach().contiguous().view(integer)
    return bits.sum(-1, dtype=torch.int64) if bits.dim() > 1 else bits.to(torch.int64)


def token_mask(inputs: dict[str, Any]) -> Tensor:
    """(B, T): 1 on tokens that the loss counts. Tool tokens are masked out where there are tools."""
    mask: Tensor = inputs["completion_mask"]
    tool_mask = inputs.get("tool_mask")
    return mask if tool_mask is None else mask * tool_mask


def as_column(advantages: Tensor) -> Tensor:
    """Advantages of shape (B,) as (B, 1); those of a subclass may have one for each token and stay (B, T)."""
    return advantages.unsqueeze(1) if advantages.dim() == 1 else advantages


def _any(different: Tensor) -> Tensor:
    """(B,) bool -> (1,) float32: how many differ."""
    import torch

    return different.sum(dtype=torch.float32).reshape(1)


def finite(number: float) -> float | None:
    """The number to six digits (float32 has seven), or None where it is not finite: JSON has no such numbers, and a report
    reads the same from a record."""
    return float(f"{number:.6g}") if math.isfinite(number) else None
