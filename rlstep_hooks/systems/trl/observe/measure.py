"""Numbers of micro-batches: log ratios, clipped tokens, checksums, the loss against its formula.

At each loss only references are taken, and a copy of what others may overwrite; everything is computed later, for all
micro-batches of one shape at once. Shapes: N micro-batches, B samples, T completion tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.head_gradient import HeadGradient
from rlstep_hooks.observe.importance import Comparison
from rlstep_hooks.observe.losses import Formula, LossBatch, k3
from rlstep_hooks.observe.surprisal import surprisal_sums
from rlstep_hooks.observe.token_distances import near_largest, outside
from rlstep_hooks.record.events import MicroBatchValues
from rlstep_hooks.systems.trl.observe.backward import Backward
from rlstep_hooks.systems.trl.observe.checksums import Checksums, columns_of, of_bits
from rlstep_hooks.systems.trl.observe.improbable_texts import ImprobableTexts, texts_of
from rlstep_hooks.systems.trl.observe.loss import compare_gradients, compare_losses, documented, entropy_gradient
from rlstep_hooks.systems.trl.observe.loss_inputs import LossSettings, LossTerms, TokenWeights, loss_batch
from rlstep_hooks.systems.trl.observe.microbatch_values import LossColumns
from rlstep_hooks.systems.trl.observe.trained_tokens import clip_acts, importance, trained_tokens

if TYPE_CHECKING:
    from rlstep_hooks.observe.numbers import Meaning

ROWS = "rlstep_rows"
"""Key added to a rollout's tensors: identity of each sample, on the CPU. TRL shuffles and splits it with all others."""
CHECKS = "rlstep_checks"
"""Key added to a rollout's tensors: the checksums of each sample (`rlstep_hooks.systems.trl.observe.checksums`)."""

HELD_ELEMENTS = 1 << 20
"""Elements of log-probs that are held; beyond, they are worked up at once, so that memory stays bounded."""


class _Held(msgspec.Struct, frozen=True, gc=False):
    """What one loss leaves until it is worked up."""

    index: int
    new: Tensor
    """(B, T), log-probs of the loss."""
    old: Tensor | None
    """(B, T) or (B,), a copy of the old log-probs; None where the current ones take their place."""
    mask: Tensor
    tokens: Tensor
    checks: Tensor | None
    advantages: Tensor
    weights: TokenWeights | None
    """What it weighs its tokens by; None where nobody knows which of them it trains."""
    loss: LossTerms | None
    backward: Backward
    """What its backward pass brings; empty where it was not followed."""
    head: HeadGradient | None
    """Gradients on their way from its log-probs to the model's layers; None where they were not followed."""
    reference: Tensor | None
    """(B, T), log-probs of the reference where it should still be the policy; None where it need not be."""
    entropies: Tensor | None
    """(B, T), of the distributions that the tokens should be drawn from; None where that is not tested."""
    sampled: Tensor | None
    """(B, T), log-probs of the tokens when they were drawn, nan where not known; None where they are not compared."""
    handed: dict[str, Tensor]
    """Checksums of what else the loss got, by the names of their columns, each (B,); empty where they are not compared."""
    replaced: list[tuple[str, Tensor]]
    """Modules whose backward hooks replaced gradients, with the number of values."""
    clean: dict[str, Any]
    """Fields of its rows that were scored alone; empty where none was."""
    weighed: Comparison | None
    """The comparison of importance weights that the loss computed itself; None where it computes none, or they are not compared."""
    drawn_in: int | None
    """The rollout of its samples where these are draws from the very weights of the loss; None where they need not be."""
    left_out: bool
    """Whether its rollout came without checksums because its cycle is one of those that are left out."""
    versions: tuple[int, ...]

    def kind(self) -> tuple[Any, ...]:
        """Equal for micro-batches that are worked up together."""
        old = None if self.old is None else (self.old.shape, self.old.dtype)
        checks = None if self.checks is None else self.checks.shape
        loss = None if self.loss is None else self.loss.kind()
        return (
            self.new.shape,
            self.new.dtype,
            self.mask.shape,
            self.advantages.shape,
            old,
            checks,
            None if self.weights is None else self.weights.kind(),
            loss,
            self.left_out,
            self.backward.kind(),
            self.head is None or self.head.arrived is None,
            self.entropies is None,
            self.sampled is None,
            self.reference is None,
            tuple(self.handed),
            tuple(name for name, _ in self.replaced),
            self.weighed is None,
            self.drawn_in is None,
        )

    def written_to(self) -> bool:
        """Whether somebody wrote to a tensor after the loss had used it."""
        return self.versions != _versions(self.new, self.mask, self.tokens, self.advantages, self.loss, self.entropies)


