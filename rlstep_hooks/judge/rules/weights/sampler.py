"""The sampler: its weights, its settings, and the syncs to it."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import OTHER_FORWARD, Effects, of_rollout
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.timeline import ExpectedMicroBatch, ExpectedRefresh, ExpectedSync, ExpectedUpdate
from rlstep_hooks.planning.words import number
from rlstep_hooks.record.events import UNSENT, EpochEnd, Rollout, RunEnded, WeightSync

if TYPE_CHECKING:
    from rlstep_hooks.judge.conformance import Difference
    from rlstep_hooks.judge.delivery import Delivery
    from rlstep_hooks.judge.rules.progress import Progress


class SamplerVersion(Rule):
    """A rollout was sampled with other weights than planned.

    What it checks:
        The policy version that the sampler held at each rollout equals the policy's own (synchronous training), or is
        no older than the plan allows (asynchronous training, counted in rollouts): weights were synced to the engine
        since the last update, or the policy itself generated. Where a queue is followed: no sample has weights older than
        those synced before its prompt was submitted, also where its age would be allowed. Where a completion may go on
        under newer weights (verl's fully_async_policy), the bound is on the syncs that a finished prompt waits in the
        queue, and no sample is stamped with weights that came after it.

    Why it matters:
        Samples of older weights are trained as if they were on-policy. That costs reward slowly and raises no error
        (trl#5312: an engine that woke up with old weights).

    Example:
        ERROR RLS402 Rollout sampled with other weights · data epoch 0, rollout 2,
        update 4
          expected  a sampler with the weights of version 4
          observed  a sampler with version 3, 1 update behind
          why       the samples come from other weights than those that train on
                    them, and the ratio does not show it
          fix       look at the sync of weights to the engine: it must come after
                    the last update and before the rollout

    What to do:
        Look at the sync of weights to the engine: was it made, and after the last update?

    Known limits:
        - An engine's version is what it was told ("by label only" in the report). Whether it holds these weights is proved only
          where the engine itself is observed: RLS415.

    Sources:
        - https://github.com/huggingface/trl/issues/5312: an engine that sampled with old weights, with a table of the signs
        - https://github.com/NVIDIA-NeMo/RL/pull/4018: weights up to 17 steps old
        - https://github.com/modelscope/ms-swift/pull/4584: no sync before the first rollout
    """

    code = "RLS402"
    title = "Rollout sampled with other weights"
    topics = ("versions", "sampler", "sampler_weights")
    nothing_seen = "the plan does not say which weights sample a rollout"
    cannot_see = "the version of the weights that sampled a rollout was not observed"
    produces = (of_rollout("RLS307", "RLS403", "RLS412", "RLS413", *OTHER_FORWARD),)

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._engine = False
        """Whether an engine samples that must be given new weights."""
        self._compared = False
        """Whether tensors of the engine were compared with those of the policy."""
        ages, begun = self.schedule.max_age or 0, progress.started.start_updates
        # A resumed run may train samples of weights that were there before it.
        before = (max(begun - math.ceil(age * self.schedule.updates_per_rollout), 0) for age in range(ages, 0, -1))
        self._versions: deque[int] = deque(before if begun else (), maxlen=ages + 1)

    def rollout(self, event: Rollout) -> None:
        """Compare the sampler's version with the oldest that the plan allows."""
        if event.purpose != "training":
            return
        self._versions.append(event.policy_version)
        if event.queue is not None:
            self.checks += 1
            if event.queue.behind:
                self._not_taken(event.queue.behind)
                return
            if event.queue.ahead:
                self._stamped(event.queue.ahead)
                return
            if event.queue.waited:
                self._waited(dict(event.queue.waited))
                return
        if self.schedule.max_age is None:
            return
        if event.sampler_version is None:
            self.missed += 1
            return
        if self.holds(self._versions[0] <= event.sampler_version <= event.policy_version):
            return
        if event.sampler_version == UNSENT:
            observed = (
                "an engine whose weights are those of no sync: some were not sent, not loaded, or changed afterwards"
            )
            fix = "compare the names and numbers of tensors that are synced with those that the engine loads"
        elif event.sampler_version < 0:
            observed = "a sampler that is not the policy being trained"
            fix = "look for code that generates with a copy of the model"
        else:
            behind = event.policy_version - event.sampler_version
            observed = f"a sampler with version {event.sampler_version}, {number(behind, 'updates')} behind"
            fix = "look at the sync of weights to the engine: it must come after the last update and before the rollout"
        self.fail(
            expected=f"a sampler with the weights of version {event.policy_version}{self._older()}",
            observed=observed,
            why="the samples come from other weights than those that train on them, and the ratio does not show it",
            fix=fix,
            variant="unsent" if event.sampler_version == UNSENT else "",
        )

    def _not_taken(self, samples: int) -> None:
        self.fail(
            expected="samples of the weights that were synced before their prompt was submitted, or of later ones",
            observed=f"{number(samples, 'samples')} of older weights",
            why="an engine did not take the weights of a sync; within the bound on the age no other number shows it",
            fix="look at the engine's side of the sync: does it load the weights, and take their number?",
            variant="not taken",
        )

    def _stamped(self, samples: int) -> None:
        self.fail(
            expected="samples that say of which weights they are: of a sync that was made before they were finished",
            observed=f"{number(samples, 'samples')} stamped with weights that no engine had by then",
            why="whatever counts the age of samples, or drops those that are too old, reads these stamps",
            fix="look at what writes the version into a sample: the engine's own, and no counter of steps or of samples",
            variant="stamped",
        )

    def _waited(self, prompts: dict[int, int]) -> None:
        """How long prompts were in the queue: where completions go on with newer weights, their first tokens have no bound."""
        bound = self.schedule.max_age
        late = sum(count for syncs, count in prompts.items() if bound is not None and syncs > bound)
        if not late:
            return
        longest = max(prompts)
        self.fail(
            expected=f"prompts that are in the queue for {number(bound or 0, 'syncs')} at most",
            observed=f"{number(late, 'prompts')} that were in it for up to {longest}, so {longest} rollouts behind",
            why="generation ran further ahead than its limit allows, and the samples come from older weights than the plan has",
            fix="look at what pauses generation: it must count what is under way and what is in the queue",
            variant="waited",
        )

    def weight_sync(self, event: WeightSync) -> None:
        """Remember that there is an engine."""
        self._engine = True

    def delivered(self, delivery: Delivery) -> None:
        """Remember that the engine's own tensors are compared (RLS415)."""
        self._compared = self._compared or bool(delivery.compared)

    def note(self) -> str:
        """Where an engine's version is what it was told, whether it holds these weights is not proved."""
        return "by label only" if self._engine and not self._compared else ""

    def _older(self) -> str:
        return f", or of {self._versions[0]} and later" if self._versions[0] != self._versions[-1] else ""


class SampledOtherwise(Rule):
    """The engine sampled with other settings than configured.

    What it checks:
        Where the engine or the model tells with which settings it samples: those of every rollout (temperature, top_p,
        top_k and the like) equal those of the configuration. Exact. In OpenRLHF also stop strings, tokens beside the model's own
        that end a completion, the least number of tokens, and the number at which the longest length cut answers off.

    Why it matters:
        Samples of another distribution are trained as if the policy had given them. Without importance correction no
        metric shows it, because old and new log-probs are both the trainer's own.

    Example:
        ERROR RLS410 Sampled with other settings · data epoch 1, rollout 2, update 4
          expected  temperature 1
          observed  temperature 0.6
          why       the samples come from another distribution than the policy that
                    is trained on them
          fix       look for code that changes the sampling parameters on their way
                    to the engine

    What to do:
        Look for code that changes the sampling parameters between the configuration and the engine.

    Known limits:
        - Settings are compared, not distributions. With an engine a processor of your own is not seen, and RLS403 can show it.
        - What callbacks generate does not count.
        - Tokens that end a completion are compared only where a system is said to do so: an engine adds those of the model's
          own settings.

    Sources:
        - https://github.com/huggingface/trl/pull/3029: a temperature that only one side applied
        - https://github.com/huggingface/trl/issues/4159: a temperature of 0.6 that gives ratios of 2
        - https://github.com/PrimeIntellect-ai/prime-rl/pull/697: log-probs divided by the temperature once more
    """

    code = "RLS410"
    title = "Sampled with other settings"
    topics = ("sampler",)
    nothing_seen = "the engine does not tell with which settings it samples"
    produces = (of_rollout("RLS403", "RLS413", "RLS519", *OTHER_FORWARD),)

    def rollout(self, event: Rollout) -> None:
        """Compare the settings of a training rollout."""
        planned: dict[str, float] = self.progress.started.facts.get("configured_sampling", {})
        if event.purpose != "training" or not event.sampling or not planned:
            return
        self.checks += 1
        for used in event.sampling:
            others = {name: value for name, value in used.items() if planned.get(name, value) != value}
            if others:
                self.fail(
                    expected=", ".join(f"{name} {planned[name]:g}" for name in others),
                    observed=", ".join(f"{name} {value:g}" for name, value in others.items()),
                    why="the samples come from another distribution than the policy that is trained on them",
                    fix="look for code that changes the sampling parameters on their way to the engine",
                )
                return


class SyncNotAsPlanned(Rule):
    """Weights were synced to the rollout engine at another time than planned, or not at all.

    What it checks:
        Each sync of weights to the engine: after the updates of every rollout (and before the first one, in frameworks
        that do so), with the policy version of that moment. Integers, compared exactly.

    Why it matters:
        An engine that is not updated goes on sampling from old weights. Nothing fails: the ratio is computed from the
        trainer's own log-probs, and rewards rise late or not at all (trl#5312).

    Example:
        ERROR RLS405 Weights not synced to the engine as planned · data epoch 1,
        rollout 2, update 4, micro-batch 8
          expected  a sync of version 4
          observed  no sync
          why       the engine then samples with other weights than the plan says,
                    and the ratio does not show it
          fix       look at the call that syncs weights to the engine: it must
                    follow the updates of every rollout

    What to do:
        Look at the call that syncs weights: does every trainer make it after the updates of each rollout?

    Known limits:
        - The rule sees that weights were handed over. Whether the engine holds them is RLS415 and RLS416, where it is observed,
          else RLS403.

    Sources:
        - https://github.com/huggingface/trl/issues/5312: an engine that woke up with old weights
        - https://github.com/rllm-org/rllm/issues/291: a cache setting that prevents the sync
        - https://github.com/verl-project/verl/issues/4248: free_cache_engine=False, and no sync at all
        - https://github.com/huggingface/trl/issues/3189: a report of a missing sync that was a false alarm
    """

    code = "RLS405"
    title = "Weights not synced to the engine as planned"
    topics = ("order", "sampler")
    compares = (WeightSync,)
    nothing_seen = "weight syncs are not part of this plan"
    produces = (Effects(("RLS307", "RLS402", "RLS403", "RLS412", "RLS413", "RLS415", *OTHER_FORWARD), last=1),)

    def difference(self, difference: Difference) -> None:
        """Claim a sync that is missing, surplus, early, or of another version."""
        expected, observed = difference.expected, difference.observed
        missing = isinstance(expected, ExpectedSync) and isinstance(observed, Rollout | EpochEnd | RunEnded)
        missing = missing or difference.aspect == "left_out"
        others = ExpectedMicroBatch | ExpectedUpdate | ExpectedRefresh
        early = isinstance(observed, WeightSync) and difference.aspect == "early"
        surplus = isinstance(observed, WeightSync) and not isinstance(expected, others | ExpectedSync)
        version = isinstance(observed, WeightSync) and difference.aspect == "version"
        if not (missing or early or surplus or version):
            return
        self.checks += 1
        planned = f"a sync of version {expected.version}" if isinstance(expected, ExpectedSync) else "no sync here"
        made = f"a sync of version {observed.policy_version}" if isinstance(observed, WeightSync) else "no sync"
        if early:
            planned, made = "a sync after the updates of the rollout", f"{made}, before updates of the same rollout"
        self.fail(
            expected=planned,
            observed=made,
            why="the engine then samples with other weights than the plan says, and the ratio does not show it",
            fix="look at the call that syncs weights to the engine: it must follow the updates of every rollout",
            variant="missing" if missing else "early" if early else "surplus" if surplus else "version",
        )
