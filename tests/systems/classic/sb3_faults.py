"""Faults of Stable-Baselines3 runs, from the reward to the weight: each made on a live model, from its second rollout on."""

from __future__ import annotations

import itertools
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
    algorithm: str = "PPO"
    headline: str = ""
    """The rule of the headline, where another one sees the cause itself; empty where it is `code`."""

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


def clear_left_out(model: Any) -> None:
    model.policy.optimizer.zero_grad = lambda *args, **kwargs: None


def acts_without_chance(model: Any) -> None:
    act = model.policy.forward
    model.policy.forward = lambda observations, deterministic=False: act(observations, deterministic=True)


def noise_of_all_environments(model: Any) -> None:
    """All environments explore with one matrix of noise."""
    sample = model.policy.action_dist.sample_weights
    model.policy.action_dist.sample_weights = lambda log_std, batch_size=1: sample(log_std)


def noise_of_before(model: Any) -> None:
    model.policy.action_dist.sample_weights = lambda *args, **kwargs: None


def acts_on_noise(model: Any) -> None:
    distribution = model.policy.action_dist
    distribution.sample = lambda: distribution.get_noise(distribution._latent_sde)


def passes_left_out(model: Any) -> None:
    get, passes = model.rollout_buffer.get, itertools.cycle((True, False))
    model.rollout_buffer.get = lambda *args, **kwargs: get(*args, **kwargs) if next(passes) else iter(())


def limit_lost(model: Any) -> None:
    model.target_kl = None


def discount_lowered(model: Any) -> None:
    model.gamma = 0.5


def clip_widened(model: Any) -> None:
    model.clip_range = lambda progress: 10.0


# Gradients on their way


def tripled_by_a_module(model: Any) -> None:
    model.policy.action_net.register_full_backward_hook(
        lambda module, to_inputs, to_outputs: tuple(None if of is None else 3 * of for of in to_inputs)
    )


def zeroed_by_a_hook(model: Any) -> None:
    model.policy.mlp_extractor.policy_net[0].weight.register_hook(torch.zeros_like)


def _before_step(change: Callable[[torch.Tensor], object]) -> Callable[[Any], None]:
    """A change of all gradients between the clip and the step."""

    def begins(model: Any) -> None:
        step = model.policy.optimizer.step

        def changed(*args: Any, **kwargs: Any) -> Any:
            for p in model.policy.parameters():
                if p.grad is not None:
                    change(p.grad)
            return step(*args, **kwargs)

        model.policy.optimizer.step = changed

    return begins


def cut_by_value(gradient: torch.Tensor) -> None:
    gradient.clamp_(-1e-4, 1e-4)


def made_noisy(gradient: torch.Tensor) -> None:
    gradient.add_(torch.randn_like(gradient), alpha=1e-3)


def another_backward(model: Any) -> None:
    """An auxiliary loss is backpropagated beside that of PPO."""
    policy, evaluate = model.policy, model.policy.optimizer.zero_grad

    def cleared(*args: Any, **kwargs: Any) -> None:
        evaluate(*args, **kwargs)
        sum(p.square().sum() for p in policy.parameters()).mul(1e-3).backward()

    policy.optimizer.zero_grad = cleared


def layer_frozen(model: Any) -> None:
    model.policy.mlp_extractor.policy_net[0].weight.requires_grad_(False)


# Settings, rates and optimizers


def bonus_raised_while_training(model: Any) -> None:
    """The loss adds ten times the entropy bonus that the model has."""
    policy, evaluate = model.policy, model.policy.evaluate_actions

    def evaluated(*args: Any, **kwargs: Any) -> Any:
        values, log_probs, entropy = evaluate(*args, **kwargs)
        return values, log_probs, scaled_gradient(entropy, 10.0)

    policy.evaluate_actions = evaluated


def betas_changed(model: Any) -> None:
    for group in model.policy.optimizer.param_groups:
        group["betas"] = (0.0, 0.999)


def another_function(model: Any) -> None:
    model.lr_schedule = lambda left: 5e-4


def rising(left: float) -> float:
    """A schedule of somebody's, which only computes."""
    return 1e-3 * (2.0 - left)


# Samples and layers


