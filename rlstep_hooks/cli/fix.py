"""`rlstep plan --fix`: the smallest changes that mend the findings of a launch, and `--write`, which makes them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.cli.complain import complain
from rlstep_hooks.systems.engine.autofix import KEPT
from rlstep_hooks.systems.engine.fixes import Fix, Offer, applied, fixes_of

if TYPE_CHECKING:
    from rlstep_hooks.planning.launched import Options, Plan
    from rlstep_hooks.systems.engine.autofix import Change
    from rlstep_hooks.systems.engine.fixes import Source

_MOST_ROUNDS = 10
"""Fixes that are written one after the other at most."""


def show(words: list[str], options: Options, *, as_json: bool, write: bool) -> int:
    """Print what mends a launch; with `write`, apply the first fix of each error and warning.

    Returns:
        The exit status: 1 if an error is left, else 0.

    Raises:
        LaunchError: The launch cannot be read.
        OSError: A file cannot be read or written.
    """
    plan, source, found = fixes_of(words, options)
    if as_json:
        print(_json(plan, found))
    else:
        _print(plan, found)
    if write:
        plan = _write(plan, source, found, options)
    return int(any(finding.severity == "error" for finding in plan.findings))


def _write(plan: Plan, source: Source, found: list[Fix], options: Options) -> Plan:
    """Apply fixes until no error or warning has one left. Returns the last plan."""
    for _ in range(_MOST_ROUNDS):
        edits = next(
            (offer.edits for fix in found if fix.finding.severity != "info" for offer in fix.offers if offer.edits),
            None,
        )
        if edits is None:
            break
        words, texts = applied(source, edits)
        for name, text in texts.items():
            Path(name).write_text(text, encoding="utf-8")
            complain(f"wrote {name}")
        if words != source.words:
            print(words[0] if len(words) == 1 else shlex.join(words))
        plan, source, found = fixes_of(words, options)
    return plan


def _print(plan: Plan, found: list[Fix]) -> None:
    from rlstep_hooks.show.fixes import ShownOffer, fixes
    from rlstep_hooks.show.terminal import Terminal

    shown = [
        (
            fix.finding,
            [
                ShownOffer(
                    changes=tuple(words_of(change) for change in offer.mend.changes),
                    edits=offer.edits,
                    kept=tuple(KEPT[name] for name in offer.mend.kept),
                    lost=tuple(KEPT[name] for name in offer.mend.lost),
                    after=offer.mend.plan,
                )
                for offer in fix.offers
            ],
        )
        for fix in found
    ]
    Terminal(highlight=False).print(fixes(plan, shown))


def words_of(change: Change) -> str:
    """A change in words."""
    setting = change.setting
    if change.name != setting.name and change.after == setting.value:
        return f"{change.name} instead of {setting.written}"
    name = setting.written or change.name
    return f"{name} = {change.after} instead of {setting.value}" + (" (its default)" if change.added else "")


def _json(plan: Plan, found: list[Fix]) -> str:
    """The plan's JSON with the fixes of its findings."""
    from rlstep_hooks.record.wire import to_json
    from rlstep_hooks.show.plan_json import Fixed, OfferedFix, answer_of

    def offered(offer: Offer) -> OfferedFix:
        after = offer.mend.plan.schedule
        assert after is not None
        return OfferedFix(
            changes={change.name: change.after for change in offer.mend.changes},
            edits=offer.edits,
            kept=offer.mend.kept,
            lost=offer.mend.lost,
            schedule=after,
        )

    fixes = tuple(Fixed(code=fix.finding.code, offers=tuple(map(offered, fix.offers))) for fix in found)
    return to_json(msgspec.structs.replace(answer_of(plan, None), fixes=fixes), indent=2).decode()
