"""Evaluation: apart from training, on completions of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import LAG, SAMPLES, here
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.record.events import (
        Evaluated,
        MicroBatch,
        Rollout,
    )


class EvaluationInTraining(Rule):
    """A sample generated for evaluation was trained.

    What it checks:
        Every trained sample belongs to a training rollout.

    Why it matters:
        The model trains on the evaluation set, and training prompts are skipped.

    Example:
        ERROR RLS503 Evaluation samples trained · data epoch 0, rollout 1, update 2,
        micro-batch 4
          expected  samples of a training rollout
          observed  4 samples generated for evaluation
          why       the evaluation set leaks into training, and training prompts are
                    skipped
          fix       do not evaluate while training is under way, or use a release
                    that keeps the two apart

    What to do:
        Do not evaluate between the construction of the trainer and the end of training in releases that confuse the
        two.

    Known limits:
        - It looks at samples that the audit saw being generated for an evaluation. A data set that holds evaluation rows is not
          seen here.
        - The 64 latest rollouts of evaluations are remembered.

    Sources:
        - https://github.com/huggingface/trl/pull/3148: buffers that training and evaluation share
        - https://huggingface.co/docs/transformers/main_classes/trainer: when a Trainer evaluates
    """

    code = "RLS503"
    title = "Evaluation samples trained"
    topics = ("samples",)
    nothing_seen = "nothing was trained"
    cannot_see = "the samples of the micro-batches were not recognised"
    produces = (here(*LAG, *SAMPLES),)

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._last_evaluation_rollouts: list[int] = []

    def rollout(self, event: Rollout) -> None:
        """Remember recent evaluation rollouts."""
        if event.purpose == "evaluation":
            self._last_evaluation_rollouts = [*self._last_evaluation_rollouts[-63:], event.index]

    def microbatch(self, event: MicroBatch) -> None:
        """Look for samples of an evaluation rollout."""
        if event.trained is None:
            self.missed += 1
            return
        self.checks += 1
        for part in event.trained:
            if part.rollout in self._last_evaluation_rollouts:
                self.fail(
                    expected="samples of a training rollout",
                    observed=f"{number(len(part.rows), 'samples')} generated for evaluation",
                    why="the evaluation set leaks into training, and training prompts are skipped",
                    fix="do not evaluate while training is under way, or use a release that keeps the two apart",
                )
                return


class EvaluationWithoutRollouts(Rule):
    """An evaluation did not generate its own completions.

    What it checks:
        Each batch of an evaluation has a rollout of its own.

    Why it matters:
        Otherwise the evaluation's reward and loss describe completions of other prompts.

    Example:
        ERROR RLS504 Evaluation scored on other completions · data epoch 0, rollout
        0, update 1
          expected  3 evaluation rollouts, one for each batch
          observed  2 evaluation rollouts
          why       some evaluation batches were scored on completions of other
                    prompts
          fix       let the trainer itself evaluate, at the times that its
                    configuration names

    What to do:
        Evaluate only through the trainer's own schedule, or use a release that keeps training and evaluation apart.

    Known limits:

    Sources:
        - https://github.com/huggingface/trl/pull/3148: buffers that training and evaluation share
        - https://huggingface.co/docs/transformers/main_classes/trainer: prediction_step and its batches
    """

    code = "RLS504"
    title = "Evaluation scored on other completions"
    topics = ("order",)
    nothing_seen = "the run had no evaluation"
    cannot_see = "the batches of an evaluation were not observed, only its rollouts"

    def rollout(self, event: Rollout) -> None:
        """Count rollouts of evaluations, also where nothing says to which evaluation they belong."""
        self._rollouts += event.purpose == "evaluation"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._rollouts = 0

    def absent(self) -> bool:
        """Whether the run had no rollout of an evaluation."""
        return not self._rollouts

    def evaluated(self, event: Evaluated) -> None:
        """Compare batches with rollouts."""
        if not self.holds(event.rollouts == event.batches):
            self.fail(
                expected=f"{number(event.batches, 'evaluation rollouts')}, one for each batch",
                observed=number(event.rollouts, "evaluation rollouts"),
                why="some evaluation batches were scored on completions of other prompts",
                fix="let the trainer itself evaluate, at the times that its configuration names",
            )
