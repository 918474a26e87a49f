"""Compares the losses of a trainer with their documented formula, once what they were computed from has arrived on the CPU.

Nothing waits for it: the tensors of a micro-batch go to the CPU with the other numbers of its rollout.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.held_losses import HeldBatch, HeldLosses
from rlstep_hooks.observe.identity import checksum_of
from rlstep_hooks.observe.importance import Weighed
from rlstep_hooks.observe.losses import Formula, LossBatch
from rlstep_hooks.systems.openrlhf.observe.correction import Weighing, read_weighing
from rlstep_hooks.systems.openrlhf.observe.loss import policy_formula, read_settings
from rlstep_hooks.systems.openrlhf.observe.value_loss import read_value_settings, value_formula

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.observe.guard import Guard
    from rlstep_hooks.observe.losses import LossNumbers
    from rlstep_hooks.record.values import Role
    from rlstep_hooks.systems.openrlhf.observe.buffered import Came

_NAMES = {
    "old_log_probs": "old",
    "rollout_log_probs": "engine",
    "old_values": "old",
    "returns": "targets",
}
"""Arguments of OpenRLHF's losses that have another name in the formulas."""


class _Held(HeldBatch):
    """What one micro-batch was trained with."""

    window: tuple[int, int] | None
    """Pass and update of the rollout that it belongs to; None where its divisor is taken as it came."""
    window_size: int
    formula: Formula[Any]
    whole: bool
    """Whether the formula is of what goes into the backward, and not of the first term of that alone."""
    shape: tuple[int, int]
    names: tuple[str, ...]
    """Tensors of this shape that are held, before the four numbers."""
    ranks: int
    epsilon: float
    came: list[Came]
    """What its samples came to this process with; empty where that is not known."""
    weighed: Weighing | None
    """How its tokens are weighed; None where they are not, or what was weighed is not held."""


class LossMeter(HeldLosses[_Held]):
    """Follows the losses of one role of one trainer.

    Args:
        args: OpenRLHF's arguments.
        role: The role.
        ranks: Processes that share an update.
        accumulation: Micro-batches of an update, where they are counted.
        scale: What gradients in the backward must be multiplied by to be those of the loss; 0 where that is not known.
        guard: Contains errors of the hooks in the backward.
    """

    def __init__(self, args: Any, role: Role, *, ranks: int, accumulation: int, scale: float, guard: Guard) -> None:
        super().__init__(guard)
        self._args = args
        self._role = role
        self._ranks = ranks
        self._accumulation = accumulation
        self._scale = scale
        self._exact = True
        """Whether the gradient of the loss is that of its formula."""
        self._pass = -1
        self._open: tuple[_Held, list[Tensor]] | None = None
        self._step = 0
        self._coefficient = 0.0
        self._experience: Any = None
        self._came: list[Came] = []
        self._weighing = read_weighing(args) if role == "policy" else None
        self._token_losses: Tensor | None = None
        """What the open micro-batch's loss adds up of each token, once that is known."""

    def next_rollout(self) -> None:
        """The passes over a rollout begin."""
        super().next_rollout()
        self._pass = -1

    def begin(self, experience: Any, coefficient: Any, step: int, came: list[Came]) -> None:
        """A micro-batch begins.

        Args:
            experience: OpenRLHF's `Experience`.
            coefficient: The coefficient of the KL term.
            step: The number of the micro-batch in this pass.
            came: What its samples came to this process with; empty where that is not known.
        """
        self._pass += step == 0
        self._step, self._coefficient, self._experience, self._came = step, float(coefficient), experience, came
        self._token_losses = None

    @property
    def weighs(self) -> bool:
        """Whether importance weights of tokens are compared."""
        return self._weighing is not None

    def added_up(self, losses: Any) -> None:
        """The policy's losses of the open micro-batch's tokens, (B, T), are about to be added up."""
        if self._weighing is not None and self._token_losses is None and self.looks:
            self._token_losses = losses.detach()

    def computed(self, index: int, given: Mapping[str, Any], loss: Tensor) -> None:
        """The loss of a micro-batch was computed from these, by the name of their argument."""
        self._open = None
        mask = given["action_mask"]
        if not self.takes(mask.numel()):
            return
        tensors, formula, whole = self._policy(given) if self._role == "policy" else self._values(given)
        tensors["action_mask"] = mask
        losses, self._token_losses = self._token_losses, None
        weighed = losses is not None and losses.shape == mask.shape and "rollout_log_probs" in tensors
        if weighed:
            tensors[_TOKEN_LOSSES] = losses
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
            shape=tuple(mask.shape),
            names=tuple(tensors),
            ranks=int(given.get("dp_size") or 1),
            epsilon=max(torch.finfo(dtype).eps for dtype in computed),
            came=self._came,
            weighed=self._weighing if weighed else None,
        )
        numbers = [torch.as_tensor(given[name]) for name in ("batch_num_tokens", "global_batch_size")]
        numbers = [number.to(loss.device) for number in numbers]
        self._open = held, [part.detach().float() for part in (*tensors.values(), *numbers, loss)]
        given_by_model = given[_GIVEN_BY_MODEL[self._role]]
        if whole and self._exact and self._scale and given_by_model.requires_grad:
            self.follow_gradient(index, given_by_model, self._scale)

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
        self._exact = not (settings.kl_coef and getattr(self._args.algo.kl, "unbiased_gradient", False))
        return tensors, policy_formula(settings if whole else replace(settings, kl_coef=0.0)), whole

    def _values(self, given: Mapping[str, Any]) -> tuple[dict[str, Tensor], Formula[Any], bool]:
        """What the critic's loss is computed from, its formula, and whether that is the whole of it."""
        return {name: given[name] for name in _OF_VALUES}, value_formula(read_value_settings(self._args)), self._plain

    @property
    def _plain(self) -> bool:
        """Whether no loss of experts is added (ppo_actor.py:113, ppo_critic.py:63)."""
        return bool(self._args.actor.aux_loss_coef <= 1e-8)

    def backward(self, loss: Any) -> None:
        """Take the loss that goes into the backward."""
        opened, self._open = self._open, None
        if opened is None or not isinstance(loss, Tensor):
            return
        held, parts = opened
        self.hold(held, (*parts, loss))

    def arrived(self) -> tuple[dict[int, LossNumbers], Weighed]:
        """The losses that have arrived, compared, by micro-batch; and what was found of their tokens' weights."""
        arrived = [_Arrived.of(held, parts, gradient) for held, parts, gradient in self.ready()]
        windows: dict[tuple[int, int], list[LossBatch]] = {}
        for each in arrived:
            if each.held.window is not None:
                windows.setdefault(each.held.window, []).append(each.given)
        for each in arrived:
            window = [] if each.held.window is None else windows[each.held.window]
            if len(window) == each.held.window_size:
                each.given = _as_part(each.given, window)
        numbers = {each.held.index: each.compared() for each in arrived}
        return numbers, Weighed.of_parts(each.weighed(numbers[each.held.index]) for each in arrived)


