"""The links from the reward to the weight: of each framework, what is compared with its documentation, and what is not and why.

A system that is observed declares each link (`System(links=...)`). The page of links in the documentation and `rlstep doctor` are made
of these declarations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

LinkName = Literal[
    "settings in force",
    "completions",
    "completions on the way",
    "rewards on the way",
    "advantages",
    "advantages on the way",
    "mask",
    "mask on the way",
    "loss",
    "backward",
    "gradients cleared",
    "gradients on the way",
    "gradient norm",
    "optimizer step",
    "optimizer moments",
    "learning rate",
    "reference",
    "reference on the way",
    "sampler",
    "weights between updates",
]

NAMES: tuple[LinkName, ...] = get_args(LinkName)
"""In the order in which they follow each other."""

RULES: dict[LinkName, tuple[str, ...]] = {
    "settings in force": ("RLS101",),
    "completions": ("RLS313", "RLS413", "RLS519"),
    "completions on the way": ("RLS306", "RLS521"),
    "rewards on the way": ("RLS515",),
    "advantages": ("RLS516",),
    "advantages on the way": ("RLS517",),
    "mask": ("RLS518",),
    "mask on the way": ("RLS804",),
    "loss": ("RLS801", "RLS802"),
    "backward": ("RLS805",),
    "gradients cleared": ("RLS803",),
    "gradients on the way": ("RLS810",),
    "gradient norm": ("RLS808",),
    "optimizer step": ("RLS806",),
    "optimizer moments": ("RLS807",),
    "learning rate": ("RLS605",),
    "reference": ("RLS411", "RLS414"),
    "reference on the way": ("RLS311",),
    "sampler": ("RLS402", "RLS403", "RLS410", "RLS415", "RLS416", "RLS417", "RLS418"),
    "weights between updates": ("RLS404", "RLS412"),
}
"""Rules that judge a link."""


class Link(msgspec.Struct, frozen=True):
    """What is done with one link in one framework."""

    compared: str = ""
    """What is compared; empty where nothing is."""
    not_compared: str = ""
    """What is not, with the reason."""
    exists: bool = True
    """Whether runs of this framework have the link at all."""


def yes(compared: str, but: str = "") -> Link:
    """A link that is compared, and what of it is not."""
    return Link(compared, but)


def no(reason: str) -> Link:
    """A link that is not compared, and why."""
    return Link("", reason)


def none(reason: str) -> Link:
    """A link that no run of this framework has, and why."""
    return Link("", reason, exists=False)


def facts_of(links: Mapping[LinkName, Link]) -> dict[str, dict[str, str]]:
    """What the judge needs to know: rules whose link is not compared, and those whose link is not there, each with the reason.

    Such a rule may find something to compare all the same (an order, a plan). That is no check of the link.
    """
    unknown = [(code, link) for name, link in links.items() if not link.compared for code in RULES[name]]
    return {
        "not_compared": {code: link.not_compared for code, link in unknown if link.exists},
        "not_there": {code: link.not_compared for code, link in unknown if not link.exists},
    }


def in_words(link: Link) -> str:
    """What is said of a link in one line."""
    if not link.compared:
        return f"not compared: {link.not_compared}"
    return f"{link.compared}; {link.not_compared}" if link.not_compared else link.compared
