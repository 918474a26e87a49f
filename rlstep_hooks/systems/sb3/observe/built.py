"""The network of a policy, its optimizer, and the weights that it begins with, compared with what its settings document.

Sources: Stable-Baselines3 2.7.0 and 2.9.2, common/policies.py `ActorCriticPolicy.__init__`, `_build` and `init_weights`;
common/torch_layers.py `MlpExtractor`; common/distributions.py `make_proba_distribution`; guide/custom_policy.html.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from stable_baselines3.common.policies import (
    ActorCriticCnnPolicy,
    ActorCriticPolicy,
    MultiInputActorCriticPolicy,
)
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_LAYERS = [64, 64]
GAINS = {"mlp_extractor": math.sqrt(2), "action_net": 0.01, "value_net": 1.0}
"""The gain of the orthogonal weights of each part."""
OPTIMIZER = (
    "betas",
    "eps",
    "weight_decay",
    "amsgrad",
    "alpha",
    "momentum",
    "centered",
    "dampening",
    "nesterov",
    "maximize",
)
"""Settings of an optimizer that change its steps, besides the learning rate."""
HALF = 0.5
"""A log_std at which the two documented deviations of gSDE differ."""
TOLERANCE = 1e-4
"""The largest error of a product of two rows, relative to the squared gain: a QR decomposition in float32 leaves some 1e-6."""

Part = Literal["network", "weights", "optimizer"]


@dataclass
class Comparison:
    """What was compared, and what differs."""

    compared: int = 0
    otherwise: list[dict[str, str]] = field(default_factory=list)

    def see(self, name: str, expected: str, observed: str, *, of: Part = "network") -> None:
        """Compare one part with what it should be."""
        self.compared += 1
        if expected != observed:
            self.otherwise.append({"name": name, "expected": expected, "observed": observed, "of": of})


def facts_of(model: Any) -> dict[str, Any]:
    """What differs, as a fact of the run; nothing where the policy is of another class.

    Args:
        model: A model of a class that is followed, before its first update.
    """
    policy = model.policy
    if type(policy) not in (ActorCriticPolicy, ActorCriticCnnPolicy, MultiInputActorCriticPolicy):
        return {}
    settings, found = dict(model.policy_kwargs or {}), Comparison()
    _compare_layers(policy, settings, found)
    _compare_distribution(policy, settings, found, use_sde=bool(model.use_sde))
    _compare_optimizer(policy.optimizer, settings, found)
    if model.num_timesteps == 0:
        _compare_weights(policy, settings, found)
    return {"built": {"compared": found.compared, "otherwise": found.otherwise}}


def _compare_layers(policy: Any, settings: dict[str, Any], found: Comparison) -> None:
    activation = settings.get("activation_fn", nn.Tanh)
    if not isinstance(activation, type):
        return  # a function of the user's makes it
    for part, name in (("pi", "policy_net"), ("vf", "value_net")):
        expected = [word for size in _sizes(policy, settings, part) for word in (f"Linear {size}", activation.__name__)]
        layers = getattr(policy.mlp_extractor, name)
        observed = [f"Linear {of.out_features}" if isinstance(of, nn.Linear) else type(of).__name__ for of in layers]
        found.see(f"mlp_extractor.{name}", ", ".join(expected) or "no layer", ", ".join(observed) or "no layer")


def _sizes(policy: Any, settings: dict[str, Any], part: str) -> list[int]:
    architecture = settings.get("net_arch")
    if isinstance(architecture, list) and architecture and isinstance(architecture[0], dict):
        architecture = architecture[0]
    if architecture is None:
        convolutions = NatureCNN if isinstance(policy, ActorCriticCnnPolicy) else None
        architecture = [] if settings.get("features_extractor_class", convolutions) is NatureCNN else DEFAULT_LAYERS
    return list(architecture.get(part, []) if isinstance(architecture, dict) else architecture)


def _compare_distribution(policy: Any, settings: dict[str, Any], found: Comparison, *, use_sde: bool) -> None:
    if not use_sde:
        return
    squashed = bool(settings.get("squash_output", False))
    found.see("the distribution's squash_output", str(squashed), str(policy.action_dist.bijector is not None))
    found.see("the distribution's learn_features", "False", str(bool(policy.action_dist.learn_features)))
    # arxiv.org/abs/2005.05719: the deviation is exp(x), and with use_expln log(1 + x) + 1 where x is above 0.
    wanted = math.log1p(HALF) + 1 if settings.get("use_expln", False) else math.exp(HALF)
    deviation = float(policy.action_dist.get_std(torch.full_like(policy.log_std.detach(), HALF)).flatten()[0])
    found.see("the distribution's deviation where log_std is 0.5", f"{wanted:.3f}", f"{deviation:.3f}")


def _compare_optimizer(optimizer: Any, settings: dict[str, Any], found: Comparison) -> None:
    """Compare the optimizer's settings, where it is of the class that was asked for: a script may have put another in its place."""
    kind = settings.get("optimizer_class", torch.optim.Adam)
    if type(optimizer) is not kind or not kind.__module__.startswith("torch."):
        return
    given = settings.get("optimizer_kwargs")
    if given is None:
        given = {"eps": 1e-5} if kind is torch.optim.Adam else {}
    defaults = {name: of.default for name, of in inspect.signature(kind).parameters.items()} | given
    group = optimizer.param_groups[0]
    for name in OPTIMIZER:
        if name in defaults and name in group:
            found.see(f"the optimizer's {name}", repr(defaults[name]), repr(group[name]), of="optimizer")


