"""Mistakes of one rank, of reductions and of steps, made on ms-swift's GRPOTrainer before it trains on several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rlstep_hooks.testing.trl_faults import replace_method
from tests.faults.fault import after_update, on, way
from tests.faults.mistakes import losses
from tests.faults.mistakes.gradients import before_steps, half_of_each_step_taken_back
from tests.systems.swift.faults import FAULTS
from tests.systems.trl_ranks import reduction_faults, zero_faults
from tests.systems.trl_ranks.rank_faults import (
    another_rate,
    moments_cleared,
    of_one_rank,
    reference_changed,
    weight_changed,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Mistake(NamedTuple):
    """A mistake, and what must find it."""

    apply: Callable[[Any], None]
    code: str
    """The rule that names it."""
    settings: dict[str, Any]
    """Of the command line."""


TWICE: dict[str, Any] = {"num_iterations": 2}
"""Two passes over each rollout."""
REFERENCE = TWICE | {"beta": 0.1}
CLIPPED = TWICE | {"max_grad_norm": 1e-3}
LONG = TWICE | {"num_generations": 8, "max_completion_length": 24}
"""Eight completions of one prompt, four on each rank, too long to come twice."""
LEFT_OUT = {"zero2": {"one_update_left_out"}}
"""The optimizer that a callback gets does nothing under DeepSpeed: the engine steps, within the backward pass."""
LEFT_OUT["zero3"] = LEFT_OUT["zero2"] | {"sampled_by_another_model", "weight_changed_on_one_rank"}
"""Between passes ZeRO-3 holds no whole weights, that could be copied or written to."""


def loss_of_nothing(trainer: Any) -> None:
    """The loss is multiplied by 0."""
    replace_method(trainer, "_compute_loss", lambda original, *args, **more: original(*args, **more) * 0)


def completions_of_the_first_rank(trainer: Any) -> None:
    """Each rank trains the completions that rank 0 generated, as where each takes the same part of what one engine gave to all."""

    def generate(original: Callable[..., Any], *args: Any, **more: Any) -> Any:
        torch.distributed.broadcast_object_list(sent := [original(*args, **more)], src=0)
        return sent[0]

    replace_method(trainer, "_generate_completions", generate)


_REFERENCE_CHANGED = of_one_rank(way(after_update, 4, by=reference_changed))


def _named(*mistakes: Mistake) -> dict[str, Mistake]:
    return {of.apply.__name__: of for of in mistakes}


NEEDS_ALL_PENALTIES = "rewards_in_another_order"
"""Its estimator divides by the deviation of the rewards of all processes, which have a KL term: that of the others is not known."""


def _of_reduction(*mistakes: Callable[[Any], None]) -> list[Mistake]:
    return [Mistake(apply, "RLS811", TWICE) for apply in mistakes]


_EVERYWHERE = {
    name: Mistake(apply, code, settings | ({"kl_in_reward": "false"} if name == NEEDS_ALL_PENALTIES else {}))
    for name, (apply, code, _, settings) in FAULTS.items()
} | _named(
    Mistake(of_one_rank(way(after_update, 4, by=weight_changed)), "RLS419", TWICE),
    Mistake(of_one_rank(way(on, "on_step_begin", by=another_rate)), "RLS605", TWICE),
    Mistake(of_one_rank(loss_of_nothing), "RLS801", TWICE),
    Mistake(completions_of_the_first_rank, "RLS519", LONG),
    Mistake(losses.loss_taught_twice, "RLS805", TWICE),
)
_OF_DDP = _named(
    *_of_reduction(
        reduction_faults.zero_rank,
        reduction_faults.scaled_rank,
        reduction_faults.drop_first,
        reduction_faults.drop_last_everywhere,
        reduction_faults.stale_rank,
        reduction_faults.no_sync_left_on,
        reduction_faults.last_not_synced,
        reduction_faults.summed,
    ),
    Mistake(reduction_faults.clip_left_out, "RLS808", CLIPPED),
    Mistake(of_one_rank(way(before_steps, by=moments_cleared, first=4)), "RLS807", TWICE),
    Mistake(way(on, "on_train_begin", by=half_of_each_step_taken_back), "RLS806", TWICE),
    Mistake(_REFERENCE_CHANGED, "RLS411", REFERENCE),
)
_OF_ZERO = _named(
    *_of_reduction(
        zero_faults.a_rank_gives_zeros,
        zero_faults.a_rank_counts_twice,
        zero_faults.a_rank_loses_a_microbatch,
        zero_faults.a_rank_repeats_the_update_before,
        zero_faults.divided_otherwise,
        zero_faults.only_the_last_microbatch,
    ),
    Mistake(zero_faults.clip_left_out, "RLS808", CLIPPED),
    Mistake(zero_faults.half_steps, "RLS806", TWICE),
    Mistake(zero_faults.moments_cleared_at_each_rollout, "RLS807", TWICE),
    Mistake(zero_faults.masters_shrink_between_updates, "RLS404", TWICE),
    Mistake(zero_faults.update_swallowed, "RLS210", TWICE),
)


def _under_deepspeed(stage: str) -> dict[str, Mistake]:
    return {name: of for name, of in (_EVERYWHERE | _OF_ZERO).items() if name not in LEFT_OUT[stage]}


OF_RANKS: dict[str, dict[str, Mistake]] = {
    "ddp": _EVERYWHERE | _OF_DDP,
    "zero2": _under_deepspeed("zero2") | _named(Mistake(_REFERENCE_CHANGED, "RLS411", REFERENCE)),
    "zero3": _under_deepspeed("zero3"),
}
"""Deployment -> name -> mistake."""
