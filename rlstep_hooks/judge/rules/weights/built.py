"""A network, or the weights that it begins with, that are not those of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule

if TYPE_CHECKING:
    from rlstep_hooks.record.events import RunStarted

_WORDS = {
    "network": "another network",
    "weights": "other weights to begin with",
    "optimizer": "other settings of the optimizer",
}


class BuiltOtherwise(Rule):
    """The policy's network, its optimizer, or the weights that it begins with are not those that its settings document.

    What it checks:
        Where the framework builds the network from settings: its layers, their sizes and activations, the kind of its distribution,
        and the weights before the first update, which are orthogonal with a documented gain where that is asked for. The weights are
        looked at only where nobody has written to them since they were made. Settings of the optimizer are compared where it is of the
        class that was asked for. Weights and optimizers give a warning, because a script may have put its own there.

    Why it matters:
        Orthogonal weights with a small last layer of the policy are one of the details that PPO's published results depend on. A
        network without them, or with a layer or an activation less, trains without an error and learns worse.

    Example:
        ERROR RLS420 Network not as configured · the whole run
          expected  Linear 64, Tanh, Linear 64, Tanh
          observed  Linear 64, Linear 64 in mlp_extractor.policy_net
          why       the framework documents another network for these settings
          fix       look for code that replaces or patches the policy's network or
                    what builds it

    What to do:
        Look for code that replaces or patches the policy's network or what builds it. A network of your own belongs into a class of
        your own, which is not compared.

    Known limits:
        - It looks at classes of the framework itself, and not at feature extractors.

    Sources:
        - https://stable-baselines3.readthedocs.io/en/master/guide/custom_policy.html: the default network of each algorithm
        - https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/: orthogonal weights among the details of PPO
    """

    code = "RLS420"
    title = "Network not as configured"
    topics = ("weights",)
    optional = True
    nothing_seen = "the framework builds no network from settings, or the policy is a class of somebody's"

    def started(self, event: RunStarted) -> None:
        """Look at what the observer compared before training."""
        built = event.facts.get("built") or {}
        self.checks += int(built.get("compared", 0))
        for of in built.get("otherwise", ()):
            self.fail(
                expected=of["expected"],
                observed=f"{of['observed']} in {of['name']}",
                why=f"the framework documents {_WORDS[of['of']]} for these settings",
                fix="look for code that replaces or patches the policy's network or what builds it",
                severity="error" if of["of"] == "network" else "warning",
                variant=of["name"],
            )
