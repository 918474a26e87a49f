"""What the log-prob calls made with a rollout tell: whose its old log-probs are, and what came of the reference.

RLOO hands neither its reference log-probs nor the penalty of a sample on, and scores with the policy twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.systems.trl.observe.scored_alone import TOPICS, Computed

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.systems.trl.observe.calls import LogProbCall
    from rlstep_hooks.systems.trl.observe.observation import Observation


class CallsOfRollout:
    """Reads the calls of one trainer's rollouts.

    Args:
        observation: The trainer under observation.
        filtered: Whether a filter takes samples out of each rollout.
    """

    def __init__(self, observation: Observation, *, filtered: bool) -> None:
        self.recorder = observation.recorder
        """Learns what is not observed."""
        self._observation = observation
        self._filtered = filtered

    def origin(self, olds: list[Tensor], calls: list[LogProbCall], *, copied: bool) -> int | None:
        """The policy version whose forwards produced these old log-probs, one tensor for each part of a rollout."""
        policy = [call for call in calls if self._observation.is_policy(call.model) and not call.grad]
        # RLOO's are sums over tokens, GFPO's some of the rows, replayed ones stand beside them: another tensor by construction.
        if self._observation.schedule.algorithm == "RLOO" or copied or self._filtered:
            return policy[0].version if policy else None
        versions = [next((call.version for call in policy if call.log_probs is old), None) for old in olds]
        known = [version for version in versions if version is not None]
        return min(known) if len(known) == len(versions) else None

    def have_reference(self, calls: list[LogProbCall]) -> bool:
        """Whether RLOO computed reference log-probs, which it does not hand on: with a model of their own, or, where adapters
        are switched off for them, in a second pass of the policy."""
        reference = getattr(self._observation.trainer, "ref_model", None)
        if reference is not None:
            return any(call.model is reference for call in calls)
        passes = sum(1 for call in calls if self._observation.is_policy(call.model) and not call.grad)
        return self._observation.schedule.algorithm == "RLOO" and passes > 1

    def reference_moved(self, parts: list[dict[str, Any]], calls: list[LogProbCall]) -> Tensor | None:
        """How many of a rollout's reference log-probs are not those that a forward gave; None where no forward was seen."""
        reference, model = parts[0].get("ref_per_token_logps"), getattr(self._observation.trainer, "ref_model", None)
        if reference is None or model is None or len(parts) != 1:
            return None
        given = [call.log_probs for call in calls if call.model is model and not call.grad]
        counts = [
            (one != reference).sum() for one in given if (one.shape, one.dtype) == (reference.shape, reference.dtype)
        ]
        return torch.stack(counts).min() if counts else None

    def penalty(self, calls: list[LogProbCall], parts: list[dict[str, Any]]) -> tuple[Tensor | None, Tensor | None]:
        """The KL penalty of each sample (of RLOO: rloo_trainer.py 0.24.0 to 1.16.0), and the mean |policy - reference| where no update
        has parted them; None where there is no penalty."""
        own = self._observation.adapter.penalty(parts)
        if own is not None:
            return own, None
        part, trainer = parts[0], self._observation.trainer
        passes = [call.log_probs for call in calls if not call.grad]
        if self._observation.schedule.algorithm != "RLOO" or trainer.beta == 0.0 or len(passes) != 2:
            return None, None
        mask = part["completion_mask"]
        distance = (passes[0] - passes[1]) * mask
        parted = self._observation.updates.version or hasattr(trainer.model, "peft_config")
        return trainer.beta * distance.sum(-1), None if parted else distance.abs().sum() / mask.sum().clamp(min=1)

    def reference_beside(self, part: dict[str, Any], calls: list[LogProbCall]) -> dict[str, Any]:
        """Rows that the reference has scored alone beside its own forward, where it makes no other."""
        return self._reference_looked_at(part, calls) or {}

    @contained(*TOPICS)
    def _reference_looked_at(self, part: dict[str, Any], calls: list[LogProbCall]) -> dict[str, Any]:
        beside = self._observation.alone.reference_beside
        if beside is None:
            return {}
        reference = self._observation.trainer.ref_model
        given = [call.log_probs for call in calls if call.model is reference]
        return beside.look(part, part.get("ref_per_token_logps", given[-1] if given else None))

    def penalty_scored_alone(self, cycle: int, part: dict[str, Any], calls: list[LogProbCall]) -> dict[str, Any]:
        """Rows of which the reference of RLOO's penalty is scored again alone."""
        passes = [call.log_probs for call in calls if not call.grad]
        wanted = self._observation.schedule.algorithm == "RLOO" and self._observation.trainer.beta != 0.0
        if not wanted or len(passes) != 2:
            return {}
        policy, reference = passes
        computed = Computed(policy=policy, policy_is="the old log-probs", reference=reference)
        return self._observation.alone.look(cycle, part, computed)
