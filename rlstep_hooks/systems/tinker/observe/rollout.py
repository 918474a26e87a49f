"""One step of the loop as it is recorded: the rollout, what forward_backward got and returned, and the optimizer's steps."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rlstep_hooks.record.events import MicroBatch, MicroBatchValues, Rollout, RolloutValues, SampleRows
from rlstep_hooks.systems.tinker.observe import losses
from rlstep_hooks.systems.tinker.observe.data import Sent
from rlstep_hooks.systems.tinker.observe.groups import Groups
from rlstep_hooks.systems.tinker.observe.penalty import Scored, scored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.record.values import Learns
    from rlstep_hooks.systems.tinker.observe.drawn import Drawn
    from rlstep_hooks.systems.tinker.observe.penalty import Penalty

UNLIKELY = 48.0
"""-log-prob in nats, 1e-21, of samples that no sampling gives twice."""
FAR, NEAR = 0.2, 0.1
"""Mean distances in nats of log-probs at a token, and how much nearer those of its neighbour must be, that make a shift certain."""


@dataclass
class Pass:
    """One call of forward_backward."""

    event: MicroBatch
    loss: str
    settings: Mapping[str, float]
    sent: tuple[Sent, ...]
    future: Future[Any]
    rows: tuple[int | None, ...]
    """The row of each datum in its rollout."""


@dataclass
class Gap:
    """How far the log-probs of samplers are from those of forward_backward at the same weights."""

    own: list[np.ndarray] = field(default_factory=list)
    shifted: dict[str, list[np.ndarray]] = field(default_factory=lambda: {"before": [], "after": []})

    def add(self, new: np.ndarray, drawn: np.ndarray) -> None:
        """Add the tokens of one sequence."""
        self.own.append(np.abs(new - drawn))
        if len(new) > 1:
            self.shifted["after"].append(np.abs(new[:-1] - drawn[1:]))
            self.shifted["before"].append(np.abs(new[1:] - drawn[:-1]))

    def fit(self) -> str:
        """Whose log-probs these are where not those of the token; empty where that is not certain."""
        mean = float(np.concatenate(self.own).mean())
        for words, apart in self.shifted.items():
            if mean > FAR and apart and float(np.concatenate(apart).mean()) < NEAR * mean:
                return f"those of the token {words} it"
        return ""


class Step:
    """One step of the loop: a rollout and the updates on it.

    Args:
        index: Number of the rollout.
        version: Updates made before it.
        drawn: Gives a sequence by its name.
    """

    def __init__(self, index: int, version: int, drawn: Callable[[str], Drawn | None]) -> None:
        self.index = index
        self.version = version
        self._drawn = drawn
        self.groups = Groups()
        self.rows: list[Sent] = []
        """The data that the loop has prepared."""
        self.passes: list[Pass] = []
        self.events: list[AnyEvent] = []
        """What happened in the step, but for the rollout itself."""
        self._names: dict[tuple[str, int], int] = {}
        self._plain: dict[tuple[str, int], np.ndarray] = {}
        """Advantages of data before a KL penalty was added to them, by the name of the datum."""
        self._penalised: list[Scored] = []
        self.whole = True
        """Whether each datum says of which sequences it is."""

    def prepared(self, data: Iterable[Any]) -> None:
        """The loop has made data of groups."""
        for datum in data:
            self.prepared_row(Sent(datum))

    def prepared_row(self, row: Sent) -> None:
        """The loop has made one datum of a group."""
        if row.name is None:
            self.whole = False
        else:
            self._names.setdefault(row.name, len(self.rows))
        self.rows.append(row)

    def penalised(
        self, rows: list[Sent], after: list[np.ndarray | None], base: Sequence[Sequence[float | None]]
    ) -> None:
        """A KL penalty was added to advantages.

        Args:
            rows: The data before.
            after: The advantages of each with the penalty.
            base: What the reference says of the tokens of each.
        """
        for row, now, of in zip(rows, after, base, strict=True):
            one = None if now is None else scored(row, now, of)
            if one is not None and row.name is not None and row.advantages is not None:
                self._penalised.append(one)
                self._plain[row.name] = row.advantages

    def row_of(self, sent: Sent) -> int | None:
        """The row of a datum; None if the loop has not prepared it."""
        return None if sent.name is None else self._names.get(sent.name)

    @property
    def versions(self) -> list[int | None]:
        """The policy version of the sampler of each sequence that is trained."""
        found = (self._drawn(piece.sequence) for row in self.rows for piece in row.drawn)
        return [None if one is None else one.version for one in found]

    @property
    def trained_episodes(self) -> int:
        """Episodes of which there are data, and those that have no token to train."""
        names = (self.groups.episodes.get(piece.sequence) for row in self.rows for piece in row.drawn)
        return len({name for name in names if name is not None} | self.groups.empty)

    # The rollout

    def rollout(self, now: float, *, due: int | None, digests: dict[bytes, int]) -> Rollout:
        """The rollout as an event.

        Args:
            now: The time.
            due: Its samples where the data decide them.
            digests: Those of earlier rollouts, to which this one's is added.
        """
        versions, episodes = self.versions, self._sequences()
        known = [version for version in versions if version is not None]
        settings = {tuple(sorted(one.settings.items())) for one in episodes}
        intact = [each for each in self.groups.intact if each is not None]
        return Rollout(
            at=now,
            index=self.index,
            samples=len(self.rows),
            policy_version=self.version,
            sampler_version=min(known) if known and len(known) == len(versions) else None,
            rewards_intact=all(intact) if intact else None,
            signal=self.groups.differ if self.groups.count else None,
            sampling=tuple(dict(each) for each in sorted(settings)),
            repeats=self._repeats(episodes, digests),
            due=due,
        )

    def _sequences(self) -> list[Drawn]:
        names = dict.fromkeys(piece.sequence for row in self.rows for piece in row.drawn)
        return [one for one in map(self._drawn, names) if one is not None]

    def _repeats(self, episodes: list[Drawn], digests: dict[bytes, int]) -> int | None:
        nats = -math.fsum(float(one.log_probs.sum()) for one in episodes if one.log_probs is not None)
        if nats < UNLIKELY:
            return None
        own = hashlib.sha256(b"".join(one.tokens.tobytes() + b"|" for one in episodes)).digest()
        earlier = digests.setdefault(own, self.index)
        return None if earlier == self.index else earlier

    def rollout_values(self, penalty: Penalty | None, *, comparable: bool) -> RolloutValues:
        """Numbers of the rollout.

        Args:
            penalty: The KL penalty that is configured; None where there is none.
            comparable: Whether the log-probs of samplers and of forward_backward are of the same distribution.
        """
        groups = self.groups
        off, fit = self._compare_advantages(penalty)
        wrong, like = self._masks(spreads=penalty is not None)
        gap = self._gap() if comparable else None
        apart = np.concatenate(gap.own) if gap is not None and gap.own else None
        mean = None if apart is None else float(apart.mean())
        rewards = np.asarray(groups.rewards) if groups.rewards else None
        return RolloutValues(
            index=self.index,
            max_abs_advantage=_largest([row.advantages for row in self.rows if row.advantages is not None]),
            advantages_off=off,
            advantages_fit=fit,
            masks_wrong=wrong,
            masks_like=like,
            sampler_gap_mean=mean,
            sampler_gap_fresh=mean,
            sampler_gap_max=None if apart is None else float(apart.max()),
            sampler_gap_fit=gap.fit() if gap is not None and gap.own else "",
            reward_mean=None if rewards is None else float(rewards.mean()),
            reward_deviation=None if rewards is None else float(rewards.std()),
            groups=groups.count or None,
            equal_groups=groups.equal if groups.count else None,
        )

    def _compare_advantages(self, penalty: Penalty | None) -> tuple[float | None, str]:
        """How far advantages are from the documented ones, and which other calculation gives them; None where nobody knows."""
        compared = self.groups.compare(self._advantages(penalised=penalty is not None)) if self.groups.count else None
        found = [] if compared is None else [compared]
        if penalty is not None:
            if len(self._penalised) < len(self.rows):
                return None, ""  # a penalty that was not seen may have been left out
            found.append(penalty.compare(self._penalised))
        off, fit = max(found, key=lambda of: of[0], default=(None, ""))
        return (None if off is None else min(off, 1e9)), fit

    def _advantages(self, *, penalised: bool) -> dict[int, float]:
        """Episode -> the advantage of its tokens. Where its tokens have several, the one that is farthest from the first.

        Args:
            penalised: Whether a KL penalty was added to advantages: then those before it are meant.
        """
        found: dict[int, float] = {}
        for row in self.rows:
            advantages = row.advantages
            if penalised:
                advantages = None if row.name is None else self._plain.get(row.name)
            for piece in row.drawn:
                episode = self.groups.episodes.get(piece.sequence)
                if episode is None or advantages is None or piece.sequence in self.groups.masked:
                    continue
                own = advantages[piece.begin : piece.end]
                first = found.setdefault(episode, float(own[0])) if len(own) else found.get(episode)
                if first is not None and len(own):
                    farthest = float(own[np.argmax(np.abs(own - first))])
                    found[episode] = farthest if farthest != first else first
        return found

    def _masks(self, *, spreads: bool) -> tuple[int | None, str]:
        """Rows that count other tokens than those that were drawn, and what is wrong with the first one.

        Args:
            spreads: Whether a discounted penalty gives tokens of the prompt an advantage too.
        """
        found = [
            self._mask_of(row, spreads=spreads) for row in self.rows if row.mask is not None and row.name is not None
        ]
        wrong = [each for each in found if each]
        return (len(wrong), wrong[0] if wrong else "") if found else (None, "")

    def _mask_of(self, row: Sent, *, spreads: bool) -> str:
        """What is wrong with the tokens that a row counts; empty where nothing is."""
        due = row.counted.copy()
        for piece in row.drawn:
            if piece.sequence in self.groups.masked:
                due[piece.begin : piece.end] = False
        counts = row.mask != 0
        if row.mask is not None and not np.array_equal(counts, due):
            return "it counts tokens that no sampler drew" if np.any(counts & ~due) else "it leaves out drawn tokens"
        outside = row.advantages is not None and not spreads and bool(np.any(row.advantages[~row.counted] != 0))
        return "tokens that no sampler drew have an advantage" if outside else ""

    def _gap(self) -> Gap:
        gap = Gap()
        for each in self.passes:
            for sent, new in zip(each.sent, _returned(each), strict=False):
                for piece, own in sent.log_probs(self._drawn):
                    whole = self._drawn(piece.sequence)
                    if whole is not None and whole.version == each.event.policy_version:
                        gap.add(new[piece.begin : piece.end].astype(np.float64), own.astype(np.float64))
        return gap

    # Micro-batches

    def microbatch_values(self, each: Pass) -> MicroBatchValues:
        """Numbers of one call of forward_backward; its result has arrived."""
        new, sent = _returned(each), each.sent
        fits = len(new) == len(sent) and all(
            one.old is None or (one.advantages is not None and len(one.old) == len(values) == len(one.advantages))
            for one, values in zip(sent, new, strict=True)
        )
        tokens = sum(int(one.counted.sum()) for one in sent)
        if not fits or not sent:
            return MicroBatchValues(index=each.event.index, tokens=tokens)
        ratios = [
            (values.astype(np.float64) - one.old.astype(np.float64))[one.counted]
            for one, values in zip(sent, new, strict=True)
            if one.old is not None
        ]
        logs = np.concatenate([values[one.counted] for one, values in zip(sent, new, strict=True)])
        apart = np.abs(np.concatenate(ratios)) if ratios else np.zeros(0)
        loss = self._loss(each, new)
        return MicroBatchValues(
            index=each.event.index,
            tokens=tokens,
            max_abs_advantage=_largest([one.advantages for one in sent if one.advantages is not None]),
            max_abs_log_ratio=float(apart.max()) if apart.size else None,
            mean_abs_log_ratio=float(apart.mean()) if apart.size else None,
            max_abs_log_prob=float(-logs.min()) if logs.size else None,
            unsure=float(-np.expm1(logs).sum()) if logs.size else None,
            mean_abs_log_prob=float(-logs.mean()) if logs.size else None,
            learns=_learns(each),
            old_intact=_all(one.old_are(self._drawn) for one in sent),
            tokens_intact=_all(one.tokens_are(self._drawn, sampled=True) for one in sent),
            prompts_intact=_all(one.tokens_are(self._drawn, sampled=False) for one in sent),
            advantages_intact=_all(self._advantages_are(one, row) for one, row in zip(sent, each.rows, strict=True)),
            loss_gap=None if loss is None else loss.gap,
            loss_ratio=None if loss is None else loss.ratio,
            loss_like="" if loss is None else loss.like,
        )

    def _advantages_are(self, sent: Sent, row: int | None) -> bool | None:
        known = None if row is None else self.rows[row].advantages
        return None if known is None or sent.advantages is None else bool(np.array_equal(known, sent.advantages))

    def _loss(self, each: Pass, new: list[np.ndarray]) -> losses.Compared | None:
        observed = each.future.result().metrics.get(losses.METRIC)
        complete = all(one.advantages is not None for one in each.sent)
        if observed is None or not complete or any(one.own_clips for one in each.sent):
            return None
        old = [one.old for one in each.sent if one.old is not None]
        terms = losses.Terms(
            new=np.concatenate(new),
            old=np.concatenate(old) if len(old) == len(each.sent) else None,
            weights=np.concatenate([one.advantages for one in each.sent if one.advantages is not None]),
            data=len(each.sent),
        )
        return losses.compared(each.loss, terms, each.settings, float(observed))


def rows_of(rows: Iterable[int | None], rollout: int) -> tuple[SampleRows, ...] | None:
    """The rows of a micro-batch; None if one is not known."""
    given = tuple(rows)
    known = tuple(row for row in given if row is not None)
    return (SampleRows(rollout, known),) if len(known) == len(given) else None


def _returned(each: Pass) -> list[np.ndarray]:
    """The log-probs that came back for each datum."""
    outputs = each.future.result().loss_fn_outputs
    return [np.asarray(one["logprobs"].to_numpy()) for one in outputs if "logprobs" in one]


def _learns(each: Pass) -> Learns:
    if each.loss != "importance_sampling":
        return "unknown"
    return (
        "yes"
        if any(one.advantages is not None and np.any(one.advantages[one.counted] != 0) for one in each.sent)
        else "no"
    )


def _all(found: Iterable[bool | None]) -> bool | None:
    known = [each for each in found if each is not None]
    return all(known) if known else None


def _largest(arrays: list[np.ndarray]) -> float | None:
    return max((float(np.abs(each).max()) for each in arrays if each.size), default=None)
