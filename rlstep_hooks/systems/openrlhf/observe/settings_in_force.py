"""The settings that a process of OpenRLHF computes with, beside those that it was started with.

Every process has its own copy of the arguments, and its optimizer and its engine have theirs. Nothing changes them while training goes
on, with one exception of OpenRLHF's own (`_OWN_CHANGES`). Verified with 0.11.2 on DeepSpeed 0.19.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FOLLOWED = ("actor", "algo", "critic", "data", "ref", "reward", "rollout", "train")
"""Parts of the arguments that training depends on."""

_OWN_CHANGES = ("algo.advantage.gamma",)
"""experience_maker.py:312 writes the gamma that estimators without a discount compute with."""

_PLAIN = (bool, int, float, str, type(None))

Change = tuple[str, Any, Any]
"""Name, value before, value now."""


def settings_of(args: Any) -> dict[str, Any]:
    """The plain values among the arguments that training depends on, by their full name."""
    return {
        name: value
        for part in FOLLOWED
        for name, value in _flat(part, getattr(args, part, None))
        if name not in _OWN_CHANGES
    }


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _PLAIN):
        yield name, value
    elif isinstance(value, list | tuple):
        yield name, tuple(value)
    else:
        for key, inner in getattr(value, "__dict__", {}).items():
            yield from _flat(f"{name}.{key}", inner)


class SettingsInForce:
    """Follows some settings from the moment at which they were right.

    Args:
        read: Reads them as they are.
        right: As they must be at first; None where they are right as they are.
    """

    def __init__(self, read: Callable[[], dict[str, Any]], right: Mapping[str, Any] | None = None) -> None:
        self._read = read
        self._right = dict(read() if right is None else right)
        self._before = self._right

    def changes(self) -> list[Change]:
        """Settings that changed since the last call to a value that is not right: name, right value, value now."""
        right, before, now = self._right, self._before, self._read()
        if now == before:
            return []
        self._before = now
        return [
            (name, right[name], value)
            for name, value in now.items()
            if name in right and value not in (right[name], before.get(name))
        ]


def of_optimizer(engine: Any, settings: Any) -> SettingsInForce | None:
    """Those of a DeepSpeed engine and its optimizer, by the arguments of their role; None where they are not Adam's.

    DeepSpeed decays the weights of one of two groups, and a group without trained weights is left out (deepspeed_utils.py:121).
    """
    if settings.optim != "adam":
        return None
    adam = settings.adam
    right = {
        "betas": tuple(map(float, adam.betas)),
        "eps": float(adam.eps),
        "weight_decay": float(adam.weight_decay),
        "max_norm": float(settings.max_norm),
    }

    def read() -> dict[str, Any]:
        groups = engine.basic_optimizer.param_groups
        now = dict(right)
        for group in groups:
            for name, value in (("betas", tuple(map(float, group["betas"]))), ("eps", float(group["eps"]))):
                now[name] = value if value != right[name] else now[name]
            if group["weight_decay"] not in (0.0, right["weight_decay"]):
                now["weight_decay"] = float(group["weight_decay"])
        limit = getattr(engine.optimizer, "clip_grad", None)
        return now if limit is None else now | {"max_norm": float(limit)}

    return SettingsInForce(read, right)
