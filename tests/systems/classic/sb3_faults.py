"""Faults of Stable-Baselines3 runs, from the reward to the weight: each made on a live model, from its second rollout on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3.common.callbacks import BaseCallback

if TYPE_CHECKING:
    from collections.abc import Callable

UPDATES = 8
"""Updates on each rollout of the common settings: two passes over four mini-batches."""


class FromSecond(BaseCallback):
    """Acts on the model when its second rollout begins, and when it ends."""

    def __init__(self, begins: Callable[[Any], None], ends: Callable[[Any], None]) -> None:
        super().__init__()
        self._acts = begins, ends
        self._rollouts = 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._rollouts += 1
        if self._rollouts == 2:
            self._acts[0](self.model)

    def _on_rollout_end(self) -> None:
        if self._rollouts == 2:
            self._acts[1](self.model)


def nothing(model: Any) -> None:
    """Leave it as it is."""


@dataclass(frozen=True)
class Fault:
    """One mistake, and what must be said of it."""

    name: str
    report: str
    code: str
    cause: str
    """Words of the finding."""
    begins: Callable[[Any], None] = nothing
    ends: Callable[[Any], None] = nothing
    prepare: Callable[[Any], None] = nothing
    """What stands there before training begins, and does nothing yet."""
    update: int | None = UPDATES
    """The first update that is wrong."""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def callback(self) -> FromSecond:
        """Makes the mistake."""
        return FromSecond(self.begins, self.ends)


def _buffer(change: Callable[[Any], None]) -> Callable[[Any], None]:
    """A change of the buffer right after its advantages were computed."""

    def begins(model: Any) -> None:
        computed = model.rollout_buffer.compute_returns_and_advantage

        def compute(*args: Any, **kwargs: Any) -> None:
            computed(*args, **kwargs)
            change(model.rollout_buffer)

        model.rollout_buffer.compute_returns_and_advantage = compute

    return begins


def swapped(model: Any) -> None:
    buffer = model.rollout_buffer
    buffer.gamma, buffer.gae_lambda = buffer.gae_lambda, buffer.gamma


def no_ends(model: Any) -> None:
    computed = model.rollout_buffer.compute_returns_and_advantage

    def compute(*args: Any, **kwargs: Any) -> None:
        starts = model.rollout_buffer.episode_starts.copy()
        model.rollout_buffer.episode_starts[:] = 0
        model.rollout_buffer.episode_starts[1, 0] = 0
        kwargs["dones"] = kwargs["dones"] * 0
        computed(*args, **kwargs)
        model.rollout_buffer.episode_starts[:] = starts

    model.rollout_buffer.compute_returns_and_advantage = compute


def negated(buffer: Any) -> None:
    buffer.advantages = -buffer.advantages


def returns_of_rewards(buffer: Any) -> None:
    buffer.returns = buffer.rewards.copy()


def shuffled(model: Any) -> None:
    model.rollout_buffer.advantages = model.rollout_buffer.advantages[::-1].copy()


def _loss(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    """A change between the loss and its backward."""

    def begins(model: Any) -> None:
        policy, evaluate = model.policy, model.policy.evaluate_actions

        def evaluated(*args: Any, **kwargs: Any) -> Any:
            result = evaluate(*args, **kwargs)
            return change(*result)

        policy.evaluate_actions = evaluated

    return begins


def scaled_gradient(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    return tensor.detach() + factor * (tensor - tensor.detach())


def values_detached(values: Any, log_probs: Any, entropy: Any) -> Any:
    return values.detach(), log_probs, entropy


def entropy_detached(values: Any, log_probs: Any, entropy: Any) -> Any:
    return values, log_probs, entropy.detach()


def all_quarter(values: Any, log_probs: Any, entropy: Any) -> Any:
    return scaled_gradient(values, 0.25), scaled_gradient(log_probs, 0.25), scaled_gradient(entropy, 0.25)


def sign_of_policy(values: Any, log_probs: Any, entropy: Any) -> Any:
    return values, scaled_gradient(log_probs, -1.0), entropy


def step_twice_as_far(model: Any) -> None:
    optimizer = model.policy.optimizer
    kind = type(optimizer)

    def further(self: Any, closure: Any = None) -> Any:
        before = [p.detach().clone() for group in self.param_groups for p in group["params"]]
        result = plain(self, closure)
        with torch.no_grad():
            for p, old in zip((p for group in self.param_groups for p in group["params"]), before, strict=True):
                p.add_(p - old)
        return result

    # Between torch's hooks, where its own step is.
    plain = getattr(kind.step, "__wrapped__", kind.step)
    optimizer.step = torch.optim.Optimizer.profile_hook_step(further).__get__(optimizer)


def moments_cleared(model: Any) -> None:
    optimizer, step = model.policy.optimizer, model.policy.optimizer.step

    def forgetful(*args: Any, **kwargs: Any) -> Any:
        for state in optimizer.state.values():
            state["exp_avg"].zero_()
        return step(*args, **kwargs)

    optimizer.step = forgetful


def not_clipped(model: Any) -> None:
    step = model.policy.optimizer.step

    def larger(*args: Any, **kwargs: Any) -> Any:
        for p in model.policy.parameters():
            if p.grad is not None:
                p.grad.mul_(50)
        return step(*args, **kwargs)

    model.policy.optimizer.step = larger


def clears_until_told(model: Any) -> None:
    optimizer, clears = model.policy.optimizer, model.policy.optimizer.zero_grad
    optimizer.zero_grad = lambda set_to_none=True: None if getattr(model, "keeps_gradients", False) else clears()


def not_cleared(model: Any) -> None:
    model.keeps_gradients = True


def another_rate(model: Any) -> None:
    model._update_learning_rate = lambda optimizers: [
        group.update(lr=1e-3) for group in model.policy.optimizer.param_groups
    ]


def limit_lost(model: Any) -> None:
    model.target_kl = None


def discount_lowered(model: Any) -> None:
    model.gamma = 0.5


def clip_widened(model: Any) -> None:
    model.clip_range = lambda progress: 10.0


FAULTS = [
    Fault("discount_lowered", "a callback that sets gamma", "RLS101", "gamma = 0.5", begins=discount_lowered),
    Fault("clip_widened", "a clip range set anew", "RLS101", "clip_range = ", begins=clip_widened),
    Fault(
        "limit_of_the_divergence_lost",
        "target_kl that ends nothing",
        "RLS213",
        "divergence is above 1.5e-06",
        begins=limit_lost,
        settings={"target_kl": 1e-6, "learning_rate": 3e-3},
        update=2,
    ),
    Fault(
        "gamma_and_lambda_swapped",
        "gae arguments in the wrong order",
        "RLS516",
        "gamma and lambda swapped",
        begins=swapped,
    ),
    Fault("advantages_negated", "a sign lost", "RLS516", "of the opposite sign", begins=_buffer(negated)),
    Fault(
        "ends_of_episodes_ignored", "dones left out of GAE", "RLS516", "go on over the ends of episodes", begins=no_ends
    ),
    Fault(
        "targets_are_rewards",
        "returns not bootstrapped",
        "RLS516",
        "the critic's targets are not",
        begins=_buffer(returns_of_rewards),
    ),
    Fault("advantages_of_other_steps", "a buffer flattened in another order", "RLS517", "other values", ends=shuffled),
    Fault(
        "values_detached",
        "a critic that never learns",
        "RLS801",
        "without the value's term",
        begins=_loss(values_detached),
    ),
    Fault(
        "entropy_detached",
        "an entropy bonus without a gradient",
        "RLS801",
        "without its entropy bonus",
        begins=_loss(entropy_detached),
        settings={"ent_coef": 0.01},
    ),
    Fault("loss_divided", "a loss divided once more", "RLS801", "divided by 4", begins=_loss(all_quarter)),
    Fault(
        "policy_sign_flipped", "descent for ascent", "RLS801", "sign of the policy's term", begins=_loss(sign_of_policy)
    ),
    Fault(
        "step_twice_as_far", "weights written after the step", "RLS806", "2 times the step", begins=step_twice_as_far
    ),
    Fault(
        "moments_cleared",
        "an optimizer made anew at every update",
        "RLS807",
        "others among those",
        begins=moments_cleared,
    ),
    Fault("gradients_enlarged_after_the_clip", "a clip that does not act", "RLS808", "at most 0.5", begins=not_clipped),
    Fault(
        "gradients_not_cleared",
        "zero_grad left out",
        "RLS803",
        "a gradient in",
        begins=not_cleared,
        prepare=clears_until_told,
    ),
    Fault("another_learning_rate", "a callback that sets the rate", "RLS605", "0.001", begins=another_rate),
]
