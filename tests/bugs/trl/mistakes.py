"""Mistakes of real bugs in TRL that are in no corpus: mends taken back in a newer release, from the first step on."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.bugs.undo import rewritten
from tests.faults.fault import ONCE, REUSED, Apply, Settings, made, unchanged
from tests.faults.mistakes.sampling import sharpened

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

MISTAKES = (
    undone(
        "window_of_the_generation_batch",
        "The tokens that a loss is divided by are those of the whole generation batch.",
        LOSS,
        mended="normalizer * self.current_gradient_accumulation_steps / self.args.steps_per_generation",
        before="normalizer",
        settings={**ONCE, "rows": 24, "steps_per_generation": 4, "loss_type": "dapo"},
    ),
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
)
