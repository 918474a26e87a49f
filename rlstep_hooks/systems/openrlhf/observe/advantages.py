"""Advantages and masks of a rollout against what OpenRLHF documents, as its controller holds both. B samples, T completion tokens.

Source: OpenRLHF 0.11.2, trainer/ppo_utils/experience_maker.py `compute_advantages_and_returns`, trainer/ppo_utils/length_penalty.py and
models/utils.py `compute_reward`. Everything is on the CPU there, and only looked at.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.advantages import LARGEST, Estimator, Rewards, Whitening
from rlstep_hooks.observe.alternative_advantages import Documented
from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.identity import checksum_of
from rlstep_hooks.observe.other_penalties import other_penalties
from rlstep_hooks.systems.openrlhf.observe.loss import KL_KINDS, divergence

if TYPE_CHECKING:
    from collections.abc import Iterator

_BASELINES: dict[str, dict[str, Any]] = {
    "rloo": {"baseline": "others"},
    "reinforce_baseline": {"baseline": "mean"},
    "dr_grpo": {"baseline": "mean"},
    "group_norm": {"baseline": "mean", "scale": "group", "stabiliser": 1e-9},
    "flash_reinforce": {"baseline": "whole"},
    "reinforce": {},
    "gae": {},
}
"""What is subtracted from the rewards of samples, by estimator (experience_maker.py:270-285)."""

_WHITENED = ("gae", "reinforce", "reinforce_baseline")
"""Estimators whose advantages are normalised over all tokens of a rollout (experience_maker.py:331)."""


def read_estimator(args: Any) -> Estimator | None:
    """The estimator of a run's arguments; None where it is none of OpenRLHF's own."""
    own = args.algo.advantage
    name = str(own.estimator)
    if name not in _BASELINES:
        return None
    clip = args.reward.clip_range
    whitening: Whitening = "none"
    if name in _WHITENED:
        whitening = "mean" if own.no_std_norm else "full"
    return Estimator(
        **_BASELINES[name],
        tokens="gae" if name == "gae" else "returns",
        # The others take 1, whatever is set (experience_maker.py:316).
        gamma=float(own.gamma) if name in ("gae", "reinforce") else 1.0,
        lam=float(own.lambd),
        whitening=whitening,
        limits=None if not clip else (float(clip[0]), float(clip[1])),
    )


class Penalties(msgspec.Struct, frozen=True):
    """What is taken from the rewards of long and of truncated completions."""

    longest: float
    """Tokens of the longest completion."""
    buffer: float | None
    """Tokens before that over which DAPO's penalty grows; None without it."""
    factor: float
    truncated: float | None
    """ProRL's factor of a truncated completion's reward, or where it is negative that reward; None without it."""

    def of(self, rewards: Tensor, lengths: Tensor, truncated: Tensor) -> Tensor:
        """(B,), the rewards less these penalties."""
        found = rewards.double()
        if self.buffer is not None:
            beyond = (lengths.double() - (self.longest - self.buffer)).clamp(0, self.buffer)
            found = found - beyond / self.buffer * self.factor
        if self.truncated is not None:
            instead = torch.full_like(found, self.truncated) if self.truncated < 0 else found * self.truncated
            found = torch.where(truncated.bool(), instead, found)
        return found


def read_penalties(args: Any) -> Penalties:
    """The penalties that a run's arguments ask for."""
    own = args.reward
    buffer, truncated = getattr(own, "overlong_buffer_len", None), getattr(own, "stop_properly_penalty_coef", None)
    return Penalties(
        longest=float(getattr(args.rollout, "max_new_tokens", None) or args.data.max_len),
        buffer=None if buffer is None else float(buffer),
        factor=float(getattr(own, "overlong_penalty_factor", 1.0)),
        truncated=None if truncated is None else float(truncated),
    )


_PENALISED = {
    "lengths": "penalties for other lengths than those of the answers",
    "truncated": "penalties for other answers than those that were cut off",
}


class Compared(msgspec.Struct, frozen=True):
    """What was found; fields as in `Rewarded`."""

    advantages_off: float | None = None
    advantages_fit: str = ""
    samples: int = 0
    masks_wrong: int | None = None


