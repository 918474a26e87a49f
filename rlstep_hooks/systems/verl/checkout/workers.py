"""How the workers of a checkout cut a rollout: whether they pass over it `ppo_epochs` times, and how mini-batches are scaled.

Also whether a single update of a rollout takes its own log-probs for the old ones.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import Line
from rlstep_hooks.systems.verl.sizes import GROUP, MINIBATCH

if TYPE_CHECKING:
    from rlstep_hooks.launch.checkout import Checkout, Source

_PASSES = re.compile(r"^[ \t]*for \w+ in range\(self\.config\.ppo_epochs\)", re.MULTILINE)
_SCALED = re.compile(
    r"^[ \t]*self\.config\.(?P<actor>actor\.)?ppo_mini_batch_size (?P<operator>\*|//)= (?P<by>[^#\n]+)", re.MULTILINE
)
_MICROBATCH = re.compile(r"^[ \t]*self\.config\.actor\.ppo_micro_batch_size \*= ", re.MULTILINE)
_DIVIDES = (
    # verl 0.1 workers/actor/dp_actor.py, the first line of `update_policy`: deeper lines stand under `use_dynamic_bsz`.
    re.compile(r"^ {8}assert self\.config\.ppo_mini_batch_size % self\.config\.ppo_micro_batch_size\b", re.MULTILINE),
    # Since 0.2 workers/fsdp_workers.py, where a size is given.
    re.compile(
        r"^ +assert self\.config\.actor\.ppo_mini_batch_size % self\.config\.actor\.ppo_micro_batch_size", re.MULTILINE
    ),
)
_DETACHES = re.compile(r"^[ \t]*(?:el)?if on_policy\b", re.MULTILINE)
_GROUPS = ("self.config.rollout.n", "self.config.rollout_n")


class Workers(msgspec.Struct, frozen=True):
    """What was read of the workers."""

    let: dict[str, str]
    """Quantities that they decide, by their names in the declaration."""
    lines: tuple[Line, ...]
    unknown: tuple[Line, ...]
    multiplies_microbatch: bool = False
    """Whether the policy's micro-batch is multiplied by the samples of a prompt, as verl 0.1 does."""
    divides_microbatch: bool = False
    """Whether the policy's micro-batch must divide its mini-batch even where token counts cut it."""


def read_workers(checkout: Checkout) -> Workers | None:
    """What the workers for FSDP say; None where they are not here."""
    source, actor = checkout.source("workers/fsdp_workers.py"), checkout.source("workers/actor/dp_actor.py")
    if source is None or actor is None:
        return None
    scaled = list(_SCALED.finditer(source.text))
    if not any(each["actor"] for each in scaled):
        return Workers({}, (), (Line("nothing scales ppo_mini_batch_size", source.shown),))
    passes = _PASSES.search(actor.text)
    lines = [_line(f"a rollout is passed over {'ppo_epochs times' if passes else 'once'}", actor, passes)]
    unknown = [
        _line(f"mini-batches are multiplied by {each['by'].strip()}", source, each)
        for each in scaled
        if each["operator"] == "*" and each["by"].strip() not in _GROUPS
    ]
    of_policy = [each for each in scaled if each["actor"]]
    of_critic = [each for each in scaled if not each["actor"]]
    let = {
        "reads_epochs": str(passes is not None),
        "detaches_single_update": str(_DETACHES.search(actor.text) is not None),
        "share": _share(of_policy),
        "wanted": f"{MINIBATCH} * {GROUP}" if _multiplies(of_policy) else MINIBATCH,
        "critic_counts_prompts": str(_multiplies(of_critic)),
    }
    by = "multiplied by rollout.n" if _multiplies(of_policy) else "not multiplied"
    lines.append(_line(f"a mini-batch of the policy is {by}", source, of_policy[0]))
    return Workers(
        let,
        tuple(lines),
        tuple(unknown),
        multiplies_microbatch=_MICROBATCH.search(source.text) is not None,
        divides_microbatch=any(pattern.search(text) for pattern in _DIVIDES for text in (actor.text, source.text)),
    )


def _multiplies(scaled: list[re.Match[str]]) -> bool:
    return any(each["operator"] == "*" for each in scaled)


def _share(of_policy: list[re.Match[str]]) -> str:
    """The samples of a mini-batch on one process, as an expression: what is divided first is rounded down first."""
    operators = [each["operator"] for each in of_policy]
    if "*" not in operators:
        return f"floor({MINIBATCH} / world_size)"
    if operators.index("*") > operators.index("//") if "//" in operators else False:
        return f"floor({MINIBATCH} / world_size) * {GROUP}"
    return f"floor({MINIBATCH} * {GROUP} / world_size)"


def _line(says: str, source: Source, found: re.Match[str] | None) -> Line:
    return Line(says, source.at(source.text.count("\n", 0, found.start()) + 1) if found else source.shown)