def _compare_weights(policy: Any, settings: dict[str, Any], found: Comparison) -> None:
    """The weights of layers, where nobody has written to them since they were made. A write less than usual was left out."""
    untouched = _versions_when_made()
    spread = getattr(policy, "log_std", None)
    if spread is not None and spread._version == 0:
        wanted = float(settings.get("log_std_init", 0.0))
        found.see("log_std", f"{wanted:g} everywhere", _everywhere(spread, wanted), of="weights")
    if not settings.get("ortho_init", True):
        return
    for part, gain in GAINS.items():
        for name, layer in _linear(getattr(policy, part), part):
            if layer.weight._version <= untouched[0] and layer.bias._version <= untouched[1]:
                found.see(name, *_orthogonal(layer, gain), of="weights")


def _versions_when_made() -> tuple[int, int]:
    """How often a layer's weight and bias have been written to when the policy has been built: torch counts it."""
    with torch.random.fork_rng(devices=[]):
        layer = nn.Linear(2, 2)
        nn.init.orthogonal_(layer.weight)
        layer.bias.data.fill_(0.0)
    return layer.weight._version, layer.bias._version


def _everywhere(tensor: torch.Tensor, wanted: float) -> str:
    same = bool((tensor.detach() == torch.tensor(wanted, dtype=tensor.dtype)).all())
    return f"{wanted:g} everywhere" if same else f"{float(tensor.detach().flatten()[0]):g}"


def _linear(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Linear]]:
    for within, layer in module.named_modules():
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            yield f"{name}.{within}" if within else name, layer


def _orthogonal(layer: nn.Linear, gain: float) -> tuple[str, str]:
    """What is expected of a layer, and what it is."""
    expected = f"orthogonal weights with a gain of {gain:.4g}, and biases of 0"
    weight = layer.weight.detach().double()
    rows = weight if weight.shape[0] <= weight.shape[1] else weight.T
    products = rows @ rows.T
    square = float(products.diagonal().mean())
    off = float(
        (products - square * torch.eye(len(products), dtype=products.dtype, device=products.device)).abs().max()
    )
    if off > TOLERANCE * max(square, gain**2):
        return expected, "weights that are not orthogonal"
    if abs(square - gain**2) > TOLERANCE * gain**2:
        return expected, f"orthogonal weights with a gain of {math.sqrt(max(square, 0.0)):.4g}"
    if bool(layer.bias.detach().count_nonzero()):
        return expected, "biases other than 0"
    return expected, expected
