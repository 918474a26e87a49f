"""A rollout of PPOTrainer from what its models returned: scores, KL penalty and values, and the advantages that they give.

Source: trl 0.16.1 ppo_trainer.py `train` (456-535), 0.18.2 (465-537) and 0.24.0, which compute the same but for `kl_estimator` (since
0.18); trl/core.py `masked_whiten`. Shapes: N samples of a rollout, T tokens of their responses, L of prompt and response.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.advantages import Estimate, Estimator, Rewards, normalised
from rlstep_hooks.observe.alternative_advantages import first_fitting, fitting
from rlstep_hooks.observe.losses import k3

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


@dataclass(frozen=True)
class Sampled:
    """What the models gave for one rollout."""

    responses: Tensor
    """(N, T), tokens."""
    old: Tensor
    """(N, T), the policy's log-probs when they were sampled."""
    counted: Tensor
    """(N, T), the tokens before the first pad token, and through the stop token."""
    references: Tensor
    """(N, T), the reference's log-probs."""
    values: Tensor
    """(N, T), the value model's."""
    scores: Tensor
    """(N, L), the reward model's at each place of prompt and response up to the stop token."""


@dataclass(frozen=True)
class Settings:
    """The settings of the arithmetic, as they are in force when a rollout is trained."""

    gamma: float
    lam: float
    kl_coef: float
    k3: bool
    """Whether the KL penalty is of the estimator with lower variance."""
    whitens_rewards: bool
    missing_end: float | None
    """What is subtracted from the score of a response without an end token."""
    clip: float
    value_clip: float
    value: float
    """The coefficient of the value's term."""
    end_token: int | None
    stop_token: int | None
    pad_token: int

    @classmethod
    def of(cls, trainer: Any) -> Settings:
        """Read the settings of a live trainer."""
        args, tokenizer = trainer.args, trainer.processing_class
        return cls(
            gamma=float(args.gamma),
            lam=float(args.lam),
            kl_coef=float(args.kl_coef),
            k3=getattr(args, "kl_estimator", "k1") == "k3",
            whitens_rewards=bool(args.whiten_rewards),
            missing_end=args.missing_eos_penalty,
            clip=float(args.cliprange),
            value_clip=float(args.cliprange_value),
            value=float(args.vf_coef),
            end_token=tokenizer.eos_token_id,
            stop_token=getattr(trainer, "stop_token_id", None),
            pad_token=tokenizer.pad_token_id,
        )


@dataclass(frozen=True)
class Whitening:
    """One call that whitens advantages: what it was given, and what it gave."""

    given: Tensor
    """(N, T)."""
    mask: Tensor
    """(N, T), the tokens that the call counted."""
    gave: Tensor


