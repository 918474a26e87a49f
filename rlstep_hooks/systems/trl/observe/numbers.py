"""Numbers that hooks hold back: worked up together, fetched without waiting for the device, and emitted as Measured."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.bits import bits
from rlstep_hooks.observe.deferred import INTERVAL, finite
from rlstep_hooks.observe.engine_distance import Explained, closest, explained
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.importance import Comparison
from rlstep_hooks.observe.numbers import Columns, Numbers
from rlstep_hooks.observe.token_distances import near_largest, outside
from rlstep_hooks.record.events import MicroBatchValues, RolloutValues
from rlstep_hooks.systems.trl.observe.advantages import Misplaced, Scored, spread, together
from rlstep_hooks.systems.trl.observe.checksums import small_of_bits
from rlstep_hooks.systems.trl.observe.masks import MaskRule
from rlstep_hooks.systems.trl.observe.measure import (
    as_column,
    stacked_columns,
    token_mask,
    version_of,
)
from rlstep_hooks.systems.trl.observe.reference import ReferenceLook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlstep_hooks.observe.engine_distance import KeptLogits
    from rlstep_hooks.observe.numbers import Meaning
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.observe.reference import ReferenceWatch
    from rlstep_hooks.systems.trl.observe.updates import UpdateObserver


class HeldRollout(msgspec.Struct, frozen=True, gc=False):
    """What the numbers of one rollout are computed from: B samples, T completion tokens."""

    index: int
    advantages: Tensor
    """The advantages, (B,) or (B, T)."""
    mask: Tensor
    """(B, T), 1 on tokens that count."""
    gap: Tensor | None
    """(B, T), trainer log-prob - engine log-prob of tokens that count, 0 on others; None without the engine's."""
    scored: Scored | None
    """The rewards, if the advantages are compared with those of the documentation."""
    of_samples: tuple[Tensor, ...]
    """(B,), the advantage of each sample, if they are compared; where its tokens have their own, the largest and the least of them."""
    version: int
    """Writes to the advantages that torch had counted."""
    counted: tuple[MaskRule, Tensor, Tensor] | None = None
    """What decides which tokens count, the completions' tokens and their mask, each (B, T); None where they are not compared."""
    reference: ReferenceLook | None = None
    """The look at the reference; None where there was none."""
    penalty_gap: Tensor | None = None
    """Mean |policy - reference| of the log-probs that a penalty in the rewards takes; None where they need not be equal."""
    misplaced: Misplaced | None = None
    """Samples that have not the rewards that were given for them; None where no function was looked at."""
    reference_moved: Tensor | None = None
    """Log-probs of the reference that are not those that a forward gave; None where that was not seen."""
    moved: Tensor | None = None
    """Samples that have other tokens than the policy's `generate` was asked for and gave; None where that was not seen."""
    prompts_wrong: Tensor | None = None
    """Prompts with other tokens than the tokenizer gives for their rows; None where none was encoded again."""
    sampling_weights: tuple[Tensor, Tensor] | None = None
    """Probed weights at the first forward of the generation, and after the update before it; None where they were not read."""
    explained: Explained | None = None
    """What explains the gap; None where it was not looked for."""
    counts_own: bool = False
    """Whether the tokens that count are told, for the divisor of the losses of all processes."""
    weighed: Comparison | None = None
    """The comparison of importance weights between trainer and engine, where they are compared."""
    clean: dict[str, Any] = {}
    """Fields of its rows that were scored alone; empty where none was."""

    def kind(self) -> tuple[Any, ...]:
        """Equal for rollouts that are worked up together."""
        counted, sampling_weights = self.counted, self.sampling_weights
        return (
            self.advantages.shape,
            self.mask.shape,
            self.gap is None,
            None if self.scored is None else self.scored.kind(),
            None if counted is None else (counted[0], counted[1].shape, counted[2].shape),
            self.reference is None,
            self.penalty_gap is None,
            self.misplaced is None or self.misplaced.samples is None,
            self.moved is None,
            self.prompts_wrong is None,
            self.reference_moved is None,
            None if sampling_weights is None else sampling_weights[0].shape,
            None if self.explained is None else self.explained.names,
            self.counts_own,
            self.weighed is None,
        )


