"""The settings that an optimizer steps with, against verl's configuration of it (workers/config/optimizer.py 0.9.1:298).

They are read once from the configuration when the engine is built, so that whatever changes either of them later shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLLOWED = ("betas", "eps", "weight_decay", "amsgrad", "maximize", "momentum", "nesterov", "dampening")
"""Settings of torch's optimizers that decide where a step goes, besides the rate, which is the scheduler's."""

_PLAIN = (bool, int, float, tuple)


class SettingsInForce:
    """Follows the optimizer of one engine.

    Args:
        engine: verl's, when its optimizer has been built.
        prefix: What stands before the names of its settings.
    """

    def __init__(self, engine: Any, prefix: str) -> None:
        self._engine = engine
        self._prefix = prefix
        config = engine.optimizer_config
        self.limit = float(config.clip_grad or 0.0)
        """Of the norm of the gradients; 0 for none."""
        first = engine.optimizer.param_groups[0]
        expected = {name: _plain(first[name]) for name in _FOLLOWED if isinstance(_plain(first.get(name)), _PLAIN)}
        # `override_optimizer_config` wins over the others.
        configured = {"weight_decay": config.weight_decay, "betas": getattr(config, "betas", None)}
        configured |= dict(getattr(config, "override_optimizer_config", None) or {})
        expected |= {
            name: _plain(value) for name, value in configured.items() if name in expected and value is not None
        }
        self._expected: dict[str, Any] = expected
        self._told: set[str] = set()

    def changes(self) -> Iterator[tuple[str, Any, Any]]:
        """Settings that are not those of the configuration, each once: name, configured value, value in force."""
        for name, before, now in self._read():
            if before != now and name not in self._told:
                self._told.add(name)
                yield f"{self._prefix}.{name}", before, now

    def _read(self) -> Iterator[tuple[str, Any, Any]]:
        yield "clip_grad", self.limit, float(self._engine.optimizer_config.clip_grad or 0.0)
        for group in self._engine.optimizer.param_groups:
            for name, value in self._expected.items():
                yield name, value, _plain(group.get(name))


def _plain(value: Any) -> Any:
    """A setting as it is compared: pairs as tuples of numbers."""
    return tuple(value) if isinstance(value, list | tuple) else value
