"""Advantages and masks of a rollout against what verl documents, as its controller holds them. B samples, T completion tokens.

Source: verl 0.9.1, docs/algo/*.md, trainer/ppo/core_algos.py (functions of `register_adv_est`), trainer/ppo/ray_trainer.py
(`apply_kl_penalty`, `compute_advantage`), trainer/ppo/v1/utils.py (`compute_advantage_for_multi_trajectories`). All on the CPU.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.advantages import LARGEST, Estimator, Rewards
from rlstep_hooks.observe.alternative_advantages import Documented
from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.other_penalties import other_penalties
from rlstep_hooks.systems.verl.observe.loss import KL_KINDS, kl_estimate
from rlstep_hooks.systems.verl.observe.rewards import last_of_sessions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_STABILISER = 1e-6
_COUNTED = 1e-8
"""Added to a number of tokens before it divides (utils/torch_functional.py 0.9.1, `masked_mean`)."""
_WHITENED: dict[str, Any] = {"whitening": "full", "unbiased": True}

_ESTIMATORS: dict[str, dict[str, Any]] = {
    "gae": {"tokens": "gae", "skips": True, **_WHITENED},
    "grpo": {"baseline": "mean"},
    "grpo_vectorized": {"baseline": "mean"},
    "grpo_passk": {"baseline": "second"},
    "rloo": {"baseline": "others"},
    "rloo_vectorized": {"baseline": "others"},
    "opo": {"baseline": "lengths"},
    "gpg": {"baseline": "mean", "per_nonzero": True},
    "remax": {"baseline": "given", "tokens": "returns"},
    "reinforce_plus_plus": {"tokens": "returns", "skips": True, **_WHITENED},
    "reinforce_plus_plus_baseline": {"baseline": "mean", **_WHITENED},
}
"""Estimators by name (core_algos.py 0.9.1:218-890). Those that need more of the policy than its log-probs (optimal token baselines), or
several rewards (gdpo), have none here."""

_BY_DEVIATION = ("grpo", "grpo_vectorized", "grpo_passk")
"""Estimators that `norm_adv_by_std_in_grpo` acts on."""


def read_estimator(algorithm: Any) -> Estimator | str:
    """The estimator of a live configuration's `algorithm`, or why it has none here."""
    name = _name(algorithm)
    if name not in _ESTIMATORS:
        return f"no documented formula is known here for algorithm.adv_estimator={name}"
    if name == "gae" and algorithm.get("use_pf_ppo", False):
        return "with algorithm.use_pf_ppo samples are drawn anew once advantages are computed"
    divides = name in _BY_DEVIATION and algorithm.get("norm_adv_by_std_in_grpo", True)
    returns = name in ("gae", "reinforce_plus_plus")
    return Estimator(
        **_ESTIMATORS[name],
        scale="group" if divides else "none",
        stabiliser=_STABILISER if divides else 0.0,
        gamma=float(algorithm.gamma) if returns else 1.0,
        lam=float(algorithm.lam) if returns else 1.0,
    )


def _name(algorithm: Any) -> str:
    return str(getattr(algorithm.adv_estimator, "value", algorithm.adv_estimator))


TARGETS = ("values", "returns")
"""What the critic's loss takes of the controller (workers/utils/losses.py 0.9.1:206)."""


class Compared(msgspec.Struct, frozen=True):
    """What was found; fields as in `Rewarded`."""

    advantages_off: float | None = None
    advantages_fit: str = ""
    altered: int | None = None
    rewards_moved: int | None = None
    targets_altered: int | None = None
    samples: int = 0
    masks_wrong: int | None = None


