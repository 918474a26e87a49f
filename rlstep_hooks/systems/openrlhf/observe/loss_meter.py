"""Compares the losses of a trainer with their documented formula, once what they were computed from has arrived on the CPU.

Nothing waits for it: the tensors of a micro-batch go to the CPU with the other numbers of its rollout.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.deferred import DeferredValues
from rlstep_hooks.observe.identity import checksum_of
from rlstep_hooks.observe.losses import Formula, LossBatch
from rlstep_hooks.systems.openrlhf.observe.buffered import Came
from rlstep_hooks.systems.openrlhf.observe.loss import policy_formula, read_settings
from rlstep_hooks.systems.openrlhf.observe.value_loss import read_value_settings, value_formula

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.observe.contained import Contained
    from rlstep_hooks.observe.losses import LossNumbers
    from rlstep_hooks.record.values import Role

HELD_TOKENS = 1 << 20
"""Tokens of a rollout whose numbers are held until they are sent; micro-batches beyond are not compared."""

_NAMES = {
    "old_log_probs": "old",
    "rollout_log_probs": "engine",
    "old_values": "old",
    "returns": "targets",
}
"""Arguments of OpenRLHF's losses that have another name in the formulas."""


class _Held(msgspec.Struct):
    """What one micro-batch was trained with."""

    index: int
    window: tuple[int, int] | None
    """Pass and update of the rollout that it belongs to; None where its divisor is taken as it came."""
    window_size: int
    formula: Formula[Any]
    whole: bool
    """Whether the formula is of what goes into the backward, and not of the first term of that alone."""
    gradients: list[Tensor]
    """(B, T) on the device, the gradient that arrived at what the model gave; empty if it is not compared."""
    shape: tuple[int, int]
    names: tuple[str, ...]
    """Tensors of this shape that follow each other in the vector, before the four numbers."""
    ranks: int
    epsilon: float
    came: list[Came]
    """What its samples came to this process with; empty where that is not known."""


