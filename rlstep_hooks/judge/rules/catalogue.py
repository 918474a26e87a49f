"""The catalogue of rules: one class a rule, found by its code. A code is never reused."""

from __future__ import annotations

from rlstep_hooks.judge.rules import observation, resume
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.rules.data import (
    advantages,
    copies,
    documented,
    evaluation,
    exports,
    queue,
    rows,
    samples,
    timesteps,
)
from rlstep_hooks.judge.rules.learning_rate.rates import RateAtZero, RateNotScheduled
from rlstep_hooks.judge.rules.learning_rate.ticks import ScheduleHorizon, SchedulerTicks, WarmupLength
from rlstep_hooks.judge.rules.loss import backward, formula, gradient, normaliser, optimizer, reduced
from rlstep_hooks.judge.rules.order import length, rollouts, steps, updates
from rlstep_hooks.judge.rules.plan.configuration import ConfigRewritten, ReleaseFault
from rlstep_hooks.judge.rules.plan.cycle import ClipNeverActs
from rlstep_hooks.judge.rules.plan.seeds import SeedNotApplied
from rlstep_hooks.judge.rules.plan.sizes import UpdatesNotAsTheSizesSay
from rlstep_hooks.judge.rules.plan_checks import PLAN_RULES
from rlstep_hooks.judge.rules.progress import Progress
from rlstep_hooks.judge.rules.ratio import alone, intact, refresh, sampling, values, weighed
from rlstep_hooks.judge.rules.weights import (
    acting,
    built,
    delivered,
    distance,
    loaded,
    moved,
    prefix_cache,
    reference,
    replicas,
    sampled,
    sampler,
    training,
)

HUNDREDS: dict[str, tuple[str, str]] = {
    "1": ("plan", "plan and configuration"),
    "2": ("order", "counts and order"),
    "3": ("ratio", "old log-probs and ratio"),
    "4": ("weights", "weights and sync"),
    "5": ("data", "data"),
    "6": ("learning_rate", "learning rate"),
    "7": ("resume", "resume"),
    "8": ("loss", "loss, gradient and optimizer"),
    "9": ("observation", "observation itself"),
}
"""What the first digit of a code stands for: the module or package of the rules, and what they are about."""

RULES: tuple[type[Rule], ...] = (
    ConfigRewritten,
    ReleaseFault,
    SeedNotApplied,
    ClipNeverActs,
    UpdatesNotAsTheSizesSay,
    rollouts.UnexpectedRollout,
    rollouts.MissingRollout,
    updates.EarlyUpdate,
    updates.MissingUpdate,
    length.EpochLength,
    length.RunLength,
    rollouts.EventSize,
    updates.WindowSize,
    steps.NoUpdate,
    steps.SkippedUpdate,
    updates.RoleOutOfTurn,
    steps.UpdatesSaved,
    steps.TrainedBeyondLimit,
    steps.EndedWithinLimit,
    values.RatioAtLagZero,
    values.RatioStuckAtOne,
    refresh.RefreshNotAsPlanned,
    refresh.StaleWithoutOldLogProbs,
    intact.OldLogProbsAltered,
    intact.TokensAltered,
    refresh.LagNotAsPlanned,
    refresh.ReferenceLogProbs,
    values.LoggedRatio,
    values.RatioNeverMoves,
    intact.ReferenceLogProbsAltered,
    weighed.WeightsNotDocumented,
    sampling.LossAsSampled,
    alone.ScoredOtherwise,
    alone.ReferenceScoredOtherwise,
    training.WeightsUnchanged,
    sampler.SamplerVersion,
    distance.SamplerGap,
    moved.WeightsMovedBetweenUpdates,
    moved.GeneratedWithOthers,
    sampler.SyncNotAsPlanned,
    sampler.SampledOtherwise,
    sampled.NotDrawnFromPolicy,
    acting.ActedOtherwise,
    reference.ReferenceMoved,
    reference.ReferenceNotThePolicy,
    delivered.NotHeld,
    delivered.PartArrived,
    delivered.OtherDtype,
    delivered.AdapterNotBound,
    prefix_cache.OlderKeys,
    built.BuiltOtherwise,
    loaded.LoadedOtherwise,
    training.NothingLearned,
    training.OptimizerHoldsOthers,
    training.PartNotTrained,
    advantages.PromptGroups,
    samples.SamplesConserved,
    evaluation.EvaluationInTraining,
    evaluation.EvaluationWithoutRollouts,
    advantages.NoSignal,
    rows.RowsDropped,
    samples.RolloutRepeated,
    advantages.RewardsMoved,
    samples.UnknownSamples,
    queue.QueueConserved,
    timesteps.TimestepsAltered,
    advantages.AdvantagesOfOthers,
    rows.RowsServedAgain,
    rows.OtherRowsTrained,
    documented.AdvantagesNotDocumented,
    documented.AdvantagesAltered,
    documented.MaskNotDocumented,
    copies.CopiedCompletions,
    copies.RanksDrawAlike,
    exports.ExportContradicts,
    ScheduleHorizon,
    SchedulerTicks,
    RateNotScheduled,
    RateAtZero,
    WarmupLength,
    resume.ResumeFailed,
    resume.CheckpointNotRestored,
    resume.CheckpointHoldsOthers,
    formula.LossScale,
    formula.ConstantWithGradient,
    formula.GradientsNotCleared,
    formula.MaskAltered,
    backward.BackwardScale,
    optimizer.StepNotDocumented,
    optimizer.MomentsLost,
    optimizer.NormNotClipped,
    gradient.GradientMissing,
    gradient.GradientAltered,
    reduced.ReducedOtherwise,
    reduced.ClippedOtherwise,
    backward.LayersBackwardOtherwise,
    normaliser.TokensOfAllRanks,
    observation.ProcessMissing,
    observation.RanksDisagree,
    replicas.ReplicasDiffer,
)
"""Rules that judge a run."""

RANK_RULES: tuple[type[Rule], ...] = (
    observation.ProcessMissing,
    observation.RanksDisagree,
    reduced.ReducedOtherwise,
    reduced.ClippedOtherwise,
    replicas.ReplicasDiffer,
    normaliser.TokensOfAllRanks,
    copies.RanksDrawAlike,
)
"""Rules that compare processes; `rlstep_hooks.judge.ranks.merge` evaluates them."""

BY_CODE: dict[str, type[Rule]] = {rule.code: rule for rule in sorted({*RULES, *PLAN_RULES}, key=lambda rule: rule.code)}
"""All rules, including those that only look at a plan."""


__all__ = ["BY_CODE", "HUNDREDS", "RANK_RULES", "RULES", "Progress", "Rule"]
