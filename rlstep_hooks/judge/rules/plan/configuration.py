"""The configuration itself: what the framework refuses, and what something else rewrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import ConfigChanged, RunStarted


class Refused(Rule):
    """The framework itself would end this launch with an error.

    What it checks:
        The conditions on sizes that the framework checks, in its own order and words: divisibility, lower bounds, settings
        that exclude each other.

    Why it matters:
        Some of them are checked only after minutes of start-up, or after the first rollout (verl PR#559: "many users are
        unfamiliar with the relationship").

    What to do:
        Take one of the values named; they are the nearest valid ones on both sides.
    """

    code = "RLS110"
    title = "The framework refuses this launch"
    severity = "error"
    seen_in = "plan"
    report = "https://github.com/volcengine/verl/pull/559"


class ForeignSettings(Rule):
    """The launch gives settings that no release of the framework has.

    What it checks:
        The name of each setting against the complete list of every release that can be planned, where the program is the
        framework's own and checks names itself (Hydra, argparse). A name close to a known one is a misspelling, which is
        RLS110; settings given with `+` are not looked at, since Hydra adds them.

    Why it matters:
        The framework itself ends such a launch at once. Where it runs, it is a fork, whose loop may give other numbers:
        Search-R1's `rollout.n_agent` multiplies the samples of a prompt by 5.

    What to do:
        If it is the framework itself, take the settings out. If it is a fork, compare the plan with the fork's own trainer.
    """

    code = "RLS116"
    title = "Settings that no release has: a fork?"
    severity = "warning"
    seen_in = "plan"
    report = "https://github.com/langfengQ/verl-agent/issues/42"


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
