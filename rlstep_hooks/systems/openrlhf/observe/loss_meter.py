"""Compares the losses of the policy with their documented formula, once what they were computed from has arrived on the CPU.

Nothing waits for it: the tensors of a micro-batch go to the CPU with the other numbers of its rollout.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.deferred import DeferredValues, finite
from rlstep_hooks.observe.identity import checksum_of
from rlstep_hooks.observe.trainer_record import LossNumbers
from rlstep_hooks.systems.openrlhf.observe.loss import (
    LossInputs,
    LossSettings,
    alternatives,
    documented_loss,
    read_settings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

HELD_TOKENS = 1 << 20
"""Tokens of a rollout whose log-probs are held until they are sent; micro-batches beyond are not compared."""

FITS = 32
"""Roundings within which a loss is the documented one, or one of those it is mistaken for."""

_NAMES = ("log_probs", "old_log_probs", "advantages", "action_mask", "rollout_log_probs")


class _Held(msgspec.Struct):
    """What one micro-batch was trained with."""

    index: int
    window: tuple[int, int] | None
    """Pass and update of the rollout that it belongs to; None where its divisor is taken as it came."""
    window_size: int
    settings: LossSettings
    shape: tuple[int, int]
    names: tuple[str, ...]
    """Tensors of this shape that follow each other in the vector, before the four numbers."""
    ranks: int
    epsilon: float
    advantages: list[int] | None
    """Checksums of the advantages of its samples when they came to this process."""
    lengths: list[int]
    """Log-probs of each sample."""
    whole: bool
    """Whether the loss has no term that cannot be computed."""


class LossMeter:
    """Follows the policy's losses of one trainer.

    Args:
        args: OpenRLHF's arguments.
        ranks: Processes that share an update.
        accumulation: Micro-batches of an update, where they are counted.
    """

    def __init__(self, args: Any, *, ranks: int, accumulation: int) -> None:
        self._args = args
        self._ranks = ranks
        self._accumulation = accumulation
        self._rollout = -1
        self._pass = -1
        self._tokens = 0
        self._open: tuple[_Held, list[Tensor], Tensor] | None = None
        self._arriving: DeferredValues[_Held] = DeferredValues()
        self._step = 0
        self._coefficient = 0.0
        self._experience: Any = None
        self._rows: list[tuple[int, int]] | None = None

    @property
    def looks(self) -> bool:
        """Whether the losses of this rollout are compared."""
        return is_compared(self._rollout)

    def next_rollout(self) -> None:
        """The passes over a rollout begin."""
        self._rollout += 1
        self._pass, self._tokens = -1, 0

    def begin(self, experience: Any, coefficient: Any, step: int, rows: list[tuple[int, int]] | None) -> None:
        """A micro-batch begins.

        Args:
            experience: OpenRLHF's `Experience`.
            coefficient: Of the KL term.
            step: Its number in this pass.
            rows: Checksum of the advantages of each sample when it came to this process, and its number of log-probs.
        """
        self._pass += step == 0
        self._step, self._coefficient, self._experience, self._rows = step, float(coefficient), experience, rows

    def computed(self, index: int, given: Mapping[str, Any], loss: Tensor) -> None:
        """The policy's loss of a micro-batch was computed from these."""
        self._open = None
        if not self.looks or self._tokens + given["log_probs"].numel() > HELD_TOKENS:
            return
        args, log_probs = self._args, given["log_probs"]
        self._tokens += log_probs.numel()
        tensors = {name: given[name] for name in _NAMES if given.get(name) is not None}
        reference = getattr(self._experience, "base_action_log_probs", None)
        settings = read_settings(args, self._coefficient)
        if settings.kl_coef and reference is not None:
            tensors["reference"] = reference
        dynamic = bool(args.train.dynamic_batch_enable) or self._ranks > 1
        coefficient = args.actor.entropy_coef
        held = _Held(
            index=index,
            window=None if dynamic else (self._pass, self._step // self._accumulation),
            window_size=self._accumulation,
            settings=settings,
            shape=tuple(log_probs.shape),
            names=tuple(tensors),
            ranks=int(given.get("dp_size") or 1),
            epsilon=max(torch.finfo(tensor.dtype).eps for tensor in (log_probs, given["advantages"])),
            advantages=None if self._rows is None else [key for key, _ in self._rows],
            lengths=[] if self._rows is None else [length for _, length in self._rows],
            whole=not coefficient and args.actor.aux_loss_coef <= 1e-8,
        )
        numbers = [torch.as_tensor(given[name]) for name in ("batch_num_tokens", "global_batch_size")]
        parts = [tensor.detach().float().flatten() for tensor in tensors.values()]
        self._open = (
            held,
            parts,
            torch.stack([n.to(loss.device).float().reshape(()) for n in numbers] + [loss.detach().float()]),
        )

    def backward(self, loss: Any) -> None:
        """This goes into the backward."""
        opened, self._open = self._open, None
        if opened is None or not isinstance(loss, Tensor):
            return
        held, parts, numbers = opened
        self._arriving.add(held, torch.cat([*parts, numbers, loss.detach().float().reshape(1)]))

    def send(self) -> None:
        """Start fetching what is on the device."""
        self._arriving.send()

    def arrived(self) -> dict[int, LossNumbers]:
        """The losses that have arrived, compared; by micro-batch."""
        arrived = [(held, *_inputs(held, values)) for held, values in self._arriving.tensors()]
        windows: dict[tuple[int, int], list[LossInputs]] = {}
        for held, given, _ in arrived:
            if held.window is not None:
                windows.setdefault(held.window, []).append(given)
        numbers = {}
        for held, given, losses in arrived:
            if held.window is not None and len(windows[held.window]) == held.window_size:
                given = _as_part(given, windows[held.window])
            numbers[held.index] = _compared(held, given, losses)
        return numbers


def _inputs(held: _Held, values: Tensor) -> tuple[LossInputs, tuple[float, float]]:
    """What the formula takes, and the policy's loss and the whole one."""
    size = held.shape[0] * held.shape[1]
    tensors = {name: values[i * size : (i + 1) * size].view(held.shape).double() for i, name in enumerate(held.names)}
    tokens, samples, policy, whole = values[len(held.names) * size :].tolist()
    given = LossInputs(
        log_probs=tensors["log_probs"],
        old=tensors["old_log_probs"],
        advantages=tensors["advantages"],
        mask=tensors["action_mask"],
        engine=tensors.get("rollout_log_probs"),
        reference=tensors.get("reference"),
        tokens=tokens,
        samples=samples,
        ranks=held.ranks,
        epsilon=held.epsilon,
    )
    return given, (policy, whole)


def _as_part(given: LossInputs, window: list[LossInputs]) -> LossInputs:
    """With the divisors that the masks of all micro-batches of an update give (utils/loss_utils.py `_optimizer_step_loss_norm`)."""
    tokens = sum(float(each.mask.sum()) for each in window) / len(window)
    samples = sum(float((each.mask.sum(1) > 0).sum()) for each in window) / len(window)
    return replace(given, tokens=tokens, samples=samples)


def _compared(held: _Held, given: LossInputs, losses: tuple[float, float]) -> LossNumbers:
    """A loss against its formula, and its advantages against those that came to this process."""
    policy, whole = losses
    settings, loss = (held.settings, whole) if held.whole else (replace(held.settings, kl_coef=0.0), policy)
    expected, rounding = documented_loss(settings, given)
    rounding = max(rounding, torch.finfo(torch.float32).tiny)
    gap = abs(loss - expected) / rounding
    like = ""
    if gap > FITS:
        others = alternatives(settings, given, held.window_size)
        like = next((words for words, value in others if abs(loss - value) <= FITS * rounding), "")
    cancels = abs(expected) <= 100 * FITS * rounding
    return LossNumbers(
        ratio=None if cancels else finite(loss / expected),
        gap=finite(gap),
        like=like,
        advantages_intact=_intact(held, given),
    )


def _intact(held: _Held, given: LossInputs) -> bool | None:
    """Whether the advantages are those that came to this process, sample by sample; None where that is not known."""
    if held.advantages is None or len(held.advantages) != held.shape[0]:
        return None
    rows = zip(given.advantages.float(), held.lengths, strict=True)
    return [checksum_of(row[:length]) for row, length in rows] == held.advantages
