"""The seed of a run: configured, and never given to the generators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule

if TYPE_CHECKING:
    from rlstep_hooks.record.events import RunStarted


class SeedNotApplied(Rule):
    """A seed is configured, and a generator that training draws from was never seeded.

    What it checks:
        When training begins, whether somebody has seeded the generators of torch and of numpy that the whole process shares. The
        framework documents that it seeds both with the configured seed. A generator that has a seed of its own choice was not seeded.

    Why it matters:
        Two runs of the same configuration then differ from the first sample on. A comparison of two settings shows the difference of
        two random streams beside that of the settings.

    Example:
        WARNING RLS120 Configured seed not applied · the whole run
          expected  generators that were seeded with 42
          observed  a seed of its own choice in torch
          why       two runs of this configuration draw other numbers
          fix       look for code that replaces what seeds the generators, and for a
                    start that leaves it out

    What to do:
        Look for code that replaces what seeds the generators, and for a start that leaves it out.

    Known limits:
        - Which seed a generator was given is not known: a script may seed it otherwise than configured.
        - Python's own generator, those of environments and those of other processes are not looked at.

    Sources:
        - https://huggingface.co/docs/transformers/main_classes/trainer: `seed` is set at the beginning of training
        - https://stable-baselines3.readthedocs.io/en/master/modules/ppo.html: `seed` for the pseudo random generators
        - https://pytorch.org/docs/stable/notes/randomness.html: results repeat only where generators were seeded
    """

    code = "RLS120"
    title = "Configured seed not applied"
    severity = "warning"
    topics = ()
    optional = True
    nothing_seen = "no seed is configured, or the observer does not look at it"

    def started(self, event: RunStarted) -> None:
        """Look at what the observer found before training."""
        seeds = event.facts.get("seeds") or {}
        self.checks += len(seeds.get("compared", ()))
        unseeded = seeds.get("unseeded", ())
        if unseeded:
            self.fail(
                expected=f"generators that were seeded with {seeds['seed']}",
                observed=f"a seed of its own choice in {' and in '.join(unseeded)}",
                why="two runs of this configuration draw other numbers",
                fix="look for code that replaces what seeds the generators, and for a start that leaves it out",
            )