_TOKEN_LOSSES = "token_losses"
"""The name of what the loss adds up among the tensors that are held."""

_OF_VALUES = ("values", "old_values", "returns")
"""Arguments of the critic's loss."""


_GIVEN_BY_MODEL: dict[Role, str] = {"policy": "log_probs", "critic": "values"}
"""The argument of the loss that the model gave."""


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
    """The gradient of the loss at what the model gave, as it arrived there, in one row."""

    @classmethod
    def of(cls, held: _Held, parts: list[Tensor], gradient: Tensor | None) -> _Arrived:
        """Take what arrived apart."""
        *rows, tokens, samples, first, whole = parts
        tensors = {name: row.view(held.shape) for name, row in zip(held.names, rows, strict=True)}
        given = LossBatch(
            tensors={_NAMES.get(name, name): tensor for name, tensor in tensors.items()},
            mask=tensors["action_mask"],
            ranks=held.ranks,
            tokens=float(tokens),
            samples=float(samples),
            epsilons={"policy": held.epsilon},
        )
        return cls(held, tensors, given, float(first), float(whole), gradient)

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

    def weighed(self, loss: LossNumbers) -> Weighed:
        """The weights of its tokens against what is documented of them; `loss` is what was found of its loss."""
        if self.held.weighed is None:
            return Weighed()
        intact = [self._intact(name) for name in ("old_log_probs", "rollout_log_probs")]
        return self.held.weighed.compared(self.given, self.tensors[_TOKEN_LOSSES], intact, loss)

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
    """Give a batch the divisors that the masks of all micro-batches of its update make (utils/loss_utils.py
    `_optimizer_step_loss_norm`)."""
    tokens = sum(float(each.mask.sum()) for each in window) / len(window)
    samples = sum(float((each.mask.sum(1) > 0).sum()) for each in window) / len(window)
    return replace(given, tokens=tokens, samples=samples)
