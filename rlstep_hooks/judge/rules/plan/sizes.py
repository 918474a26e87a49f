"""Sizes that do not mean what they seem to say: rollout, mini-batch, updates for each rollout."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.finding import Where

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import RunStarted


class SeveralRolloutsForOneUpdate(Rule):
    """One update needs the samples of several rollouts.

    What it checks:
        Updates per rollout are below 1.

    Why it matters:
        It is legal and trains, but generation runs in smaller pieces than the settings suggest, and every count in "rollouts"
        is larger than the one in "updates" (trl#3662).

    What to do:
        If you meant one rollout for each update, make the rollout as large as the accumulated batch.
    """

    code = "RLS111"
    title = "Several rollouts feed one update"
    severity = "info"
    seen_in = "plan"
    report = "https://github.com/huggingface/trl/issues/3662"

    def started(self, event: RunStarted) -> Finding | None:
        """Compare updates per rollout with 1."""
        schedule = self.schedule
        if schedule.updates_per_rollout >= 1 or not schedule.updates_per_rollout:
            return None
        return self.fail(
            where=Where(),
            expected="1 update or more for each rollout",
            observed=f"{schedule.updates_per_rollout} updates for each rollout of {schedule.samples_per_rollout} samples",
            why=f"an update takes {schedule.samples_per_update} samples, more than a rollout has",
            fix=f"a rollout of {schedule.samples_per_update} samples, if you meant one for each update",
        )


class MinibatchNotBelowRollout(Rule):
    """The mini-batch is not smaller than the rollout that it should split.

    What it checks:
        The samples of one mini-batch against those of one rollout. It warns where the mini-batch is larger, so that samples
        are made up or missing, and informs where both are the same and the rollout is passed over several times.

    Why it matters:
        A mini-batch that splits nothing gives one update a pass; one that is larger than the rollout is filled up or shrunk
        without a message (verl#1524: units of the two sizes differ).

    What to do:
        Look at the units of both settings: prompts or samples, global or for each process.
    """

    code = "RLS112"
    title = "The mini-batch does not split the rollout"
    severity = "warning"
    seen_in = "plan"
    report = "https://github.com/volcengine/verl/issues/1524"

    def started(self, event: RunStarted) -> Finding | None:
        """Compare the first mini-batch with the rollout."""
        schedule = self.schedule
        if schedule.loop != "phases" or not schedule.minibatches or not schedule.samples_per_rollout:
            return None
        largest = max(schedule.minibatches)
        if largest < schedule.samples_per_rollout or (
            largest == schedule.samples_per_rollout and schedule.reuse_epochs == 1
        ):
            return None
        larger = largest > schedule.samples_per_rollout
        return self.fail(
            where=Where(),
            expected=f"a mini-batch below the {schedule.samples_per_rollout} samples of a rollout",
            observed=f"{largest} samples",
            why=(
                f"a rollout has fewer samples than that: {schedule.samples_added_per_rollout} are added"
                if larger
                else f"each of the {schedule.reuse_epochs} passes over a rollout is one update"
            ),
            fix="a smaller mini-batch; mind whether it counts prompts or samples"
            if larger
            else "nothing, if you meant that",
            severity="warning" if larger else "info",
        )


class UpdatesNotAsTheSizesSay(Rule):
    """The number of updates per rollout is not what the configured sizes say.

    What it checks:
        Updates per rollout against passes x rollout / mini-batch as configured, and whether the last rollout of a data epoch
        makes as many as the others. A remainder that makes one smaller update more is left to the note on remainders; here are
        floor divisions and counters that change the number itself.

    Why it matters:
        verl up to 0.7 divides the mini-batch by the processes and rounds down: 6 samples on 4 processes become 1, and six
        times the updates are made. TRL's PPOTrainer from 0.17 makes fewer (trl PR#2531), and with gradient accumulation many
        more in the last rollout of each data epoch. Learning rate and clipping were tuned for another number.

    What to do:
        Choose a mini-batch that the processes divide, or the work-around of the note.
    """

    code = "RLS113"
    seen_in = "plan and run"
    report = "https://github.com/huggingface/trl/pull/2531"
    title = "Updates per rollout are not what the sizes say"
    severity = "warning"
    nothing_seen = "the configuration names no number of updates that the plan does not keep to"

    def started(self, event: RunStarted) -> Finding | None:
        """Compare with the nominal number that the system gives."""
        stated = event.facts.get("nominal_updates_per_rollout")
        if stated is None:
            return None
        nominal, made = Fraction(str(stated)), self.schedule.updates_per_rollout
        if nominal <= 0:
            return None
        self.checks += 1
        last = self.schedule.updates_of_flushed_rollout
        if Fraction(2, 3) < made / nominal < Fraction(3, 2) and last is None:
            return None
        return self.fail(
            expected=f"{nominal} updates for each rollout, as the sizes say",
            observed=f"{made}" + (f", and {last} in the last rollout of a data epoch" if last is not None else ""),
            why="the framework divides the sizes among processes or accumulation windows before it counts",
            fix="sizes that divide evenly at each of these divisions; --explain shows them",
            where=Where(),
        )


class PromptsForSamples(Rule):
    """The mini-batch is as large as the number of prompts, but counts samples.

    What it checks:
        Where the framework's mini-batch counts samples: whether it equals the prompts of a rollout while each prompt has
        several samples.

    Why it matters:
        Frameworks differ: the same number means one update in verl or SkyRL (prompts) and as many updates as samples per
        prompt in slime, NeMo-RL or OpenRLHF (EasyR1#6: "every RL framework understands batch size differently").

    What to do:
        Nothing, if you meant that many updates. For one update multiply by the samples of a prompt.
    """

    code = "RLS115"
    title = "Mini-batch size may be meant in prompts"
    severity = "info"
    seen_in = "plan"
    report = "https://github.com/hiyouga/EasyR1/issues/6"

    def started(self, event: RunStarted) -> Finding | None:
        """Compare the mini-batch with the prompts of a rollout."""
        schedule = self.schedule
        if event.facts.get("minibatch_unit") != "samples" or schedule.samples_per_prompt == 1:
            return None
        if schedule.samples_per_update != schedule.prompts_per_rollout:
            return None
        return self.fail(
            where=Where(),
            expected="a mini-batch in samples",
            observed=f"{schedule.samples_per_update}, which is also the number of prompts of a rollout",
            why=f"it counts samples, so each rollout makes {schedule.updates_per_rollout} updates",
            fix=f"{schedule.samples_per_rollout} for one update a pass; nothing, if you meant {schedule.updates_per_rollout}",
        )