class AdvantageWatch:
    """Compares the advantages and masks of each rollout of one `RemoteExperienceMaker`.

    Args:
        args: OpenRLHF's arguments.
    """

    def __init__(self, args: Any) -> None:
        self._args = args
        self._masks: dict[int, int] = {}
        """Checksum of the documented mask of each sample that was generated, by that of its tokens."""
        self._truncated: dict[int, bool] = {}
        """Whether the answer of each sample was cut off, by the checksum of its tokens."""
        self._given: list[dict[str, Any]] | None = None

    def generated(self, response: dict[str, Any], length: int, experience: Any) -> None:
        """A response of an engine became a sample: the tokens that the sampler chose count, and no others; it was cut off or was not.

        Args:
            response: What came from the engine or the agent, with the spans of its actions.
            length: Where samples are cut.
            experience: The sample.
        """
        tokens = response["observation_tokens"]
        mask = torch.zeros(len(tokens), dtype=torch.bool)
        for start, end in response["action_ranges"]:
            mask[start:end] = True
        key = checksum_of(experience.sequences[0])
        self._masks[key] = checksum_of(mask[1:length])
        self._truncated[key] = bool(response.get("truncated", False))

    def before(self, experiences: list[Any], penalised: list[tuple[Tensor, Tensor]] | None = None) -> None:
        """Advantages are about to be computed from these; rewards are changed in place, so they are copied.

        Args:
            experiences: The parts of the rollout.
            penalised: Log-probs (B, T) of each part by the policy and by the reference, which a KL penalty is of; None where the
                divergence is taken as it came.
        """
        kind = str(self._args.algo.kl.estimator)
        self._given = [
            {
                "rewards": experience.rewards.clone(),
                "kl": self._penalised(experience, None if penalised is None else divergence(*penalised[place], kind)),
                "mask": experience.action_mask,
                "log-probs": None if penalised is None else penalised[place],
                "values": experience.values,
                "lengths": _lengths(experience.action_mask.bool()),
                "truncated": self._cut_off(experience),
                "said": {
                    "lengths": getattr(experience, "response_length", None),
                    "truncated": getattr(experience, "truncated", None),
                },
            }
            for place, experience in enumerate(experiences)
        ]

    def _penalised(self, experience: Any, documented: Tensor | None) -> Tensor:
        """(B, T), the divergence that the penalty of the rewards is of: nothing where the divergence is a term of the loss
        (experience_maker.py 0.11.2:205)."""
        if self._args.algo.kl.use_loss:
            return torch.zeros_like(experience.action_mask, dtype=torch.float32)
        came: Tensor = experience.kl
        return came if documented is None else documented

    def _cut_off(self, experience: Any) -> Tensor | None:
        """(B,), whether each answer was cut off, as it came; as its sample says where it was not seen to come."""
        if read_penalties(self._args).truncated is None:
            return None
        lengths = experience.attention_mask.sum(1).tolist()
        keys = [checksum_of(tokens[:length]) for tokens, length in zip(experience.sequences, lengths, strict=True)]
        if not all(key in self._truncated for key in keys):
            said: Tensor | None = experience.truncated
            return said
        return torch.tensor([self._truncated[key] for key in keys])

    def after(self, experiences: list[Any], coefficient: float, rollout: int) -> Compared | None:
        """Advantages were computed; None where this rollout is not compared.

        Args:
            experiences: The samples with their advantages.
            coefficient: The coefficient of the KL penalty.
            rollout: The index of the rollout, from 0.
        """
        given, self._given = self._given, None
        masks, self._masks = self._masks, {}
        self._truncated = {}
        if given is None or not is_compared(rollout):
            return None
        kl = self._args.algo.kl
        if not getattr(
            kl, "target", None
        ):  # a fixed coefficient (kl_controller.py:23); one that adapts is taken as it came
            coefficient = float(kl.init_coef)
        wrong, samples = _masks_wrong(experiences, masks)
        estimator = read_estimator(self._args)
        off, fit = None, ""
        if estimator is not None and sum(e.action_mask.numel() for e in experiences) <= LARGEST:
            documented = self._documented(estimator, given, experiences, max(coefficient, 0.0))
            distance = float(documented.off())
            off = min(distance, 1e30)
            if distance > 1:
                fit = self._as_samples_say(estimator, given, experiences, max(coefficient, 0.0)) or documented.fit()
        return Compared(off, fit, samples, wrong if samples else None)

    def _as_samples_say(
        self, estimator: Estimator, given: list[dict[str, Any]], experiences: list[Any], coefficient: float
    ) -> str:
        """What the penalties are of, where they are those of what the samples say of their answers, and this is wrong."""
        penalties = read_penalties(self._args)
        for name, asked in (("lengths", penalties.buffer), ("truncated", penalties.truncated)):
            if asked is not None and all(part["said"][name] is not None for part in given):
                said = [part | {name: part["said"][name]} for part in given]
                if float(self._documented(estimator, said, experiences, coefficient).off()) <= 1:
                    return _PENALISED[name]
        return ""

    def _documented(
        self, estimator: Estimator, given: list[dict[str, Any]], experiences: list[Any], coefficient: float
    ) -> Documented:
        size = max(experience.action_mask.shape[1] for experience in experiences)

        def rows(parts: list[Tensor]) -> Tensor:
            return torch.cat([torch.nn.functional.pad(part, (0, size - part.shape[1])) for part in parts])

        def of_samples(name: str) -> Tensor:
            return torch.cat([part[name].reshape(-1) for part in given])

        scores = of_samples("rewards")
        penalties = read_penalties(self._args)
        if penalties.buffer is not None or (penalties.truncated is not None and given[0]["truncated"] is not None):
            known = given[0]["truncated"] is not None
            truncated = of_samples("truncated") if known else torch.zeros_like(scores)
            scores = penalties.of(scores, of_samples("lengths"), truncated)
        places = torch.tensor(list(chain.from_iterable(experience.index for experience in experiences)))
        prompts = places // int(self._args.rollout.n_samples_per_prompt)
        with_critic = estimator.tokens == "gae"
        rewards = Rewards(
            tokens=-coefficient * rows([part["kl"] for part in given]),
            mask=rows([experience.action_mask for experience in experiences]),
            scores=scores,
            groups=prompts.unique(return_inverse=True)[1],
            values=rows([part["values"] for part in given]) if with_critic else None,
        )

        def others() -> Iterator[tuple[str, Rewards]]:
            if not coefficient or any(part["log-probs"] is None for part in given):
                return
            kind = str(self._args.algo.kl.estimator)
            # What is moved is moved within a part of the rollout, as the framework holds it.
            of_parts = []
            for part in given:
                own, theirs = part["log-probs"]
                of_parts.append(_other_penalties(own, theirs, part["mask"], kind))
            for which in of_parts[0]:
                if all(which in penalties for penalties in of_parts):
                    other = rows([penalties[which] for penalties in of_parts])
                    yield which[0], replace(rewards, tokens=-coefficient * other)

        return Documented(
            (estimator,),
            rewards,
            rows([experience.advantages for experience in experiences]),
            rows([experience.returns for experience in experiences]) if with_critic else None,
            others,
        )


