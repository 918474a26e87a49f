"""Mistakes of real bugs in TRL that are in no corpus: mends taken back in a newer release, from the first step on."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tests.bugs.undo import rewritten
from tests.faults.fault import ONCE, REUSED, Apply, Settings, alter_rollouts, made, unchanged
from tests.faults.mistakes.sampling import LONG, sharpened

if TYPE_CHECKING:
    from collections.abc import Sequence

GENERATE, LOSS = "_generate_and_score_completions", "_compute_loss"


@dataclass(frozen=True)
class Mistake:
    """How a bug is made in a run, whose settings are those of the run without it too."""

    apply: Apply
    """Its name is the mistake's."""
    settings: Settings
    prepare: Apply = unchanged
    """What the run without the bug needs as well."""


def undone(
    name: str, what: str, method: str, *, mended: str, before: str, settings: Settings, prepare: Apply = unchanged
) -> Mistake:
    """A mistake: a trainer's method with the words of before the mend."""

    def apply(trainer: Any) -> None:
        owner = next(kind for kind in type(trainer).__mro__ if method in vars(kind))
        function = rewritten(vars(owner)[method], owner, mended, before)
        setattr(trainer, method, types.MethodType(function, trainer))

    return Mistake(made(name, what, apply), settings, prepare)


def sometimes_none(completions: Sequence[Any], **kwargs: Any) -> list[float | None]:
    """A reward that cannot score every third completion."""
    return [None if index % 3 == 0 else float(len(str(text)) % 7) for index, text in enumerate(completions)]


def rows_of_several_lengths(count: int) -> Any:
    """Prompts of one word more each, up to eight."""
    from datasets import Dataset

    words = ["add", "two", "then", "three", "and", "five", "is", "seven"]
    return Dataset.from_dict({"prompt": [" ".join([str(row), *words[: row % 8]]) for row in range(count)]})


OF_SEVERAL_LENGTHS: Settings = {**REUSED, "dataset": rows_of_several_lengths(12), "max_completion_length": 32}


def add_head(model: Any) -> None:
    """Give a model the head of TRL that computes log-probs, without a temperature."""
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(model, outputs=("log_probs", "entropy"))


def shifted_mask(rollout: dict[str, Any]) -> dict[str, Any]:
    """Labels are compared with the log-probs of the next token, and the mask is made of labels that were not moved."""
    mask = rollout["completion_mask"]
    return rollout | {
        "completion_mask": torch.cat([torch.ones_like(mask[:, :1]), mask[:, :-1]], 1) * (mask.cumsum(1) > 1)
    }


def whole_mask(rollout: dict[str, Any]) -> dict[str, Any]:
    """Every place of a completion counts as one of its tokens."""
    return rollout | {"completion_mask": torch.ones_like(rollout["completion_mask"])}


