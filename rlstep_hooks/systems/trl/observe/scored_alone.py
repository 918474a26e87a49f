"""Rows of one batch of a compared cycle, scored again alone (`rlstep_hooks.observe.clean_forward`), beside what training computed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from rlstep_hooks.judge.rules.precision import precision_class
from rlstep_hooks.judge.rules.ratio.values import MEAN_TOLERANCE
from rlstep_hooks.observe.clean_entropies import entropy_fields
from rlstep_hooks.observe.clean_forward import (
    CleanForward,
    CleanGap,
    LayersAndHead,
    Row,
    fields_of,
    hooked_by_others,
    row_of,
    why_not_alone,
)
from rlstep_hooks.observe.forward_beside import told_by_others
from rlstep_hooks.observe.guard import Guard, contained
from rlstep_hooks.observe.scored_beside import PlacedRow, ScoringBeside
from rlstep_hooks.observe.scored_rows import OLD, SHARED_OUT
from rlstep_hooks.observe.sharding.zero import computes_alone
from rlstep_hooks.record.cadence import ALL_OF_FIRST, READ_WHOLE
from rlstep_hooks.systems.trl.observe.engine_steps import engine_of
from rlstep_hooks.systems.trl.observe.facts import compute_dtype, forward_noise
from rlstep_hooks.systems.trl.observe.fused_head import told_of_fused_heads
from rlstep_hooks.systems.trl.observe.ranks import other_parallelism
from rlstep_hooks.systems.trl.observe.reference_alone import ReferenceAlone, is_the_policys
from rlstep_hooks.systems.trl.observe.reference_beside import ReferenceBeside
from rlstep_hooks.systems.trl.observe.sharded import why_no_rows_beside
from rlstep_hooks.systems.trl.observe.unwrapped import Unwrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlstep_hooks.session.recorder import Recorder

IMAGES = ("pixel_values", "image_grid_thw", "token_type_ids", "mm_token_type_ids")
"""What a batch has beside tokens where rows have images."""
WITH_IMAGES = "rows with images are not scored alone"
POLICY_TOPIC, REFERENCE_TOPIC = TOPICS = "clean_forward", "clean_reference"


class Computed(msgspec.Struct, frozen=True, kw_only=True):
    """What training computed for the rows of one batch: each (B, T), detached."""

    policy: Tensor
    """Log-probs of the policy as it is now."""
    policy_is: str
    """Which they are: "the loss" or "the old log-probs"."""
    old: Tensor | None = None
    """Old log-probs that the weights of the loss should give too; None where they should not."""
    reference: Tensor | None = None
    """Log-probs that the reference as it is now should give; None where there are none."""
    entropies: Tensor | None = None
    """Entropies of the distributions that `policy` was taken from; None where the trainer computes none."""


class _Chosen(msgspec.Struct, frozen=True):
    """One row of a batch that is scored."""

    place: int
    row: Row
    neighbours: list[Row]
    """Other rows of the batch, nearest first."""

    def of(self, values: Tensor) -> Tensor:
        """(C,), the part of (B, T) values that is the row's."""
        return values[self.place, : self.row.length]


