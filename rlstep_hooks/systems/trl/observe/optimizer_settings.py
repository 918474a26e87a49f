"""The settings of the optimizer's groups, beside those that transformers builds it with, and those that they had at first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLLOWED = (
    "amsgrad", "alpha", "betas", "centered", "dampening", "eps", "maximize", "momentum", "nesterov", "weight_decay",
)  # fmt: skip
"""Settings of torch's optimizers that decide where a step goes, besides the rate, which is the scheduler's."""
_CYCLED = ("betas", "momentum")
"""Those that some schedulers change at every tick (`cycle_momentum`)."""
NEVER_SCHEDULED = ("optimizer.lr", "optimizer.maximize")
"""Beginnings of names of those that nobody changes on purpose while training goes on: the ratio of two rates, and the direction."""
_PLAIN = (bool, int, float, tuple, type(None))

Change = tuple[str, Any, Any]
"""Name, value before, value now."""


class OptimizerSettings:
    """Follows the settings of one optimizer.

    Args:
        trainer: A trainer of transformers.
        optimizer: The torch optimizer inside its own.
    """

    def __init__(self, trainer: Any, optimizer: Any) -> None:
        self._trainer = trainer
        self._optimizer = optimizer
        cycles = getattr(trainer.lr_scheduler, "cycle_momentum", None)
        self._names = tuple(name for name in _FOLLOWED if cycles is None or name not in _CYCLED)
        self._before = self._read()

    def not_as_configured(self) -> Iterator[Change]:
        """Those that differ from what transformers builds the optimizer with; none where somebody else built it."""
        args, groups = self._trainer.args, self._optimizer.param_groups
        # A static method from 4.51 to 5.23; `create_optimizer` calls it.
        kind, given = type(self._trainer).get_optimizer_cls_and_kwargs(args)
        made = self._optimizer.defaults
        own = type(self._optimizer) is kind and all(made.get(name) == value for name, value in given.items())
        if not own or not self._grouped_by_decay():
            return
        for place, group in enumerate(groups):
            if not group["params"]:
                continue
            expected = {name: made[name] for name in self._names if isinstance(made.get(name), _PLAIN) and name in made}
            expected |= {"weight_decay": 0.0 if place else args.weight_decay, "initial_lr": args.learning_rate}
            expected["lr"] = groups[0]["lr"]
            for name, value in expected.items():
                if name in group and group[name] != value:
                    yield f"optimizer.{name} of group {place}", value, group[name]

    def _grouped_by_decay(self) -> bool:
        """Whether the groups are the two of `Trainer.create_optimizer`: with decay, and without."""
        groups, model = self._optimizer.param_groups, self._trainer.model
        if len(groups) != 2:
            return False
        decays = set(self._trainer.get_decay_parameter_names(model))
        wanted: list[set[int]] = [set(), set()]
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                wanted[0 if name in decays else 1].add(id(parameter))
        return all({id(p) for p in group["params"]} == ids for group, ids in zip(groups, wanted, strict=True))

    def changes(self) -> list[Change]:
        """Those that changed since the last call, and rates that no longer stand to each other as at first."""
        before, now = self._before, self._read()
        if now == before:
            return []
        self._before = now
        return [(name, before[name], value) for name, value in now.items() if name in before and before[name] != value]

    def _read(self) -> dict[str, Any]:
        groups = self._optimizer.param_groups
        read = {
            f"optimizer.{name} of group {place}": group[name]
            for place, group in enumerate(groups)
            for name in self._names
            if name in group and isinstance(group[name], _PLAIN)
        }
        first = groups[0]
        for place, group in enumerate(groups[1:], 1):
            own, of_first = group["lr"], first["lr"]
            if isinstance(own, float) and isinstance(of_first, float) and of_first and self._one_schedule():
                read[f"optimizer.lr of group {place} over that of group 0"] = float(f"{own / of_first:.4g}")
        return read

    def _one_schedule(self) -> bool:
        """Whether all groups follow one function of the ticks, so that their rates keep their ratio."""
        functions = list(getattr(self._trainer.lr_scheduler, "lr_lambdas", None) or [])
        return bool(functions) and all(function is functions[0] for function in functions)
