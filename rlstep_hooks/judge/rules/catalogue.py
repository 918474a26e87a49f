"""The catalogue of rules: one class a rule, found by its code. A code is never reused."""

from __future__ import annotations

import inspect

from rlstep_hooks.judge.rules import (
    data,
    learning_rate,
    loss,
    observation,
    order,
    plan,
    ratio,
    resume,
    updates,
    weights,
)
from rlstep_hooks.judge.rules.base import Progress, Rule

RULES: tuple[type[Rule], ...] = (
    plan.ConfigRewritten,
    plan.ClipNeverActs,
    plan.UpdatesNotAsTheSizesSay,
    order.UnexpectedRollout,
    order.MissingRollout,
    order.EarlyUpdate,
    order.MissingUpdate,
    order.EpochLength,
    order.RunLength,
    order.EventSize,
    order.WindowSize,
    updates.NoUpdate,
    updates.SkippedUpdate,
    order.RoleOutOfTurn,
    updates.UpdatesSaved,
    ratio.RatioAtLagZero,
    ratio.RatioStuckAtOne,
    ratio.RefreshNotAsPlanned,
    ratio.StaleWithoutOldLogProbs,
    ratio.OldLogProbsAltered,
    ratio.TokensAltered,
    ratio.LagNotAsPlanned,
    ratio.ReferenceLogProbs,
    ratio.LoggedRatio,
    ratio.RatioNeverMoves,
    weights.WeightsUnchanged,
    weights.SamplerVersion,
    weights.SamplerGap,
    weights.WeightsMovedBetweenUpdates,
    weights.SyncNotAsPlanned,
    weights.SampledOtherwise,
    weights.ReferenceMoved,
    weights.NothingLearned,
    weights.OptimizerHoldsOthers,
    weights.PartNotTrained,
    data.PromptGroups,
    data.SamplesConserved,
    data.EvaluationInTraining,
    data.EvaluationWithoutRollouts,
    data.NoSignal,
    data.RowsDropped,
    data.RolloutRepeated,
    data.RewardsMoved,
    data.UnknownSamples,
    data.AdvantagesOfOthers,
    data.RowsServedAgain,
    data.OtherRowsTrained,
    learning_rate.ScheduleHorizon,
    learning_rate.SchedulerTicks,
    learning_rate.RateAtZero,
    learning_rate.WarmupLength,
    resume.ResumeFailed,
    resume.CheckpointNotRestored,
    loss.LossScale,
    loss.ConstantWithGradient,
    loss.GradientsNotCleared,
    loss.MaskAltered,
    observation.ProcessMissing,
    observation.RanksDisagree,
)

RANK_RULES: tuple[type[Rule], ...] = (observation.ProcessMissing, observation.RanksDisagree)
"""Rules that compare processes; `rlstep_hooks.judge.ranks` evaluates them."""

BY_CODE: dict[str, type[Rule]] = {rule.code: rule for rule in RULES}


def page(rule: type[object]) -> str:
    """A rule's documentation page: its docstring."""
    return inspect.cleandoc(rule.__doc__ or "")


__all__ = ["BY_CODE", "RANK_RULES", "RULES", "Progress", "Rule", "page"]