def layer_replaced(model: Any) -> None:
    """The usual way to a head of one's own: after the optimizer was made."""
    old = model.policy.action_net
    model.policy.action_net = torch.nn.Linear(old.in_features, old.out_features)


def targets_scaled(model: Any) -> None:
    model.rollout_buffer.returns = model.rollout_buffer.returns * 0.1


def rewards_cut(model: Any) -> None:
    add = model.rollout_buffer.add

    def added(obs: Any, action: Any, reward: Any, *rest: Any) -> None:
        add(obs, action, reward.clip(-0.5, 0.5), *rest)

    model.rollout_buffer.add = added


def observations_shifted(model: Any) -> None:
    """Each action is trained with the observation of another step."""
    model.rollout_buffer.observations = model.rollout_buffer.observations[::-1].copy()


def _add(change: Callable[[list[Any]], None]) -> Callable[[Any], None]:
    """A change of what the buffer is given: observation, action, reward, whether an episode begins, value, log-prob."""

    def begins(model: Any) -> None:
        add = model.rollout_buffer.add

        def added(*given: Any, **more: Any) -> None:
            of = list(given)
            change(of)
            add(*of, **more)

        model.rollout_buffer.add = added

    return begins


def values_zeroed(of: list[Any]) -> None:
    of[4] = of[4] * 0


def ends_forgotten(of: list[Any]) -> None:
    of[3] = of[3] & False


def late_observations(model: Any) -> None:
    """The buffer gets the observation of the step before: an environment that returns the same array again."""
    before: list[Any] = []

    def change(of: list[Any]) -> None:
        before.append(of[0])
        of[0] = before[-2] if len(before) > 1 else before[-1]

    _add(change)(model)


def actions_moved(model: Any) -> None:
    actions = model.rollout_buffer.actions
    model.rollout_buffer.actions = torch.as_tensor(actions).roll(1, 0).numpy()


def observations_rescaled(model: Any) -> None:
    """A normalisation that the loss has and the rollout has not."""
    evaluate = model.policy.evaluate_actions
    model.policy.evaluate_actions = lambda observations, actions: evaluate(observations * 1.01, actions)


