"""RLS1xx: the plan and the configuration."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.finding import Where

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import ConfigChanged, RunStarted


class ConfigRewritten(Rule):
    """The configuration that trains is not the one that was written.

    What it checks:
        Settings that the plan rests on (batch sizes, accumulation, group size, reuse) keep their value from the construction
        of the trainer to the start of training, and from there to the last rollout; sizes that were derived when the
        configuration was built still agree with the settings they came from.

    Why it matters:
        Wrappers around a trainer have raised the per-device batch silently (unsloth#3149: 8 became 16), and a value changed
        in mid-run takes effect at the next micro-batch, with buffers of the old size.

    What to do:
        Set the named value where the trainer is built, to what it became or to what you meant. Integers, compared exactly.
    """

    code = "RLS101"
    title = "Configuration rewritten"
    severity = "warning"
    topics = ("order",)

    def started(self, event: RunStarted) -> Finding | None:
        """Count the check; changes arrive as events of their own."""
        self.checks += 1
        return None

    def config_changed(self, event: ConfigChanged) -> Finding | None:
        """Report the changed setting."""
        since = "the trainer was built" if event.since == "construction" else "training began"
        return self.fail(
            expected=f"{event.name} = {event.before}, as when {since}",
            observed=f"{event.name} = {event.after}",
            why="something other than the configuration you wrote sets this value, so sizes and counts are not those you planned",
            fix=f"set {event.name} explicitly where the configuration is built, and look for the code that changes it",
            variant=event.name,
        )


class ClipNeverActs(Rule):
    """The ratio is 1 by construction, so clipping can never act.

    What it checks:
        Whether every micro-batch of the plan has lag 0: old log-probs come from the weights that train on them.

    Why it matters:
        The ratio is then exactly 1, `clip_ratio` is 0, and the loss reads 0 in the logs when advantages are normalised (its
        gradient is not 0). This is the default of GRPO in TRL and correct: plain on-policy policy gradient (trl#2703,
        trl#3452). It is reported so that nobody looks for a bug, or relies on a clip that is not there.

    What to do:
        Nothing, if you want on-policy updates. For several updates on each rollout raise the number of reuse epochs, or make
        a rollout larger than an update.
    """

    code = "RLS102"
    of_plan = True
    title = "Ratio is 1 by construction"
    severity = "info"

    def started(self, event: RunStarted) -> Finding | None:
        """Look at the lags of the plan."""
        self.checks += 1
        if self.schedule.lags != (0,) or self.schedule.old_logprob_source in ("engine", "none"):
            return None
        return self.fail(
            expected="nothing else: every micro-batch trains on samples of the current weights",
            observed=f"lag 0 only, {self.schedule.updates_per_rollout} updates per rollout",
            why="the ratio is 1 on every token, so clipping never acts and a loss near 0 in the logs is cosmetic",
            fix="nothing to fix; more reuse epochs or a rollout larger than an update would make clipping act",
            where=Where(),
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
    of_plan = True
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
