"""How ms-swift's GRPOTrainer hands on its data: it is a subclass of TRL's, with its own form of a rollout and a micro-batch.

The hooks are those on TRL's trainer, whose methods have the same names (`rlstep_hooks.systems.trl.observe` says which and why);
verified in 4.6.0 by real training (tests/systems/swift), and read in 4.4.0 and 4.5.3. A rollout is a list with an entry for each
micro-batch, already in their order: "model_inputs" and "grpo_batch" (swift/rl_core/data.py GRPOBatch). The loss gets one of these
entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.systems.swift.observe.correction import WeightsOfLoss
from rlstep_hooks.systems.swift.observe.rewards import SwiftRewardWatch
from rlstep_hooks.systems.swift.observe.turns import SwiftTurns
from rlstep_hooks.systems.trl.observe.batch_adapter import BatchAdapter
from rlstep_hooks.systems.trl.observe.limits import READ
from rlstep_hooks.systems.trl.observe.loss_inputs import OF_WINDOW, LossTerms
from rlstep_hooks.systems.trl.observe.measure import CHECKS, ROWS

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.observe.hooks import Hooks
    from rlstep_hooks.observe.importance import Comparison
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.observe.calls import LogProbCall
    from rlstep_hooks.systems.trl.observe.loss_inputs import LossSettings, TokenWeights
    from rlstep_hooks.systems.trl.releases import TrlRelease


class SwiftBatchAdapter(BatchAdapter):
    """Reads the data of ms-swift's GRPOTrainer by TRL's names."""

    read = (*READ, "swift")
    covered = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo")
    rows_hidden = (
        "ms-swift's batches hold a prompt and its completion as one row, which is not taken apart to be scored again"
    )

    def __init__(self, trainer: Any, schedule: Schedule, release: TrlRelease, recorder: Recorder) -> None:
        self._weights = WeightsOfLoss(trainer)
        self._turns = SwiftTurns(trainer, recorder)
        super().__init__(trainer, schedule, release, recorder)

    def attach(self, hooks: Hooks) -> None:
        """Place the hook on the importance weights, which only the loss sees."""
        self._weights.attach(hooks)

    def _settings_of_loss(self, release: TrlRelease) -> LossSettings:
        """sapo's temperatures have names of their own, and the weights between engine and trainer multiply the KL term too (4.6.0
        `_compute_loss_and_metrics`)."""
        settings, trainer = super()._settings_of_loss(release), self.trainer
        settings = msgspec.structs.replace(settings, corrects_kl=True)
        if settings.loss_type != "sapo":
            return settings
        return msgspec.structs.replace(settings, temperatures=(float(trainer.tau_pos), float(trainer.tau_neg)))

    def divides_loss(self) -> bool:
        """Never: transformers does, after the loss is returned."""
        return False

    def counts_tokens(self) -> bool:
        """Never: entries are filtered and put together anew before they are counted."""
        return False

    def samples_with_engine(self) -> bool:
        """Whether vLLM samples, with weights of its own."""
        return bool(self.trainer.args.use_vllm)

    def picks_samples(self) -> bool:
        """Whether samples, or all of their tokens, are left out by what they contain."""
        args = self.trainer.args
        return super().picks_samples() or bool(
            getattr(args, "dynamic_sample", False) or getattr(args, "overlong_filter", False)
        )

    def parts(self, output: Any) -> list[dict[str, Any]]:
        """The tensors of each entry."""
        return [tensors(entry) for entry in output]

    def mark(self, output: Any, parts: list[dict[str, Any]]) -> None:
        """Add identities and checksums to the entries."""
        # The entries are handed to the loss as they are, which takes what it knows by name.
        for entry, part in zip(output, parts, strict=True):
            entry |= {name: part[name] for name in (ROWS, CHECKS) if name in part}

    def rewards(self) -> SwiftRewardWatch:
        """What follows the rewards to the advantages, which ms-swift computes itself."""
        return SwiftRewardWatch(self.trainer, self.schedule, self.recorder, self._turns)

    def turns(self) -> SwiftTurns:
        """What keeps the turns that the engine gave."""
        return self._turns

    def penalty(self, parts: list[dict[str, Any]]) -> Tensor | None:
        """The KL term of each sample, where it is taken off the rewards (`_compute_advantages`, 4.6.0)."""
        trainer = self.trainer
        if not trainer.kl_in_reward or trainer.beta == 0.0:
            return None
        found = [_distance(part) for part in parts]
        known = [distance for distance in found if distance is not None]
        return trainer.beta * torch.cat(known) if len(known) == len(parts) else None

    def adds_to_advantages(self, parts: list[dict[str, Any]]) -> bool:
        """Whether a teacher's log-probs join the advantages: rows may name one ("teacher_prompt"), so only the rollout shows it."""
        return any(part["teacher_per_token_logps"] is not None for part in parts)

    def loss_inputs(self, inputs: Any) -> dict[str, Any] | None:
        """The tensors of an entry; None for a half of one."""
        if isinstance(inputs, list) and len(inputs) == 1:  # an evaluation passes a list of one
            inputs = inputs[0]
        # `_compute_loss` gets the two halves of an entry one by one; `compute_loss` got the whole before.
        return tensors(inputs) if "grpo_batch" in inputs else None

    def sums_tokens(self) -> bool:
        """Answer that it is not known: how ms-swift counts the tokens of all processes was not looked at."""
        return False

    def unobservable(self) -> list[tuple[str, str]]:
        """Topics that the configuration hides, each with the reason."""
        return super().unobservable() + _more_unobservable(self.trainer, self.schedule.window)

    def uncovered_loss(self) -> str:
        """What keeps the documented formula from covering the loss; empty where it does."""
        found = [super().uncovered_loss(), *_additions(self.trainer, self.schedule.window)]
        return ", ".join(name for name in found if name)

    def unknown_masks(self) -> str:
        """What keeps anybody from saying which tokens get a gradient; empty where `trained_tokens` says it."""
        found = {
            super().unknown_masks(): True,
            "overlong completions left out": getattr(self.trainer.args, "overlong_filter", False),
            "an off-policy mask": getattr(self.trainer, "off_policy_sequence_mask_delta", None) is not None,
            self._weights.unknown: True,
        }
        return ", ".join(name for name, holds in found.items() if name and holds)

    def token_weights(
        self, inputs: dict[str, Any], call: LogProbCall, kept: Tensor | None = None
    ) -> TokenWeights | None:
        """What the loss weighs its tokens by, with the weights that it computed itself."""
        found = super().token_weights(inputs, call, kept)
        return None if found is None else msgspec.structs.replace(found, correction=self._weights.latest)

    def weighed(self, inputs: dict[str, Any]) -> Comparison | None:
        """Compare the importance weights that the loss computed."""
        return self._weights.weighed(inputs)

    def loss_terms(
        self, loss: Tensor, inputs: dict[str, Any], call: LogProbCall, reference: Tensor | None
    ) -> LossTerms | None:
        """What the documented formula needs besides log-probs; None where it does not cover this loss."""
        settings, trainer = self.loss_settings, self.trainer
        if settings is None or not self.compares_loss:
            return None
        if inputs["teacher_per_token_logps"] is not None:
            # Rows may name a teacher ("teacher_prompt"), so only the rollout shows it.
            self.recorder.cannot("formula", "the documented formula is not evaluated with a teacher")
            return None
        window = getattr(trainer, "current_gradient_accumulation_steps", trainer.args.gradient_accumulation_steps)
        terms = LossTerms(
            settings=msgspec.structs.replace(
                settings, beta=0.0 if trainer.kl_in_reward else trainer.beta, window=window
            ),
            value=loss.detach(),
            reference=inputs["ref_per_token_logps"],
            generation_tokens=inputs["num_items_in_batch"] if settings.loss_type in OF_WINDOW else None,
        )
        if settings.loss_type not in OF_WINDOW:
            return terms
        # Returned times the window, by which transformers divides it (`_undo_gradient_accumulation_scaling`).
        return msgspec.structs.replace(terms, value=terms.value / window, multiple=float(window))


