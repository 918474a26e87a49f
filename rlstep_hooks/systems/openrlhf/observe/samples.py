"""What the controller sees of a rollout's samples between generation and training: prompts, rewards, and repeated samples.

All of it is on the CPU there, and only looked at.
"""

from __future__ import annotations

import zlib
from collections import Counter, OrderedDict
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.identity import checksum_of
from rlstep_hooks.record.events import Inspected

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REMEMBERED = 256
"""Rollouts whose samples are remembered."""

CANNOT_REPEAT = 50.0
"""If the log-probs of a rollout sum to less than minus this, in nats, sampling repeats the rollout with a probability below
1e-21."""

WITHIN_GROUPS = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
"""Estimators that compare the samples of a prompt (experience_maker.py:271-277)."""

WITHIN_ROLLOUT = ("reinforce", "gae", "flash_reinforce")
"""Estimators with an advantage other than 0 whenever two rewards differ (experience_maker.py:278-281, :331-344)."""


class SampleWatch:
    """Follows the samples of each rollout through one `RemoteExperienceMaker`.

    Args:
        args: OpenRLHF's arguments.
    """

    def __init__(self, args: Any) -> None:
        self._estimator = str(args.algo.advantage.estimator)
        self._group = int(args.rollout.n_samples_per_prompt)
        self._clip = args.reward.clip_range
        self._truncated = args.rollout.top_p < 1 or args.rollout.temperature <= 0
        self._generated: Counter[tuple[int, str]] = Counter()
        """Samples with their rewards, as they came from the engines; empty if another process generates. Rewards are kept as text,
        so that NaN equals itself."""
        self._earlier: OrderedDict[int, int] = OrderedDict()
        self._rewards_intact: bool | None = None
        self._groups_intact: bool | None = None
        self._digest = 0

    def generated(self, experience: Any, reward: Any) -> None:
        """A sample came from an engine, with this reward; None where a reward model gives it."""
        if reward is not None:
            as_kept = float(torch.tensor([reward])[0])  # samples_generator.py:319
            self._generated[checksum_of(experience.sequences[0]), repr(as_kept)] += 1

    def before_advantages(self, experiences: list[Any]) -> None:
        """Advantages are about to be computed from these."""
        # experience_maker.py:258-262: rewards are put back into the order of generation, and cut into blocks of one prompt.
        prompts = dict(chain.from_iterable(zip(e.index, e.prompts, strict=True) for e in experiences))
        ordered = [prompts[index] for index in sorted(prompts)]
        blocks = [ordered[start : start + self._group] for start in range(0, len(ordered), self._group)]
        if self._group > 1 and self._estimator in WITHIN_GROUPS:
            self._groups_intact = all(len(set(block)) == 1 and len(block) == self._group for block in blocks)
        seen = list(_samples(experiences))
        self._digest = zlib.crc32(repr(sorted(key for key, _, _ in seen)).encode())
        if self._generated:
            # Samples other than those just generated are left to another rule.
            known = {key for key, _ in self._generated}
            now = Counter((key, repr(float(reward))) for key, reward, _ in seen if key in known)
            self._rewards_intact = now <= self._generated if now else None

    def inspected(self, experiences: list[Any], rollout: int) -> Inspected:
        """Advantages were computed; what is known of the rollout with this index."""
        groups, self._groups_intact = self._groups_intact, None
        rewards, self._rewards_intact = self._rewards_intact, None
        self._generated.clear()
        repeats = self._earlier.get(self._digest) if self._cannot_repeat(experiences) else None
        self._earlier.setdefault(self._digest, rollout)
        if len(self._earlier) > REMEMBERED:
            self._earlier.popitem(last=False)
        return Inspected(
            groups_intact=groups,
            rewards_intact=rewards,
            repeats=repeats,
            copied=self._copied(experiences),
            signal=self._has_signal(experiences),
        )

    def _copied(self, experiences: list[Any]) -> tuple[int, float] | None:
        """Completions that stand in the rollout before, and -log-prob of the least probable of them, in nats."""
        if self._truncated or any(e.action_log_probs is None for e in experiences):
            return None
        seen, copied, nats = set[int](), 0, 0.0
        for experience in experiences:
            masks = experience.action_mask.bool()
            for tokens, mask, log_probs in zip(experience.sequences, masks, experience.action_log_probs, strict=True):
                key = checksum_of(tokens[1:][mask])
                if key in seen:
                    copied, nats = copied + 1, max(nats, -float(log_probs.float()[mask].sum()))
                seen.add(key)
        return copied, nats

    def _cannot_repeat(self, experiences: list[Any]) -> bool:
        """Whether it is practically impossible that sampling gave these samples twice."""
        if self._truncated or any(e.action_log_probs is None for e in experiences):
            return False
        total = sum(float(e.action_log_probs.float()[e.action_mask.bool()].sum()) for e in experiences)
        return -total > CANNOT_REPEAT

    def _has_signal(self, experiences: list[Any]) -> bool | None:
        """Whether rewards differ within the samples that the estimator compares, so that some advantage cannot be 0."""
        by_index = {index: reward for _, reward, index in _samples(experiences)}
        rewards = [by_index[index] for index in sorted(by_index)]
        if self._estimator in WITHIN_ROLLOUT:
            low, high = self._clip or (float("-inf"), float("inf"))
            return len({min(max(reward, low), high) for reward in rewards}) > 1
        if self._estimator not in WITHIN_GROUPS:
            return None
        groups = (rewards[start : start + self._group] for start in range(0, len(rewards), self._group))
        return any(len(set(group)) > 1 for group in groups)


def _samples(experiences: Iterable[Any]) -> Iterator[tuple[int, float, int]]:
    """Each sample's checksum, reward and place in the order of generation."""
    for experience in experiences:
        lengths = experience.attention_mask.sum(1).tolist()
        rows = zip(experience.sequences, lengths, experience.rewards.tolist(), experience.index, strict=True)
        for tokens, length, reward, index in rows:
            yield checksum_of(tokens[:length]), reward, index
