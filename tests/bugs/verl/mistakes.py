"""Mistakes of real bugs that verl's corpus does not have, each made at one rollout of a real run (`tests.systems.verl.faults`)."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import wrapt

from rlstep_hooks.record import cadence
from tests.systems.verl.faults import (
    FAULTS,
    WORKERS,
    asked_for,
    asking,
    count_rollouts,
    fault,
    in_loss,
    wrap_in_trainer,
)

MODULE = __name__
VARIABLE = "RLSTEP_TEST_BUGS"
CORPUS = frozenset(FAULTS)
"""Names of what the corpus makes itself."""


if TYPE_CHECKING:
    from collections.abc import Mapping


def _policy_loss(at: int, **changed: Any) -> None:
    """Give the policy's loss function other arguments on a rollout; a value may be a function of what was given."""

    def get(function: Any, args: Any, kwargs: Any) -> Any:
        loss = function(*args, **kwargs)

        def with_others(**given: Any) -> Any:
            others = {name: value(given) if callable(value) else value for name, value in changed.items()}
            return loss(**given | others)

        return with_others

    in_loss(at, "get_policy_loss_fn", get)


@fault(report="verl#179", code="RLS801", variant="times that")
def divergence_subtracted(at: int) -> None:
    """The KL term is taken off the loss that is minimised."""
    in_loss(at, "kl_penalty", lambda function, args, kwargs: -function(*args, **kwargs))


@fault(report="verl#931", code="RLS801", variant="times that")
def token_sums_divided_by_tokens(at: int) -> None:
    """seq-mean-token-sum is a mean over the tokens too."""
    _policy_loss(at, loss_agg_mode="seq-mean-token-mean")


@fault(report="verl#945", code="RLS801", variant="times that")
def aggregation_not_handed_over(at: int) -> None:
    """The policy's loss is aggregated by the default, whatever is configured."""
    _policy_loss(at, loss_agg_mode="token-mean")


@fault(report="verl#2513", code="RLS801")
def advantages_for_the_mask(at: int) -> None:
    """The policy's loss gets the advantages in the place of the mask."""
    _policy_loss(at, response_mask=lambda given: given["advantages"])


@fault(report="verl#4708", code="RLS301")
def dropout_in_old_log_probs(at: int) -> None:
    """The model drops out activations while old log-probs are computed, as in training mode."""

    calls = itertools.count()

    def compute(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        if next(calls) != at:
            return wrapped(*args, **kwargs)
        from torch.nn.functional import dropout

        layers = [module for name, module in worker.actor.engine.module.named_modules() if name.endswith(".mlp")]
        hooks = [of.register_forward_hook(lambda _, given, output: dropout(output, 0.1)) for of in layers]
        try:
            return wrapped(*args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()

    wrap_in_trainer(WORKERS, "ActorRolloutRefWorker", "compute_log_prob", compute)


@fault(report="verl#1463", code="RLS605")
def constant_rate_begins_at_zero(at: int) -> None:
    """A constant schedule without a warm-up is 0 at its first tick."""

    def made(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        scheduler = wrapped(*args, **kwargs)
        warmup = max(1, kwargs.get("num_warmup_steps", 0))
        scheduler.lr_lambdas = [lambda tick: min(1.0, tick / warmup) for _ in scheduler.lr_lambdas]
        for group, base in zip(scheduler.optimizer.param_groups, scheduler.base_lrs, strict=True):
            group["lr"] = base * min(1.0, scheduler.last_epoch / warmup)
        return scheduler

    name = "get_constant_schedule_with_warmup"
    wrapt.when_imported("verl.utils.torch_functional")(lambda module: wrapt.wrap_function_wrapper(module, name, made))


@fault(report="verl#2016", code="RLS801", variant="2 times")
def value_loss_without_its_half(at: int) -> None:
    """The critic's loss is twice as large as that of the paper."""

    def doubled(function: Any, args: Any, kwargs: Any) -> Any:
        loss, clipped = function(*args, **kwargs)
        return 2 * loss, clipped

    in_loss(at, "compute_value_loss", doubled)


@fault(report="verl#1340", code="RLS801", variant="times that")
def aggregation_not_handed_to_the_critic(at: int) -> None:
    """The critic's loss is aggregated by the default, whatever is configured."""
    in_loss(
        at,
        "compute_value_loss",
        lambda function, args, kwargs: function(*args, **kwargs | {"loss_agg_mode": "token-mean"}),
    )


def asking_for(faults: Mapping[str, int]) -> dict[str, str]:
    """The environment that makes faults of the corpus and mistakes of this module: name -> rollout."""
    here = ",".join(f"{name}@{rollout}" for name, rollout in faults.items() if name not in CORPUS)
    return asking({name: at for name, at in faults.items() if name in CORPUS}) | {VARIABLE: here}


def make_mistakes() -> None:
    """Make what the environment names of this module, in this process."""
    named = [item.split("@") for item in os.environ.get(VARIABLE, "").split(",") if item]
    if named and not asked_for():
        # As the corpus does for its own: each rollout is compared, so that each can have a mistake.
        cadence.ALL_OF_FIRST = 1 << 30
        count_rollouts()
    for name, rollout in named:
        FAULTS[name].apply(int(rollout))


make_mistakes()