def tensors(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of a rollout by TRL's names; identities and checksums with it, where they were added."""
    batch, ids = entry["grpo_batch"], entry["model_inputs"]["input_ids"]
    samples, width = batch.completion_mask.shape
    # With padding_free all samples of a micro-batch are one row: each is then taken for the whole of it.
    completions = ids[:, -width:] if ids.shape[0] == samples else ids.expand(samples, -1)
    found = {
        "input_ids": ids,
        "attention_mask": entry["model_inputs"].get("attention_mask"),
        "completion_ids": completions,
        "completion_mask": batch.completion_mask,
        "advantages": batch.advantages,
        "old_per_token_logps": batch.old_per_token_logps,
        "ref_per_token_logps": batch.ref_per_token_logps,
        "sampling_per_token_logps": batch.rollout_per_token_logps,
        "teacher_per_token_logps": batch.teacher_per_token_logps,
        "num_items_in_batch": batch.num_items_in_batch,
    }
    return found | {name: entry[name] for name in (ROWS, CHECKS) if name in entry}


def _distance(part: dict[str, Any]) -> Tensor | None:
    """(B,), the sum of policy - reference over the tokens of each sample of a part; None where it has not both."""
    policy, reference = part["old_per_token_logps"], part["ref_per_token_logps"]
    if policy is None or reference is None:
        return None
    return ((policy - reference) * part["completion_mask"]).sum(-1)


def _additions(trainer: Any, window: int) -> list[str]:
    """What ms-swift adds to the documented loss if its settings ask for it (`_compute_loss_and_metrics`, 4.6.0)."""
    args = trainer.args
    found = {
        "overlong completions left out": getattr(args, "overlong_filter", False),
        "a supervised loss beside it": getattr(trainer, "chord_sft_iterator", None) is not None,
        "tokens of more or less than one window": (
            trainer.loss_type in OF_WINDOW and window != trainer.args.steps_per_generation
        ),
    }
    return [name for name, holds in found.items() if holds]


def _more_unobservable(trainer: Any, window: int) -> list[tuple[str, str]]:
    found = _additions(trainer, window)
    reasons = [("formula", f"the documented formula is not evaluated with {', '.join(found)}")] if found else []
    if getattr(trainer.args, "dynamic_sample", False):
        reasons.append(("samples", "dynamic_sample takes other prompts than those that the loader gave"))
    return reasons
