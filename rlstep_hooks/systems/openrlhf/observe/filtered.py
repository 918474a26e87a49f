"""Which groups of a rollout OpenRLHF's dynamic filter lets in, against the bounds that are configured.

Source: OpenRLHF 0.11.2, trainer/ppo_utils/samples_generator.py:169-191: the samples of a prompt are trained if the mean of their scores
is above the lower and below the upper bound, and dropped otherwise; without a score for each of them they are trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

EDGE = 1e-6
"""A mean that is this near to a bound, and not on it, may have been rounded to either side."""


class GroupFilter:
    """Follows each rollout through the filter of one `SamplesGenerator`, which takes the answers to a prompt one after another.

    Args:
        args: OpenRLHF's arguments.
    """

    def __init__(self, args: Any) -> None:
        self._on = bool(args.algo.dynamic_filtering_enable)
        self._low, self._high = map(float, args.algo.dynamic_filtering_range)
        self._group = int(args.rollout.n_samples_per_prompt)
        self._answers: list[tuple[Any, float | None]] = []
        """Each sample that was made of an answer, and the score that the answer came with."""
        self._found: tuple[int, int, int] | None = None

    def begins(self) -> None:
        """Answers are generated from now on."""
        self._answers.clear()

    def answered(self, sample: Any, score: Any) -> None:
        """A sample was made of an answer with this score."""
        if self._on:
            # As its sample keeps it (samples_generator.py:321).
            self._answers.append((sample, None if score is None else float(torch.tensor([score]).flatten()[0])))

    def generated(self, samples: Iterable[Any]) -> None:
        """These samples are trained."""
        answers, self._answers, self._found = self._answers, [], None
        if not answers or len(answers) % self._group:
            return
        trained = {id(sample) for sample in samples}
        compared = let_in = left_out = 0
        for start in range(0, len(answers), self._group):
            group = answers[start : start + self._group]
            fits = self._fits([score for _, score in group])
            kept = sum(id(sample) in trained for sample, _ in group)
            if fits is None:
                continue
            compared += 1
            let_in += not fits and kept > 0
            left_out += fits and kept < self._group
        self._found = compared, let_in, left_out

    def take(self) -> tuple[int, int, int] | None:
        """What was found of the latest rollout (`Inspected.filtered`)."""
        found, self._found = self._found, None
        return found

    def _fits(self, scores: list[float | None]) -> bool | None:
        """Whether a group is to be trained; None where rounding decides it."""
        known = [score for score in scores if score is not None]
        if len(known) < len(scores):
            return True
        mean = sum(known) / len(known)
        if any(0 < abs(mean - bound) < EDGE for bound in (self._low, self._high)):
            return None
        return self._low < mean < self._high