class MicroBatchMeter:
    """Measures the micro-batches of one trainer.

    Args:
        settings: The settings of the loss; None where it has no clip of the covered form.
        follows_rollout: Whether a loss should get the advantages and masks that its rollout came with.
        cap: The cut of -log-probs where tokens are tested against the distributions that they should be drawn from.
        joined: Whether other processes have samples of the same rollouts, and completions are compared with theirs.
    """

    def __init__(
        self,
        settings: LossSettings | None,
        *,
        follows_rollout: bool = True,
        cap: float = math.inf,
        joined: bool = False,
    ) -> None:
        self._settings = settings
        self._joined = joined
        self._cap = cap
        self._follows_rollout = follows_rollout
        self._checksums = Checksums()
        self._held: list[_Held] = []
        self._elements = 0
        self._waits = True
        """Whether work may wait. Not once somebody was seen to write to what a loss had used."""
        self._done: list[tuple[Meaning, Tensor]] = []
        self._told: list[str] = []
        """What wrong losses were, in words that follow "the loss is"."""

    def mark(
        self,
        output: dict[str, Any],
        rows: Tensor,
        old: Tensor | None,
        *,
        carried: bool = True,
        whole: bool = True,
        alike: bool = True,
    ) -> None:
        """Add identities and checksums to the tensors of a rollout.

        Args:
            output: The rollout by TRL's names.
            rows: (B,), identities of its samples.
            old: The old log-probs of the rollout, (B, T) or (B,).
            carried: Whether what it holds is compared with what the losses get.
            whole: Whether its prompts and its reference are compared too.
            alike: Whether equal completions are looked for.
        """
        output[ROWS] = rows
        if carried or alike:
            output[CHECKS] = self._checksums.of_rollout(output, token_mask(output), old, whole=whole, alike=alike)

    def hold(
        self,
        index: int,
        inputs: dict[str, Any],
        new: Tensor,
        old: Tensor | None,
        loss: LossTerms | None,
        backward: Backward,
        entropies: Tensor | None = None,
        reference: Tensor | None = None,
        *,
        weights: TokenWeights | None = None,
        sampled: Tensor | None = None,
        head: HeadGradient | None = None,
        replaced: list[tuple[str, Tensor]] | None = None,
        whole: bool = False,
        clean: dict[str, Any] | None = None,
        weighed: Comparison | None = None,
        drawn_in: int | None = None,
    ) -> None:
        """Keep what a loss was computed from.

        Args:
            index: The micro-batch.
            inputs: What the loss got.
            new: (B, T), log-probs of the loss, detached.
            old: (B, T) or (B,), old log-probs; None where the loss takes the current ones.
            loss: The loss that is compared with the documented formula; None for no comparison.
            backward: The place where what the backward pass of the loss brings will be.
            entropies: (B, T), of the distributions that the tokens should be drawn from, detached; None for no test of that.
            reference: (B, T), log-probs of the reference where it should still be the policy.
            weights: What it weighs its tokens by; None where nobody knows which of them it trains.
            sampled: (B, T), log-probs of the tokens when these weights drew them, nan where not known; None for no comparison.
            head: The place where gradients that arrive at the output of the model's layers will be.
            replaced: The place where modules will be noted whose backward hooks replaced gradients.
            whole: Whether its prompts and the reference's log-probs are compared with those of the rollout.
            clean: Fields of its rows that were scored alone.
            weighed: The comparison of importance weights that the loss computed itself, where they are compared.
            drawn_in: The rollout of its samples where these are draws from the very weights of the loss.
        """
        if self._waits and self._held and self._held[-1].written_to():
            self._waits = False
        mask, tokens, advantages = token_mask(inputs), inputs["completion_ids"], inputs["advantages"]
        if advantages.requires_grad:
            advantages = advantages.detach()
        checks = inputs.get(CHECKS)
        left_out = old is not None and checks is None and ROWS in inputs
        if checks is not None and checks.shape[0] != tokens.shape[0]:
            checks = None
        own = None if old is None else old.detach().clone()  # buffers of old log-probs are overwritten in some faults
        # At once: the micro-batches of a rollout are views of one tensor, and a write to one of them looks like a write to all.
        handed = self._checksums.of_loss(inputs) if whole and checks is not None and self._follows_rollout else {}
        versions = _versions(new, mask, tokens, advantages, loss, entropies)
        held = _Held(
            index,
            new,
            own,
            mask,
            tokens,
            checks,
            advantages,
            weights,
            loss,
            backward,
            head,
            reference,
            entropies,
            None if sampled is None or sampled.shape != new.shape else sampled,
            handed,
            [] if replaced is None else replaced,
            clean or {},
            weighed,
            drawn_in,
            left_out,
            versions,
        )
        self._held.append(held)
        self._elements += new.numel()
        if self._elements > HELD_ELEMENTS or not self._waits:
            self._work_up()

    def work_up(self) -> list[tuple[Meaning, Tensor]]:
        """The numbers of all micro-batches since the last call, as vectors of float32."""
        self._work_up()
        done, self._done = self._done, []
        return done

    def _work_up(self) -> None:
        groups: dict[tuple[Any, ...], list[_Held]] = {}
        for held in self._held:
            if held.written_to():
                self._waits = False  # what its loss used is gone, so nothing is said of it; later ones do not wait
            else:
                groups.setdefault(held.kind(), []).append(held)
        self._held, self._elements = [], 0
        # The largest group says best what its losses are, and the others' may be the same (`LossColumns.told`).
        for group in sorted(groups.values(), key=len, reverse=True):
            columns, losses = self._columns(group)
            known = tuple(self._known_of(held) for held in group)
            indices = tuple(held.index for held in group)
            source = LossColumns(
                MicroBatchValues, indices, tuple(columns), known, padded=True, losses=losses, told=self._told
            )
            self._done.append((source, torch.cat(list(columns.values()))))
            rollouts = tuple(held.drawn_in for held in group if held.drawn_in is not None)
            if rollouts and self._joined:
                mask = torch.stack([held.mask for held in group])
                tokens = torch.stack([held.tokens for held in group]) * mask
                new = torch.stack([held.new for held in group])
                texts = texts_of(self._checksums.of_tokens(tokens), new, mask)
                self._done.append((ImprobableTexts(indices, rollouts), texts))

    def _known_of(self, held: _Held) -> dict[str, Any]:
        """What the host knows of one, as fields of `MicroBatchValues`."""
        known: dict[str, Any] = {"left_out": held.left_out} | held.clean
        if held.old is None:  # the current log-probs take their place
            known |= {"max_abs_log_ratio": 0.0, "mean_abs_log_ratio": 0.0, "clipped": 0.0}
        elif held.old.dim() == 1:
            known["scope"] = "sequence"
        if held.weighed is not None:
            known["weights_like"] = held.weighed.like
        if held.replaced:
            known["replacing_module"] = held.replaced[0][0]
        if self._follows_rollout and held.weights is None:
            known["learns"] = "unknown"
        if held.loss is not None and held.loss.tokens_of is not None:
            known["tokens_of"] = held.loss.tokens_of
        return known

    def _columns(self, group: list[_Held]) -> tuple[dict[str, Tensor], tuple[Formula[LossSettings], LossBatch] | None]:
        """The numbers of micro-batches of one kind: each column (N,) float32; and what their losses were compared with."""
        new, mask = torch.stack([held.new for held in group]), torch.stack([held.mask for held in group])
        advantages = stacked_columns([held.advantages for held in group])
        signal = (advantages.detach().float().abs() * mask).amax(2)
        columns = {"tokens": mask.sum((1, 2), dtype=torch.float32), "max_abs_advantage": signal.amax(1)}
        columns["sum_abs_log_prob"] = -(new.float() * mask).sum((1, 2))
        copies = [held.old for held in group if held.old is not None]
        old = torch.stack(copies) if copies else None
        log_ratio: Tensor | None = None
        if old is not None:
            per_token = old.dim() == 3
            log_ratio = (new - old) * mask if per_token else (new * mask).sum(2) - old
            size = log_ratio.float().abs().flatten(1)
            columns |= {"max_abs_log_ratio": size.amax(1), "sum_abs_log_ratio": size.sum(1)}
            improbable = (new.detach().float().abs() * mask).flatten(1)
            columns |= {"max_abs_log_prob": improbable.amax(1), "unsure": -torch.expm1(-improbable).sum(1)}
            if per_token:
                columns["log_ratio_99"] = near_largest(size, columns["tokens"])
                columns["sum_log_ratio_outside"] = outside(log_ratio.flatten(1)).sum(1, dtype=torch.float32)
            if per_token and self._settings is not None and self._settings.clips:
                ratio = importance(log_ratio.float(), mask, self._settings)
                acts = clip_acts(ratio, advantages, self._settings) & mask.bool()
                columns["sum_clipped"] = acts.sum((1, 2), dtype=torch.float32)
        weights = [held.weights for held in group if held.weights is not None]
        terms = [held.loss for held in group if held.loss is not None]
        batch = loss_batch(new, log_ratio, mask, advantages, weights, terms)
        trained = undecided = None
        if weights and self._settings is not None:
            trained, undecided = trained_tokens(self._settings, batch)
        checks = [held.checks for held in group if held.checks is not None]
        if checks:
            tokens = torch.stack([held.tokens for held in group])
            of_rollout = columns_of(torch.stack(checks))
            columns |= self._differences(of_rollout, tokens, mask, advantages, old)
            columns |= _handed_on(of_rollout, [held.handed for held in group])
            if "alike" in of_rollout:
                alike = of_rollout["alike"] > 1
                columns["max_lone_advantage"] = signal.masked_fill(alike, 0.0).amax(1)
                if trained is not None and undecided is not None:
                    trained, undecided = trained & ~alike.unsqueeze(2), undecided & ~alike.unsqueeze(2)
                if group[0].drawn_in is not None:
                    columns |= _copies(alike, new, mask)
        if trained is not None and undecided is not None:
            columns["learning"] = trained.sum((1, 2), dtype=torch.float32)
            columns["undecided"] = undecided.sum((1, 2), dtype=torch.float32)
        factors = [factor for held in group if (factor := held.backward.factor()) is not None]
        if factors:
            columns["backward_ratio"] = torch.stack(
                [factor.to(new.device, non_blocking=True) for factor in factors]
            ).float()
        if group[0].replaced:
            columns["gradients_replaced"] = torch.stack(
                [sum(count for _, count in held.replaced) for held in group]
            ).float()
        weighed = [held.weighed for held in group if held.weighed is not None]
        if weighed:
            columns["weights_off"] = torch.stack([of.off for of in weighed]).float()
            columns["weights_cut"] = torch.stack([of.cut for of in weighed]).float()
        entropies = [held.entropies for held in group if held.entropies is not None]
        if entropies:
            sampled_from = torch.stack(entropies)
            columns |= surprisal_sums(new, sampled_from, mask, self._cap)
            columns["sum_entropy"] = (sampled_from.float() * mask).sum((1, 2))
        sampled = [held.sampled for held in group if held.sampled is not None]
        if sampled:
            columns |= _sampling_gaps(new, torch.stack(sampled), mask)
        references = [held.reference for held in group if held.reference is not None]
        if references:
            columns["sum_reference_gap"] = ((new - torch.stack(references)).abs() * mask).float().sum((1, 2))
        if not terms:
            return columns, None
        formula = documented(terms[0].settings)
        columns |= compare_losses(formula, batch, torch.stack([of.value for of in terms]))
        if terms[0].tokens_of is not None:
            given = [of.generation_tokens for of in terms if of.generation_tokens is not None]
            columns["given_tokens"] = torch.stack(given).float()
        if "reference" in batch.tensors:
            columns["sum_reference_kl"] = (k3(batch.tensors["reference"].float() - new.float()) * mask).sum((1, 2))
        gradients = [gradient for held in group if (gradient := held.backward.gradient()) is not None]
        if gradients and gradients[0].shape == new.shape[1:]:
            columns |= compare_gradients(formula, batch, torch.stack(gradients), terms[0].multiple)
            heads = [_below_log_probs(held) for held in group]
            columns |= {name: torch.stack([of[name] for of in heads]) for name in heads[0]}
        return columns, (formula, batch)

    def _differences(
        self, of: dict[str, Tensor], tokens: Tensor, mask: Tensor, advantages: Tensor, old: Tensor | None
    ) -> dict[str, Tensor]:
        """How many samples differ from their checksums, each (N, B)."""
        differ = {"tokens_intact": self._checksums.of_tokens(tokens) != of["tokens"]}
        if self._follows_rollout:
            differ["advantages_intact"] = of_bits(advantages, per_token=True) != of["advantages"]
            differ["mask_intact"] = self._checksums.of_tokens(mask.to(tokens.dtype)) != of["mask"]
        if old is not None and "old" in of:
            differ["old_intact"] = of_bits(old, per_token=old.dim() == 3) != of["old"]
        counts = torch.stack(list(differ.values())).sum(2, dtype=torch.float32)
        return dict(zip(differ, counts.unbind(0), strict=True))


