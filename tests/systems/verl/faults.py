"""The fault corpus of verl: mistakes out of real reports, each made in a real run at one rollout.

verl imports this module in every process (`VERL_USE_EXTERNAL_MODULES`), and the environment says which faults to make and when:
`RLSTEP_TEST_FAULTS=mini_batch_dropped@1,weights_lost@3` (rollouts count from 0). Several fit into one run: after each the judge goes
on at the next rollout. The wrappers stand below the audit's own, because verl loads its external modules before its plugins.

A fault of the trainers is placed in their processes alone: the controller pickles their classes.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import wrapt

from rlstep_hooks.record import cadence

FAULTS_VARIABLE = "RLSTEP_TEST_FAULTS"
MODULE = __name__
WORKER = "WG_PREFIX"
"""In the environment of trainers, and of no other process."""

WORKERS = "verl.workers.engine_workers"
CONTROLLER = "verl.trainer.ppo.v1.trainer_base"
ENGINE = "verl.workers.engine.fsdp.transformer_impl"
LOSSES = "verl.workers.utils.losses"

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
    variant: str
    """A part of what the finding says was observed, where one rule names several of these faults."""
    whole_run: bool
    """Whether it concerns the run as a whole and no rollout of it."""
    rank: int | None
    """The trainer that its finding names; None where it need not name one."""


FAULTS: dict[str, Fault] = {}


def fault(
    *,
    report: str,
    code: str,
    shows_after: int = 0,
    variant: str = "",
    whole_run: bool = False,
    rank: int | None = None,
) -> Callable[[Callable[[int], None]], Any]:
    """Register a function as a fault under its own name."""

    def register(apply: Callable[[int], None]) -> Callable[[int], None]:
        FAULTS[apply.__name__] = Fault(apply.__name__, report, code, apply, shows_after, variant, whole_run, rank)
        return apply

    return register


# Where faults are made


class _Now:
    """How far a trainer is."""

    rollout = -1


def wrap_in_trainer(module: str, owner: str, name: str, wrapper: Wrapper) -> None:
    """Wrap a method of a class, in trainers only."""
    if WORKER in os.environ:
        wrapt.when_imported(module)(lambda found: wrapt.wrap_function_wrapper(found, f"{owner}.{name}", wrapper))


def wrap_in_controller(module: str, owner: str, name: str, wrapper: Wrapper) -> None:
    """Wrap a method of a class, everywhere but in trainers."""
    if WORKER not in os.environ:
        wrapt.when_imported(module)(lambda found: wrapt.wrap_function_wrapper(found, f"{owner}.{name}", wrapper))


def count_rollouts() -> None:
    """Follow the rollouts of a trainer: old log-probs are computed once on each, before anything else."""

    def next_rollout(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        _Now.rollout += 1
        return wrapped(*args, **kwargs)

    wrap_in_trainer(WORKERS, "ActorRolloutRefWorker", "compute_log_prob", next_rollout)


def trains(instance: Any, role: str) -> bool:
    """Whether a worker or its engine trains this role."""
    engine = getattr(instance, "engine", instance)
    return bool((engine.model_config.model_type == "value_model") == (role == "critic"))


def on_mini_batches(at: int, act: Callable[[int, Callable[[Any], Any], Any, Any], Any], role: str = "policy") -> None:
    """Act in place of each mini-batch of a rollout: `act(number, train, data, worker)`; `train(data)` is what verl would do."""
    numbers: dict[int, int] = {}

    def train_batch(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        if _Now.rollout != at or not trains(worker, role):
            return wrapped(*args, **kwargs)
        number = numbers[at] = numbers.get(at, -1) + 1
        return act(number, wrapped, args[0] if args else kwargs["data"], worker)

    wrap_in_trainer(WORKERS, "TrainingWorker", "train_batch", train_batch)


def on_training_data(at: int, alter: Callable[[Any], None], role: str = "policy") -> None:
    """Change the samples of a rollout before a role trains on them."""

    def train_mini_batch(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        if _Now.rollout == at and trains(worker, role):
            alter(args[0] if args else kwargs["data"])
        return wrapped(*args, **kwargs)

    wrap_in_trainer(WORKERS, "TrainingWorker", "train_mini_batch", train_mini_batch)


def on_first_step(
    at: int,
    act: Callable[[Callable[[], Any], Any], Any],
    role: str = "policy",
    ranks: tuple[int, ...] | None = None,
) -> None:
    """Act in place of the first optimizer step of a role on a rollout: `act(step, engine)`."""
    made = itertools.count()

    def optimizer_step(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        here = _Now.rollout == at and trains(engine, role) and (ranks is None or int(os.environ["RANK"]) in ranks)
        return act(wrapped, engine) if here and next(made) == 0 else wrapped(*args, **kwargs)

    wrap_in_trainer(ENGINE, "FSDPEngine", "optimizer_step", optimizer_step)


def on_sync(at: int, act: Callable[[Any, Any, dict[str, Any]], Any]) -> None:
    """Act in place of the weight sync after a rollout, on the trainer's side of the engine: `await act(sync, weights, kwargs)`."""

    async def update_weights(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
        if _Now.rollout == at:
            weights = args[0] if args else kwargs.pop("weights")
            return await act(wrapped, weights, kwargs)
        return await wrapped(*args, **kwargs)

    wrap_in_trainer("rlstep_hooks.systems.verl.rehearse.cpu.rollout", "HfCpuAdapter", "update_weights", update_weights)


# Updates


@fault(report="OpenRLHF#717", code="RLS204")
def mini_batch_dropped(at: int) -> None:
    """An accuracy filter drops the second mini-batch of the first pass."""
    on_mini_batches(at, _Without(1))


class _Without:
    """Leaves out one mini-batch; verl gets the metrics of the one before, which it changes in place."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._metrics: Any = None

    def __call__(self, number: int, train: Any, data: Any, worker: Any) -> Any:
        from verl.utils import tensordict_utils

        if number == self._number:
            return tensordict_utils.get_tensordict({}, {"metrics": self._metrics})
        result = train(data)
        self._metrics = copy.deepcopy(tensordict_utils.get(result, "metrics"))
        return result


@fault(report="verifiers PR#320", code="RLS204")
def passes_ignored(at: int) -> None:
    """ppo_epochs is silently 1, as in TinyZero."""

    def alter(data: Any) -> None:
        from verl.utils import tensordict_utils

        tensordict_utils.assign_non_tensor(data, epochs=1)

    on_training_data(at, alter)


@fault(report="CPPO#5", code="RLS202")
def mini_batch_trained_once_more(at: int) -> None:
    """The last mini-batch of a rollout is trained a second time."""

    def act(number: int, train: Any, data: Any, worker: Any) -> Any:
        result = train(data)
        return train(data) if number == 3 else result

    on_mini_batches(at, act)


@fault(report="OpenRLHF#1320", code="RLS502", variant="a sample trained 2 times in 1 pass")
def mini_batch_in_place_of_another(at: int) -> None:
    """Every second mini-batch is the one before it: counts are right, half of the samples are never trained."""
    first: list[Any] = []

    def act(number: int, train: Any, data: Any, worker: Any) -> Any:
        from verl.utils import tensordict_utils

        if number % 2 == 0:
            first[:] = [data]
        last = tensordict_utils.get(data, "update_lr_scheduler")
        tensordict_utils.assign_non_tensor(first[0], update_lr_scheduler=last)
        return train(first[0])

    on_mini_batches(at, act)


@fault(report="verl#7401", code="RLS210", variant="the loop went on without a step")
def optimizer_step_skipped(at: int) -> None:
    """A "skip bad batches" wrapper swallows an optimizer step; counters and learning rate go on."""
    on_first_step(at, _without_step)


@fault(report="verl#7401", code="RLS210", variant="the loop went on without a step")
def optimizer_step_skipped_on_one_rank(at: int) -> None:
    """The same on the second of two trainers, which go apart from there."""
    on_first_step(at, _without_step, ranks=(1,))


@fault(report="verl#7401", code="RLS210", variant="without a step of the critic")
def critic_step_skipped(at: int) -> None:
    """The same to the critic's optimizer."""
    on_first_step(at, _without_step, role="critic")


def _without_step(step: Any, engine: Any) -> Any:
    optimizer = engine.optimizer
    original, optimizer.step = optimizer.step, lambda *args, **kwargs: None
    try:
        return step()
    finally:
        optimizer.step = original


@fault(
    report="verl 0.9.1 workers/engine/fsdp/transformer_impl.py optimizer_step",
    code="RLS210",
    variant="gradient not finite",
)
def gradient_not_finite(at: int) -> None:
    """A gradient is NaN; verl skips such a step and says so in a log line only."""

    def act(step: Any, engine: Any) -> Any:
        parameter = next(p for p in engine.module.parameters() if p.grad is not None)
        parameter.grad.fill_(float("nan"))
        return step()

    on_first_step(at, act)


@fault(report="SkyRL#872", code="RLS602")
def scheduler_ticks_with_every_update(at: int) -> None:
    """The learning-rate scheduler ticks with each mini-batch and no longer once for each rollout."""

    def act(number: int, train: Any, data: Any, worker: Any) -> Any:
        result = train(data)
        worker.engine.lr_scheduler.step()
        return result

    on_mini_batches(at, act)


@fault(report="ROLL, one critic pass whatever is configured", code="RLS211")
def critic_mini_batch_dropped(at: int) -> None:
    """The critic leaves out its second mini-batch."""
    on_mini_batches(at, _Without(1), role="critic")


# Old log-probs


@fault(report="verifiers PR#320", code="RLS302")
def old_log_probs_recomputed(at: int) -> None:
    """Old log-probs are computed again for each micro-batch, with the weights of that moment."""

    def forward_step(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        if _Now.rollout == at and trains(engine, "policy") and not kwargs.get("forward_only"):
            import torch
            from verl.workers.utils.padding import response_from_nested

            micro_batch = args[0]
            with torch.no_grad():
                _, output = wrapped(micro_batch, loss_function=None, forward_only=True)
            log_probs = output["model_output"]["log_probs"]
            micro_batch["old_log_probs"] = response_from_nested(log_probs, micro_batch["response_mask"])
        return wrapped(*args, **kwargs)

    wrap_in_trainer(ENGINE, "FSDPEngineWithLMHead", "forward_step", forward_step)


@fault(report="trl#454", code="RLS305")
def old_log_probs_of_other_samples(at: int) -> None:
    """The samples' old log-probs are those of the next sample of the same length."""

    def alter(data: Any) -> None:
        import torch

        field = data["old_log_probs"]
        values, offsets = field.values().clone(), field.offsets().tolist()
        by_length: dict[int, list[slice]] = {}
        for start, end in itertools.pairwise(offsets):
            by_length.setdefault(end - start, []).append(slice(start, end))
        for rows in by_length.values():
            for row, following in zip(rows, [*rows[1:], rows[0]], strict=True):
                values[row] = field.values()[following]
        data["old_log_probs"] = torch.nested.nested_tensor_from_jagged(values, field.offsets())

    on_training_data(at, alter)


# Samples


@fault(report="verl 0.9.1, tokens altered in the buffer", code="RLS306")
def tokens_altered(at: int) -> None:
    """The completion of every sample loses its last token to another one between the refresh and the loss."""

    def alter(data: Any) -> None:
        import torch

        for name in ("responses", "input_ids"):
            field = data[name]
            values = field.values().clone()
            last = field.offsets()[1:] - 1
            values[last] = (values[last] + 1) % 250
            data[name] = torch.nested.nested_tensor_from_jagged(values, field.offsets())

    on_training_data(at, alter)


@fault(report="verl 0.9.1, samples under other names", code="RLS507")
def samples_of_no_rollout(at: int) -> None:
    """What is trained comes under names that no rollout has, as from a buffer of somebody else's."""

    def alter(data: Any) -> None:
        from verl.utils import tensordict_utils

        others = [f"other-{number}" for number in range(len(data))]
        tensordict_utils.assign_non_tensor_stack(data, "uid", others)

    on_training_data(at, alter)


# Gradients, and what is trained


@fault(report="verl 0.9.1, zero_grad left out", code="RLS803")
def zero_grad_left_out(at: int) -> None:
    """Gradients are not cleared between the updates on a rollout."""

    def optimizer_zero_grad(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        return None if _Now.rollout == at and trains(engine, "policy") else wrapped(*args, **kwargs)

    wrap_in_trainer(ENGINE, "FSDPEngine", "optimizer_zero_grad", optimizer_zero_grad)


@fault(report="verl 0.9.1, optimizer built from copies", code="RLS407")
def optimizer_holds_copies(at: int) -> None:
    """The optimizer holds copies of the parameters, so that it steps and nothing moves."""

    def build_optimizer(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        import torch

        optimizer = wrapped(*args, **kwargs)
        for group in optimizer.param_groups:
            group["params"] = [torch.nn.Parameter(weights.detach().clone()) for weights in group["params"]]
        return optimizer

    wrap_in_trainer(ENGINE, "FSDPEngine", "_build_optimizer", build_optimizer)


@fault(
    report="a setting that the trainer computes with is written to before training",
    code="RLS101",
    variant="clip_ratio_high = 0.5",
)
def clip_of_the_loss_widened(at: int) -> None:
    """The loss gets another clip range than the launch gives, before the first rollout."""

    def init_model(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        object.__setattr__(worker.actor.loss_fn.keywords["config"], "clip_ratio_high", 0.5)
        return result

    wrap_in_trainer(WORKERS, "ActorRolloutRefWorker", "init_model", init_model)


@fault(report="transformers, weights that are initialised again after they were loaded", code="RLS423", whole_run=True)
def the_policy_is_not_loaded(at: int) -> None:
    """The policy's matrices are drawn anew after they were loaded."""

    def build_module(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        module = wrapped(*args, **kwargs)
        for weights in module.parameters():
            if engine.optimizer_config and weights.dim() > 1:
                weights.data.normal_(std=0.02)
        return module

    wrap_in_trainer(ENGINE, "FSDPEngine", "_build_module", build_module)


@fault(report="a critic whose layers are initialised again", code="RLS423", variant="critic", whole_run=True)
def the_critic_is_not_loaded(at: int) -> None:
    """The critic's matrices are drawn anew after they were loaded."""

    def build_module(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        module = wrapped(*args, **kwargs)
        for name, weights in module.named_parameters():
            if hasattr(module, "score") and weights.dim() > 1 and "score" not in name:
                weights.data.normal_(std=0.02)
        return module

    wrap_in_trainer(ENGINE, "FSDPEngine", "_build_module", build_module)


@fault(report="verl 0.9.1, layers frozen by accident", code="RLS408", whole_run=True)
def layers_frozen(at: int) -> None:
    """A helper for adapters freezes the first layer of a model that is trained whole."""

    def build_module(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        module = wrapped(*args, **kwargs)
        for name, weights in module.named_parameters():
            weights.requires_grad_(not engine.optimizer_config or ".layers.0." not in name)
        return module

    wrap_in_trainer(ENGINE, "FSDPEngine", "_build_module", build_module)


@fault(report="verl 0.9.1, reference follows the policy", code="RLS411")
def reference_follows_policy(at: int) -> None:
    """The policy's weights are copied into the reference model."""

    def compute_ref_log_prob(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        import torch

        if _Now.rollout == at:
            pairs = zip(worker.ref.engine.module.parameters(), worker.actor.engine.module.parameters(), strict=True)
            with torch.no_grad():
                for mine, others in pairs:
                    mine.copy_(others)
        return wrapped(*args, **kwargs)

    wrap_in_trainer(WORKERS, "ActorRolloutRefWorker", "compute_ref_log_prob", compute_ref_log_prob)


# Rows, rewards and advantages, on the controller


def on_rollouts_of_controller(method: str, act: Callable[[int, Any, Any, Any, Any], Any]) -> None:
    """Act in place of a method that the newer trainers call once for each rollout: `act(rollout, call, trainer, args, kwargs)`."""
    rollouts = itertools.count()

    def call(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        return act(next(rollouts), wrapped, trainer, args, kwargs)

    wrap_in_controller(CONTROLLER, "PPOTrainer", method, call)


@fault(report="verl 0.9.1, uids rolled by one", code="RLS508", variant="another sum")
def names_rolled_by_one(at: int) -> None:
    """Samples are grouped under the name of the sample before them."""
    _before_advantages(at, lambda data, _: data.non_tensor_batch.update(uid=_rolled(data.non_tensor_batch["uid"])))


@fault(report="verl 0.9.1, advantages from the previous batch's rewards", code="RLS508", variant="no better advantage")
def rewards_of_the_rollout_before(at: int) -> None:
    """Advantages are computed from the rewards of the rollout before."""

    def alter(data: Any, before: Any) -> None:
        data.batch["token_level_rewards"] = data.batch["response_mask"] * before[: len(data)].unsqueeze(1)

    _before_advantages(at, alter)


def _before_advantages(at: int, alter: Callable[[Any, Any], Any]) -> None:
    """Change what advantages are computed from: `alter(data, mean rewards of the samples of the rollout before)`."""
    rollouts, before = itertools.count(), []

    def compute(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        data, rollout = args[0], next(rollouts)
        rewards = data.batch["token_level_rewards"].mean(1)
        if rollout == at:
            alter(data, before[-1])
        before[:] = [rewards]
        return wrapped(*args, **kwargs)

    if WORKER not in os.environ:
        name = "compute_advantage_for_multi_trajectories"
        wrapt.when_imported(CONTROLLER)(lambda module: wrapt.wrap_function_wrapper(module, name, compute))


def _rolled(names: Any) -> Any:
    import numpy as np

    return np.roll(names, 1)


@fault(report="verl 0.9.1, the same prompts served again", code="RLS509")
def rows_served_again(at: int) -> None:
    """A rollout gets the prompts of the one before, under new names."""
    last: list[Any] = []

    def act(rollout: int, call: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        batch = call(*args, **kwargs)
        if rollout == at:
            names = [f"again-{number}".replace("-", "") for number in range(len(batch))]
            batch = _renamed(last[0], names)
        last[:] = [batch]
        return batch

    on_rollouts_of_controller("_next_train_batch", act)


@fault(report="verl 0.9.1, validation prompts trained", code="RLS513")
def validation_rows_trained(at: int) -> None:
    """A rollout gets rows of the validation loader."""

    def act(rollout: int, call: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if rollout != at:
            return call(*args, **kwargs)
        train, trainer.train_dataloader_it = trainer.train_dataloader_it, iter(trainer.val_dataloader)
        try:
            return call(*args, **kwargs)
        finally:
            trainer.train_dataloader_it = train

    on_rollouts_of_controller("_next_train_batch", act)


def _with_sampler(replace: Callable[[Any, Any, Any], Any]) -> None:
    """Train with another sampler: `replace(create, data_config, dataset)`."""

    def create(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return replace(wrapped, *args)

    if WORKER not in os.environ:
        wrapt.when_imported(CONTROLLER)(lambda found: wrapt.wrap_function_wrapper(found, "create_rl_sampler", create))


@fault(report="verl 0.9.1, data.shuffle that does nothing", code="RLS101", variant="rows = that of the data set")
def rows_as_they_stand(at: int) -> None:
    """The rows come in the order of the file although they are to be shuffled."""

    def replace(create: Any, data_config: Any, dataset: Any) -> Any:
        from torch.utils.data import SequentialSampler

        return SequentialSampler(dataset)

    _with_sampler(replace)


@fault(report="verl 0.9.1, data.seed that does nothing", code="RLS101", variant="rows = another one")
def rows_of_another_seed(at: int) -> None:
    """The rows are shuffled by another seed than that of the configuration."""

    def replace(create: Any, data_config: Any, dataset: Any) -> Any:
        from omegaconf import OmegaConf

        return create(OmegaConf.merge(data_config, {"seed": data_config.seed + 1}), dataset)

    _with_sampler(replace)


@fault(
    report="verl 0.9.1, data_loader_seed that does nothing",
    code="RLS101",
    variant="order of the samples in mini-batches",
)
def mini_batches_by_another_seed(at: int) -> None:
    """The samples of a rollout are shuffled by another seed than that of the configuration."""

    def alter(data: Any) -> None:
        from verl.utils import tensordict_utils

        tensordict_utils.assign_non_tensor(data, seed=1)

    on_training_data(at, alter)


@fault(report="verl 0.9.1, validations that stop", code="RLS101", variant="evaluations that are due")
def validations_left_out(at: int) -> None:
    """From a rollout on nothing is validated."""
    _without(at, "test_freq")


@fault(report="verl 0.9.1, checkpoints that stop", code="RLS101", variant="checkpoints that are due")
def checkpoints_left_out(at: int) -> None:
    """From a rollout on nothing is saved."""
    _without(at, "save_freq")


def _without(at: int, setting: str) -> None:
    def act(rollout: int, call: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        if rollout == at:
            trainer.config.trainer[setting] = -1
        return call(*args, **kwargs)

    on_rollouts_of_controller("_next_train_batch", act)


@fault(
    report="verl 0.9.1, a validation at the temperature of the training",
    code="RLS101",
    variant="val_kwargs.temperature, in evaluations = ",
)
def validation_at_another_temperature(at: int) -> None:
    """Validations sample at the temperature of the training."""

    async def run(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        trajectory = kwargs["trajectory"] if "trajectory" in kwargs else args[1]
        if trajectory["validate"]:
            args = ({**args[0], "temperature": 1.0}, *args[1:])
        return await wrapped(*args, **kwargs)

    wrap_in_controller("verl.experimental.agent_loop.agent_loop", "AgentLoopWorker", "_run_agent_loop", run)


def _renamed(batch: Any, names: list[str]) -> Any:
    from verl.utils import tensordict_utils

    batch = batch.clone()
    batch.pop("uid")
    tensordict_utils.assign_non_tensor_stack(batch, "uid", names)
    return batch


# Numbers: from rewards to weights


def on_advantages(at: int, alter: Callable[[Any], None]) -> None:
    """Change what the advantages of a rollout were computed as: `alter` gets verl's data with them."""
    rollouts = itertools.count()

    def compute(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        data = wrapped(*args, **kwargs)
        if next(rollouts) == at:
            alter(data)
        return data

    if WORKER not in os.environ:
        name = "compute_advantage_for_multi_trajectories"
        wrapt.when_imported(CONTROLLER)(lambda found: wrapt.wrap_function_wrapper(found, name, compute))


def scores_of(data: Any) -> tuple[Any, Any]:
    """Rewards of samples, and a number for each one's prompt."""
    import torch

    numbers: dict[str, int] = {}
    names = [numbers.setdefault(str(name), len(numbers)) for name in data.non_tensor_batch["uid"]]
    return data.batch["token_level_rewards"].sum(-1), torch.tensor(names)


def spread(data: Any, scores: Any) -> None:
    """Give all tokens of a sample its advantage."""
    data.batch["advantages"] = scores[:, None] * data.batch["response_mask"]


@fault(report="a sign lost", code="RLS516", variant="of the opposite sign")
def advantages_negated(at: int) -> None:
    """The advantages of a rollout have the opposite sign."""

    def alter(data: Any) -> None:
        data.batch["advantages"] = -data.batch["advantages"]

    on_advantages(at, alter)


@fault(report="TRL, scale_rewards=batch", code="RLS516", variant="the standard deviation of the whole rollout")
def deviation_of_the_rollout(at: int) -> None:
    """Advantages are divided by the standard deviation of the rollout, and not of the group."""

    def alter(data: Any) -> None:
        import torch

        scores, prompts = scores_of(data)
        means = torch.stack([scores[prompts == prompt].mean() for prompt in prompts])
        spread(data, (scores - means) / (scores.std() + 1e-6))

    on_advantages(at, alter)


@fault(report="verl, names that are not those of prompts", code="RLS516", variant="groups shifted by one sample")
def groups_shifted(at: int) -> None:
    """Each group has the last sample of the group before it."""

    def alter(data: Any) -> None:
        import torch

        scores, prompts = scores_of(data)
        prompts = prompts.roll(1)
        groups = [scores[prompts == prompt] for prompt in prompts]
        means = torch.stack([group.mean() for group in groups])
        spread(data, (scores - means) / (torch.stack([group.std() for group in groups]) + 1e-6))

    on_advantages(at, alter)


@fault(report="gae arguments in the wrong order", code="RLS516", variant="gamma and lambda swapped")
def gamma_and_lambda_swapped(at: int) -> None:
    """GAE gets lambda for gamma and gamma for lambda."""
    rollouts = itertools.count()

    def compute(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        if next(rollouts) == at:
            kwargs = {**kwargs, "gamma": kwargs["lam"], "lam": kwargs["gamma"]}
        return wrapped(*args, **kwargs)

    if WORKER not in os.environ:
        wrapt.when_imported("verl.trainer.ppo.ray_trainer")(
            lambda found: wrapt.wrap_function_wrapper(found, "compute_advantage", compute)
        )


@fault(report="torchtune#2792", code="RLS517", variant="other values")
def advantages_altered_before_training(at: int) -> None:
    """The advantages of a mini-batch's samples are set to others before they are trained."""

    def alter(data: Any) -> None:
        for row in data["advantages"].unbind():
            row.mul_(-1)

    on_training_data(at, alter)


def between_hooks(at: int, act: Callable[[Callable[[], Any], Any], Any], role: str = "policy") -> None:
    """Act around torch's own step of a role's optimizer on a rollout: `act(step, optimizer)`."""

    def optimizer_step(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        if _Now.rollout != at or not trains(engine, role):
            return wrapped(*args, **kwargs)
        import torch

        optimizer = engine.optimizer
        plain = type(optimizer).step
        plain = getattr(plain, "__wrapped__", plain)

        def step(given: Any, *more: Any, **named: Any) -> Any:
            return act(lambda: plain(given, *more, **named), given)

        had = vars(optimizer).get("step")
        optimizer.step = torch.optim.Optimizer.profile_hook_step(step).__get__(optimizer)
        try:
            return wrapped(*args, **kwargs)
        finally:
            del optimizer.step
            if had is not None:
                optimizer.step = had

    wrap_in_trainer(ENGINE, "FSDPEngine", "optimizer_step", optimizer_step)


@fault(report="weights written after the step", code="RLS806", variant="2 times the step")
def step_twice_as_far(at: int) -> None:
    """Each step of a rollout is made twice as far."""
    between_hooks(at, twice_as_far)


def twice_as_far(step: Callable[[], Any], optimizer: Any) -> Any:
    """Make a step, and once more what it changed."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in held]
    result = step()
    for p, old in zip(held, before, strict=True):
        p.data.add_(p.data - old)
    return result


@fault(report="an optimizer offloaded and made anew", code="RLS807", variant="others among those")
def moments_cleared(at: int) -> None:
    """The moments are set to 0 before the first step of a rollout."""

    def act(step: Callable[[], Any], engine: Any) -> Any:
        for state in engine.optimizer.state.values():
            state["exp_avg"].zero_()
        return step()

    on_first_step(at, act)


@fault(report="a clip that does not act", code="RLS808")
def norm_above_its_limit(at: int) -> None:
    """Gradients are fifty times as large after the clip."""

    def clip(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        parameters = list(args[0])
        result = wrapped(parameters, *args[1:], **kwargs)
        if _Now.rollout == at:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(50)
        return result

    if WORKER in os.environ:
        wrapt.when_imported(ENGINE)(lambda found: wrapt.wrap_function_wrapper(found, "fsdp2_clip_grad_norm_", clip))


@fault(report="a second scheduler", code="RLS605")
def rate_of_another_schedule(at: int) -> None:
    """Something halves the rate before the first step of a rollout; the scheduler sets it again after the rollout."""

    def act(step: Callable[[], Any], engine: Any) -> Any:
        for group in engine.optimizer.param_groups:
            group["lr"] *= 0.5
        return step()

    on_first_step(at, act)


# Loss and mask


def on_forward(at: int, act: Callable[[Any, Any], Any], role: str = "policy") -> None:
    """Change what a forward of training gives on a rollout: `act(loss, output)` returns both."""

    def forward_step(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        here = _Now.rollout == at and trains(engine, role) and not kwargs.get("forward_only")
        return act(*result) if here else result

    wrap_in_trainer(ENGINE, "FSDPEngineWithLMHead", "forward_step", forward_step)


@fault(report="ms-swift#10116", code="RLS801", variant="0.25 times")
def loss_divided_by_four(at: int) -> None:
    """The loss of each micro-batch is a quarter of what it should be."""
    on_forward(at, lambda loss, output: (loss / 4, output))


def in_loss(at: int, name: str, wrapper: Callable[[Any, Any, Any], Any]) -> None:
    """Act in place of a function that verl's policy loss calls, on a rollout: `wrapper(function, args, kwargs)`."""

    def call(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return wrapper(wrapped, args, kwargs) if _Now.rollout == at else wrapped(*args, **kwargs)

    if WORKER in os.environ:
        wrapt.when_imported(LOSSES)(lambda found: wrapt.wrap_function_wrapper(found, name, call))


@fault(report="TinyZero, dp_actor.py:267", code="RLS801", variant="times that")
def loss_sign_flipped(at: int) -> None:
    """The policy's loss has the wrong sign."""

    def get(function: Any, args: Any, kwargs: Any) -> Any:
        loss = function(*args, **kwargs)

        def flipped(**given: Any) -> Any:
            value, numbers = loss(**given)
            return -value, numbers

        return flipped

    in_loss(at, "get_policy_loss_fn", get)


@fault(report="verl 0.9.1, KL loss configured and not added", code="RLS801", variant="times that")
def kl_term_left_out(at: int) -> None:
    """The KL term of the loss is 0."""
    in_loss(at, "kl_penalty", lambda function, args, kwargs: function(*args, **kwargs) * 0)


@fault(report="torchtune#2792", code="RLS801")
def last_token_left_out_of_the_loss(at: int) -> None:
    """The policy's loss is aggregated without the last token of each completion."""

    def aggregate(function: Any, args: Any, kwargs: Any) -> Any:
        loss = function(*args, **kwargs)

        def shortened(**given: Any) -> Any:
            return loss(**given | {"response_mask": without_last(given["response_mask"])})

        return shortened

    in_loss(at, "get_policy_loss_fn", aggregate)


def without_last(mask: Any) -> Any:
    """A padded mask without the last token of each row."""
    return mask & (mask.cumsum(-1) < mask.sum(-1, keepdim=True))


@fault(report="torchtune#2792", code="RLS804")
def last_token_masked(at: int) -> None:
    """The mask of the samples leaves out the last token of each completion before they are trained."""

    def alter(data: Any) -> None:
        for row in data["response_mask"].unbind():
            row[-1] = 0

    on_training_data(at, alter)


@fault(report="ms-swift#10117", code="RLS805", variant="0.5 times")
def backward_of_half_the_loss(at: int) -> None:
    """Half of the loss goes into the backward."""
    if WORKER in os.environ:
        import torch

        def backward(wrapped: Any, loss: Any, args: Any, kwargs: Any) -> Any:
            return wrapped.__func__(loss / 2 if _Now.rollout == at else loss, *args, **kwargs)

        wrapt.wrap_function_wrapper(torch, "Tensor.backward", backward)


# Checkpoints


@fault(report="verl 0.9.1, a checkpoint in half precision", code="RLS703", variant="other weights")
def checkpoint_rounded(at: int) -> None:
    """The checkpoint of a rollout has the weights rounded to bfloat16."""
    import torch

    def rounded(engine: Any) -> Any:
        state = engine.module.state_dict()
        return engine.module, {name: of.to(torch.bfloat16).to(of.dtype) for name, of in state.items()}

    _saves(at, rounded)


@fault(report="verl 0.9.1, a checkpoint with cleared moments", code="RLS703", variant="other moments")
def checkpoint_without_moments(at: int) -> None:
    """The checkpoint of a rollout has moments of 0."""

    def cleared(engine: Any) -> Any:
        state = engine.optimizer.state_dict()
        moments = {
            place: {name: of if name == "step" else of * 0 for name, of in kept.items()}
            for place, kept in state["state"].items()
        }
        return engine.optimizer, {**state, "state": moments}

    _saves(at, cleared)


def _saves(at: int, other: Callable[[Any], tuple[Any, Any]]) -> None:
    """What `other` gives has another state while the checkpoint of a rollout is made."""

    def save_checkpoint(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        if _Now.rollout != at:
            return wrapped(*args, **kwargs)
        owner, state = other(engine)
        with mock.patch.object(owner, "state_dict", return_value=state):
            return wrapped(*args, **kwargs)

    wrap_in_trainer(ENGINE, "FSDPEngine", "save_checkpoint", save_checkpoint)


# A resumed run


@fault(
    report="verl 0.9.1, checkpoint not loaded on resume",
    code="RLS702",
    variant="from before the checkpoint",
    whole_run=True,
)
def checkpoint_not_loaded(at: int) -> None:
    """The engine loads nothing, and the step counter goes on."""

    def load_checkpoint(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        return None

    wrap_in_trainer(ENGINE, "FSDPEngine", "load_checkpoint", load_checkpoint)


@fault(report="verl 0.9.1, loader not restored on resume", code="RLS702", variant="0", whole_run=True)
def loader_begins_anew(at: int) -> None:
    """The position of the loader is not restored."""

    def load_state_dict(wrapped: Any, loader: Any, args: Any, kwargs: Any) -> Any:
        return None

    wrap_in_controller(
        "torchdata.stateful_dataloader.stateful_dataloader", "StatefulDataLoader", "load_state_dict", load_state_dict
    )


# Weights of the rollout engine


@fault(report="rllm#291", code="RLS405", shows_after=1)
def sync_left_out(at: int) -> None:
    """The weight sync after a rollout does nothing, on the controller."""
    syncs = itertools.count(-1)

    def update_weights(wrapped: Any, manager: Any, args: Any, kwargs: Any) -> Any:
        return {} if next(syncs) == at else wrapped(*args, **kwargs)

    wrap_in_controller("verl.checkpoint_engine.base", "CheckpointEngineManager", "update_weights", update_weights)


@fault(report="trl#5312", code="RLS402", shows_after=1)
def engine_keeps_old_weights(at: int) -> None:
    """The sync is made and the engine drops it: it goes on under its old weights and their label."""

    async def act(sync: Any, weights: Any, kwargs: dict[str, Any]) -> None:
        async for _ in _each(weights):
            pass

    on_sync(at, act)


@fault(report="trl#5312", code="RLS403", shows_after=1)
def weights_lost(at: int) -> None:
    """The engine takes the label of the new weights and samples from others."""

    async def act(sync: Any, weights: Any, kwargs: dict[str, Any]) -> None:
        import torch

        others = [(name, torch.zeros_like(tensor)) async for name, tensor in _each(weights)]
        await sync(iter(others), **kwargs)

    on_sync(at, act)


async def _each(weights: Any) -> Any:
    from verl.workers.rollout.utils import ensure_async_iterator

    async for item in ensure_async_iterator(weights):
        yield item


# Processes


@fault(report="verl 0.9.1 __init__.py swallows what a plugin raises", code="RLS901", whole_run=True)
def worker_never_attached(at: int) -> None:
    """The second trainer runs without the variable that asks for the audit."""
    if WORKER in os.environ and os.environ.get("RANK") == "1":
        os.environ.pop("RLSTEP_DIR", None)


def asked_for() -> list[tuple[Fault, int]]:
    """The faults that the environment names, with their rollouts."""
    named = [item.split("@") for item in os.environ.get(FAULTS_VARIABLE, "").split(",") if item]
    return [(FAULTS[name], int(rollout)) for name, rollout in named]


def asking(faults: dict[str, int]) -> dict[str, str]:
    """The environment that makes faults: name -> rollout."""
    return {FAULTS_VARIABLE: ",".join(f"{name}@{rollout}" for name, rollout in faults.items())}


def make_faults() -> None:
    """Make what the environment names, in this process."""
    faults = asked_for()
    if faults:
        # Each rollout is compared, so that each can have a fault.
        cadence.ALL_OF_FIRST = 1 << 30
        count_rollouts()
    for found, rollout in faults:
        found.apply(rollout)


from tests.systems.verl import (  # noqa: E402 - register their faults with what is defined above
    alone_faults,  # noqa: F401
    configured_faults,  # noqa: F401
    engine_faults,  # noqa: F401
    number_faults,  # noqa: F401
    rank_faults,  # noqa: F401
    scoring_faults,  # noqa: F401
    update_faults,  # noqa: F401
)

make_faults()
