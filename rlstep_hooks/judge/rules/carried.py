"""What several rules say of samples that were carried through a controlled run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.base import Rule
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import Carried


def carried(rule: Rule, event: Carried, name: str, words: str = "") -> Finding | None:
    """The finding of a rule, if what samples hold was compared at two places and is not the same.

    Args:
        rule: Whose finding it is; each look counts as a check.
        event: The two places.
        name: Of what the samples hold (`rlstep_hooks.record.values.CARRIED`).
        words: What a finding calls it, if not by that name.
    """
    if name not in event.names:
        return None
    rule.checks += 1
    wrong = event.altered.get(name, 0)
    if not wrong:
        return None
    return rule.fail(
        expected=f"the {words or name} of these samples, bit for bit as they were before",
        observed=f"others in {wrong} of {event.compared} samples, on the way {event.way}",
        where=rule.progress.where(rollout=rule.progress.rollout_number(event.rollout)),
        why="they were overwritten, replaced, or moved to another sample before the trainer got them",
        fix="look for code between these two places that writes into samples, reorders or pads them",
        variant=f"carried {name} {event.way}",
    )
