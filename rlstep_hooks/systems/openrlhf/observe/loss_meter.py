"""Compares the losses of a trainer with their documented formula, once what they were computed from has arrived on the CPU.

Nothing waits for it: the tensors of a micro-batch go to the CPU with the other numbers of its rollout.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.judge.rules.ratio.values import MEAN_TOLERANCE
from rlstep_hooks.observe.clean_entropies import entropy_fields
from rlstep_hooks.observe.deferred import DeferredValues, finite
from rlstep_hooks.observe.guard import Guard, contained
from rlstep_hooks.observe.held_losses import HeldBatch, HeldLosses
from rlstep_hooks.observe.identity import checksum_of
from rlstep_hooks.observe.loss_causes import Compared, named_together
from rlstep_hooks.observe.losses import Formula, LossBatch
from rlstep_hooks.observe.update_sizes import DividedPart, UpdateSizes, divisor_fields
from rlstep_hooks.systems.openrlhf.observe.entropies import Computed, computed_by, gradient_gap
from rlstep_hooks.systems.openrlhf.observe.loss import policy_formula, read_settings
from rlstep_hooks.systems.openrlhf.observe.value_loss import read_value_settings, value_formula

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.observe.guard import GapRecorder
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

    window: tuple[int, int]
    """Pass and update of the rollout that it belongs to, in dynamic batches the update of the run."""
    part: DividedPart
    """Which micro-batches have the divisors of this one."""
    window_size: int
    """Micro-batches that the loss is divided by besides: those of an update, and one in dynamic batches."""
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
    followed: bool = False
    """Whether the gradient at what the model gave is followed. Where none arrives, the loss teaches nothing there."""
    entropy_coef: float = 0.0
    """The coefficient of the entropy bonus; 0 where it is not compared."""
    positions: int = 0
    """Positions of each row that the model was given; 0 where that was not seen."""
    again: tuple[int, int, int] | None = None
    """The row, the first token and the number of the entropies that were computed again; None where none were."""


class LossMeter(HeldLosses[_Held]):
    """Follows the losses of one role of one trainer.

    Args:
        args: OpenRLHF's arguments.
        role: The role.
        ranks: Processes that share an update.
        accumulation: Micro-batches of an update, where they are counted.
        scale: What gradients in the backward must be multiplied by to be those of the loss; 0 where that is not known.
        recorder: Learns what is not observed.
    """

    def __init__(
        self, args: Any, role: Role, *, ranks: int, accumulation: int, scale: float, recorder: GapRecorder
    ) -> None:
        super().__init__(Guard(recorder, ("formula",)))
        self._told: list[str] = []
        """What wrong losses were whose inputs were changed, in words that follow "the loss is"."""
        self.recorder = recorder
        """Learns what is not observed."""
        self._args = args
        self._role = role
        self._ranks = ranks
        self._accumulation = accumulation
        self._scale = scale
        self._pass = -1
        self._of_update: Counter[tuple[int, int]] = Counter()
        """Micro-batches of each update of this rollout."""
        self._open: tuple[_Held, list[Tensor]] | None = None
        self._step = 0
        self._update = 0
        """The update that a micro-batch is a part of, by its number in the run."""
        self._coefficient = 0.0
        self._experience: Any = None
        self._came: list[Came] = []
        self._entropies: Computed | None = None
        self._inputs: Tensor | None = None
        """(B, L), the tokens that the model was given for the micro-batch, -1 where it does not look."""
        self._of_entropies: DeferredValues[int] = DeferredValues()
        """Gradients that arrived at the entropies of a micro-batch."""

    def next_rollout(self) -> None:
        """The passes over a rollout begin."""
        super().next_rollout()
        self._pass = -1
        self._of_update.clear()

    def begin(self, experience: Any, coefficient: Any, step: int, came: list[Came], *, update: int) -> None:
        """A micro-batch begins.

        Args:
            experience: OpenRLHF's `Experience`.
            coefficient: The coefficient of the KL term.
            step: The number of the micro-batch in this pass.
            came: What its samples came to this process with; empty where that is not known.
            update: The number of its update in the run.
        """
        self._update = update
        self._pass += step == 0
        self._step, self._coefficient, self._experience, self._came = step, float(coefficient), experience, came
        self._entropies = self._inputs = None

    def fed(self, sequences: Tensor, attention: Tensor) -> None:
        """The model is given these tokens of a micro-batch, and looks at those where `attention` is not 0."""
        if self.looks:
            self._inputs = torch.where(attention.bool(), sequences, -1)

    def scored(self, result: Any) -> None:
        """The policy's forward of a micro-batch returned this."""
        if self.looks and self._role == "policy" and self._args.actor.entropy_coef:
            self._entropies = computed_by(result, self._step)

    def computed(self, index: int, given: Mapping[str, Any], loss: Tensor) -> None:
        """The loss of a micro-batch was computed from these, by the name of their argument."""
        self._open = None
        mask, dynamic = given["action_mask"], bool(self._args.train.dynamic_batch_enable)
        # Dynamic batches say themselves how many belong to an update (replay_buffer.py:106-177).
        window = (-1, self._update) if dynamic else (self._pass, self._step // self._accumulation)
        self._of_update[window] += 1
        part = DividedPart(self._update, self.rollout, [*self._of_update].index(window))
        if not self.takes(mask.numel()):
            return
        tensors, formula, whole = self._policy(given) if self._role == "policy" else self._values(given)
        tensors["action_mask"] = mask
        computed = [
            tensor.dtype for name, tensor in tensors.items() if name in ("log_probs", "advantages", *_OF_VALUES)
        ]
        held = _Held(
            index=index,
            window=window,
            part=part,
            window_size=1 if dynamic else self._accumulation,
            formula=formula,
            whole=whole,
            shape=tuple(mask.shape),
            names=tuple(tensors),
            ranks=self._ranks,
            epsilon=max(torch.finfo(dtype).eps for dtype in computed),
            came=self._came,
        )
        again = self._take_entropies(held, tensors)
        inputs = [] if self._inputs is None else [self._inputs]
        held.positions = sum(tensor.shape[1] for tensor in inputs)
        numbers = [torch.as_tensor(given[name]) for name in ("batch_num_tokens", "global_batch_size")]
        numbers = [number.to(loss.device) for number in numbers]
        self._open = held, [part.detach().float() for part in (*tensors.values(), *again, *inputs, *numbers, loss)]
        given_by_model = given[_GIVEN_BY_MODEL[self._role]]
        if whole and self._scale:
            held.followed = True
            if given_by_model.requires_grad:
                self.follow_gradient(index, given_by_model, self._scale)
            if "entropies" in tensors:
                self._follow_entropies(held, tensors["entropies"])

    def _policy(self, given: Mapping[str, Any]) -> tuple[dict[str, Tensor], Formula[Any], bool]:
        """The tensors of the policy's loss, its formula, and whether that is the whole loss."""
        names = ("log_probs", "old_log_probs", "advantages", "rollout_log_probs")
        tensors = {name: given[name] for name in names if given.get(name) is not None}
        kl = self._args.algo.kl
        if self._entropies is not None:
            tensors["entropies"] = self._entropies.all[:, -given["action_mask"].shape[1] :]
        # A coefficient that adapts is taken as it came (kl_controller.py).
        settings = read_settings(self._args, self._coefficient if getattr(kl, "target", None) else float(kl.init_coef))
        reference = getattr(self._experience, "base_action_log_probs", None)
        if settings.kl_coef and reference is not None:
            tensors["reference"] = reference
        whole = ("entropies" in tensors or not settings.entropy_coef) and self._plain
        return tensors, policy_formula(settings if whole else replace(settings, kl_coef=0.0, entropy_coef=0.0)), whole

    def _take_entropies(self, held: _Held, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Note what is compared of the entropies of a micro-batch; returns those that were computed again, if any were."""
        found = self._entropies
        if found is None or "entropies" not in tensors:
            return []
        held.entropy_coef = float(self._args.actor.entropy_coef)
        if found.again is None or found.all.shape != tensors["entropies"].shape:
            return []
        held.again = found.row, found.first, found.again.numel()
        return [found.again]

    def _follow_entropies(self, held: _Held, entropies: Tensor) -> None:
        """Keep the gradient that arrives at the entropies: none does where they are cut off from the model."""
        if not entropies.requires_grad:
            self._of_entropies.add(held.index, torch.zeros_like(entropies).flatten())
        else:
            entropies.register_hook(partial(self._entropy_gradient_arrives, held.index))

    @contained("formula")
    def _entropy_gradient_arrives(self, index: int, gradient: Tensor) -> None:
        """Keep the gradient that arrives at the entropies of a micro-batch."""
        self._of_entropies.add(index, (gradient.detach().float() * self._scale).flatten())

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

    def send(self) -> None:
        """Start fetching what is on the device."""
        self._of_entropies.send()  # first: they must be there when their micro-batch is
        super().send()

    def arrived(self) -> dict[int, LossNumbers]:
        """The losses that have arrived, compared; by micro-batch."""
        arrived = [_Arrived.of(held, parts, gradient) for held, parts, gradient in self.ready()]
        of_entropies = {index: gradient.double() for index, gradient in self._of_entropies.tensors()}
        for each in arrived:
            each.of_entropies = of_entropies.get(each.held.index)
        windows: dict[tuple[int, int], list[Tensor]] = {}
        for each in arrived:
            windows.setdefault(each.held.window, []).append(each.given.mask)
        for each in arrived:
            masks, size = windows[each.held.window], each.held.window_size
            due = self._of_update[each.held.window] if self._args.train.dynamic_batch_enable else size
            if len(masks) < due:
                continue
            if self._ranks == 1:
                each.given = _as_part(each.given, *_sizes_of(masks), size)
            else:
                each.own = UpdateSizes(*_sizes_of(masks))
        found = named_together([each.against_formula() for each in arrived], self._told)
        return {each.held.index: each.with_inputs(numbers) for each, numbers in zip(arrived, found, strict=True)}


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
    said: UpdateSizes
    """The sizes of its update on all processes, as the loss was given them."""
    gradient: Tensor | None
    """The gradient of the loss at what the model gave, as it arrived there, in one row."""
    inputs: Tensor | None = None
    """(B, L), the tokens that the model was given, -1 where it does not look."""
    again: Tensor | None = None
    """(N,), entropies that were computed again."""
    of_entropies: Tensor | None = None
    """The gradient of the loss at the entropies, as it arrived there, in one row."""
    own: UpdateSizes | None = None
    """The sizes of its update on this process, where others have a part of it; None elsewhere, and where they are not known."""

    @classmethod
    def of(cls, held: _Held, parts: list[Tensor], gradient: Tensor | None) -> _Arrived:
        """Take what arrived apart."""
        *rows, tokens, samples, first, whole = parts
        inputs = rows.pop().view(-1, held.positions) if held.positions else None
        again = rows.pop() if held.again is not None else None
        tensors = {name: row.view(held.shape) for name, row in zip(held.names, rows, strict=True)}
        given = LossBatch(
            tensors={_NAMES.get(name, name): tensor for name, tensor in tensors.items()},
            mask=tensors["action_mask"],
            ranks=held.ranks,
            tokens=float(tokens),
            samples=float(samples),
            epsilons={"policy": held.epsilon},
        )
        if gradient is None and held.followed:  # the loss went into the backward, which did not come by here
            gradient = torch.zeros(given.mask.numel(), dtype=torch.float64)
        said = UpdateSizes(float(tokens) * held.window_size, float(samples) * held.window_size)
        return cls(held, tensors, given, float(first), float(whole), said, gradient, inputs, again)

    def against_formula(self) -> Compared:
        """The loss against its formula."""
        loss = self.whole if self.held.whole else self.first
        found = self.held.formula.compare(self.given, loss, self.held.window_size, self.gradient)
        return Compared(self.held.formula, self.given, loss, found, self.gradient)

    def with_inputs(self, found: LossNumbers) -> LossNumbers:
        """The numbers of the loss, with those of what it was computed from against what came to this process."""
        return msgspec.structs.replace(
            found,
            gradient_gap=self._with_entropies(found),
            **self._entropy_fields(),
            **self._divisor_fields(),
            advantages_intact=self._intact("advantages"),
            targets_intact=self._intact("returns"),
            values_intact=self._intact("old_values"),
            sampling_intact=self._intact("rollout_log_probs"),
            reference_intact=self._intact("reference"),
            inputs_intact=self._inputs_intact(),
        )

    def _with_entropies(self, found: LossNumbers) -> float | None:
        """The largest distance of a gradient from the documented one: at what the model gave, and at the entropies."""
        followed = self.of_entropies
        if followed is None or not found.loss_is_documented:
            return found.gradient_gap
        return finite(max(gradient_gap(self.given, self.held.entropy_coef, followed), found.gradient_gap or 0.0))

    def _entropy_fields(self) -> dict[str, Any]:
        if self.again is None or self.held.again is None:
            return {}
        row, first, count = self.held.again
        observed = self.tensors["entropies"][row, first : first + count]
        return entropy_fields(self.again.float(), observed, MEAN_TOLERANCE["float32"]) | {"entropy_exact": True}

    def _divisor_fields(self) -> dict[str, Any]:
        """What the loss was given to divide by, which the records of all processes are joined to judge."""
        if self.own is None:
            return {}
        divided_by = self.held.formula.divided_by(self.given)
        return divisor_fields(divided_by, given=self.said, own=self.own, of=self.held.part)

    def _inputs_intact(self) -> bool | None:
        """Whether the model was given the tokens of the samples and looked at all of them; None where that is not known."""
        came = self.held.came
        if self.inputs is None or len(came) != len(self.inputs):
            return None
        rows = zip(self.inputs.long(), [of.length + 1 for of in came], [of.key for of in came], strict=True)
        return all(checksum_of(row[:length]) == key and bool((row[length:] == -1).all()) for row, length, key in rows)

    def _intact(self, name: str) -> bool | None:
        """Whether a tensor is the one that came, sample by sample; None where that is not known."""
        came = self.held.came
        if name not in self.tensors or len(came) != self.held.shape[0]:
            return None
        rows = [(row, of) for row, of in zip(self.tensors[name].float(), came, strict=True) if name in of.checksums]
        if not rows:
            return None
        return all(checksum_of(row[: of.length]) in of.checksums[name] for row, of in rows)


def _sizes_of(masks: list[Tensor]) -> tuple[float, float]:
    """Tokens that count, and samples that have one, in the masks (B, T) of micro-batches."""
    tokens = sum(float(mask.sum()) for mask in masks)
    return tokens, sum(float((mask.sum(1) > 0).sum()) for mask in masks)


def _as_part(given: LossBatch, tokens: float, samples: float, size: int) -> LossBatch:
    """Give a batch the divisors that tokens and samples of its update make (utils/loss_utils.py `_optimizer_step_loss_norm`, in dynamic
    batches trainer/ppo_utils/replay_buffer.py `setup_dynamic_batch`)."""
    return replace(given, tokens=tokens / size, samples=samples / size)
