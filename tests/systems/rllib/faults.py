"""Faults of RLlib runs, each a small patch of the framework's own code, and what must be said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.learner import GeneralAdvantageEstimation
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.utils.minibatch_utils import MiniBatchCyclicIterator
from ray.rllib.utils.schedules.scheduler import Scheduler

from tests.systems.whole_trainers import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def _loss_with(**changed: Any) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """The loss is computed with other settings than configured."""

    def breaks(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
        right = PPOTorchLearner.compute_loss_for_module

        def wrong(self: Any, *, config: Any, **given: Any) -> Any:
            other = config.copy(copy_frozen=False)
            for name, value in changed.items():
                setattr(other, name, value)
            return right(self, config=other, **given)

        patch.setattr(PPOTorchLearner, "compute_loss_for_module", wrong)

    return breaks


def _connector(algorithm: Any) -> Any:
    pipeline = algorithm.learner_group._learner._learner_connector
    return next(piece for piece in pipeline.connectors if isinstance(piece, GeneralAdvantageEstimation))


def _gae_with(**changed: float) -> Callable[[Any, pytest.MonkeyPatch], None]:
    def breaks(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
        for name, value in changed.items():
            setattr(_connector(algorithm), name, value)

    return breaks


def _advantages(changed: Callable[[Any, Any], Any]) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """The connector gives other advantages."""

    def breaks(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
        right = GeneralAdvantageEstimation.__call__

        def wrong(self: Any, *, rl_module: Any, **given: Any) -> Any:
            made = right(self, rl_module=rl_module, **given)
            rows = made["default_policy"]
            rows["advantages"] = changed(rows, rl_module["default_policy"])
            return made

        patch.setattr(GeneralAdvantageEstimation, "__call__", wrong)

    return breaks


def _not_standardised(rows: Any, module: Any) -> Any:
    with torch.no_grad():
        return rows["value_targets"] - module.compute_values(rows)


def _with_update(change: Callable[[dict[str, Any]], None]) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """The learner is told something else than the configuration says."""

    def breaks(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
        right = PPOTorchLearner.update

        def wrong(self: Any, *args: Any, **given: Any) -> Any:
            change(given)
            return right(self, *args, **given)

        patch.setattr(PPOTorchLearner, "update", wrong)

    return breaks


def _rate_doubled(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
    (group,) = algorithm.learner_group._learner.get_optimizer("default_policy").param_groups
    group["lr"] *= 2


def _rate_schedule_stands(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "update", lambda self, timestep: float(self.get_current_value()))


def _clip_ignored(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TorchLearner, "_get_clip_function", staticmethod(lambda: lambda gradients, **given: torch.zeros(())))


def _sign_of_entropy(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
    right = Scheduler.get_current_value
    patch.setattr(Scheduler, "get_current_value", lambda self: -right(self))


def _not_synced(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EnvRunnerGroup, "sync_weights", lambda self, *args, **given: None)


def _weights_not_taken(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
    """The runner notes the number of the weights, and keeps its own."""
    right = SingleAgentEnvRunner.set_state

    def wrong(self: Any, state: Any) -> None:
        kept = {name: of.clone() for name, of in self.module.state_dict().items()}
        right(self, state)
        self.module.load_state_dict(kept)

    patch.setattr(SingleAgentEnvRunner, "set_state", wrong)


def _every_third_step_skipped(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
    right, calls = TorchLearner.apply_gradients, iter(range(10**6))

    def wrong(self: Any, gradients: Any) -> None:
        if next(calls) % 3 != 2:
            right(self, gradients)

    patch.setattr(TorchLearner, "apply_gradients", wrong)


def _losses_doubled(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
    right = TorchLearner.compute_losses
    patch.setattr(
        TorchLearner,
        "compute_losses",
        lambda self, **given: {name: 2 * of for name, of in right(self, **given).items()},
    )


def _never_cleared(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
    optimizer = algorithm.learner_group._learner.get_optimizer("default_policy")
    patch.setattr(type(optimizer), "zero_grad", lambda self, set_to_none=True: None)


def _gradient_altered(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
    right = TorchLearner.postprocess_gradients

    def wrong(self: Any, gradients: Any) -> Any:
        first = next(iter(gradients.values()))
        first.mul_(3)
        return right(self, gradients)

    patch.setattr(TorchLearner, "postprocess_gradients", wrong)


def _rows_mixed(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
    """A shuffle that leaves the advantages where they are."""
    right = SampleBatch.shuffle

    def wrong(self: Any) -> Any:
        kept = self["advantages"]
        right(self)
        self["advantages"] = kept
        return self

    patch.setattr(SampleBatch, "shuffle", wrong)


def _rows_repeated(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
    """Mini-batches that begin at the first row again and again."""
    right = MiniBatchCyclicIterator.__iter__

    def wrong(self: Any) -> Any:
        for minibatch in right(self):
            yield minibatch
            self._start = dict.fromkeys(self._start, 0) if self._minibatch_count == 1 else self._start

    patch.setattr(MiniBatchCyclicIterator, "__iter__", wrong)


def _half_of_gradient(of: Any) -> Any:
    """The same numbers, with half of the gradient."""
    return of.detach() + 0.5 * (of - of.detach())


def _outputs_with(
    logits: Callable[[Any], Any] = lambda of: of, values: Callable[[Any], Any] = lambda of: of
) -> Callable[[Any, pytest.MonkeyPatch], None]:
    """The loss is computed from the right numbers, which have lost a gradient."""

    def breaks(algorithm: Any, patch: pytest.MonkeyPatch) -> None:
        loss, valued = PPOTorchLearner.compute_loss_for_module, DefaultPPOTorchRLModule.compute_values

        def computed(self: Any, *, fwd_out: dict[str, Any], **given: Any) -> Any:
            name = "action_dist_inputs"
            changed = type(fwd_out)(fwd_out) | {name: logits(fwd_out[name])}
            return loss(self, fwd_out=changed, **given)

        patch.setattr(PPOTorchLearner, "compute_loss_for_module", computed)
        patch.setattr(DefaultPPOTorchRLModule, "compute_values", lambda *args, **named: values(valued(*args, **named)))

    return breaks


SMALL_CLIP = {"clip_param": 0.02}
FAULTS = (
    Fault("the clip is ignored", _loss_with(clip_param=1e9), "RLS801", "without a clip", SMALL_CLIP),
    Fault(
        "the value's coefficient is doubled", _loss_with(vf_loss_coeff=2.0), "RLS801", "value's term 2 times as large"
    ),
    Fault(
        "squared errors are not clipped",
        _loss_with(vf_clip_param=1e9),
        "RLS801",
        "without a clip of the squared errors",
        {"vf_clip_param": 1.0},
    ),
    Fault("no KL term", _loss_with(use_kl_loss=False), "RLS801", "without its KL term", {"kl_coeff": 3.0}),
    Fault("the sign of the entropy bonus", _sign_of_entropy, "RLS801", "sign of the entropy bonus flipped"),
    Fault("another gamma", _gae_with(gamma=0.5), "RLS516"),
    Fault("lambda 1 instead of 0.9", _gae_with(lambda_=1.0), "RLS516", "lambda = 1", {"lambda_": 0.9}),
    Fault("advantages are not standardised", _advantages(_not_standardised), "RLS516", "not normalised"),
    Fault("advantages of the opposite sign", _advantages(lambda rows, module: -rows["advantages"]), "RLS516"),
    Fault("the rate is doubled", _rate_doubled, "RLS605"),
    Fault(
        "the rate's schedule stands still",
        _rate_schedule_stands,
        "RLS605",
        "",
        {"lr": [[0, 3e-3], [200, 1e-4]]},
        first=1,
    ),
    Fault("the norm is not clipped", _clip_ignored, "RLS808", "", {"grad_clip": 0.05}),
    Fault("one pass less", _with_update(lambda given: given.update(num_epochs=2)), "RLS204"),
    Fault("one pass more", _with_update(lambda given: given.update(num_epochs=4)), "RLS202"),
    Fault("smaller mini-batches", _with_update(lambda given: given.update(minibatch_size=16)), "RLS207"),
    Fault("weights are not synced", _not_synced, "RLS402", "", {"runners": 1}, first=1),
    Fault("the runner keeps its weights", _weights_not_taken, "RLS301", "", {"rollouts": 4}, first=1),
    Fault("every third step is skipped", _every_third_step_skipped, "RLS204"),
    Fault("the loss is doubled on its way", _losses_doubled, "RLS805"),
    Fault("the values are detached", _outputs_with(values=lambda of: of.detach()), "RLS805", "detach"),
    Fault("half of the logits' gradient", _outputs_with(logits=_half_of_gradient), "RLS805", "the loss has its value"),
    Fault("gradients are never cleared", _never_cleared, "RLS803"),
    Fault("one gradient is tripled", _gradient_altered, "RLS810"),
    Fault("advantages of other rows", _rows_mixed, "RLS517"),
    Fault("rows are repeated", _rows_repeated, "RLS502"),
)