class ScoredAlone:
    """Scores rows of one trainer's batches.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer whose training begins.
        recorder: Is told what cannot be scored.
        rows_hidden: Why no row can be taken out of a batch; empty where each can.
    """

    def __init__(self, trainer: Any, recorder: Recorder, rows_hidden: str = "") -> None:
        self._trainer = trainer
        self.recorder = recorder
        """Is told what cannot be scored."""
        self._in_turn = False
        self._large = sum(of.numel() for of in trainer.model.parameters()) > READ_WHOLE
        """Whether a row alone takes a noticeable part of a cycle."""
        self._temperature = float(getattr(trainer, "temperature", 1.0))  # 0.16.0 has none in the loss
        self._unwrapped = Unwrapped(trainer.accelerator)
        self._of_policy = False
        """Whether rows are scored with the policy."""
        self._reference: ReferenceAlone | None = None
        """Scores rows with the reference; None where there is none, or it cannot."""
        self._beside: ScoringBeside | None = None
        """Scores rows beside training's own forwards; None where a process may make forwards of its own, or rows cannot be scored."""
        self.reference_beside: ReferenceBeside | None = None
        """Scores rows with the reference beside its own forwards; None where nothing may or can score them."""
        self._prepare(rows_hidden)

    @contained(*TOPICS)
    def _prepare(self, rows_hidden: str) -> None:
        """Find out with which models rows can be scored, and how."""
        trainer = self._trainer
        if rows_hidden:
            self._cannot(rows_hidden)
            return
        if shared_out(trainer):
            self._begin_beside()
            return
        why = _why_not(trainer)
        self._of_policy = not why
        if why:
            self.recorder.cannot(POLICY_TOPIC, why)
        if getattr(trainer, "beta", 0.0):
            reference = ReferenceAlone(trainer, self._temperature)
            why = reference.why_not
            self._reference = None if why else reference
            if why:
                self.recorder.cannot(REFERENCE_TOPIC, why)

    def _begin_beside(self) -> None:
        model = self._unwrapped.of(self._trainer.model)
        why = why_no_rows_beside(self._trainer, model)
        if why:
            self.recorder.cannot(POLICY_TOPIC, why)
        else:
            self._beside = ScoringBeside(model, self._temperature, Guard(self.recorder, (POLICY_TOPIC,)))
        if getattr(self._trainer, "beta", 0.0):
            self.reference_beside = ReferenceBeside(self._trainer, self.recorder, self._unwrapped, self._temperature)

    @property
    def looks_beside(self) -> bool:
        """Whether rows are scored beside training's own forwards, of the policy or of the reference."""
        return self._beside is not None or self.reference_beside is not None

    @contextmanager
    def beside(self, cycle: int, inputs: dict[str, Any]) -> Iterator[None]:
        """Score rows of a batch beside training's own forward of it, which is made in this context, where no other may be made.

        Args:
            cycle: Of rollouts.
            inputs: The batch, as the loss got it.
        """
        if self._beside is None:
            yield
            return
        if any(inputs.get(name) is not None for name in IMAGES):
            self._cannot(WITH_IMAGES)
            yield
            return
        rows = [PlacedRow(each.place, each.row) for each in self._choose(cycle, inputs)]
        with self._beside.beside(rows) as beside, told_of_fused_heads(beside):
            yield

    def _look_beside(self, scoring: ScoringBeside, computed: Computed) -> dict[str, Any]:
        """Compare what training computed with what rows gave beside its forward; waits for the device."""
        tolerance = MEAN_TOLERANCE[precision_class(compute_dtype(self._trainer))]
        found: list[tuple[str, CleanGap]] = []
        entropies: list[dict[str, Any]] = []
        for each in scoring.take():
            for of, observed in ((computed.policy_is, computed.policy), (OLD, computed.old)):
                if observed is not None:
                    found.append((of, each.gap(observed, tolerance)))
            if computed.entropies is not None:
                entropies.append(entropy_fields(each.entropies, each.of(computed.entropies), tolerance))
        far = any(gap.mean > tolerance for _, gap in found)
        if far and (why := told_by_others(self._unwrapped.of(self._trainer.model))):
            self.recorder.cannot(POLICY_TOPIC, why)
            return {}
        of_entropies = max(entropies, key=lambda of: of["entropy_gap"], default={})
        return fields_of(found) | of_entropies if found else {}

    def look(self, cycle: int, inputs: dict[str, Any], computed: Computed) -> dict[str, Any]:
        """Compare what training computed for two rows with forwards of each alone; waits for the device.

        Args:
            cycle: Of rollouts.
            inputs: The batch, as the loss got it or the rollout gave it.
            computed: What training computed for it.

        Returns:
            Fields that `MicroBatchValues` and `RolloutValues` have; of whichever numbers are the farthest from the clean ones. Nothing
            where looking failed.
        """
        return self._looked(cycle, inputs, computed) or {}

    @contained(*TOPICS)
    def _looked(self, cycle: int, inputs: dict[str, Any], computed: Computed) -> dict[str, Any]:
        if self._beside is not None:
            return self._look_beside(self._beside, computed)
        if not self._of_policy and self._reference is None:
            return {}
        if any(inputs.get(name) is not None for name in IMAGES):
            self._cannot(WITH_IMAGES)
            return {}
        model = self._unwrapped.of(self._trainer.model)
        if hooked_by_others(model) or (self._reference is not None and self._reference.is_hooked()):
            self._cannot("somebody's own hooks of the model's modules would see forwards that training does not make")
            return {}
        chosen = self._choose(cycle, inputs)
        tolerance = MEAN_TOLERANCE[precision_class(compute_dtype(self._trainer))]
        policy = CleanForward(LayersAndHead(model, self._trainer.accelerator.autocast), self._temperature)
        of_policy = [policy.score_with_entropies(each.row) for each in chosen] if self._of_policy else []
        fields: dict[str, Any] = {}
        if of_policy:
            fields |= _of_policy(chosen, of_policy, computed, policy, tolerance)
        if chosen and computed.reference is not None and self._reference is not None:
            clean = [log_probs for log_probs, _ in of_policy] or [None] * len(chosen)
            fields |= _of_reference(chosen, clean, computed, computed.reference, self._reference, tolerance)
        return fields

    def _cannot(self, why: str) -> None:
        for topic in TOPICS:
            self.recorder.cannot(topic, why)

    def _choose(self, cycle: int, inputs: dict[str, Any]) -> list[_Chosen]:
        """The row with the most padding, and one that changes from cycle to cycle; later one of the two in turn, of a large model from
        the second cycle on."""
        lengths = inputs["completion_mask"].bool().sum(1).tolist()
        prompts = inputs["prompt_mask"].bool().sum(1).tolist()
        places = [place for place, length in enumerate(lengths) if length]
        if not places:
            return []
        most_padding, changing = min(places, key=prompts.__getitem__), places[cycle % len(places)]
        self._in_turn = not self._in_turn
        later = {most_padding} if self._in_turn else {changing}
        rows = {place: row_at(inputs, place) for place in places}
        return [
            _Chosen(place, rows[place], [rows[near] for near in _nearest(place, places)])
            for place in ({most_padding, changing} if cycle < (1 if self._large else ALL_OF_FIRST) else later)
        ]


