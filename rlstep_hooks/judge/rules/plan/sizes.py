"""Sizes that do not mean what they seem to say: rollout, mini-batch, updates for each rollout."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from rlstep_hooks.record.events import RunStarted


class SeveralRolloutsForOneUpdate(Rule):
    """One update needs the samples of several rollouts.

    What it checks:
        The number of updates for each rollout is below 1.

    Why it matters:
        The launch is legal and trains. But generation runs in smaller pieces than the settings suggest, and every count
        in rollouts is larger than the same count in updates (trl#3662).

    Example:
        INFO RLS111 Several rollouts feed one update · the whole run
          observed  1/2 updates for each rollout of 32 samples
          why       an update takes 64 samples, more than a rollout has
          fix       a rollout of 64 samples, if you meant one for each update

    What to do:
        Nothing, if you meant that. For one rollout to each update, make the rollout as large as the accumulated batch.

    Known limits:

    Sources:
        - https://github.com/huggingface/trl/issues/3662: what is the point of steps_per_generation
        - https://github.com/huggingface/trl/pull/3493: four micro-batches to an update and three to a rollout, drawn
    """

    code = "RLS111"
    title = "Several rollouts feed one update"
    severity = "info"
    seen_in = "plan"
    report = "https://github.com/huggingface/trl/issues/3662"

    def started(self, event: RunStarted) -> None:
        """Compare updates per rollout with 1."""
        schedule = self.schedule
        if schedule.updates_per_rollout >= 1 or not schedule.updates_per_rollout:
            return
        self.fail(
            expected="1 update or more for each rollout",
            observed=f"{number(schedule.updates_per_rollout, 'updates')} for each rollout of {schedule.samples_per_rollout} samples",
            why=f"an update takes {schedule.samples_per_update} samples, more than a rollout has",
            fix=f"a rollout of {schedule.samples_per_update} samples, if you meant one for each update",
        )


class MinibatchNotBelowRollout(Rule):
    """The mini-batch is not smaller than the rollout that it should split.

    What it checks:
        The samples of one mini-batch against the samples of one rollout. It is a warning if the mini-batch is larger,
        because samples are then added or missing. It is information if both are equal and each rollout is trained in
        several passes.

    Why it matters:
        A mini-batch that splits nothing gives one update for each pass. A mini-batch that is larger than the rollout is
        filled up or cut without a message. Often the two settings have different units (verl#1524).

    Example:
        INFO RLS112 The mini-batch does not split the rollout · the whole run
          observed  8192 samples
          why       each of the 4 passes over a rollout is one update
          fix       nothing, if you meant that

    What to do:
        Look at the units of both settings: prompts or samples, all processes or each one.

    Known limits:
        - It looks at systems that split a rollout into mini-batches. Where accumulation decides the size of an update,
          RLS111 looks.

    Sources:
        - https://github.com/volcengine/verl/issues/1524: two batch sizes in different units
        - https://github.com/volcengine/verl/issues/2333: sizes that verl multiplies by rollout.n
        - https://github.com/volcengine/verl/pull/1265: the check that the mini-batch is no larger, explained
    """

    code = "RLS112"
    title = "The mini-batch does not split the rollout"
    severity = "warning"
    seen_in = "plan"
    report = "https://github.com/volcengine/verl/issues/1524"

    def started(self, event: RunStarted) -> None:
        """Compare the first mini-batch with the rollout."""
        schedule = self.schedule
        if schedule.loop != "phases" or not schedule.minibatches or not schedule.samples_per_rollout:
            return
        largest = max(schedule.minibatches)
        if largest < schedule.samples_per_rollout or (
            largest == schedule.samples_per_rollout and schedule.reuse_epochs == 1
        ):
            return
        larger = largest > schedule.samples_per_rollout
        self.fail(
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
    """A rollout gets another number of updates than the configured sizes say.

    What it checks:
        Updates for each rollout against passes x rollout / mini-batch as configured, and whether the last rollout of a
        data epoch gets as many as the others. The rule finds floor divisions and counters that change the number by a
        third or more. One smaller update more, made of a remainder, is not reported here: the plan has a note on
        remainders.

    Why it matters:
        verl up to 0.7 divides the mini-batch by the processes and rounds down: 6 samples on 4 processes become 1, and
        six times the updates are made. TRL's PPOTrainer from 0.17 makes fewer updates (trl PR#2531); with gradient
        accumulation it makes many more in the last rollout of each data epoch. You chose learning rate and clip for
        another number of updates.

    Example:
        WARNING RLS113 Updates per rollout are not what the sizes say · the whole
        run
          expected  1 update for each rollout, as the sizes say
          observed  6 updates
          why       the framework divides the sizes among processes or accumulation
                    windows before it counts
          fix       choose sizes that divide evenly at each of these divisions;
                    --explain shows them

    What to do:
        Choose a mini-batch that the number of processes divides, or take the work-around that the finding or the note
        names.

    Known limits:
        - The rule needs a declared number of updates to compare with. Systems whose settings name
          no such number are not evaluated.
        - A number between two thirds and one and a half times the declared one passes.

    Sources:
        - https://github.com/huggingface/trl/pull/2531: the divisor of TRL's PPO counters
        - https://github.com/volcengine/verl/issues/180: mini-batches in other units than the batch
        - https://github.com/volcengine/verl/pull/559: how verl's sizes relate
    """

    code = "RLS113"
    seen_in = "plan and run"
    report = "https://github.com/huggingface/trl/pull/2531"
    title = "Updates per rollout are not what the sizes say"
    severity = "warning"
    nothing_seen = "the configuration names no number of updates that the plan does not keep to"

    def started(self, event: RunStarted) -> None:
        """Compare with the nominal number that the system gives."""
        stated = event.facts.get("nominal_updates_per_rollout")
        if stated is None:
            return
        nominal, made = Fraction(str(stated)), self.schedule.updates_per_rollout
        if nominal <= 0:
            return
        self.checks += 1
        last = self.schedule.updates_of_flushed_rollout
        if Fraction(2, 3) < made / nominal < Fraction(3, 2) and last is None:
            return
        self.fail(
            expected=f"{number(nominal, 'updates')} for each rollout, as the sizes say",
            observed=number(made, "updates")
            + (f", and {last} in the last rollout of a data epoch" if last is not None else ""),
            why="the framework divides the sizes among processes or accumulation windows before it counts",
            fix="choose sizes that divide evenly at each of these divisions; --explain shows them",
        )


class PromptsForSamples(Rule):
    """The mini-batch is as large as the number of prompts, but it counts samples.

    What it checks:
        Where the mini-batch of a system counts samples: whether it equals the prompts of a rollout although each prompt
        has several samples.

    Why it matters:
        Systems differ. The same number means one update in verl or SkyRL, which count prompts, and as many updates as
        there are samples of a prompt in slime, NeMo-RL or OpenRLHF, which count samples.

    Example:
        INFO RLS115 Mini-batch size may be meant in prompts · the whole run
          observed  64, which is also the number of prompts of a rollout
          why       it counts samples, so each rollout makes 8 updates
          fix       512 for one update a pass; nothing, if you meant 8

    What to do:
        Nothing, if you meant that many updates. For one update, multiply the mini-batch by the samples of a prompt.

    Known limits:
        - Equal numbers are a hint, not proof of a mistake. That is why the finding is information.

    Sources:
        - https://github.com/hiyouga/EasyR1/issues/6: every RL framework understands batch size differently
        - https://github.com/huggingface/trl/issues/3020: the batch of a device counts completions, not prompts
        - https://github.com/modelscope/ms-swift/issues/5107: steps that grow with num_generations
    """

    code = "RLS115"
    title = "Mini-batch size may be meant in prompts"
    severity = "info"
    seen_in = "plan"
    report = "https://github.com/hiyouga/EasyR1/issues/6"

    def started(self, event: RunStarted) -> None:
        """Compare the mini-batch with the prompts of a rollout."""
        schedule = self.schedule
        if event.facts.get("minibatch_unit") != "samples" or schedule.samples_per_prompt == 1:
            return
        if schedule.samples_per_update != schedule.prompts_per_rollout:
            return
        self.fail(
            expected="a mini-batch in samples",
            observed=f"{schedule.samples_per_update}, which is also the number of prompts of a rollout",
            why=f"it counts samples, so each rollout makes {schedule.updates_per_rollout} updates",
            fix=f"{schedule.samples_per_rollout} for one update a pass; nothing, if you meant {schedule.updates_per_rollout}",
        )
