"""The fault corpus of OpenRLHF: mistakes out of real reports, each made in a real run at one rollout.

Every process of a launch imports this module (`RLSTEP_TEST_MODULE`), and the environment says which faults to make and when:
`RLSTEP_TEST_FAULTS=sync_left_out@1,micro_batch_dropped@3` (rollouts count from 0). Several fit into one run: after each the judge
goes on at the next rollout. The wrappers stand below the audit's own, because they are registered before Ray calls its setup hook.

Classes that Ray sends by reference are touched in every process. What the actors' classes inherit (the controller's loop) is touched
in workers only: the driver sends a method by the name under which its own module still holds it, and by value where that has
changed, so that what workers put in its place would never be called.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import wrapt

FAULTS_VARIABLE = "RLSTEP_TEST_FAULTS"
MODULE = __name__

WORKER = "RAY_RAYLET_PID"
"""In the environment of Ray's workers, and not of the driver."""

CONTROLLER = "openrlhf.trainer.ppo_trainer"
POLICY = "openrlhf.trainer.ray.ppo_actor"
CRITIC = "openrlhf.trainer.ray.ppo_critic"
GENERATOR = "openrlhf.trainer.ppo_utils.samples_generator"
MAKER = "openrlhf.trainer.ppo_utils.experience_maker"
LAUNCHER = "openrlhf.trainer.ray.launcher"
BUFFER = "openrlhf.trainer.ppo_utils.replay_buffer"
STRATEGY = "openrlhf.utils.deepspeed.deepspeed"
MODELS = "openrlhf.models.actor"
ENGINE = "openrlhf.trainer.ray.vllm_worker_wrap"

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True)
class Fault:
    """One mistake, and where it must be found."""

    name: str
    report: str
    """The report it reproduces, as in its own tracker."""
    code: str
    """The rule that names it."""
    apply: Callable[[int], None]
    """Makes it at a rollout; called once in each process."""
    shows_after: int
    """Rollouts from the fault to its first wrong event."""


FAULTS: dict[str, Fault] = {}


def fault(*, report: str, code: str, shows_after: int = 0) -> Callable[[Callable[[int], None]], Any]:
    """Register a function as a fault under its own name."""

    def register(apply: Callable[[int], None]) -> Callable[[int], None]:
        FAULTS[apply.__name__] = Fault(apply.__name__, report, code, apply, shows_after)
        return apply

    return register


def wrap(module: str, name: str, wrapper: Wrapper) -> None:
    """Wrap a method of a class once its module is imported."""
    wrapt.when_imported(module)(lambda found: wrapt.wrap_function_wrapper(found, name, wrapper))


def at_call(module: str, name: str, number: int, act: Wrapper) -> None:
    """Act in place of one call of a method, counted from 0 in each process."""
    calls = itertools.count()

    def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return act(wrapped, instance, args, kwargs) if next(calls) == number else wrapped(*args, **kwargs)

    wrap(module, name, wrapper)


class _Now:
    """How far this trainer is: the phase of training that goes on, counted from 0; before the first, -1."""

    training = -1
    inside = False
    policy = False
    """Whether this is the policy's process."""


