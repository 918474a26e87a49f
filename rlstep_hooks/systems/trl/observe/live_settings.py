"""The settings of a live trainer, beside those that were configured, and read again and again: somebody may rewrite them.

Sizes that a cycle follows are read from the arguments. What the trainer computes with it copies from them when it is built
(`GRPOTrainer.__init__` and `RLOOTrainer.__init__`, 0.16.1 to 1.16.0).
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.trl.launch import CYCLE_SETTINGS
from rlstep_hooks.systems.trl.observe.limits import own_construction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COPIED = {
    "beta": "beta",
    "entropy_coef": "entropy_coef",
    "epsilon_low": "epsilon",
    "epsilon_high": "epsilon_high",
    "importance_sampling_level": "importance_sampling_level",
    "loss_type": "loss_type",
    "mask_truncated_completions": "mask_truncated_completions",
    "max_completion_length": "max_completion_length",
    "multi_objective_aggregation": "multi_objective_aggregation",
    "normalize_advantages": "normalize_advantages",
    "off_policy_mask_threshold": "off_policy_mask_threshold",
    "reward_clip_range": "reward_clip_range",
    "scale_rewards": "scale_rewards",
    "shuffle_dataset": "shuffle_dataset",
    "temperature": "temperature",
    "top_entropy_quantile": "top_entropy_quantile",
    "use_adaptive_entropy": "use_adaptive_entropy",
}
"""What the trainer keeps for itself -> the argument that it is copied from. The settings of sampling are not here: those that are in
force are read where they are used (`sampling`)."""

_OF_ENGINE = (
    "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode",
    "vllm_importance_sampling_cap",
    "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min",
)
"""The same, by one name, of what is computed with where vLLM samples."""

_COUNTED = {"num_generations": "num_generations", "num_iterations": "num_iterations"}
"""The same for passes and groups. They are compared when training begins; after that rules of their own count them."""

_IN_USE = (
    *("max_grad_norm", "delta", "use_bias_correction_kl", "sapo_temperature_pos", "sapo_temperature_neg"),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
    *("entropy_target", "entropy_coef_delta", "entropy_coef_min", "entropy_coef_max"),
)
"""Arguments that each update or loss reads anew."""


class LiveSettings:
    """Tells which settings are not those that were configured, and which changed since they were looked at last."""

    def __init__(self, trainer: Any) -> None:
        of_engine = {name: name for name in _OF_ENGINE if getattr(trainer, "use_vllm", False)}
        self._copied = {
            name: argument
            for name, argument in (_COPIED | _COUNTED | of_engine).items()
            if hasattr(trainer, name) and hasattr(trainer.args, argument) and not own_construction(trainer)
        }
        self._trainer = trainer
        self._of_args = tuple(name for name in (*CYCLE_SETTINGS, *_IN_USE) if hasattr(trainer.args, name))
        # The trainer keeps the group size for itself, and groups rewards by it (GRPOTrainer and RLOOTrainer, all releases).
        # An adaptive entropy bonus moves its own coefficient.
        moves = ("entropy_coef",) if getattr(trainer, "use_adaptive_entropy", False) else ()
        lasting = (name for name in self._copied if name not in (*_COUNTED, *moves))
        self._of_trainer = ("num_generations", *lasting)
        own = [f"trainer.{name}" for name in (*self._of_trainer, "reward_weights")]
        self._names = (*self._of_args, *own, "scaling of the adapters")
        # Each of PEFT's layers multiplies what its adapters give by these numbers (tuners/lora/layer.py 0.14 to 0.21).
        scalings = [getattr(module, "scaling", None) for module in trainer.model.modules()]
        self._scalings = [scaling for scaling in scalings if isinstance(scaling, dict)]
        self._values_of_args, self._values_of_trainer = _reader(self._of_args), _reader(self._of_trainer)
        self._before = self._read()

    def not_as_configured(self) -> Iterator[tuple[str, Any, Any]]:
        """Name, configured value and the trainer's own of each that differs."""
        args = self._trainer.args
        for name, argument in self._copied.items():
            if name == "entropy_coef" and getattr(self._trainer, "use_adaptive_entropy", False):
                continue  # an earlier call of `train` may have moved it
            configured, own = getattr(args, argument), getattr(self._trainer, name)
            if name == "epsilon_high" and configured is None:
                configured = args.epsilon
            if configured != own:
                yield f"trainer.{name}", configured, own
        weights, configured = self._weights(), getattr(args, "reward_weights", None)
        if self._copied and weights is not None:
            expected = tuple(map(float, configured)) if configured is not None else (1.0,) * len(weights)
            if any(abs(one - other) > 1e-6 * abs(other) for one, other in zip(weights, expected, strict=True)):
                yield "trainer.reward_weights", expected, weights

    def changes(self) -> list[tuple[str, Any, Any]]:
        """Name, value before and value now of each that changed since the last call."""
        before, now = self._before, self._read()
        if now == before:
            return []
        self._before = now
        pairs = zip(self._names, _flat(before), _flat(now), strict=True)
        return [change for change in pairs if change[1] != change[2]]

    def _read(self) -> tuple[Any, Any, Any, Any]:
        """The values of the arguments, of the trainer, the weights of rewards, and the different scalings of adapters."""
        trainer = self._trainer
        scalings = tuple(sorted({value for scaling in self._scalings for value in scaling.values()}))
        return (self._values_of_args(trainer.args), self._values_of_trainer(trainer), self._weights(), scalings)

    def _weights(self) -> tuple[float, ...] | None:
        """The weights of the reward functions; None where reading them would wait for the device."""
        weights = getattr(self._trainer, "reward_weights", None)
        if weights is None or not getattr(weights, "is_cpu", False):
            return None
        return tuple(weights.tolist())


def _flat(read: tuple[Any, Any, Any, Any]) -> tuple[Any, ...]:
    return (*read[0], *read[1], *read[2:])


def _reader(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Reads these attributes of an object. Its own dictionary is read where it has them: `getattr` searches all its classes first."""
    read: Callable[[dict[str, Any]], Any] = operator.itemgetter(*names)

    def values(owner: Any) -> tuple[Any, ...]:
        try:
            found = read(vars(owner))
        except KeyError:
            return tuple([getattr(owner, name) for name in names])
        return found if len(names) > 1 else (found,)

    return values