def _nearest(place: int, places: list[int]) -> list[int]:
    return [near for near in sorted(places, key=lambda of: abs(of - place)) if near != place]


def _of_policy(
    chosen: list[_Chosen],
    clean: list[tuple[Tensor, Tensor]],
    computed: Computed,
    policy: CleanForward,
    tolerance: float,
) -> dict[str, Any]:
    """Compare log-probs and entropies of the policy with the clean ones of each row."""
    found: list[tuple[str, CleanGap]] = []
    entropies: list[dict[str, Any]] = []
    for each, (log_probs, of_tokens) in zip(chosen, clean, strict=True):
        for of, observed in ((computed.policy_is, computed.policy), (OLD, computed.old)):
            if observed is not None:
                gap = policy.compare(each.row, log_probs, each.of(observed), tolerance, each.neighbours)
                found.append((of, gap))
        if computed.entropies is not None:
            entropies.append(entropy_fields(of_tokens, each.of(computed.entropies), tolerance))
    return fields_of(found) | max(entropies, key=lambda of: of["entropy_gap"], default={})


def _of_reference(
    chosen: list[_Chosen],
    of_policy: Sequence[Tensor | None],
    computed: Computed,
    observed: Tensor,
    reference: ReferenceAlone,
    tolerance: float,
) -> dict[str, Any]:
    """Compare the reference's log-probs with the clean ones of each row, and with the policy's."""
    gaps: list[CleanGap] = []
    equal: list[bool] = []
    for each, policys in zip(chosen, of_policy, strict=True):
        clean, gap = reference.compare(each.row, each.of(observed), tolerance, each.neighbours)
        gaps.append(gap)
        same = None
        if policys is not None:
            same = is_the_policys(each.of(observed), each.of(computed.policy), clean, policys)
        equal += [] if same is None else [same]
    farthest = max(gaps, key=lambda gap: gap.mean)
    return {
        "reference_clean_gap": farthest.mean,
        "reference_clean_max": farthest.largest,
        "reference_clean_like": farthest.like,
        "reference_is_policy": any(equal) if equal else None,
    }


def row_at(inputs: dict[str, Any], place: int) -> Row:
    """One row of a batch as TRL holds it."""
    names = "prompt_ids", "prompt_mask", "completion_ids", "completion_mask"
    return row_of(*(inputs[name][place] for name in names))


def shared_out(trainer: Any) -> str:
    """Why no process may make a forward of its own; empty where each may."""
    # Tensor parallelism gives processes parts of matrices, each a DTensor of a mesh.
    if _holds_all(trainer) and not any(hasattr(parameter, "device_mesh") for parameter in trainer.model.parameters()):
        return ""
    return SHARED_OUT


def _holds_all(trainer: Any) -> bool:
    """Whether the module inside of what the trainer calls is the whole model, whose forward needs no other process."""
    if getattr(trainer, "is_fsdp_enabled", False) or other_parallelism(trainer.accelerator):
        return False
    if getattr(trainer, "is_deepspeed_enabled", False):
        # Below stage 3 ZeRO shares gradients and optimizer out, and the reference's engine has stage 0 (trl/models/utils.py
        # 1.16.0:285).
        engine = engine_of(trainer)
        return engine is not None and computes_alone(engine)
    # DDP's forward knows nothing of reducer and buffers (torch 2.13.0, nn/parallel/distributed.py `DistributedDataParallel.forward`).
    return trainer.accelerator.num_processes == 1 or isinstance(trainer.model_wrapped, DistributedDataParallel)


def _why_not(trainer: Any) -> str:
    """Why no row can be scored with the policy; empty where rows can."""
    if noise := forward_noise(trainer):
        return f"{noise} makes each forward in training mode another one"
    return why_not_alone(trainer.accelerator.unwrap_model(trainer.model))