def _columns(group: list[HeldRollout]) -> dict[str, Tensor]:
    """The numbers of N rollouts of one kind, by name: each (N,)."""
    mask = torch.stack([rollout.mask for rollout in group])
    advantages = stacked_columns([rollout.advantages for rollout in group])
    numbers = {"max_abs_advantage": (advantages.abs() * mask).amax((1, 2))}
    gaps = [rollout.gap for rollout in group if rollout.gap is not None]
    if gaps:
        numbers |= _sampler_gaps(torch.stack(gaps), mask.sum((1, 2)))
    if group[0].counts_own:
        numbers["own_tokens"] = mask.sum((1, 2))
    counted = [rollout.counted for rollout in group if rollout.counted is not None]
    if counted:
        tokens, masks = (torch.stack([of[place] for of in counted]) for place in (1, 2))
        numbers["masks_wrong"] = counted[0][0].wrong(tokens, masks)
    references = [rollout.reference.numbers() for rollout in group if rollout.reference is not None]
    if references:
        numbers |= {name: torch.stack([of[name] for of in references]) for name in references[0]}
    penalties = [rollout.penalty_gap for rollout in group if rollout.penalty_gap is not None]
    if penalties:
        numbers["reference_gap"] = torch.stack(penalties)
    misplaced = [of.samples for rollout in group if (of := rollout.misplaced) is not None and of.samples is not None]
    if misplaced:
        numbers["rewards_moved"] = torch.stack(misplaced)
    references_moved = [rollout.reference_moved for rollout in group if rollout.reference_moved is not None]
    if references_moved:
        numbers["reference_moved"] = torch.stack([of.float() for of in references_moved])
    moved = [rollout.moved for rollout in group if rollout.moved is not None]
    if moved:
        numbers["tokens_moved"] = torch.stack(moved)
    prompts_wrong = [rollout.prompts_wrong for rollout in group if rollout.prompts_wrong is not None]
    if prompts_wrong:
        numbers["prompts_wrong"] = torch.stack(prompts_wrong)
    sampling_weights = [rollout.sampling_weights for rollout in group if rollout.sampling_weights is not None]
    if sampling_weights:
        used, left = (bits(torch.stack([of[place] for of in sampling_weights])) for place in (0, 1))
        numbers["weights_differ"] = (used != left).sum(1)
    explanations = [rollout.explained for rollout in group if rollout.explained is not None]
    if explanations:
        distances = torch.stack([explanation.distances for explanation in explanations])
        numbers |= {f"cause {place}": column for place, column in enumerate(distances.unbind(1))}
    weighed = [rollout.weighed for rollout in group if rollout.weighed is not None]
    if weighed:
        numbers |= {
            "weights_off": torch.stack([of.off for of in weighed]),
            "weights_cut": torch.stack([of.cut for of in weighed]),
        }
    scored = [rollout.scored for rollout in group if rollout.scored is not None]
    if scored:
        of_all = together(scored)
        compared = [torch.stack(of) for of in zip(*(rollout.of_samples for rollout in group), strict=True)]
        off = torch.stack([of_all.off(of) for of in compared]).amax(0)
        numbers |= {"advantages_off": off} | spread(of_all)
        if of_all.rewards.shape[1] > compared[0].shape[1]:
            numbers["all_rewards"] = small_of_bits(of_all.rewards)
    return numbers


