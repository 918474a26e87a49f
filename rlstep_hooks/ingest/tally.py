"""What can be compared in one rollout of an export. Its samples are added one by one; only a few numbers of each are kept."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlstep_hooks.ingest import tokens

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from rlstep_hooks.ingest.export import Sample

UNLIKELY = 48.0
"""-log-prob in nats, 1e-21, of samples that no sampling gives twice."""
_BITS = (1 << 64) - 1


@dataclass
class _Group:
    """The samples of one prompt."""

    prompts: set[int] = field(default_factory=set)
    rewards: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    completions: list[int] = field(default_factory=list)
    unknown: int = 0
    """Samples without a reward, or without one advantage."""


class Tally:
    """One rollout.

    Args:
        number: The number of the rollout in the export.
        ends: Tokens that end a completion; empty where masks are not compared.
    """

    def __init__(self, number: int, ends: frozenset[int] = frozenset()) -> None:
        self.number = number
        self.samples = 0
        self.gap = tokens.Gap()
        self.masks_wrong: int | None = 0 if ends else None
        self.sampler_version: int | None = None
        self.policy_version: int | None = None
        self.digest = 0
        self.nats = 0.0
        """-log-prob of all counted tokens, as the engine gave it."""
        self._ends = ends
        self.nameless = False
        """Whether some sample has neither a prompt nor a name of its group, so that nobody knows the groups."""
        self._groups: dict[Hashable, _Group] = {}
        self._names: set[Hashable] = set()
        self._found: Counter[str] = Counter()
        self._first: dict[str, str] = {}
        self._last: tuple[int, Hashable] | None = None

    def add(self, sample: Sample) -> None:
        """Add a sample."""
        self.samples += 1
        fits = True
        for what in tokens.contradictions(sample):
            self._contradict(what)
            fits = False
        if sample.sample is not None:
            if sample.sample in self._names:
                self._contradict("a sample that stands twice under one name: in one rollout")
            self._names.add(sample.sample)
        self._add_versions(sample)
        if fits:
            self._add_tokens(sample)
        self._add_to_group(sample)

    def _contradict(self, what: str) -> None:
        kind = what.partition(":")[0]
        self._first.setdefault(kind, what)
        self._found[kind] += 1

    def _add_versions(self, sample: Sample) -> None:
        if sample.sampler_version is not None:
            known = self.sampler_version
            self.sampler_version = sample.sampler_version if known is None else min(known, sample.sampler_version)
        if sample.policy_version is not None:
            known = self.policy_version
            self.policy_version = sample.policy_version if known is None else max(known, sample.policy_version)

    def _add_tokens(self, sample: Sample) -> None:
        engine = sample.engine_log_probs
        if engine is not None:
            counted = tokens.of_counted(engine, sample.mask)
            self.nats -= math.fsum(counted)
            if sample.trainer_log_probs is not None:
                self.gap.add(tokens.of_counted(sample.trainer_log_probs, sample.mask), counted)
            if sample.log_ratios is not None and tokens.ratios_differ(sample):
                self._contradict("log ratios that are not those of its log-probs: trainer's minus engine's")
        if self.masks_wrong is not None:
            self.masks_wrong += bool(tokens.mask_is_wrong(sample, self._ends))

    def _add_to_group(self, sample: Sample) -> None:
        prompt = _digest(sample.prompt_ids, sample.prompt)
        self.nameless |= sample.group is None and sample.prompt_ids is None and sample.prompt is None
        completion = _digest(sample.completion_ids, sample.completion)
        self.digest = hash((self.digest, prompt, completion)) & _BITS
        group = self._groups.setdefault(sample.group if sample.group is not None else ("prompt", prompt), _Group())
        group.prompts.add(prompt)
        group.completions.append(completion)
        advantage = tokens.spread_advantage(sample)
        if sample.reward is None or advantage is None or not math.isfinite(sample.reward + advantage):
            group.unknown += 1
        else:
            group.rewards.append(sample.reward)
            group.advantages.append(advantage)

    # What the samples come to, once all are added.

    def contradictions(self) -> dict[str, int]:
        """What samples contradict themselves in -> how many."""
        shift = self.gap.shift()
        moved = {f"engine log-probs of other tokens: {shift}": 0} if shift else {}
        return {self._first[kind]: count for kind, count in self._found.items()} | moved

    @property
    def sizes(self) -> Counter[int]:
        """Samples of a group -> how many groups have so many."""
        return Counter(len(group.completions) for group in self._groups.values())

    @property
    def several(self) -> list[_Group]:
        """Groups of at least two samples."""
        return [group for group in self._groups.values() if len(group.completions) > 1]

    @property
    def mixed(self) -> int:
        """Groups whose samples have different prompts."""
        return sum(len(group.prompts) > 1 for group in self._groups.values())

    def compared(self) -> tuple[list[list[float]], list[float]]:
        """Rewards of each group whose samples all have a reward and an advantage, and these advantages in the same order."""
        whole = [group for group in self._groups.values() if group.rewards and not group.unknown]
        return [group.rewards for group in whole], [value for group in whole for value in group.advantages]

    @property
    def all_known(self) -> bool:
        """Whether every sample has a reward and an advantage."""
        return all(not group.unknown for group in self._groups.values())

    def unordered(self) -> int:
        """Groups in which a higher reward has no higher advantage."""
        return sum(not _rises(group) for group in self.several if not group.unknown)

    def off_centre(self) -> int:
        """Groups whose advantages do not sum to 0, beyond what rounding explains."""
        groups = (group.advantages for group in self.several if not group.unknown)
        return sum(abs(math.fsum(of)) > 1e-3 * (1 + math.fsum(map(abs, of))) for of in groups)

    def rewards(self) -> list[float]:
        """All rewards."""
        return [reward for group in self._groups.values() for reward in group.rewards]

    def equal_groups(self) -> int:
        """Groups in which all samples have one reward."""
        return sum(len(set(group.rewards)) == 1 for group in self.several if not group.unknown)

    @property
    def differs(self) -> bool:
        """Whether rewards differ within some group."""
        return any(len(set(group.rewards)) > 1 for group in self.several)

    def largest_advantage(self) -> float | None:
        """The largest |advantage|; None if none is known."""
        return max((abs(value) for group in self._groups.values() for value in group.advantages), default=None)

    @property
    def cannot_come_twice(self) -> bool:
        """Whether sampling cannot give these very samples a second time.

        Either the engine's own log-probs say it, or how seldom two samples of one prompt are equal: with e equal pairs of n, (e + 1) /
        (n + 1) is the chance that a sample equals another of its prompt.
        """
        if self.nats > 0 or self.nameless:
            return self.nats >= UNLIKELY
        pairs = equal = 0
        for group in self._groups.values():
            count = len(group.completions)
            pairs += count * (count - 1) // 2
            equal += sum(same * (same - 1) // 2 for same in Counter(group.completions).values())
        return self.samples * -math.log((equal + 1) / (pairs + 1)) >= UNLIKELY


def _digest(ids: Sequence[int] | None, text: str | None) -> int:
    return hash(tuple(ids)) if ids is not None else hash(text)


def _rises(group: _Group) -> bool:
    """Whether a better reward has a better advantage, up to rounding."""
    ordered = sorted(zip(group.rewards, group.advantages, strict=True))
    least = 1e-5 * (1 + max(map(abs, group.rewards)))
    best = -math.inf
    waiting: list[tuple[float, float]] = []
    for reward, advantage in ordered:
        while waiting and reward - waiting[0][0] > least:
            best = max(best, waiting.pop(0)[1])
        if advantage <= best:
            return False
        waiting.append((reward, advantage))
    return True
