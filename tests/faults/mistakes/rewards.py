"""Rewards, advantages and masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlstep_hooks.planning.finding import Where
from rlstep_hooks.testing.tiny_trl import tiny_reward, tiny_rows
from rlstep_hooks.testing.trl_faults import alter_microbatches, replace_method
from tests.faults.fault import REUSED, Fault, Settings, alter_rollouts, made, way

if TYPE_CHECKING:
    from collections.abc import Callable


def advantages_shifted_by_a_sample(trainer: Any) -> None:
    """Each sample gets the advantage of the sample before it."""
    alter_rollouts(trainer, lambda rollout: rollout | {"advantages": rollout["advantages"].roll(1)}, after=4)


def advantages_of_another_scale(trainer: Any, original: Callable[..., Any], rows: Any) -> Any:
    """The standard deviation of the whole rollout takes the place of the group's."""
    configured = trainer.scale_rewards
    trainer.scale_rewards = "batch" if trainer.state.global_step >= 4 else configured
    try:
        return original(rows)
    finally:
        trainer.scale_rewards = configured


def advantages_of_groups_across_prompts(trainer: Any) -> None:
    """Rewards are laid out with the prompts inside, and grouped as if the samples were."""

    def across(advantages: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
        columns = rewards.nansum(1).view(trainer.num_generations, -1)
        return ((columns - columns.mean(0)) / (columns.std(0) + 1e-4)).flatten()[: len(advantages)]

    computed: list[torch.Tensor] = []

    def rewards_of(original: Callable[..., Any], *args: Any) -> Any:
        computed.append(original(*args))
        return computed[-1]

    replace_method(trainer, "_calculate_rewards", rewards_of)
    alter_rollouts(
        trainer, lambda rollout: rollout | {"advantages": across(rollout["advantages"], computed[-1])}, after=4
    )


def masked(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A change of a rollout's mask."""
    return lambda rollout: rollout | {"completion_mask": change(rollout["completion_mask"])}


def last_token_left_out_of_the_mask(trainer: Any) -> None:
    """The mask ends one token early."""

    def shorten(mask: torch.Tensor) -> torch.Tensor:
        return mask * (mask.cumsum(1) < mask.sum(1, keepdim=True))

    alter_rollouts(trainer, masked(shorten), after=4)


def last_token_masked_on_the_way(trainer: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """The mask ends one token early in the loss."""
    mask = batch["completion_mask"]
    return batch | {"completion_mask": mask * (mask.cumsum(1) < mask.sum(1, keepdim=True))}


MASKED: Settings = {**REUSED, "mask_truncated_completions": True}


def alter_rewards(trainer: Any, alter: Callable[[torch.Tensor], torch.Tensor], *, after: int) -> None:
    """Change what the trainer's collection of rewards gives, from the rollout after that many updates on."""

    def calculate(original: Callable[..., Any], *args: Any) -> Any:
        rewards = original(*args)
        return alter(rewards) if trainer.state.global_step >= after else rewards

    replace_method(trainer, "_calculate_rewards", calculate)


def completions_scored_in_another_order(
    trainer: Any, original: Callable[..., Any], rows: Any, prompts: Any, completions: Any, *args: Any
) -> Any:
    """The reward functions get the texts of the samples beside them."""
    if trainer.state.global_step >= 4:
        completions = completions[1:] + completions[:1]
    return original(rows, prompts, completions, *args)


def one_without_reward(completions: Any, **kwargs: Any) -> list[float | None]:
    """A reward for all completions but the first."""
    return [None, *tiny_reward(completions)[1:]]


async def awaited_reward(completions: Any, **kwargs: Any) -> list[float]:
    """A reward that is waited for."""
    return tiny_reward(completions)


def reward_in_an_array(completions: Any, **kwargs: Any) -> Any:
    """Rewards in an array of numpy."""
    return np.array(tiny_reward(completions))


def columns_of_other_rows(
    trainer: Any, original: Callable[..., Any], rows: Any, prompts: Any, completions: Any, *args: Any
) -> Any:
    """The reward functions get the columns of other rows."""
    if trainer.state.global_step >= 4:
        rows = rows[4:] + rows[:4]
    return original(rows, prompts, completions, *args)


def prompts_of_other_rows(
    trainer: Any, original: Callable[..., Any], rows: Any, prompts: Any, completions: Any, *args: Any
) -> Any:
    """The reward functions get the prompts of other rows."""
    if trainer.state.global_step >= 4:
        prompts = prompts[4:] + prompts[:4]
    return original(rows, prompts, completions, *args)


def texts_of_two_rows_swapped(
    trainer: Any, original: Callable[..., Any], rows: Any, prompts: Any, completions: Any, *args: Any
) -> Any:
    """The reward functions get the texts of two rows, both odd, in each other's place."""
    if trainer.state.global_step >= 4:
        completions = [completions[place] for place in (0, 3, 2, 1, *range(4, len(completions)))]
    return original(rows, prompts, completions, *args)


def completions_cut_after_generation(trainer: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Five tokens of each completion are kept."""
    completions, *more = original(*args, **kwargs)
    if trainer.state.global_step >= 4:
        completions = [tokens[:5] for tokens in completions]
    return (completions, *more)


def prompts_lose_their_last_token(trainer: Any, original: Callable[..., Any], prompts: Any) -> Any:
    """Each prompt is encoded without its last token."""
    tokens, *more = original(prompts)
    return ([of[:-1] for of in tokens] if trainer.state.global_step >= 4 else tokens, *more)


def prompts_encoded_for_other_rows(trainer: Any, original: Callable[..., Any], prompts: Any) -> Any:
    """The policy answers the prompts of other rows than it is scored for."""
    tokens, *more = original(prompts)
    return (tokens[4:] + tokens[:4] if trainer.state.global_step >= 4 else tokens, *more)


# fmt: off
FAULTS = (
    # A: advantages
    Fault(advantages_shifted_by_a_sample, code="RLS516", where=Where(rollout=2, update=4), report="trl#2995", since="0.24"),
    Fault(made("advantages_of_the_wrong_sign", "Advantages are those of costs.",
               lambda trainer: alter_rollouts(trainer, lambda rollout: rollout | {"advantages": -rollout["advantages"]}, after=4)),
          code="RLS516", where=Where(rollout=2, update=4), report="TRL, a cost taken for a reward", since="0.24"),
    Fault(way(replace_method, "_generate_and_score_completions", by=advantages_of_another_scale), code="RLS516",
          where=Where(rollout=2, update=4), report="trl#3857", since="0.24"),
    Fault(advantages_of_groups_across_prompts, code="RLS516", where=Where(rollout=2, update=4), report="verl#1224", since="0.24"),
    Fault(made("advantages_negated_on_the_way", "Advantages change their sign between the rollout and the loss.",
               lambda trainer: alter_microbatches(trainer, lambda batch: batch | {"advantages": -batch["advantages"]}, first=8)),
          code="RLS517", where=Where(update=4, microbatch=8), report="TRL, a buffer written by a wrapper"),
    # A: masks
    Fault(last_token_left_out_of_the_mask, code="RLS518", where=Where(rollout=2, update=4), report="verl#3210",
          where_016=Where(rollout=4, update=4)),
    Fault(way(alter_microbatches, by=last_token_masked_on_the_way, first=8), code="RLS804", where=Where(update=4, microbatch=8),
          report="verl#3210"),
    Fault(made("truncated_completions_trained", "Completions without an end are trained, although they are to be left out.",
               lambda trainer: alter_rollouts(trainer, masked(torch.ones_like), after=4)),
          code="RLS518", where=Where(rollout=2, update=4), report="TRL, mask_truncated_completions left out", settings=MASKED,
          since="0.18"),
    # A: rewards on their way to the advantages
    Fault(made("rewards_gathered_in_another_order", "The rewards of all processes are gathered in another order than the samples.",
               lambda trainer: alter_rewards(trainer, lambda rewards: rewards.roll(1, 0), after=4)),
          code="RLS515", where=Where(rollout=2, update=4), report="verl#1224", since="0.24"),
    Fault(made("rewards_rounded", "Rewards lose what a cast to integers takes.",
               lambda trainer: alter_rewards(trainer, lambda rewards: (rewards / 2).floor() * 2, after=4)),
          code="RLS515", where=Where(rollout=2, update=4), report="rewards stored as whole numbers", since="0.24"),
    Fault(way(replace_method, "_calculate_rewards", by=completions_scored_in_another_order), code="RLS515",
          where=Where(rollout=2, update=4), report="trl PR#3725", since="0.24"),
    Fault(made("advantages_negated_beside_an_unscorable_row", "Advantages are those of costs, and one row has no reward.",
               lambda trainer: alter_rollouts(trainer, lambda rollout: rollout | {"advantages": -rollout["advantages"]}, after=4)),
          code="RLS516", where=Where(rollout=2, update=4), report="a reward function that gives None",
          settings={**REUSED, "reward": one_without_reward}, since="1.16"),
    Fault(made("awaited_rewards_in_another_order", "Rewards that were waited for are put in another order than the samples.",
               lambda trainer: alter_rewards(trainer, lambda rewards: rewards.roll(1, 0), after=4)),
          code="RLS515", where=Where(rollout=2, update=4), report="rewards of a server, gathered as they come",
          settings={**REUSED, "reward": awaited_reward}, since="1.16"),
    Fault(made("rewards_of_an_array_rounded", "Rewards that came in an array lose what a cast to integers takes.",
               lambda trainer: alter_rewards(trainer, lambda rewards: (rewards / 2).floor() * 2, after=4)),
          code="RLS515", where=Where(rollout=2, update=4), report="rewards stored as whole numbers",
          settings={**REUSED, "reward": reward_in_an_array}, since="0.24"),
    Fault(way(replace_method, "_calculate_rewards", by=columns_of_other_rows), code="RLS515",
          where=Where(rollout=2, update=4), report="trl PR#3725", since="0.24",
          settings={**REUSED, "dataset": tiny_rows(12).add_column("answer", [place % 7 for place in range(12)])}),
    Fault(way(replace_method, "_calculate_rewards", by=prompts_of_other_rows), code="RLS515",
          where=Where(rollout=2, update=4), report="trl PR#3725", since="0.24"),
    Fault(way(replace_method, "_calculate_rewards", by=texts_of_two_rows_swapped), code="RLS515",
          where=Where(rollout=2, update=4), report="trl PR#3725", since="0.24"),
    Fault(way(replace_method, "_generate_single_turn", by=completions_cut_after_generation), code="RLS306",
          where=Where(rollout=2, update=4), report="a limit of tokens applied twice", since="1.16"),
    Fault(way(replace_method, "_tokenize_prompts", by=prompts_lose_their_last_token), code="RLS306",
          where=Where(rollout=2, update=4), report="a template that is cut", since="1.16"),
    Fault(way(replace_method, "_tokenize_prompts", by=prompts_encoded_for_other_rows), code="RLS306",
          where=Where(rollout=2, update=4), report="trl PR#3725", since="1.16"),
)
# fmt: on
