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
import importlib
import itertools
import os
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest import mock

import wrapt

from rlstep_hooks.record import cadence

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
LOSS = "openrlhf.models.loss"
AGENT = "openrlhf.utils.agent"

SAMPLES = 16
"""Of a rollout."""

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
    cause: str
    """Words of its finding."""
    lasts: int
    """How many rollouts it is made in: several where one of them may have drawn no text that shows it."""

    def shows_in(self, at: int) -> range:
        """The rollouts of which one must show it, if the first that it is made in is `at`."""
        return range(at + self.shows_after, at + self.shows_after + self.lasts)


FAULTS: dict[str, Fault] = {}


def fault(
    *, report: str, code: str, shows_after: int = 0, cause: str = "", lasts: int = 1
) -> Callable[[Callable[[int], None]], Any]:
    """Register a function as a fault under its own name."""

    def register(apply: Callable[[int], None]) -> Callable[[int], None]:
        FAULTS[apply.__name__] = Fault(apply.__name__, report, code, apply, shows_after, cause, lasts)
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


class Now:
    """How far this trainer is: the phase of training that goes on, counted from 0; before the first, -1."""

    training = -1
    inside = False
    policy = False
    """Whether this is the policy's process."""


def follow_training() -> None:
    """Count the phases of training of policy or critic, one for each rollout where nothing is frozen."""

    def count(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        Now.training += 1
        Now.policy = type(trainer).__name__ == "ActorPPOTrainer"
        Now.inside = True
        try:
            return wrapped(*args, **kwargs)
        finally:
            Now.inside = False

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


@fault(report="trl#6789, tokens that a mean hides", code="RLS403", cause="tokens are outside of [0.9, 1.1]")
def engine_log_probs_off_both_ways(at: int) -> None:
    """Every third of the engine's log-probs of a rollout is off, by as much up as down."""
    answers = itertools.count()

    def take(wrapped: Any, generator: Any, args: Any, kwargs: Any) -> Any:
        response = args[0]
        if next(answers) // SAMPLES == at:
            signs = itertools.cycle((1, 0, 0, -1, 0, 0))
            off = [value + 0.12 * sign for value, sign in zip(response["rollout_log_probs"], signs, strict=False)]
            response = response | {"rollout_log_probs": off}
        return wrapped(response, *args[1:], **kwargs)

    wrap(GENERATOR, "SamplesGenerator._process_response_into_experience", take)


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


# Numbers: from rewards to weights


def alter_advantages(at: int, alter: Callable[[Any, list[Any]], None]) -> None:
    """Change what one rollout's advantages were computed as."""

    def compute(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        experiences = wrapped(*args, **kwargs)
        alter(maker, experiences)
        return experiences

    at_call(MAKER, "RemoteExperienceMaker.compute_advantages_and_returns", at, compute)


@fault(report="a sign lost", code="RLS516", cause="of the opposite sign")
def advantages_negated(at: int) -> None:
    """The advantages of a rollout have the opposite sign."""

    def alter(maker: Any, experiences: list[Any]) -> None:
        for experience in experiences:
            experience.advantages = -experience.advantages

    alter_advantages(at, alter)


def regrouped(at: int, shape: Callable[[Any], Any]) -> None:
    """Group-normalised advantages of other groups: `shape` gives mean and deviation for the rewards, two of a prompt in a row."""

    def alter(maker: Any, experiences: list[Any]) -> None:
        import torch

        places = torch.tensor([index for experience in experiences for index in experience.index])
        rewards = torch.empty(len(places))
        rewards[places] = torch.cat([experience.rewards for experience in experiences]).float()
        pairs = rewards.view(-1, 2)
        right = pairs.mean(1).repeat_interleave(2), pairs.std(1).repeat_interleave(2)
        wrong, own = ((rewards - mean) / (deviation + 1e-9) for mean, deviation in (shape(rewards), right))
        # What the KL penalty adds stays.
        moved = (wrong - own)[places].split([len(e.index) for e in experiences])
        for experience, rows in zip(experiences, moved, strict=True):
            experience.advantages = experience.advantages + rows[:, None] * experience.action_mask

    alter_advantages(at, alter)


@fault(report="TRL, scale_rewards=batch", code="RLS516", cause="the standard deviation of the whole rollout")
def deviation_of_the_rollout(at: int) -> None:
    """Advantages are divided by the standard deviation of the rollout, and not of the group."""
    regrouped(at, lambda rewards: (rewards.view(-1, 2).mean(1).repeat_interleave(2), rewards.std()))


@fault(report="OpenRLHF#717", code="RLS516", cause="groups taken across prompts")
def groups_across_prompts(at: int) -> None:
    """A reshape takes the first samples of all prompts for a group, and the second ones for the next."""

    def shape(rewards: Any) -> Any:
        apart = rewards.view(-1, 2)
        return apart.mean(0).repeat(len(apart)), apart.std(0).repeat(len(apart))

    regrouped(at, shape)


@fault(report="gae arguments in the wrong order", code="RLS516", cause="gamma and lambda swapped")
def gamma_and_lambda_swapped(at: int) -> None:
    """GAE gets lambda for gamma and gamma for lambda in one rollout."""
    rollouts = itertools.count()
    now = [-1]

    def compute(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        now[0] = next(rollouts)
        return wrapped(*args, **kwargs)

    def gae(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        values, rewards, mask, gamma, lam = args
        return wrapped(values, rewards, mask, lam, gamma) if now[0] == at else wrapped(*args, **kwargs)

    wrap(MAKER, "RemoteExperienceMaker.compute_advantages_and_returns", compute)
    wrap(MAKER, "RemoteExperienceMaker.get_advantages_and_returns", gae)


@fault(report="a critic that fits advantages", code="RLS516", cause="the critic's targets are not")
def targets_without_values(at: int) -> None:
    """The critic's targets are the advantages alone."""

    def alter(maker: Any, experiences: list[Any]) -> None:
        for experience in experiences:
            experience.returns = experience.returns - experience.values

    alter_advantages(at, alter)


@fault(report="torchtune#2792", code="RLS518", cause="others in 16 of 16 samples")
def last_token_masked_out(at: int) -> None:
    """The mask of each completion leaves out its last token, from generation on."""

    def make(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        for sample in kwargs["rollout_samples"] if "rollout_samples" in kwargs else args[0]:
            without_last(sample.action_mask)
        return wrapped(*args, **kwargs)

    at_call(MAKER, "RemoteExperienceMaker.make_experience_batch", at, make)


def without_last(masks: Any) -> None:
    """Take the last counted token out of each mask."""
    for mask in masks:
        counted = mask.nonzero()
        if len(counted):
            mask[counted[-1]] = 0


@fault(report="OpenRLHF#717", code="RLS517", cause="other values")
def advantages_of_other_samples(at: int) -> None:
    """The advantages of each micro-batch move by one sample."""

    def step(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if Now.training == at:
            experience = kwargs["experience"] if "experience" in kwargs else args[0]
            experience.advantages = experience.advantages.roll(1, 0)
        return wrapped(*args, **kwargs)

    wrap(POLICY, "ActorPPOTrainer.training_step", step)


@fault(report="torchtune#2792", code="RLS804", cause="others")
def mask_altered_in_the_buffer(at: int) -> None:
    """The buffer's masks lose the last token of each completion."""
    calls = itertools.count()

    def append(wrapped: Any, buffer: Any, args: Any, kwargs: Any) -> Any:
        experience = kwargs["experience"] if "experience" in kwargs else args[0]
        if next(calls) // 4 == at:  # 16 samples of a rollout in micro-batches of 4
            without_last(experience.action_mask)
        return wrapped(*args, **kwargs)

    wrap(BUFFER, "NaiveReplayBuffer.append", append)


def in_the_call(group: str, at: int, alter: Callable[[Any], None]) -> None:
    """Alter the parts of a rollout as a process of trainers takes them: `group` is the class of its actors."""
    calls = itertools.count()

    def execute(wrapped: Any, actor: Any, args: Any, kwargs: Any) -> Any:
        given = dict(zip(("method_name", "all_data"), args, strict=False)) | kwargs
        if type(actor).__name__ == group and given["method_name"] == "append" and next(calls) == at:
            for experience in given["all_data"]["experience"]:
                alter(experience)
        return wrapped(*args, **kwargs)

    if WORKER in os.environ:  # what the driver sends of this class must be found by its name
        wrap(LAUNCHER, "BaseModelActor.execute_batch", execute)


@fault(report="OpenRLHF#717", code="RLS517", cause="from the controller to the buffer of the trainer")
def advantages_moved_on_the_way(at: int) -> None:
    """The advantages of each part of a rollout move by one sample between the controller and the trainer."""

    def alter(experience: Any) -> None:
        experience.advantages = experience.advantages.roll(1, 0)

    in_the_call("PolicyModelActor", at, alter)


@fault(report="returns off by one", code="RLS517", cause="from the controller to the buffer of the trainer")
def targets_shifted_on_the_way(at: int) -> None:
    """The returns of a rollout are shifted by one token between the controller and the critic's trainer."""

    def alter(experience: Any) -> None:
        experience.returns = experience.returns.roll(1, 1)

    in_the_call("CriticModelActor", at, alter)


@fault(report="advantages clamped by a patch", code="RLS517", cause="to the call of the trainers")
def advantages_clamped(at: int) -> None:
    """Something in the loop bounds advantages after they were computed."""

    def stats(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        for experience in kwargs["experiences"] if "experiences" in kwargs else args[0]:
            experience.advantages = experience.advantages.clamp(-0.5, 0.5)
        return wrapped(*args, **kwargs)

    if WORKER in os.environ:
        at_call(CONTROLLER, "BasePPOTrainer._compute_rollout_stats", at, stats)


@fault(report="an end token put behind truncated text", code="RLS306", cause="from the engines to the models")
def last_token_replaced(at: int) -> None:
    """The last token of each completion is replaced once it has its reward."""

    def make(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        for sample in kwargs["rollout_samples"] if "rollout_samples" in kwargs else args[0]:
            sample.sequences[0, -1] = 2
        return wrapped(*args, **kwargs)

    at_call(MAKER, "RemoteExperienceMaker.make_experience_batch", at, make)


@fault(report="a reward hook that scales", code="RLS515")
def reward_scaled_as_it_came(at: int) -> None:
    """The rewards of the engine's answers are halved while samples are made of them."""
    answers = itertools.count()

    def process(wrapped: Any, generator: Any, args: Any, kwargs: Any) -> Any:
        sample = wrapped(*args, **kwargs)
        if next(answers) // 16 == at:
            sample.rewards = sample.rewards / 2
        return sample

    wrap(GENERATOR, "SamplesGenerator._process_response_into_experience", process)


@fault(report="a KL penalty of twice its size", code="RLS516")
def divergence_doubled(at: int) -> None:
    """The KL divergence of a rollout is doubled before it enters the rewards."""

    def make(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        experiences = wrapped(*args, **kwargs)
        for experience in experiences:
            experience.kl = 2 * experience.kl + 0.1
        return experiences

    at_call(MAKER, "RemoteExperienceMaker.make_experience", at, make)


def other_penalty(at: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what the KL penalty of the rewards is computed from in one rollout."""

    def make(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        module = importlib.import_module(MAKER)
        plain = module.compute_approx_kl

        def penalty(log_probs: Any, log_probs_base: Any, **options: Any) -> Any:
            given = {"log_probs": log_probs, "log_probs_base": log_probs_base} | options
            change(given)
            return plain(**given)

        with mock.patch.object(module, "compute_approx_kl", penalty):
            return wrapped(*args, **kwargs)

    at_call(MAKER, "RemoteExperienceMaker.make_experience", at, make)


@fault(report="a KL penalty by k2", code="RLS516", cause="a KL penalty of the estimate k2")
def penalty_of_another_estimate(at: int) -> None:
    """The KL penalty of a rollout is estimated by k2, where k1 is configured."""
    other_penalty(at, lambda given: given.update(kl_estimator="k2"))


@fault(
    report="a reference one token off",
    code="RLS516",
    cause="a KL penalty of the reference log-probs of the token before",
)
def penalty_of_the_token_before(at: int) -> None:
    """The reference's log-probs are moved by one token before the KL penalty is computed."""
    other_penalty(at, lambda given: given.update(log_probs_base=given["log_probs_base"].roll(1, -1)))


@fault(report="values of the new critic", code="RLS517", cause="from the models to the advantages")
def values_smoothed(at: int) -> None:
    """The critic's values are changed before advantages are computed."""

    def make(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        experiences = wrapped(*args, **kwargs)
        for experience in experiences:
            experience.values = experience.values * 0.9 + 0.1
        return experiences

    at_call(MAKER, "RemoteExperienceMaker.make_experience", at, make)


def other_loss(rollouts: Container[int], change: Callable[[Callable[[], Any], Any], Any]) -> None:
    """Compute the policy's losses of these rollouts in another way: `change` gets the call and the module."""

    def forward(wrapped: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if Now.training not in rollouts:
            return wrapped(*args, **kwargs)
        return change(lambda: wrapped(*args, **kwargs), module)

    wrap(LOSS, "PolicyLoss.forward", forward)


@fault(report="DAPO, the mean of means", code="RLS801", cause="mean over samples", lasts=5)
def mean_over_samples(at: int) -> None:
    """The loss is averaged over samples, and not over tokens: another value where answers differ in length."""

    def change(call: Any, module: Any) -> Any:
        module.token_level_loss = False
        result = call()
        module.token_level_loss = True
        return result

    other_loss(range(at, at + FAULTS["mean_over_samples"].lasts), change)


@fault(report="textbook PPO", code="RLS801", cause="its sign flipped")
def loss_negated(at: int) -> None:
    """The policy's loss has the opposite sign."""

    def change(call: Any, module: Any) -> Any:
        loss, *rest = call()
        return (-loss, *rest)

    other_loss((at,), change)


def other_value_loss(at: int, change: Callable[[Callable[..., Any], Any, dict[str, Any]], Any]) -> None:
    """Compute the critic's losses of one rollout in another way: `change` gets the call, the module and the arguments by name."""

    def forward(wrapped: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if Now.training != at:
            return wrapped(*args, **kwargs)
        given = dict(zip(("values", "old_values", "returns"), args, strict=False)) | kwargs
        return change(lambda **more: wrapped(**(given | more)), module, given)

    wrap(LOSS, "ValueLoss.forward", forward)


@fault(report="implementation matters, the clip of values", code="RLS801", cause="without the clip of values")
def value_clip_removed(at: int) -> None:
    """The critic's loss does not bound how far values move."""

    def change(call: Any, module: Any, given: Any) -> Any:
        clip, module.clip_eps = module.clip_eps, None
        result = call()
        module.clip_eps = clip
        return result

    other_value_loss(at, change)


@fault(report="returns off by one", code="RLS801", cause="the returns of the token before")
def targets_shifted_in_the_loss(at: int) -> None:
    """The critic's loss draws the value of each token to the return of the token before."""
    other_value_loss(at, lambda call, module, given: call(returns=given["returns"].roll(1, 1)))


@fault(report="a loss of one half forgotten", code="RLS805", cause="for the critic")
def value_loss_doubled_on_the_way(at: int) -> None:
    """The critic's losses are multiplied before the backward."""

    def backward(wrapped: Any, strategy: Any, args: Any, kwargs: Any) -> Any:
        loss, *rest = args
        return wrapped(loss * 2 if not Now.policy and Now.training == at else loss, *rest, **kwargs)

    wrap(STRATEGY, "DeepspeedStrategy.backward", backward)


@fault(report="returns off by one", code="RLS517", cause="critic's targets")
def targets_of_other_samples(at: int) -> None:
    """The targets of each micro-batch of the critic move by one sample."""

    def step(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        experience = kwargs["experience"] if "experience" in kwargs else args[0]
        if Now.training == at:
            experience.returns = experience.returns.roll(1, 0)
        return wrapped(*args, **kwargs)

    wrap(CRITIC, "CriticPPOTrainer.training_step", step)


@fault(report="values of the new critic", code="RLS517", cause="old values")
def old_values_replaced(at: int) -> None:
    """The critic's loss bounds values around the targets, and not around the old values."""

    def append(wrapped: Any, buffer: Any, args: Any, kwargs: Any) -> Any:
        experience = kwargs["experience"] if "experience" in kwargs else args[0]
        if not Now.policy and Now.training == at - 1 and not Now.inside:
            experience.values = experience.returns.clone()
        return wrapped(*args, **kwargs)

    wrap(BUFFER, "NaiveReplayBuffer.append", append)


@fault(report="a second scheduler", code="RLS605", cause="of the critic")
def critic_at_another_rate(at: int) -> None:
    """Something sets the critic's rate before a rollout is trained."""

    def training(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if Now.training == at - 1:
            for group in trainer.critic.basic_optimizer.param_groups:
                group["lr"] *= 0.5
        return wrapped(*args, **kwargs)

    wrap(CRITIC, "CriticPPOTrainer.ppo_train", training)


@fault(report="weights written after the step", code="RLS806", cause="2 times the step")
def critic_step_twice_as_far(at: int) -> None:
    """Each step of the critic is made twice as far."""
    twice_as_far(at, policy=False)


@fault(report="weights written after the step", code="RLS806", cause="2 times the step")
def step_twice_as_far(at: int) -> None:
    """Each step of a rollout is made twice as far."""
    twice_as_far(at, policy=True)


def twice_as_far(at: int, *, policy: bool) -> None:
    """Move the weights of one role once more by what a step moved them."""

    def place(module: Any) -> None:
        plain = module.FusedAdam.step
        plain = getattr(plain, "__wrapped__", plain)  # torch puts its hooks around it later

        @wraps(plain)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not (Now.policy is policy and Now.training == at):
                return plain(optimizer, *args, **kwargs)
            held = [p for group in optimizer.param_groups for p in group["params"]]
            before = [p.detach().clone() for p in held]
            result = plain(optimizer, *args, **kwargs)
            for p, old in zip(held, before, strict=True):
                p.data.add_(p.data - old)
            return result

        del step.__wrapped__
        module.FusedAdam.step = step

    wrapt.when_imported("deepspeed.ops.adam.fused_adam")(place)


def before_training(at: int, act: Callable[[Any], None]) -> None:
    """Act on the policy's optimizer of DeepSpeed before one rollout is trained."""

    def training(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if Now.training == at - 1:  # counted by the wrapper inside of this one
            act(trainer.actor.model.basic_optimizer)
        return wrapped(*args, **kwargs)

    wrap(POLICY, "ActorPPOTrainer.ppo_train", training)


@fault(
    report="a setting that the trainer computes with is written to",
    code="RLS101",
    cause="policy trainer clip_eps_high = 0.5",
)
def clip_range_written_before_training(at: int) -> None:
    """The trainer's copy of the clip range is another one while one rollout is trained."""

    def training(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        before = trainer.actor_loss_fn.clip_eps_high
        trainer.actor_loss_fn.clip_eps_high = 0.5 if Now.training == at - 1 else before
        try:
            return wrapped(*args, **kwargs)
        finally:
            trainer.actor_loss_fn.clip_eps_high = before

    wrap(POLICY, "ActorPPOTrainer.ppo_train", training)


@fault(report="an optimizer offloaded and made anew", code="RLS807", cause="others among those")
def moments_cleared(at: int) -> None:
    """The moments are set to 0 before a rollout is trained."""

    def act(optimizer: Any) -> None:
        for state in optimizer.state.values():
            state["exp_avg"].zero_()

    before_training(at, act)


@fault(report="a clip that does not act", code="RLS808", cause="at most 1, the configured limit")
def norm_above_its_limit(at: int) -> None:
    """Gradients are larger after the clip."""

    def clip(wrapped: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        if Now.policy and Now.training == at:
            for gradient in args[0]:
                gradient.data.mul_(50)
        return result

    wrap("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer.unscale_and_clip_grads", clip)


@fault(report="a second scheduler", code="RLS605", cause="something other than the configured schedule")
def rate_of_another_schedule(at: int) -> None:
    """Something sets the rate before a rollout is trained; the scheduler sets it again after the first update."""

    def act(optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5

    before_training(at, act)


# Updates


@fault(report="textbook PPO", code="RLS802")
def advantages_with_gradient(at: int) -> None:
    """The advantages of a rollout require a gradient."""

    def training_step(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        experience = kwargs["experience"] if "experience" in kwargs else args[0]
        if Now.training == at:
            experience.advantages = experience.advantages.detach().clone().requires_grad_()
        return wrapped(*args, **kwargs)

    wrap(POLICY, "ActorPPOTrainer.training_step", training_step)


@fault(report="textbook PPO", code="RLS802")
def targets_with_gradient(at: int) -> None:
    """The targets of the critic require a gradient."""

    def training_step(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        experience = kwargs["experience"] if "experience" in kwargs else args[0]
        if Now.training == at:
            experience.returns = experience.returns.detach().clone().requires_grad_()
        return wrapped(*args, **kwargs)

    wrap(CRITIC, "CriticPPOTrainer.training_step", training_step)


@fault(report="ms-swift#10116", code="RLS805")
def loss_not_divided_by_the_accumulation(at: int) -> None:
    """The losses of an update are added up, and not averaged."""

    def backward(wrapped: Any, strategy: Any, args: Any, kwargs: Any) -> Any:
        loss, *rest = args
        return wrapped(loss * 2 if Now.policy and Now.training == at else loss, *rest, **kwargs)

    wrap(STRATEGY, "DeepspeedStrategy.backward", backward)


@fault(report="OpenRLHF#717", code="RLS204")
def micro_batch_dropped(at: int) -> None:
    """The second micro-batch of a rollout is left out."""
    results: list[Any] = []

    def training_step(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if Now.training == at and len(results) == 1:
            return results.append(results[0]) or results[0]
        result = wrapped(*args, **kwargs)
        if Now.training == at:
            results.append(result)
        return result

    wrap(POLICY, "ActorPPOTrainer.training_step", training_step)


def swallow_one_step(at: int, concerns: Callable[[], bool] = lambda: True) -> None:
    """Leave out the first optimizer step of a rollout; DeepSpeed's counters and the learning rate go on.

    Args:
        at: The rollout.
        concerns: Whether it is done in this process now.
    """
    done: list[bool] = []

    def optimizer_step(wrapped: Any, strategy: Any, args: Any, kwargs: Any) -> Any:
        engine = getattr(args[1], "model", args[1])
        due = Now.training == at and not done and concerns()
        if not due or not engine.is_gradient_accumulation_boundary():
            return wrapped(*args, **kwargs)
        done.append(True)
        optimizer = engine.basic_optimizer
        step, optimizer.step = optimizer.step, lambda *arguments, **keywords: None
        try:
            return wrapped(*args, **kwargs)
        finally:
            optimizer.step = step

    wrap(STRATEGY, "DeepspeedStrategy.optimizer_step", optimizer_step)


@fault(report="verl#7401", code="RLS210")
def optimizer_step_skipped(at: int) -> None:
    """A "skip bad batches" wrapper swallows one optimizer step."""
    swallow_one_step(at)


@fault(report="OpenRLHF#1320", code="RLS202")
def rollout_trained_twice(at: int) -> None:
    """All passes over a rollout are made a second time."""

    def ppo_train(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        return wrapped(*args, **kwargs) if Now.training == at else result

    wrap(POLICY, "ActorPPOTrainer.ppo_train", ppo_train)


@fault(report="OpenRLHF#780", code="RLS202", shows_after=1)
def buffer_not_cleared(at: int) -> None:
    """The samples of a rollout stay in the buffer and are trained with the next one."""

    def clear(wrapped: Any, buffer: Any, args: Any, kwargs: Any) -> Any:
        return None if Now.policy and Now.training == at else wrapped(*args, **kwargs)

    wrap(BUFFER, "NaiveReplayBuffer.clear", clear)


@fault(report="ROLL, one critic pass whatever is configured", code="RLS211")
def critic_micro_batches_dropped(at: int) -> None:
    """The critic leaves out the last two micro-batches of a rollout of eight."""
    results: list[Any] = []

    def training_step(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if Now.training == at and len(results) >= 6:
            return results[0]
        result = wrapped(*args, **kwargs)
        if Now.training == at:
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


@fault(report="trl PR#3148", code="RLS702", cause="moments")
def moments_not_loaded(at: int) -> None:
    """A run resumes with the weights of its checkpoint, and with an optimizer that remembers nothing."""

    def load(wrapped: Any, strategy: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        for state in args[0].basic_optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name].zero_()
        return result

    wrap(STRATEGY, "DeepspeedStrategy.load_ckpt", load)


# Old log-probs


@fault(report="trl#454", code="RLS305")
def old_log_probs_of_other_samples(at: int) -> None:
    """The old log-probs of each part of a rollout are moved by one sample."""

    def append(wrapped: Any, buffer: Any, args: Any, kwargs: Any) -> Any:
        experience = kwargs["experience"] if "experience" in kwargs else args[0]
        if Now.training == at - 1 and not Now.inside and experience.action_log_probs is not None:
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
        if torch.is_grad_enabled() or Now.training != at - 1:
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
        if Now.training == at:
            with torch.no_grad():
                experience.action_log_probs = trainer.actor(
                    experience.sequences, experience.action_mask, attention_mask=experience.attention_mask
                )
        return wrapped(*args, **kwargs)

    wrap(POLICY, "ActorPPOTrainer.training_step", training_step)


@fault(report="OpenRLHF, a reference that follows", code="RLS411", shows_after=1)
def reference_follows(at: int) -> None:
    """Weights are written into the reference."""
    grow_weights("ReferenceModelActor", at, by=1.01)


def grow_weights(actor_class: str, at: int, *, by: float) -> None:
    """Multiply the weights of a model that only computes, before it computes for a rollout."""
    calls = itertools.count()

    def execute(wrapped: Any, actor: Any, args: Any, kwargs: Any) -> Any:
        method = kwargs.get("method_name", args[0] if args else None)
        if type(actor).__name__ == actor_class and method == "forward" and next(calls) == at:
            for weights in actor.model.parameters():
                weights.data.mul_(by)
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


def asking(faults: Mapping[str, int], module: str = MODULE) -> dict[str, str]:
    """The environment that makes faults: name -> rollout. Those of another module are registered where it is imported."""
    asked = ",".join(f"{name}@{rollout}" for name, rollout in faults.items())
    return {FAULTS_VARIABLE: asked, "RLSTEP_TEST_MODULE": module}


def make_faults() -> None:
    """Make what the environment names, in this process."""
    faults = asked_for()
    if faults:
        # Each rollout is compared, so that each can have a fault.
        cadence.ALL_OF_FIRST = 1 << 30
        follow_training()
    for found, rollout in faults:
        found.apply(rollout)


# They register themselves, and need what stands above.
for own in ("foreign_faults", "configured_faults"):
    importlib.import_module(f"tests.systems.openrlhf.{own}")
if os.environ.get("RLSTEP_TEST_MODULE", MODULE) == MODULE:
    make_faults()