def _sampler_gaps(gap: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Distances of N rollouts' log-probs from those of the engine, each (N, B, T), and the number of their tokens, (N,)."""
    signed = gap.float().flatten(1)
    distance = signed.abs()
    return {
        "sum_sampler_gap": distance.sum(1),
        "sampler_gap_max": distance.amax(1),
        "sampler_gap_99": near_largest(distance, tokens),
        "sum_sampler_gap_outside": outside(signed).sum(1),
        "sampler_gap_tokens": tokens,
        "tokens": tokens,
    }


class RolloutColumns(Columns, frozen=True):
    """Columns of rollouts, of which the last may say what explains the gap to the engine."""

    causes: tuple[str, ...] = ()
    """Names of the causes; there is a column for each."""

    @property
    def own(self) -> frozenset[str]:
        """The distance that each cause leaves unexplained."""
        return frozenset(f"cause {cause}" for cause in range(len(self.causes)))

    def fields(self, place: int, of: dict[str, float]) -> dict[str, Any]:
        """The fields of one rollout from its numbers."""
        fields = Columns.fields(self, place, of)
        if self.causes:
            distances = [of[f"cause {cause}"] for cause in range(len(self.causes))]
            fields["sampler_gap_fit"] = closest(self.causes, distances)
        return fields


def _known_of(held: HeldRollout) -> dict[str, Any]:
    """What the host knows of a rollout, as fields of `RolloutValues`."""
    known: dict[str, Any] = dict(held.clean)
    if held.reference is not None:
        known |= {"reference_shared": held.reference.shared, "reference_written": held.reference.written}
    if held.misplaced is not None:
        known["rewards_uncompared"] = held.misplaced.uncompared
    if held.weighed is not None:
        known["weights_like"] = held.weighed.like
    if held.scored is not None:
        known |= {"groups": held.scored.groups, "advantages_fit": partial(held.scored.fits, held.of_samples[0])}
    return known


class Meter(Protocol):
    """Whatever measures micro-batches."""

    def work_up(self) -> Sequence[tuple[Meaning, Tensor]]:
        """The numbers of all micro-batches since the last call, as vectors of float32."""


class NumberCollector:
    """Takes the numbers of rollouts, micro-batches and updates to the record.

    Args:
        meter: Holds micro-batches.
        updates: Holds updates.
        reference: Holds syncs of the reference with the policy.
        interval: Seconds between two times that numbers are worked up, at least.
    """

    def __init__(
        self,
        recorder: Recorder,
        meter: Meter,
        updates: UpdateObserver,
        reference: ReferenceWatch | None = None,
        *,
        interval: float = INTERVAL,
    ) -> None:
        self.recorder = recorder
        """The recorder that events go to."""
        self._meter = meter
        self._updates = updates
        self._reference = reference
        self._interval = interval
        self._latest = -interval
        self._fetched = Numbers()
        self._held: list[HeldRollout] = []
        """Rollouts that were not worked up yet."""

    def add_rollout(
        self,
        index: int,
        parts: list[dict[str, Any]],
        *,
        scored: Scored | None = None,
        rule: MaskRule | None = None,
        reference: ReferenceLook | None = None,
        penalty_gap: Tensor | None = None,
        misplaced: Misplaced | None = None,
        reference_moved: Tensor | None = None,
        moved: Tensor | None = None,
        prompts_wrong: Tensor | None = None,
        sampling_weights: tuple[Tensor, Tensor] | None = None,
        kept: KeptLogits | None = None,
        counts_own: bool = False,
        weighed: Comparison | None = None,
        clean: dict[str, Any] | None = None,
    ) -> None:
        """Measure what generation returned.

        Args:
            index: The rollout.
            parts: The tensors of the rollout; more than one part where the trainer itself cuts it into micro-batches.
            scored: The rewards of the rollout, if its advantages are compared with the documented ones.
            rule: What decides which tokens count, if the mask is compared with it.
            reference: The reference, where it was looked at.
            penalty_gap: Mean |policy - reference| of the log-probs that a penalty in the rewards takes, where they should be equal.
            misplaced: Samples that have not the rewards that were given for them.
            reference_moved: Log-probs of the reference that are not those that a forward gave.
            moved: Samples that have other tokens than `generate` was asked for and gave.
            prompts_wrong: Prompts with other tokens than the tokenizer gives for their rows.
            sampling_weights: Probed weights that generated it, and those that the update before had left.
            kept: Logits of the trainer's own pass, where a distance from the engine is explained.
            counts_own: Whether the tokens that count are told, for the divisor of the losses of all processes.
            weighed: The importance weights between trainer and engine, where they are compared.
            clean: Fields of its rows that were scored alone.
        """
        masks = [token_mask(part) for part in parts]
        advantages, mask = _joined([part["advantages"] for part in parts], masks), _joined(masks, masks)
        sampled = [part.get("sampling_per_token_logps") for part in parts]
        olds = [part.get("old_per_token_logps") for part in parts]
        gap: Tensor | None = None
        causes: Explained | None = None
        if all(isinstance(values, torch.Tensor) for values in (*sampled, *olds)):
            own, theirs = _joined(olds, masks), _joined(sampled, masks)
            gap = torch.nan_to_num((own - theirs) * mask)
            causes = explained(own, theirs, mask, kept) if kept is not None else None
        counted = None if rule is None else (rule, parts[0]["completion_ids"], parts[0]["completion_mask"])
        of_samples = () if scored is None else _of_samples([part["advantages"] for part in parts], masks)
        self._held.append(
            HeldRollout(
                index,
                advantages,
                mask,
                gap,
                scored if of_samples else None,
                of_samples,
                version_of(advantages),
                counted,
                reference,
                penalty_gap,
                misplaced,
                reference_moved,
                moved,
                prompts_wrong,
                sampling_weights,
                causes,
                counts_own,
                weighed,
                clean or {},
            )
        )

    def add_turns(self, turns: tuple[Meaning, Tensor] | None) -> None:
        """Keep the turns of a rollout and its rows, which are compared when they have arrived."""
        if turns is not None:
            self._fetched.add(*turns)

    def add_logged_ratio(self, index: int, logged: float, mean: Tensor) -> None:
        """Keep a logged mean ratio beside the measured one, a tensor of one float32."""
        known = {"logged_ratio": finite(logged)}
        self._fetched.add(Columns(RolloutValues, (index,), ("mean_ratio",), (known,)), mean)

    def add_entropy_split(self, index: int, split: dict[str, Tensor]) -> None:
        """Keep what a micro-batch trains and leaves out for its entropy, by the names of fields."""
        self._fetched.add(Columns(MicroBatchValues, (index,), tuple(split)), torch.stack(list(split.values())))

    def add_estimate(self, index: int, off: Tensor, masks_wrong: Tensor, fit: Callable[[], str]) -> None:
        """Keep how far the advantages of a rollout are from the documented ones.

        Args:
            index: The rollout.
            off: The distance, in units of what rounding explains.
            masks_wrong: Samples whose mask does not count the documented tokens.
            fit: Names which other calculation gives them.
        """
        meaning = Columns(RolloutValues, (index,), ("advantages_off", "masks_wrong"), ({"advantages_fit": fit},))
        self._fetched.add(meaning, torch.stack([off.float(), masks_wrong.float()]))

    def add_gap(self, index: int, parts: list[Tensor]) -> None:
        """Keep how far the engine's log-probs are from those of the loss.

        Args:
            index: The rollout, all of whose micro-batches are trained with the same weights.
            parts: The number of tokens of each micro-batch, the largest and the sum of their distances, (3,) float32.
        """
        of = torch.stack(parts)
        meaning = Columns(RolloutValues, (index,), ("tokens", "sampler_gap_max", "sum_sampler_gap"), padded=True)
        self._fetched.add(meaning, torch.stack([of[:, 0].sum(), of[:, 1].max(), of[:, 2].sum()]))

    def collect(self) -> None:
        """A rollout has come: emit what has arrived, and work up what was held, not too often."""
        now = self.recorder.now()
        if now - self._latest >= self._interval:
            self._latest = now
            self._work_up_and_emit(wait=False)

    def finish(self) -> None:
        """Emit everything; training is over, so waiting for the device is allowed."""
        self._work_up_and_emit(wait=True)

    @contained("log_ratio", "loss", "samples", "weights")
    def _work_up_and_emit(self, *, wait: bool) -> None:
        self._work_up()
        self._emit(wait=wait)

    def _work_up(self) -> None:
        """Compute all numbers so far, and start fetching them."""
        with torch.no_grad():
            self._work_up_rollouts()
            for source, numbers in self._meter.work_up():
                self._fetched.add(source, numbers)
            self._updates.steps.add_to(self._fetched)
            self._updates.steps.parts_sent()
            for sync, others in () if self._reference is None else self._reference.work_up():
                self._fetched.add(sync, others)
        self._fetched.send()

    def _work_up_rollouts(self) -> None:
        held, self._held = self._held, []
        # What somebody has written to since is not what the rollout came with, so nothing is said of it.
        groups: dict[tuple[Any, ...], list[HeldRollout]] = {}
        for rollout in held:
            if version_of(rollout.advantages) == rollout.version:
                groups.setdefault(rollout.kind(), []).append(rollout)
        for group in groups.values():
            columns = _columns(group)
            vector = torch.cat([column.float() for column in columns.values()])
            indices, known = tuple(held.index for held in group), tuple(_known_of(held) for held in group)
            causes = () if group[0].explained is None else group[0].explained.names
            meaning = RolloutColumns(RolloutValues, indices, tuple(columns), known, padded=True, causes=causes)
            self._fetched.add(meaning, vector)

    def _emit(self, *, wait: bool = False) -> None:
        measured = self._fetched.measured(self.recorder.now, wait=wait)
        if measured is not None:
            self.recorder.emit(measured)
        parts = self._updates.steps.parts_arrived(self.recorder.now, wait=wait)
        if parts:
            self.recorder.emit(*parts)


def _of_samples(parts: list[Tensor], masks: list[Tensor]) -> tuple[Tensor, ...]:
    """(B,), the advantage of each sample of all parts; the largest and the least of its counted tokens where these have their own;
    nothing where the tokens are not those of the mask.

    Args:
        parts: (B,), (B, 1) or (B, T) of each part.
        masks: (B, T) of each part.
    """
    columns = [as_column(part) for part in parts]
    if all(column.shape[1] == 1 for column in columns):
        return (torch.cat(columns).squeeze(1),)
    if any(column.shape != mask.shape for column, mask in zip(columns, masks, strict=True)):
        return ()
    largest, least = [], []
    for column, mask in zip(columns, masks, strict=True):
        counts, first = mask.bool(), column[:, 0]
        none = ~counts.any(1)
        largest.append(torch.where(none, first, torch.where(counts, column, -torch.inf).amax(1)))
        least.append(torch.where(none, first, torch.where(counts, column, torch.inf).amin(1)))
    return torch.cat(largest), torch.cat(least)


def _joined(parts: list[Tensor], masks: list[Tensor]) -> Tensor:
    """The tokens of all parts of a rollout: the one part itself, or all of them as one row.

    Args:
        parts: (B,), (B, 1) or (B, T) of each part.
        masks: (B, T) of each part.
    """
    if len(parts) == 1:
        return parts[0]
    tokens = [as_column(part).expand(mask.shape).flatten() for part, mask in zip(parts, masks, strict=True)]
    return torch.cat(tokens).unsqueeze(0)