class LossMeter:
    """Follows the losses of one role of one trainer.

    Args:
        args: OpenRLHF's arguments.
        role: The role.
        ranks: Processes that share an update.
        accumulation: Micro-batches of an update, where they are counted.
        scale: What gradients in the backward must be multiplied by to be those of the loss; 0 where that is not known.
        guard: Contains errors of the hooks in the backward.
    """

    def __init__(self, args: Any, role: Role, *, ranks: int, accumulation: int, scale: float, guard: Contained) -> None:
        self._args = args
        self._role = role
        self._ranks = ranks
        self._accumulation = accumulation
        self._scale = scale
        self._guard = guard
        self._gradients = True
        """Whether the gradient of the loss is that of its formula."""
        self._rollout = -1
        self._pass = -1
        self._tokens = 0
        self._open: tuple[_Held, list[Tensor], Tensor] | None = None
        self._waiting: list[tuple[_Held, Tensor]] = []
        """Micro-batches whose losses are known, and the gradients of the latest of which may be on their way."""
        self._arriving: DeferredValues[_Held] = DeferredValues()
        self._step = 0
        self._coefficient = 0.0
        self._experience: Any = None
        self._came: list[Came] = []

    @property
    def looks(self) -> bool:
        """Whether the losses of this rollout are compared."""
        return is_compared(self._rollout)

    def next_rollout(self) -> None:
        """The passes over a rollout begin."""
        self._rollout += 1
        self._pass, self._tokens = -1, 0

    def begin(self, experience: Any, coefficient: Any, step: int, came: list[Came]) -> None:
        """A micro-batch begins.

        Args:
            experience: OpenRLHF's `Experience`.
            coefficient: Of the KL term.
            step: Its number in this pass.
            came: What its samples came to this process with; empty where that is not known.
        """
        self._pass += step == 0
        self._step, self._coefficient, self._experience, self._came = step, float(coefficient), experience, came

    def computed(self, index: int, given: Mapping[str, Any], loss: Tensor) -> None:
        """The loss of a micro-batch was computed from these, by the name of their argument."""
        self._open = None
        mask = given["action_mask"]
        if not self.looks or self._tokens + mask.numel() > HELD_TOKENS:
            return
        self._tokens += mask.numel()
        tensors, formula, whole = self._policy(given) if self._role == "policy" else self._values(given)
        tensors["action_mask"] = mask
        dynamic = bool(self._args.train.dynamic_batch_enable) or self._ranks > 1
        computed = [
            tensor.dtype for name, tensor in tensors.items() if name in ("log_probs", "advantages", *_OF_VALUES)
        ]
        held = _Held(
            index=index,
            window=None if dynamic else (self._pass, self._step // self._accumulation),
            window_size=self._accumulation,
            formula=formula,
            whole=whole,
            gradients=[],
            shape=tuple(mask.shape),
            names=tuple(tensors),
            ranks=int(given.get("dp_size") or 1),
            epsilon=max(torch.finfo(dtype).eps for dtype in computed),
            came=self._came,
        )
        numbers = [torch.as_tensor(given[name]) for name in ("batch_num_tokens", "global_batch_size")]
        parts = [tensor.detach().float().flatten() for tensor in tensors.values()]
        self._open = (
            held,
            parts,
            torch.stack([n.to(loss.device).float().reshape(()) for n in numbers] + [loss.detach().float()]),
        )
        given_by_model = given[_GIVEN_BY_MODEL[self._role]]
        if whole and self._gradients and self._scale and given_by_model.requires_grad:
            # The sum of the gradients of all that the loss is computed from it: torch calls such a hook once, with that sum.
            given_by_model.register_hook(partial(_keep, held.gradients, self._scale, self._guard))

    def _policy(self, given: Mapping[str, Any]) -> tuple[dict[str, Tensor], Formula[Any], bool]:
        """The tensors of the policy's loss, its formula, and whether that is the whole loss."""
        names = ("log_probs", "old_log_probs", "advantages", "rollout_log_probs")
        tensors = {name: given[name] for name in names if given.get(name) is not None}
        kl = self._args.algo.kl
        # A coefficient that adapts is taken as it came (kl_controller.py).
        settings = read_settings(self._args, self._coefficient if getattr(kl, "target", None) else float(kl.init_coef))
        reference = getattr(self._experience, "base_action_log_probs", None)
        if settings.kl_coef and reference is not None:
            tensors["reference"] = reference
        whole = not self._args.actor.entropy_coef and self._plain
        # The gradient of this form of the KL term is not that of its value (models/utils.py `compute_approx_kl`).
        self._gradients = not (settings.kl_coef and getattr(self._args.algo.kl, "unbiased_gradient", False))
        return tensors, policy_formula(settings if whole else replace(settings, kl_coef=0.0)), whole

    def _values(self, given: Mapping[str, Any]) -> tuple[dict[str, Tensor], Formula[Any], bool]:
        """The same of the critic's."""
        return {name: given[name] for name in _OF_VALUES}, value_formula(read_value_settings(self._args)), self._plain

    @property
    def _plain(self) -> bool:
        """Whether no loss of experts is added (ppo_actor.py:113, ppo_critic.py:63)."""
        return bool(self._args.actor.aux_loss_coef <= 1e-8)

    def backward(self, loss: Any) -> None:
        """This goes into the backward."""
        opened, self._open = self._open, None
        if opened is None or not isinstance(loss, Tensor):
            return
        held, parts, numbers = opened
        self._waiting.append((held, torch.cat([*parts, numbers, loss.detach().float().reshape(1)])))

    def send(self) -> None:
        """Start fetching what is on the device."""
        for held, values in self._waiting:
            arrived = [sum(held.gradients[1:], held.gradients[0]).float().flatten()] if held.gradients else []
            self._arriving.add(held, torch.cat([values, *arrived]))
        self._waiting.clear()
        self._arriving.send()

    def arrived(self) -> dict[int, LossNumbers]:
        """The losses that have arrived, compared; by micro-batch."""
        arrived = [_Arrived.of(held, values) for held, values in self._arriving.tensors()]
        windows: dict[tuple[int, int], list[LossBatch]] = {}
        for each in arrived:
            if each.held.window is not None:
                windows.setdefault(each.held.window, []).append(each.given)
        for each in arrived:
            window = [] if each.held.window is None else windows[each.held.window]
            if len(window) == each.held.window_size:
                each.given = _as_part(each.given, window)
        return {each.held.index: each.compared() for each in arrived}


_OF_VALUES = ("values", "old_values", "returns")
"""Arguments of the critic's loss."""


_GIVEN_BY_MODEL: dict[Role, str] = {"policy": "log_probs", "critic": "values"}
"""The argument of the loss that the model gave."""


def _keep(kept: list[Tensor], scale: float, guard: Contained, gradient: Tensor) -> None:
    with guard:
        kept.append(gradient.detach() * scale)


class _Arrived(msgspec.Struct):
    """One micro-batch on the CPU."""

    held: _Held
    tensors: dict[str, Tensor]
    """(B, T) in float64."""
    given: LossBatch
    """What the formula takes."""
    first: float
    """The loss that the loss function returned."""
    whole: float
    """What went into the backward."""
    gradient: Tensor | None
    """(B, T) in float64, that of the loss at what the model gave, as it arrived there."""

    @classmethod
    def of(cls, held: _Held, values: Tensor) -> _Arrived:
        """Take a vector apart."""
        size = held.shape[0] * held.shape[1]
        tensors = {
            name: values[i * size : (i + 1) * size].view(held.shape).double() for i, name in enumerate(held.names)
        }
        tokens, samples, first, whole = values[len(held.names) * size : len(held.names) * size + 4].tolist()
        rest = values[len(held.names) * size + 4 :]
        given = LossBatch(
            tensors={_NAMES.get(name, name): tensor for name, tensor in tensors.items()},
            mask=tensors["action_mask"],
            ranks=held.ranks,
            tokens=tokens,
            samples=samples,
            epsilons={"policy": held.epsilon},
        )
        gradient = rest.view(held.shape).double() if rest.numel() else None
        return cls(held, tensors, given, first, whole, gradient)

    def compared(self) -> LossNumbers:
        """The loss against its formula, and what it was computed from against what came to this process."""
        loss = self.whole if self.held.whole else self.first
        found = self.held.formula.compare(self.given, loss, self.held.window_size, self.gradient)
        return msgspec.structs.replace(
            found,
            advantages_intact=self._intact("advantages"),
            targets_intact=self._intact("returns"),
            values_intact=self._intact("old_values"),
        )

    def _intact(self, name: str) -> bool | None:
        """Whether a tensor is the one that came, sample by sample; None where that is not known."""
        came = self.held.came
        if name not in self.tensors or len(came) != self.held.shape[0]:
            return None
        rows = [(row, of) for row, of in zip(self.tensors[name].float(), came, strict=True) if name in of.checksums]
        if not rows:
            return None
        return all(checksum_of(row[: of.length]) in of.checksums[name] for row, of in rows)


def _as_part(given: LossBatch, window: list[LossBatch]) -> LossBatch:
    """With the divisors that the masks of all micro-batches of an update give (utils/loss_utils.py `_optimizer_step_loss_norm`)."""
    tokens = sum(float(each.mask.sum()) for each in window) / len(window)
    samples = sum(float((each.mask.sum(1) > 0).sum()) for each in window) / len(window)
    return replace(given, tokens=tokens, samples=samples)
