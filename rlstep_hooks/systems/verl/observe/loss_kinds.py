"""The losses of verl that are compared with their formulas: the policy's and the critic's, each from the numbers that have arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.systems.verl.observe import loss as of_policy
from rlstep_hooks.systems.verl.observe import value_loss as of_critic
from rlstep_hooks.systems.verl.observe.loss_meter import Arrived, LossKind, LossMeter

if TYPE_CHECKING:
    from rlstep_hooks.observe.guard import GapRecorder
    from rlstep_hooks.observe.losses import LossBatch


def _of_policy(arrived: Arrived) -> LossBatch:
    fields, columns, dtypes = arrived.fields, arrived.columns, arrived.dtypes
    tensors = {"log_probs": columns[0], "old": fields["old_log_probs"], "advantages": fields["advantages"]}
    optional = {"reference": "ref_log_prob", "weights": "rollout_is_weights"}
    tensors |= {name: fields[field] for name, field in optional.items() if field in fields}
    if len(columns) > 1:
        tensors["entropies"] = columns[1]
    reference = arrived.given.get("ref_log_prob")
    epsilons = {
        "policy": _epsilon(dtypes[0], arrived.given["old_log_probs"].dtype),
        "kl": _epsilon(dtypes[0], dtypes[0] if reference is None else reference.dtype),
        "entropy": _epsilon(dtypes[-1], dtypes[-1]),
    }
    return arrived.batch(tensors, epsilons)


def _of_critic(arrived: Arrived) -> LossBatch:
    fields = arrived.fields
    tensors = {"values": arrived.columns[0], "old": fields["values"], "returns": fields["returns"]}
    return arrived.batch(tensors, {"policy": _epsilon(arrived.dtypes[0], arrived.given["returns"].dtype)})


def _epsilon(one: torch.dtype, other: torch.dtype) -> float:
    return float(torch.finfo(torch.promote_types(one, other)).eps)


POLICY = LossKind(
    whose="the policy's",
    topic="formula",
    function="ppo_loss",
    fields=("old_log_probs", "advantages", "response_mask", "ref_log_prob", "rollout_is_weights"),
    outputs=("log_probs", "entropy"),
    read=of_policy.read_settings,
    formula=of_policy.policy_formula,
    batch=_of_policy,
    clipped=of_policy.clipped_fraction,
    beside="entropy",
    beside_gap=of_policy.entropy_gap,
    left_out=of_policy.left_out,
)

CRITIC = LossKind(
    whose="the critic's",
    topic="critic_loss",
    function="value_loss",
    fields=("values", "returns", "response_mask"),
    outputs=("values",),
    read=of_critic.read_settings,
    formula=of_critic.value_formula,
    batch=_of_critic,
    clipped=lambda settings, batch: None,
)


class PolicyLosses(LossMeter):
    """Compares the policy's losses, and contains its own errors.

    Args:
        recorder: Learns why losses are not compared.
    """

    def __init__(self, recorder: GapRecorder) -> None:
        super().__init__(POLICY, recorder)

    begin = contained("formula")(LossMeter.begin)
    follow_beside = contained("formula")(LossMeter.follow_beside)
    end = contained("formula")(LossMeter.end)
    send = contained("formula")(LossMeter.send)


class CriticLosses(LossMeter):
    """Compares the critic's losses, and contains its own errors.

    Args:
        recorder: Learns why losses are not compared.
    """

    def __init__(self, recorder: GapRecorder) -> None:
        super().__init__(CRITIC, recorder)

    begin = contained("critic_loss")(LossMeter.begin)
    follow_beside = contained("critic_loss")(LossMeter.follow_beside)
    end = contained("critic_loss")(LossMeter.end)
    send = contained("critic_loss")(LossMeter.send)