class AdvantageWatch:
    """Compares the advantages of one trainer's rollouts, right where they are computed.

    Args:
        config: The trainer's configuration.
        ends: Tokens that end a completion; empty where that is not known, or completions have several turns.
    """

    def __init__(self, config: Any, ends: Sequence[int]) -> None:
        self._algorithm = config.algorithm
        self._estimator = read_estimator(config.algorithm)
        self.reason = self._estimator if isinstance(self._estimator, str) else ""
        """Why advantages are not compared, where they are not."""
        self._ends = list(ends)
        self._rollouts = 0
        """Rollouts that were taken."""
        self._found: tuple[float | None, str] = None, ""
        """What was found of the rollout that is trained, in all its parts so far."""
        self._computed: dict[str, dict[str, Tensor]] | None = None
        """A sample's name -> its advantages as they were computed, the rewards that they were computed from, values and returns."""

    def compared(self, data: Any, keys: Sequence[str] | None, coefficient: float) -> None:
        """Advantages were computed, of a rollout or of one part of it.

        Args:
            data: verl's `DataProto`, with rewards and advantages.
            keys: Names of its samples, where several may belong to one session.
            coefficient: The coefficient of the KL penalty in the rewards.
        """
        estimator, batch = self._estimator, data.batch
        if not is_compared(self._rollouts) or batch["response_mask"].numel() > LARGEST:
            return
        names = map(str, keys or range(len(data)))
        # A KL penalty is subtracted from scores; without one they are what the estimator gets.
        scores = "token_level_scores" if self._algorithm.use_kl_in_reward else "token_level_rewards"
        fields = {"advantages": "advantages", "rm_scores": scores}
        if "values" in batch.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
            fields |= {name: name for name in TARGETS}
        rows_of = {name: batch[field].clone() for name, field in fields.items()}
        computed = {name: {of: rows[place] for of, rows in rows_of.items()} for place, name in enumerate(names)}
        self._computed = (self._computed or {}) | computed
        if isinstance(estimator, str):
            return
        rows = list(range(len(data)))
        if keys is not None and estimator.tokens == "spread" and _name(self._algorithm) == "grpo":
            # The last sample of a session stands for it (v1/utils.py:170); the others get its advantages.
            rows = last_of_sessions(list(keys))
        documented = self._documented(estimator, data, torch.tensor(rows), coefficient)
        off = min(float(documented.off()), 1e30)
        if self._found[0] is None or off > self._found[0]:
            self._found = off, documented.fit() if off > 1 else ""

    def _documented(self, estimator: Estimator, data: Any, rows: Tensor, coefficient: float) -> Documented:
        batch, mask = data.batch, data.batch["response_mask"][rows]
        names = [data.non_tensor_batch["uid"][row] for row in rows.tolist()]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        baselines = batch["reward_baselines"][rows] if "reward_baselines" in batch.keys() else None  # noqa: SIM118
        with_critic = estimator.tokens == "gae"
        given = Rewards(
            tokens=self._rewards(batch, rows, mask, coefficient),
            mask=mask,
            groups=torch.tensor([numbers[name] for name in names]),
            values=batch["values"][rows] if with_critic else None,
            given=baselines,
        )
        return Documented(
            (estimator,),
            given,
            batch["advantages"][rows],
            batch["returns"][rows] if with_critic else None,
            partial(self._other_rewards, given, batch, rows, mask, coefficient),
        )

    def _other_rewards(
        self, given: Rewards, batch: Any, rows: Tensor, mask: Tensor, coefficient: float
    ) -> Iterator[tuple[str, Rewards]]:
        """Rewards with another penalty than the configured one."""
        if not self._algorithm.use_kl_in_reward:
            return
        kind = str(self._algorithm.kl_penalty).removesuffix("+")
        old, reference = (batch[name][rows].double() for name in ("old_log_probs", "ref_log_prob"))
        scores, dtype = batch["token_level_scores"][rows].double(), batch["token_level_rewards"].dtype

        def penalty(kind: str, old: Tensor, reference: Tensor) -> Tensor:
            return coefficient * kl_estimate(old, reference, kind) * mask

        estimates = [(other, partial(penalty, other)) for other in KL_KINDS if other != kind]
        for words, other in other_penalties(old, reference, mask, partial(penalty, kind), estimates):
            yield words, replace(given, tokens=(scores - other).to(dtype))

    def _rewards(self, batch: Any, rows: Tensor, mask: Tensor, coefficient: float) -> Tensor:
        """Rewards of tokens, with the KL penalty as it is configured."""
        if not self._algorithm.use_kl_in_reward:
            return batch["token_level_rewards"][rows]
        penalty = coefficient * self._divergences(batch, mask, rows)
        return (batch["token_level_scores"][rows].double() - penalty).to(batch["token_level_rewards"].dtype)

    def _divergences(self, batch: Any, mask: Tensor, rows: Tensor | slice) -> Tensor:
        """(B, T) in float64, the configured estimate of each counted token's KL divergence from the reference."""
        kind = str(self._algorithm.kl_penalty).removesuffix("+")
        old, reference = (batch[name][rows].double() for name in ("old_log_probs", "ref_log_prob"))
        return kl_estimate(old, reference, kind) * mask

    def divergence(self, data: Any) -> float | None:
        """The mean KL divergence of a rollout, or of one part of it, that its penalty was made of; None where it is not compared.

        A mean over the samples' means, as verl adapts its coefficient to (ray_trainer.py 0.9.1:108).
        """
        mask = data.batch["response_mask"]
        if not is_compared(self._rollouts) or mask.numel() > LARGEST:
            return None
        of_tokens = self._divergences(data.batch, mask, slice(None))
        return float((of_tokens.sum(1) / (mask.sum(1) + _COUNTED)).mean())

    def follows(self, wrong: str) -> None:
        """The coefficient of the KL penalty of the next rollout was looked at.

        Args:
            wrong: What is wrong with it; empty where nothing is.
        """
        if wrong and (self._found[0] is None or self._found[0] <= 1):
            self._found = 1e30, wrong

    def take(
        self,
        names: Sequence[str],
        advantages: Sequence[Tensor],
        responses: Sequence[Tensor] | None,
        masks: Sequence[Tensor],
        targets: Sequence[Sequence[Tensor]] = (),
        rewards: Sequence[Tensor] | None = None,
    ) -> Compared:
        """What was found of the rollout, now that it was trained. Rows are without padding.

        Args:
            names: The names of the rollout's samples, as `compared` got them.
            advantages: The advantages that the rollout was trained with.
            responses: Tokens; None where masks are not compared.
            masks: The masks of the completions.
            targets: Rows of each of `TARGETS` that the critic was trained with; empty without one.
            rewards: Rows of the rewards that its samples have, without a penalty; None where they are not at hand.
        """
        (off, fit), self._found = self._found, (None, "")
        computed, self._computed = self._computed, None
        self._rollouts += 1
        if computed is None:
            return Compared(off, fit)
        before = [computed[name] for name in names]
        altered = _differing(before, {"advantages": advantages})
        moved = None if rewards is None else _differing(before, {"rm_scores": rewards})
        with_critic = len(targets) == len(TARGETS) and all(name in of for of in before for name in TARGETS)
        of_critic = _differing(before, dict(zip(TARGETS, targets, strict=True))) if with_critic else None
        if responses is None or not self._ends:
            return Compared(off, fit, altered, moved, of_critic)
        wrong = sum(_mask_wrong(tokens, mask, self._ends) for tokens, mask in zip(responses, masks, strict=True))
        return Compared(off, fit, altered, moved, of_critic, len(masks), wrong)


def _differing(before: Sequence[dict[str, Tensor]], now: dict[str, Sequence[Tensor]]) -> int:
    """How many samples have other rows now, which are without padding, than before.

    Args:
        before: Rows of each sample by name.
        now: Rows by name, in the order of the samples.
    """
    return sum(
        any(not bool((of[name][: len(rows[place])] == rows[place]).all()) for name, rows in now.items())
        for place, of in enumerate(before)
    )


def _mask_wrong(tokens: Tensor, mask: Tensor, ends: list[int]) -> bool:
    """Whether a mask counts other tokens than those through the first end; all of them where there is none."""
    counted = mask.bool()
    is_end = torch.isin(tokens, torch.tensor(ends, device=tokens.device))
    through = is_end.cumsum(0) - is_end.int() == 0
    return bool((counted != through).any())
