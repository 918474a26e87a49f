"""The table of what is compared in the runs of each framework: topic x system x deployment x how often.

A system that is observed declares each link from the reward to the weight (`System(links=...)`), and what more is to be said of single
rules (`System(rules=...)`). Everything that says what is compared, and what is not, is made of these declarations: the page of links in
the documentation, `rlstep doctor`, what a report calls not observed, and what the rules' pages list as known limits
(`rlstep_hooks.systems.engine.limits`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from rlstep_hooks.record.cadence import WORDS, Cadence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    "reduction",
    "gradient norm",
    "optimizer step",
    "optimizer moments",
    "learning rate",
    "reference",
    "reference on the way",
    "sampler",
    "weights between updates",
    "replicas",
]

NAMES: tuple[LinkName, ...] = get_args(LinkName)
"""All links, in the order in which they follow each other in training."""

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
    "reduction": ("RLS811", "RLS812"),
    "gradient norm": ("RLS808",),
    "optimizer step": ("RLS806",),
    "optimizer moments": ("RLS807",),
    "learning rate": ("RLS605",),
    "reference": ("RLS411", "RLS414"),
    "reference on the way": ("RLS311",),
    "sampler": ("RLS402", "RLS403", "RLS410", "RLS415", "RLS416", "RLS417", "RLS418", "RLS422"),
    "weights between updates": ("RLS404", "RLS412"),
    "replicas": ("RLS419",),
}
"""Rules that judge a link."""


Deployment = Literal["DDP", "FSDP1", "FSDP2", "ZeRO-0", "ZeRO-1", "ZeRO-2", "ZeRO-3", "offload", "LoRA"]
"""How several processes share a model, or what is changed of one, other than where all is proved (`System.proved_in`)."""


class Link(msgspec.Struct, frozen=True):
    """What is done with one link, or for one rule, in one framework."""

    compared: str = ""
    """What is compared; empty where nothing is."""
    not_compared: str = ""
    """What is not compared, with the reason."""
    exists: bool = True
    """Whether runs of this framework have the link at all."""
    in_every_run: bool = False
    """Whether every run that trains shows it: one in which nothing of it was compared has to say so."""
    often: Cadence = ""
    """The cycles of rollouts in which the link is compared."""
    proved: tuple[Deployment, ...] = ()
    """Deployments in which this project's tests train and compare it, besides the system's own. It holds nowhere else."""


def yes(
    compared: str,
    but: str = "",
    often: Cadence = "",
    proved: tuple[Deployment, ...] = (),
    *,
    in_every_run: bool = False,
) -> Link:
    """A link that is compared, and what of it is not."""
    return Link(compared, but, often=often, proved=proved, in_every_run=in_every_run)


def no(reason: str) -> Link:
    """A link that is not compared, and why."""
    return Link("", reason)


def none(reason: str) -> Link:
    """A link that no run of this framework has, and why."""
    return Link("", reason, exists=False)


AS_SAID = "as the page of the rule says"


def limited(limit: str, often: Cadence = "", proved: tuple[Deployment, ...] = ()) -> Link:
    """A rule that looks at these runs as at any other, but for a limit of its own."""
    return Link(AS_SAID, limit, often=often, proved=proved)


def facts_of(
    links: Mapping[LinkName, Link], rules: Mapping[str, Link], deployment: Iterable[Deployment] = ()
) -> dict[str, dict[str, str]]:
    """What the judge needs to know: rules whose link is not compared, those whose link is not there, each with the reason, those
    whose link is compared but was never proved in the deployment of this run, each with the names of what it was not proved in, and
    those whose link every run shows, each with its name.

    A rule of the first two may find something to compare all the same (an order, a plan). That is no check of the link. Where a rule
    was proved in more deployments than its link, these count too.
    """
    unknown = [(code, link) for name, link in links.items() if not link.compared for code in RULES[name]]
    here = tuple(deployment)
    proved = {
        code: (*link.proved, *(rules[code].proved if code in rules else ()))
        for name, link in links.items()
        if link.compared
        for code in RULES[name]
    }
    unproved = {code: [of for of in here if of not in places] for code, places in proved.items()}
    return {
        "not_compared": {code: link.not_compared for code, link in unknown if link.exists},
        "not_there": {code: link.not_compared for code, link in unknown if not link.exists},
        "not_proved": {code: ", ".join(of) for code, of in unproved.items() if of},
        "in_every_run": {code: name for name, link in links.items() if link.in_every_run for code in RULES[name]},
    }


def in_words(link: Link) -> str:
    """What is said of a link in one line."""
    if not link.compared:
        return f"not compared: {link.not_compared}"
    compared = f"{link.compared} ({WORDS[link.often]})" if link.often else link.compared
    spread = ", ".join(one for one in link.proved if one != "LoRA")
    parts = [compared if link.compared != AS_SAID else WORDS[link.often], link.not_compared]
    parts += [f"proved among several processes too ({spread})"] if spread else []
    parts += ["proved with LoRA too"] if "LoRA" in link.proved else []
    return "; ".join(part for part in parts if part)