MISTAKES = (
    undone(
        "scaled_although_none_is_asked_for",
        "Advantages are divided by a deviation that nobody asked for.",
        GENERATE,
        mended='if self.scale_rewards != "none":',
        before='if self.scale_rewards in ["batch", "none"]:',
        settings={**ONCE, "scale_rewards": "none"},
    ),
    undone(
        "loss_types_exchanged",
        "The usual losses are computed as CISPO's.",
        LOSS,
        mended='\n    if self.loss_type == "cispo":\n',
        before='\n    if self.loss_type in ("grpo", "bnpo", "dr_grpo", "dapo"):\n',
        settings={**REUSED, "loss_type": "grpo"},
    ),
    undone(
        "truncated_completions_counted",
        "A loss is divided by tokens too that its mask leaves out.",
        GENERATE,
        mended="self.accelerator.gather(loss_mask.sum()).sum()",
        before="self.accelerator.gather(torch.tensor(sum(map(len, completion_ids_list)))).sum()",
        settings={**ONCE, "loss_type": "dapo", "mask_truncated_completions": True},
    ),
    undone(
        "loss_of_each_micro_batch_whole",
        "Losses are added up over the micro-batches of an update, and not averaged.",
        LOSS,
        mended='policy_loss = loss.detach()\n        loss = loss / normalizer\n    elif self.loss_type == "bnpo":',
        before='policy_loss = loss.detach()\n    elif self.loss_type == "bnpo":',
        settings={**ONCE, "loss_type": "grpo"},
    ),
    undone(
        "padding_attended_to",
        "Log-probs are computed without the mask of the padding.",
        "_get_per_token_logps_and_entropies",
        mended='"input_ids": input_ids_batch, "attention_mask": attention_mask_batch}',
        before='"input_ids": input_ids_batch}',
        settings=OF_SEVERAL_LENGTHS,
        prepare=sharpened,
    ),
    undone(
        "unscorable_completions_count_as_zero",
        "A completion that no function could score has the reward 0.",
        GENERATE,
        mended="torch.isnan(rewards_per_func).all(dim=1)",
        before="torch.zeros_like(rewards_per_func, dtype=torch.bool).all(dim=1)",
        settings={**ONCE, "reward": sometimes_none},
    ),
    undone(
        "group_of_its_first_completion",
        "Mean and deviation of a group are those of its first completion.",
        GENERATE,
        mended="advantages = rewards - mean_grouped_rewards",
        before="std_rewards = torch.zeros_like(rewards); "
        "advantages = rewards - rewards.view(-1, num_generations)[:, 0].repeat_interleave(num_generations)",
        settings=ONCE,
    ),
    undone(
        "old_log_probs_by_the_old_condition",
        "Old log-probs are computed only where a rollout is larger than an update, and not where it straddles one.",
        GENERATE,
        mended="self.args.gradient_accumulation_steps % generate_every != 0",
        before="self.num_iterations > 1 or self.args.steps_per_generation > self.args.gradient_accumulation_steps",
        settings={
            "rows": 36,
            "gradient_accumulation_steps": 4,
            "steps_per_generation": 3,
            "num_train_epochs": 1,
            "loss_type": "bnpo",
        },
    ),
    undone(
        "divergence_without_a_gradient",
        "The KL term has its value in the loss, and no gradient.",
        LOSS,
        mended="per_token_loss + self.beta * per_token_kl",
        before="per_token_loss + self.beta * per_token_kl.detach()",
        settings={**REUSED, "beta": 0.5, "loss_type": "grpo"},
    ),
    undone(
        "divergence_weights_detached",
        "The weights that correct the KL term have no gradient.",
        LOSS,
        mended="per_token_kl * coef_1",
        before="per_token_kl * coef_1.detach()",
        settings={**REUSED, "beta": 0.5, "loss_type": "grpo", "use_bias_correction_kl": True},
    ),
    undone(
        "cispo_without_log_probs",
        "CISPO's clipped ratio is trained itself, and is not the weight of the log-probs.",
        LOSS,
        mended="-clamped_ratios * advantages * per_token_logps",
        before="-torch.clamp(coef_1, max=self.epsilon_high) * advantages",
        settings={**REUSED, "loss_type": "cispo", "epsilon_high": 1.05},
    ),
    undone(
        "padding_in_the_entropy_threshold",
        "The entropies of the padding count for the threshold above which tokens are trained.",
        "get_high_entropy_mask",
        mended="local = entropies[mask.bool()].float()",
        before="local = entropies.flatten().float()",
        settings={**REUSED, "top_entropy_quantile": 0.5, "loss_type": "grpo", "max_completion_length": 32},
    ),
    undone(
        "tokens_divided_by_samples",
        "A sum over tokens is divided by the number of samples.",
        LOSS,
        mended="normalizer * self.current_gradient_accumulation_steps / self.args.steps_per_generation",
        before="float(mask.size(0) * self.current_gradient_accumulation_steps)",
        settings={**REUSED, "loss_type": "dapo"},
    ),
    Mistake(
        made(
            "log_probs_without_temperature",
            "All log-probs are computed as if the temperature were 1.",
            lambda trainer: add_head(trainer.model),
        ),
        {**LONG, "temperature": 0.6},
        sharpened,
    ),
    Mistake(
        made(
            "padding_in_the_mask",
            "The mask of the completions has the padding behind their ends too.",
            lambda trainer: alter_rollouts(trainer, whole_mask, after=0),
        ),
        {**REUSED, "max_completion_length": 32},
    ),
    Mistake(
        made(
            "mask_of_the_token_before",
            "The mask of the completions stands one token too early against the log-probs.",
            lambda trainer: alter_rollouts(trainer, shifted_mask, after=0),
        ),
        REUSED,
    ),
)
