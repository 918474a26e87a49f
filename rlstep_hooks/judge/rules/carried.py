"""What several rules say of samples that were carried through a controlled run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.base import Rule
    from rlstep_hooks.record.events import Carried


def carried(rule: Rule, event: Carried, name: str, words: str = "") -> None:
    """Let a rule look at what samples hold, if it was compared at two places, and report it if it is not the same.

    Args:
        rule: The rule that reports; each look counts as a check of it.
        event: The two places.
        name: The name of what the samples hold (`rlstep_hooks.record.values.CARRIED`).
        words: What a finding calls it, if not by that name.
    """
    wrong = event.altered.get(name, 0)
    if name in event.names and rule.any_wrong(wrong):
        rule.fail(
            expected=f"the {words or name} of these samples, bit for bit as they were before",
            observed=f"others in {wrong} of {event.compared} samples, on the way {event.way}",
            why="they were overwritten, replaced, or moved to another sample before the trainer got them",
            fix="look for code between these two places that writes into samples, reorders or pads them",
            variant=f"carried {name} {event.way}",
        )