def _other_penalties(own: Tensor, theirs: Tensor, mask: Tensor, kind: str) -> dict[tuple[str, int], Tensor]:
    """(B, T), what a KL penalty with a coefficient of 1 is mistaken for in one part of a rollout, by its words and by which of those
    with the same words it is."""
    estimates = [(other, partial(divergence, kind=other)) for other in KL_KINDS if other != kind]
    found: dict[tuple[str, int], Tensor] = {}
    seen: Counter[str] = Counter()
    for words, other in other_penalties(own, theirs, mask, partial(divergence, kind=kind), estimates):
        found[words, seen[words]] = other
        seen[words] += 1
    return found


def _lengths(mask: Tensor) -> Tensor:
    """(B,), from the first token of a sample that counts to its last (samples_generator.py:272)."""
    places = torch.arange(1, mask.shape[1] + 1)
    last = torch.where(mask, places, 0).amax(1)
    first = torch.where(mask, places, mask.shape[1] + 1).amin(1)
    return torch.where(mask.any(1), last - first + 1, 0)


def _masks_wrong(experiences: list[Any], masks: dict[int, int]) -> tuple[int, int]:
    """Samples with another mask than the documented one, and samples whose masks were compared."""
    wrong = compared = 0
    for experience in experiences:
        lengths = experience.attention_mask.sum(1).tolist()
        for tokens, mask, length in zip(experience.sequences, experience.action_mask, lengths, strict=True):
            known = masks.get(checksum_of(tokens[:length]))
            if known is not None:
                compared += 1
                wrong += checksum_of(mask[: length - 1].bool()) != known or bool(mask[length - 1 :].any())
    return wrong, compared