def follow_training() -> None:
    """Count the phases of training of policy or critic, one for each rollout where nothing is frozen."""

    def count(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        _Now.training += 1
        _Now.policy = type(trainer).__name__ == "ActorPPOTrainer"
        _Now.inside = True
        try:
            return wrapped(*args, **kwargs)
        finally:
            _Now.inside = False

    wrap(POLICY, "ActorPPOTrainer.ppo_train", count)
    wrap(CRITIC, "CriticPPOTrainer.ppo_train", count)


def before_the_loop(act: Callable[[Any], None]) -> None:
    """Act on the controller's trainer once the audit is attached to it and before its first rollout."""

    def put(module: Any) -> None:
        original = module.BasePPOTrainer.restore_best_checkpoint_state

        @wraps(original)
        def restore(trainer: Any, *args: Any, **kwargs: Any) -> None:
            original(trainer, *args, **kwargs)
            act(trainer)

        module.BasePPOTrainer.restore_best_checkpoint_state = restore

    if WORKER in os.environ:
        wrapt.when_imported(CONTROLLER)(put)


# Rollouts


@fault(report="OpenRLHF#1297", code="RLS204")
def last_rollout_of_a_pass_discarded(at: int) -> None:
    """The loop looks at whether the rows are used up before it looks at the samples that came with the last of them."""
    discard(at)


@fault(report="OpenRLHF#1297", code="RLS206")
def last_rollout_discarded(at: int) -> None:
    """The same at the end of training."""
    discard(at)


def discard(at: int) -> None:
    """Give the loop of releases before 0.11 what it made of a rollout that came with the last rows: nothing."""
    rollouts = itertools.count()

    def put(trainer: Any) -> None:
        generator = trainer.samples_generator
        generate = generator.generate_samples

        def generate_samples(*args: Any, **kwargs: Any) -> Any:
            samples, rate, prompts, exhausted = generate(*args, **kwargs)
            last = next(rollouts) == at and exhausted
            return [] if last else samples, rate, prompts, exhausted

        generator.generate_samples = generate_samples

    before_the_loop(put)


# Weight syncs


@fault(report="rllm#291", code="RLS405", shows_after=1)
def sync_left_out(at: int) -> None:
    """The broadcast does nothing."""
    at_call(POLICY, "ActorPPOTrainer.broadcast_to_vllm", at, lambda wrapped, trainer, args, kwargs: None)


@fault(report="trl#5312", code="RLS402", shows_after=1)
def engine_keeps_old_weights(at: int) -> None:
    """Every tensor of a sync arrives, and the engine loads none of them."""
    syncs = itertools.count()
    now = [next(syncs)]

    def update_weight(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        model, here = worker.model_runner.model, now[0] == at
        if args[3]:
            now[0] = next(syncs)
        if not here:
            return wrapped(*args, **kwargs)
        load, model.load_weights = model.load_weights, lambda weights: None
        try:
            return wrapped(*args, **kwargs)
        finally:
            model.load_weights = load

    wrap(ENGINE, "WorkerWrap.update_weight", update_weight)


@fault(report="OpenRLHF, a sync that leaves out a tensor", code="RLS402", shows_after=1)
def sync_without_a_layer(at: int) -> None:
    """One matrix is never sent: trainer and engine agree on every tensor that is."""

    def broadcast(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        model = trainer.actor.model.module
        named = [
            (name, weights) for name, weights in model.named_parameters() if not name.endswith("1.mlp.down_proj.weight")
        ]
        model.named_parameters = lambda: iter(named)
        try:
            return wrapped(*args, **kwargs)
        finally:
            del model.named_parameters

    at_call(POLICY, "ActorPPOTrainer.broadcast_to_vllm", at, broadcast)


@fault(report="OpenRLHF, a sync of a copy", code="RLS402", shows_after=1)
def sync_of_old_weights(at: int) -> None:
    """The weights of the sync before are sent once more, from a copy."""
    syncs = itertools.count()
    copies: dict[str, Any] = {}

    def broadcast(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        model, number = trainer.actor.model.module, next(syncs)
        if number == at - 1:
            copies.update((name, weights.detach().clone()) for name, weights in model.named_parameters())
        if number != at:
            return wrapped(*args, **kwargs)
        model.named_parameters = lambda: iter(copies.items())
        try:
            return wrapped(*args, **kwargs)
        finally:
            del model.named_parameters

    wrap(POLICY, "ActorPPOTrainer.broadcast_to_vllm", broadcast)


@fault(report="vllm, a weight loader that drops what it is given", code="RLS402", shows_after=1)
def tensor_not_loaded(at: int) -> None:
    """The engine's model takes every tensor and says so, and one of its matrices stays as it was."""
    syncs = itertools.count()
    now = [next(syncs)]

    def load_weights(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
        kept = {n: p.detach().clone() for n, p in model.named_parameters() if n.endswith("1.mlp.down_proj.weight")}
        result = wrapped(*args, **kwargs)
        if now[0] == at + 1:
            _copy(list(kept.values()), [p.data for n, p in model.named_parameters() if n in kept])
        return result

    def update_weight(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        now[0] = max(now[0], 1)  # what is loaded before is the checkpoint
        try:
            return wrapped(*args, **kwargs)
        finally:
            now[0] += bool(args[3])

    wrap("vllm.model_executor.models.qwen2", "Qwen2ForCausalLM.load_weights", load_weights)
    wrap(ENGINE, "WorkerWrap.update_weight", update_weight)


@fault(report="vllm, weights written after they were loaded", code="RLS403", shows_after=1)
def engine_weights_spoiled(at: int) -> None:
    """The engine's layers are overwritten, so that they add nothing, between a sync and the rollout after it, up to the next sync."""
    now: dict[str, Any] = {"syncs": 0, "model": None, "spoiled": False}

    def update_weight(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        now["model"] = worker.model_runner.model
        try:
            return wrapped(*args, **kwargs)
        finally:
            now["syncs"] += bool(args[3])

    def add_request(wrapped: Any, batch: Any, args: Any, kwargs: Any) -> Any:
        if now["syncs"] == at + 1 and not now["spoiled"]:
            now["spoiled"] = True
            for name, weights in now["model"].named_parameters():
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    weights.data.zero_()
        return wrapped(*args, **kwargs)

    wrap(ENGINE, "WorkerWrap.update_weight", update_weight)
    wrap("vllm.v1.worker.gpu_input_batch", "InputBatch.add_request", add_request)


@fault(report="OpenRLHF, sampling parameters changed", code="RLS410")
def sampler_at_another_temperature(at: int) -> None:
    """The requests of one rollout ask for temperature 0.3, and nothing corrects for it."""

    def dispatch(wrapped: Any, generator: Any, args: Any, kwargs: Any) -> Any:
        return wrapped(*args, **(kwargs | {"temperature": 0.3}))

    at_call(GENERATOR, "SamplesGenerator._dispatch_prompts_to_vllm", at, dispatch)


# Samples


@fault(report="OpenRLHF, rollouts from a cache", code="RLS514")
def rollout_from_a_cache(at: int) -> None:
    """A rollout is generated, and the one before it is used once more."""
    rollouts = itertools.count()
    kept: list[Any] = []

    def generate(wrapped: Any, generator: Any, args: Any, kwargs: Any) -> Any:
        samples, *rest = wrapped(*args, **kwargs)
        number = next(rollouts)
        if number == at - 1:
            kept.extend(copy.deepcopy(samples))
        return (kept if number == at else samples, *rest)

    wrap(GENERATOR, "SamplesGenerator.generate_samples", generate)


@fault(report="verl#2305", code="RLS501")
def prompt_groups_mixed(at: int) -> None:
    """The samples of a rollout are moved by one before they are cut into groups."""

    def make(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        samples = kwargs["rollout_samples"] if "rollout_samples" in kwargs else args[0]
        return wrapped([*samples[1:], samples[0]])

    at_call(MAKER, "RemoteExperienceMaker.make_experience_batch", at, make)


@fault(report="OpenRLHF, rewards of other samples", code="RLS515")
def rewards_moved(at: int) -> None:
    """The rewards of each part of a rollout are moved by one sample."""

    def make(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        experiences = wrapped(*args, **kwargs)
        for experience in experiences:
            experience.rewards = experience.rewards.roll(1, 0)
        return experiences

    at_call(MAKER, "RemoteExperienceMaker.make_experience", at, make)


@fault(report="trl#3857", code="RLS505")
def advantages_lost(at: int) -> None:
    """All advantages of a rollout are 0, though its rewards differ."""

    def compute(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        experiences = wrapped(*args, **kwargs)
        for experience in experiences:
            experience.advantages.zero_()
        return experiences

    at_call(MAKER, "RemoteExperienceMaker.compute_advantages_and_returns", at, compute)


# Updates


@fault(report="textbook PPO", code="RLS802")
def advantages_with_gradient(at: int) -> None:
    """The advantages of a rollout require a gradient."""

    def training_step(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        experience = kwargs["experience"] if "experience" in kwargs else args[0]
        if _Now.training == at:
            experience.advantages = experience.advantages.detach().clone().requires_grad_()
        return wrapped(*args, **kwargs)

    wrap(POLICY, "ActorPPOTrainer.training_step", training_step)


@fault(report="textbook PPO", code="RLS802")
def targets_with_gradient(at: int) -> None:
    """The targets of the critic require a gradient."""

    def training_step(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        experience = kwargs["experience"] if "experience" in kwargs else args[0]
        if _Now.training == at:
            experience.returns = experience.returns.detach().clone().requires_grad_()
        return wrapped(*args, **kwargs)

    wrap(CRITIC, "CriticPPOTrainer.training_step", training_step)


@fault(report="ms-swift#10116", code="RLS801")
def loss_not_divided_by_the_accumulation(at: int) -> None:
    """The losses of an update are added up, and not averaged."""

    def backward(wrapped: Any, strategy: Any, args: Any, kwargs: Any) -> Any:
        loss, *rest = args
        return wrapped(loss * 2 if _Now.policy and _Now.training == at else loss, *rest, **kwargs)

    wrap(STRATEGY, "DeepspeedStrategy.backward", backward)


@fault(report="OpenRLHF#717", code="RLS204")
def micro_batch_dropped(at: int) -> None:
    """The second micro-batch of a rollout is left out."""
    results: list[Any] = []

    def training_step(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if _Now.training == at and len(results) == 1:
            return results.append(results[0]) or results[0]
        result = wrapped(*args, **kwargs)
        if _Now.training == at:
            results.append(result)
        return result

    wrap(POLICY, "ActorPPOTrainer.training_step", training_step)


@fault(report="verl#7401", code="RLS210")
def optimizer_step_skipped(at: int) -> None:
    """A "skip bad batches" wrapper swallows one optimizer step; DeepSpeed's counters and the learning rate go on."""
    done: list[bool] = []

    def optimizer_step(wrapped: Any, strategy: Any, args: Any, kwargs: Any) -> Any:
        engine = getattr(args[1], "model", args[1])
        if _Now.training != at or done or not engine.is_gradient_accumulation_boundary():
            return wrapped(*args, **kwargs)
        done.append(True)
        optimizer = engine.basic_optimizer
        step, optimizer.step = optimizer.step, lambda *arguments, **keywords: None
        try:
            return wrapped(*args, **kwargs)
        finally:
            optimizer.step = step

    wrap(STRATEGY, "DeepspeedStrategy.optimizer_step", optimizer_step)


@fault(report="OpenRLHF#1320", code="RLS202")
def rollout_trained_twice(at: int) -> None:
    """All passes over a rollout are made a second time."""

    def ppo_train(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        return wrapped(*args, **kwargs) if _Now.training == at else result

    wrap(POLICY, "ActorPPOTrainer.ppo_train", ppo_train)


@fault(report="OpenRLHF#780", code="RLS202", shows_after=1)
def buffer_not_cleared(at: int) -> None:
    """The samples of a rollout stay in the buffer and are trained with the next one."""

    def clear(wrapped: Any, buffer: Any, args: Any, kwargs: Any) -> Any:
        return None if _Now.policy and _Now.training == at else wrapped(*args, **kwargs)

    wrap(BUFFER, "NaiveReplayBuffer.clear", clear)


@fault(report="ROLL, one critic pass whatever is configured", code="RLS211")
def critic_micro_batches_dropped(at: int) -> None:
    """The critic leaves out the last two micro-batches of a rollout of eight."""
    results: list[Any] = []

    def training_step(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if _Now.training == at and len(results) >= 6:
            return results[0]
        result = wrapped(*args, **kwargs)
        if _Now.training == at:
            results.append(dict(result))
        return result

    wrap(CRITIC, "CriticPPOTrainer.training_step", training_step)


# Resuming


@fault(report="trl PR#3148", code="RLS702")
def checkpoint_not_loaded(at: int) -> None:
    """A run resumes under the old step counter, with the weights that it would have begun with."""

    def load(wrapped: Any, strategy: Any, args: Any, kwargs: Any) -> Any:
        engine = args[0]
        weights = [parameter.data for parameter in engine.module.parameters()]
        first = [tensor.clone() for tensor in weights]
        result = wrapped(*args, **kwargs)
        _copy(first, weights)
        return result

    wrap(STRATEGY, "DeepspeedStrategy.load_ckpt", load)


# Old log-probs


@fault(report="trl#454", code="RLS305")
def old_log_probs_of_other_samples(at: int) -> None:
    """The old log-probs of each part of a rollout are moved by one sample."""

    def append(wrapped: Any, buffer: Any, args: Any, kwargs: Any) -> Any:
        experience = kwargs["experience"] if "experience" in kwargs else args[0]
        if _Now.training == at - 1 and not _Now.inside and experience.action_log_probs is not None:
            experience.action_log_probs = experience.action_log_probs.roll(1, 0)
        return wrapped(*args, **kwargs)

    wrap(BUFFER, "NaiveReplayBuffer.append", append)


@fault(report="trl#5312", code="RLS301")
def old_log_probs_of_another_version(at: int) -> None:
    """Old log-probs are computed with the weights that training began with."""
    first: list[Any] = []

    def forward(wrapped: Any, actor: Any, args: Any, kwargs: Any) -> Any:
        import torch

        weights = [parameter.data for parameter in actor.model.parameters()]
        if not first:
            first.extend(tensor.clone() for tensor in weights)
        if torch.is_grad_enabled() or _Now.training != at - 1:
            return wrapped(*args, **kwargs)
        now = [tensor.clone() for tensor in weights]
        _copy(first, weights)
        try:
            return wrapped(*args, **kwargs)
        finally:
            _copy(now, weights)

    wrap(MODELS, "Actor.forward", forward)


@fault(report="verifiers PR#320", code="RLS310")
def old_log_probs_recomputed_before_each_loss(at: int) -> None:
    """The old log-probs of each micro-batch of a rollout are computed with the weights that it is trained with."""

    def training_step(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        import torch

        experience = kwargs["experience"] if "experience" in kwargs else args[0]
        if _Now.training == at:
            with torch.no_grad():
                experience.action_log_probs = trainer.actor(
                    experience.sequences, experience.action_mask, attention_mask=experience.attention_mask
                )
        return wrapped(*args, **kwargs)

    wrap(POLICY, "ActorPPOTrainer.training_step", training_step)


@fault(report="OpenRLHF, a reference that follows", code="RLS411", shows_after=1)
def reference_follows(at: int) -> None:
    """Weights are written into the reference."""
    calls = itertools.count()

    def execute(wrapped: Any, actor: Any, args: Any, kwargs: Any) -> Any:
        method = kwargs.get("method_name", args[0] if args else None)
        if type(actor).__name__ == "ReferenceModelActor" and method == "forward" and next(calls) == at:
            for weights in actor.model.parameters():
                weights.data.mul_(1.01)
        return wrapped(*args, **kwargs)

    if WORKER in os.environ:  # what the driver sends of this class must be found by its name
        wrap(LAUNCHER, "BaseModelActor.execute_batch", execute)


def _copy(values: list[Any], weights: list[Any]) -> None:
    for tensor, value in zip(weights, values, strict=True):
        tensor.copy_(value)


def asked_for() -> list[tuple[Fault, int]]:
    """The faults that the environment names, with their rollouts."""
    named = [item.split("@") for item in os.environ.get(FAULTS_VARIABLE, "").split(",") if item]
    return [(FAULTS[name], int(rollout)) for name, rollout in named]


def asking(faults: dict[str, int]) -> dict[str, str]:
    """The environment that makes faults: name -> rollout."""
    asked = ",".join(f"{name}@{rollout}" for name, rollout in faults.items())
    return {FAULTS_VARIABLE: asked, "RLSTEP_TEST_MODULE": MODULE}


def make_faults() -> None:
    """Make what the environment names, in this process."""
    faults = asked_for()
    if faults:
        follow_training()
    for found, rollout in faults:
        found.apply(rollout)


make_faults()