def _below_log_probs(held: _Held) -> dict[str, Tensor]:
    """The numbers of gradients that were followed to the model's layers; empty where none were, or others flow there too."""
    gradient, at_loss = held.backward.gradient(), held.backward.at_loss
    if held.head is None or gradient is None or at_loss is None or held.loss is None:
        return {}
    settings, at_entropies = held.loss.settings, None
    if settings.entropy_weight:
        if settings.high_entropy < 1.0:  # a rounding decides whether the token at the threshold gets one
            return {}
        at_entropies = held.loss.multiple * entropy_gradient(settings, held.mask)
    return held.head.numbers(gradient, at_loss, at_entropies)


def _handed_on(of_rollout: dict[str, Tensor], handed: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """How many samples of N micro-batches differ in what else they were handed, and how many were compared: 0 was not taken."""
    differ = {}
    for name in handed[0]:
        now, before = torch.stack([of[name] for of in handed]), of_rollout[name]
        differ[f"{name}_intact"] = ((now != before) & (before != 0)).sum(1).float()
        differ[f"{name}_compared"] = (before != 0).sum(1).float()
    return differ


def _copies(copied: Tensor, new: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """How many samples of N micro-batches are copies of others of their rollout, (N, B), and -log p of the least probable of them."""
    nats = -(new * mask).float().sum(2)
    return {"copied": copied.sum(1).float(), "copied_nats": torch.where(copied, nats, 0.0).amax(1)}


def _sampling_gaps(new: Tensor, sampled: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Distances of N micro-batches' log-probs from those at the sampling, each (N, B, T), nan where these are not known."""
    known = mask.bool() & ~sampled.isnan()
    signed = torch.where(known, (new - sampled).float(), 0.0).flatten(1)
    gap, counted = signed.abs(), known.sum((1, 2), dtype=torch.float32)
    return {
        "sum_sampling_gap": gap.sum(1),
        "max_sampling_gap": gap.amax(1),
        "sampling_gap_99": near_largest(gap, counted),
        "sum_sampling_outside": outside(signed).sum(1, dtype=torch.float32),
        "sampling_known": counted,
    }


def version_of(tensor: Tensor) -> int:
    """How often torch saw in-place writes to a tensor; -1 where it does not count. Asking costs no work on the device."""
    try:
        return int(tensor._version)
    except RuntimeError:  # made in inference mode
        return -1


def _versions(
    new: Tensor, mask: Tensor, tokens: Tensor, advantages: Tensor, loss: LossTerms | None, entropies: Tensor | None
) -> tuple[int, ...]:
    try:
        versions = new._version, mask._version, tokens._version, advantages._version
    except RuntimeError:  # one was made in inference mode
        versions = version_of(new), version_of(mask), version_of(tokens), version_of(advantages)
    if loss is None and entropies is None:
        return versions
    others = (entropies,) if loss is None else (entropies, loss.value, loss.reference)
    return (*versions, *[0 if tensor is None else version_of(tensor) for tensor in others])


def token_mask(inputs: dict[str, Any]) -> Tensor:
    """(B, T): 1 on tokens that the loss counts. Tool tokens are masked out where there are tools."""
    mask: Tensor = inputs["completion_mask"]
    tool_mask = inputs.get("tool_mask")
    return mask if tool_mask is None else mask * tool_mask


def entropy_split(entropies: Tensor, mask: Tensor, kept: Tensor) -> dict[str, Tensor]:
    """How tokens are divided by their entropies, as fields of `MicroBatchValues`, each of one float32. The least entropy that is kept
    is infinite without one, and the largest that is left out infinite below 0.

    Args:
        entropies: (B, T).
        mask: (B, T), 1 on tokens that count.
        kept: (B, T), those of them that are kept for their entropy.
    """
    with torch.no_grad():
        known, kept, counted = entropies.detach().float(), kept.bool(), mask.bool()
        least = known.masked_fill(~kept, math.inf).min()
        return {
            "least_kept_entropy": least,
            "most_left_entropy": known.masked_fill(kept | ~counted, -math.inf).max(),
            "entropies": counted.sum().float(),
            "entropies_kept": kept.sum().float(),
            "entropies_at_least": (kept & (known == least)).sum().float(),
        }


def stacked_columns(advantages: list[Tensor]) -> Tensor:
    """N times advantages of one shape, (B,) as (N, B, 1) and (B, T) as (N, B, T)."""
    stacked = torch.stack(advantages)
    return stacked.unsqueeze(2) if stacked.dim() == 2 else stacked


def as_column(advantages: Tensor) -> Tensor:
    """Advantages of shape (B,) as (B, 1); those of a subclass may have one for each token and stay (B, T)."""
    return advantages.unsqueeze(1) if advantages.dim() == 1 else advantages