@dataclass(frozen=True)
class Documented:
    """The arithmetic of one rollout."""

    settings: Settings
    sampled: Sampled

    @property
    def valued(self) -> Tensor:
        """(N, T), the tokens that have a value: those that count, and the place after them."""
        return self._places <= self._last + 1

    @property
    def values(self) -> Tensor:
        """(N, T), 0 where a token has none."""
        return torch.where(self.valued, self.sampled.values, 0.0)

    @property
    def _places(self) -> Tensor:
        return torch.arange(self.sampled.counted.shape[1], device=self.sampled.counted.device)

    @property
    def _last(self) -> Tensor:
        """(N, 1), the place of the last token that counts; -1 where none does."""
        return self.sampled.counted.sum(1, keepdim=True) - 1

    def scores(self, penalty: float | None) -> Tensor:
        """(N,), the score of each response, less a penalty where it has no end."""
        of, context = self.sampled.scores, self.sampled.scores.shape[1] - self.sampled.counted.shape[1]
        found = of.gather(1, context + self._last).squeeze(1)
        if penalty is None:
            return found
        # In the response up to its stop token, also after a pad token that was sampled.
        responses, stop = self.sampled.responses, self.settings.stop_token
        stopped = (responses == (-1 if stop is None else stop)).long()
        beyond = stopped.cumsum(1) - stopped > 0
        ended = (torch.where(beyond, self.settings.pad_token, responses) == self.settings.end_token).any(1)
        return torch.where(ended, found, found - penalty)

    def given(self, settings: Settings) -> Rewards:
        """What the advantages are computed from."""
        of = self.sampled
        difference = torch.where(of.counted, of.old - of.references, 0.0)
        kl = k3(-difference) if settings.k3 else difference
        penalties, scores = -settings.kl_coef * kl, self.scores(settings.missing_end)
        given = Rewards(tokens=penalties, mask=self.valued, scores=scores, values=self.values)
        if not settings.whitens_rewards:
            return given
        at = (self._last + 1).clamp(max=of.counted.shape[1] - 1)
        rewards = penalties.scatter_add(1, at, scores[:, None])
        mean = rewards[self.valued].mean()
        whitened = normalised(rewards, self.valued).values + mean
        return replace(given, tokens=torch.where(self.valued, whitened, 0.0).to(rewards.dtype), scores=None)

    @property
    def estimator(self) -> Estimator:
        """GAE, before it is whitened."""
        return Estimator(tokens="gae", gamma=self.settings.gamma, lam=self.settings.lam)

    def off(self, found: Whitening) -> Tensor:
        """The largest distance of advantages from the documented ones, before and after they are whitened, in units of what rounding
        explains."""
        raw = self.estimator.of(self.given(self.settings)).off(found.given, self.valued)
        return torch.maximum(raw, normalised(found.given, self.sampled.counted).off(found.gave, self.sampled.counted))

    def masks_wrong(self, found: Whitening) -> Tensor:
        """Samples whose mask does not count the tokens that it should."""
        return (found.mask.bool() != self.sampled.counted).any(1).sum()

    def fit(self, found: Whitening) -> str:
        """Which other calculation gives these advantages; empty where none does. Waits for the device, so only where they are wrong."""
        given = self.given(self.settings)
        right, counted = self.estimator.of(given), self.sampled.counted
        if float(right.off(found.given, self.valued)) <= 1:
            whitened = normalised(found.given, counted)
            return first_fitting(self._other_whitenings(found), whitened, found.gave, counted)
        others = ((name, self.estimator.of(other)) for name, other in self._other_inputs())
        fit = first_fitting(others, right, found.given, self.valued)
        return fit or fitting(self.estimator, given, found.given)

    def _other_whitenings(self, found: Whitening) -> Iterator[tuple[str, Estimate]]:
        counted, right = self.sampled.counted, normalised(found.given, self.sampled.counted)
        given = found.given.double()
        yield "not normalised", replace(right, values=given)
        yield "of the opposite sign", replace(right, values=-right.values)
        yield "all 0", replace(right, values=torch.zeros_like(given))
        yield "divided and not centred", replace(right, values=right.values + given[counted].mean())
        yield "centred over the tokens and not divided", replace(right, values=given - given[counted].mean())
        yield "normalised with the tokens that do not count", normalised(found.given, torch.ones_like(counted))

    def _other_inputs(self) -> Iterator[tuple[str, Rewards]]:
        for name, settings in self._other_settings():
            yield name, self.given(settings)
        given = self.given(self.settings)
        if given.scores is not None:
            yield "those without the scores", replace(given, scores=torch.zeros_like(given.scores))
            yield "those of scores of the opposite sign", replace(given, scores=-given.scores)
            for shift, words in ((-1, "after"), (1, "before")):
                moved = replace(given, scores=given.scores.roll(shift))
                yield f"those of scores that are at each sample those of the sample {words} it", moved

    def _other_settings(self) -> Iterator[tuple[str, Settings]]:
        settings = self.settings
        if settings.whitens_rewards:
            yield "those of rewards that are not whitened", replace(settings, whitens_rewards=False)
        else:
            yield "those of whitened rewards", replace(settings, whitens_rewards=True)
        yield "those without the KL penalty", replace(settings, kl_coef=0.0)
        yield "those with a KL penalty of the opposite sign", replace(settings, kl_coef=-settings.kl_coef)
        yield "those of the other estimator of the KL penalty", replace(settings, k3=not settings.k3)
        if settings.missing_end is not None:
            yield "those without the penalty of a missing end", replace(settings, missing_end=None)