def _get(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """A change of each mini-batch on its way from the buffer to the loop."""

    def begins(model: Any) -> None:
        get = model.rollout_buffer.get

        def changed(*args: Any, **kwargs: Any) -> Any:
            for samples in get(*args, **kwargs):
                yield change(samples)

        model.rollout_buffer.get = changed

    return begins


def one_sample_less(samples: Any) -> Any:
    return type(samples)(*(of if of is None else of[:-1] for of in samples))


def sign_of_advantages(samples: Any) -> Any:
    return samples._replace(advantages=-samples.advantages)


def bonus_below_zero(model: Any) -> None:
    model.ent_coef = -0.01


RMSPROP: dict[str, Any] = {
    "policy_kwargs": {"optimizer_class": torch.optim.RMSprop, "optimizer_kwargs": {"momentum": 0.5}}
}


def mean_squares_cleared(model: Any) -> None:
    optimizer, step = model.policy.optimizer, model.policy.optimizer.step

    def forgetful(*args: Any, **kwargs: Any) -> Any:
        for state in optimizer.state.values():
            state["square_avg"].zero_()
        return step(*args, **kwargs)

    optimizer.step = forgetful


FAULTS = [
    Fault(
        "gradients_tripled_by_a_module",
        "a backward hook of a module",
        "RLS810",
        "a backward hook of action_net",
        begins=tripled_by_a_module,
    ),
    Fault(
        "layer_zeroed_by_a_hook",
        "a layer frozen by a hook",
        "RLS810",
        "0 times as much in mlp_extractor.policy_net.0.weight",
        begins=zeroed_by_a_hook,
    ),
    Fault(
        "gradients_cut_by_value",
        "clip_grad_value_ in the place of clip_grad_norm_",
        "RLS810",
        "times as much in",
        begins=_before_step(cut_by_value),
    ),
    Fault(
        "gradients_made_noisy",
        "noise for exploration in the wrong place",
        "RLS810",
        "times as much in",
        begins=_before_step(made_noisy),
    ),
    Fault(
        "another_backward",
        "an auxiliary loss with a backward of its own",
        "RLS810",
        "2",
        begins=another_backward,
    ),
    Fault(
        "layer_frozen", "requires_grad set in mid-run", "RLS408", "require no gradient any more", begins=layer_frozen
    ),
    Fault(
        "bonus_raised_in_the_loss",
        "an entropy bonus that the model does not have",
        "RLS801",
        "an entropy coefficient of 0.1",
        begins=bonus_raised_while_training,
        settings={"ent_coef": 0.01},
    ),
    Fault("betas_changed", "a callback that sets betas", "RLS101", "betas of the optimizer", begins=betas_changed),
    Fault(
        "another_function_of_the_rate",
        "a schedule set anew",
        "RLS605",
        "a function of the run's own",
        begins=another_function,
        settings={"learning_rate": rising},
    ),
    Fault("layer_replaced", "a head made after the optimizer", "RLS407", "", begins=layer_replaced),
    Fault(
        "values_zeroed",
        "values lost before the buffer",
        "RLS521",
        "other values in 64 of 64",
        begins=_add(values_zeroed),
    ),
    Fault("ends_forgotten", "episodes that flow into each other", "RLS521", "other ends", begins=_add(ends_forgotten)),
    Fault("late_observations", "an array that is used again", "RLS521", "other observations", begins=late_observations),
    Fault("actions_moved", "a buffer whose actions moved", "RLS521", "or actions", ends=actions_moved),
    Fault("observations_rescaled", "a second normalisation", "RLS521", "or actions", begins=observations_rescaled),
    Fault("one_sample_less", "a mini-batch cut on its way", "RLS207", "15 samples", begins=_get(one_sample_less)),
    Fault("sign_of_advantages", "a sign lost on the way", "RLS801", "times that", begins=_get(sign_of_advantages)),
    Fault(
        "bonus_below_zero",
        "a sign of the entropy's coefficient",
        "RLS101",
        "ent_coef = -0.01",
        begins=bonus_below_zero,
        settings={"ent_coef": 0.01},
    ),
    Fault("targets_scaled", "returns scaled by a callback", "RLS517", "the critic's targets", ends=targets_scaled),
    Fault("rewards_cut", "rewards clipped on their way", "RLS515", "other rewards", begins=rewards_cut),
    Fault(
        "observations_of_other_steps",
        "a buffer whose observations moved",
        "RLS301",
        "more than its weights",
        ends=observations_shifted,
        algorithm="A2C",
        update=1,
        headline="RLS521",
    ),
    Fault(
        "rmsprop_steps_twice_as_far",
        "weights written after the step",
        "RLS806",
        "2 times the step",
        begins=step_twice_as_far,
        algorithm="A2C",
        update=1,
    ),
    Fault(
        "mean_squares_cleared",
        "an optimizer made anew at every update",
        "RLS807",
        "others among those",
        begins=mean_squares_cleared,
        settings=RMSPROP,
    ),
    Fault("discount_lowered", "a callback that sets gamma", "RLS101", "gamma = 0.5", begins=discount_lowered),
    Fault("clip_widened", "a clip range set anew", "RLS101", "clip_range = ", begins=clip_widened),
    Fault(
        "acts_without_chance",
        "deterministic=True in a rollout",
        "RLS421",
        "the likeliest ones and nothing else",
        begins=acts_without_chance,
    ),
    Fault("clear_left_out", "zero_grad that is never called", "RLS803", "a gradient in", begins=clear_left_out),
    Fault(
        "passes_left_out",
        "passes that end early where target_kl may end them",
        "RLS214",
        "each mini-batch was trained until they ended",
        begins=passes_left_out,
        settings={"target_kl": 10.0},
        update=UPDATES + UPDATES // 2,
    ),
    Fault(
        "limit_of_the_divergence_lost",
        "target_kl that ends nothing",
        "RLS213",
        "divergence is above 1.5e-06",
        begins=limit_lost,
        settings={"target_kl": 1e-6, "learning_rate": 3e-3},
        update=2,
        headline="RLS101",
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
        "ends_of_episodes_ignored",
        "dones left out of GAE",
        "RLS516",
        "go on over the ends of episodes",
        begins=no_ends,
        headline="RLS521",
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
    Fault(
        "gradients_enlarged_after_the_clip",
        "a clip that does not act",
        "RLS808",
        "at most 0.5",
        begins=not_clipped,
        headline="RLS810",
    ),
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
