"""More of the fault corpus of verl (`tests.systems.verl.faults`): a run that is consistent, and not the one that was configured."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import wrapt

from tests.systems.verl.faults import (
    CONTROLLER,
    ENGINE,
    WORKER,
    Callable,
    fault,
    on_rollouts_of_controller,
    wrap_in_controller,
    wrap_in_trainer,
)
from tests.systems.verl.scoring_faults import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Mapping

MANAGER = "verl.trainer.ppo.v1.agent_loop_tq"

# Validations


@fault(report="verl 0.9.1, a validation with the samples of the training", code="RLS101", variant="val_kwargs.n")
def validation_with_fewer_samples(at: int) -> None:
    """Validations draw two samples of each prompt, as training does."""

    def generate(wrapped: Any, manager: Any, args: Any, kwargs: Any) -> Any:
        from verl.utils import tensordict_utils

        prompts = args[0]
        if "validate" in prompts.keys() and bool(prompts["validate"]):  # noqa: SIM118 - a TensorDict iterates over rows
            tensordict_utils.assign_non_tensor_stack(prompts, "__rollout_n__", [2] * len(prompts))
        return wrapped(*args, **kwargs)

    wrap_in_controller(MANAGER, "AgentLoopManagerTQ", "generate_sequences", generate)


@fault(report="a loop that returns within its first turn", code="RLS101", variant="rows of an evaluation = ")
def validation_of_the_first_batch(at: int) -> None:
    """Of the validation set only the first batch is looked at."""

    def act(rollout: int, call: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        loader, trainer.val_dataloader = trainer.val_dataloader, [next(iter(trainer.val_dataloader))]
        try:
            return call(*args, **kwargs)
        finally:
            trainer.val_dataloader = loader

    on_rollouts_of_controller("_validate", act)


# Optimizer and schedule


@fault(report="an epsilon of another run", code="RLS101", variant="optim.eps = 0.001")
def epsilon_of_another_run(at: int) -> None:
    """The optimizer is built with another epsilon than torch's own, which is meant where none is configured."""

    def build(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        optimizer = wrapped(*args, **kwargs)
        for group in optimizer.param_groups:
            group["eps"] = 1e-3
        return optimizer

    wrap_in_trainer(ENGINE, "FSDPEngine", "_build_optimizer", build)


@fault(report="alibaba/ROLL#407", code="RLS601", variant="horizon 4", whole_run=True)
def schedule_of_half_the_run(at: int) -> None:
    """The schedule of the learning rate is built for half of the rollouts."""

    def build(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        own = engine.optimizer_config
        object.__setattr__(own, "total_training_steps", own.total_training_steps // 2)
        return wrapped(*args, **kwargs)

    wrap_in_trainer(ENGINE, "FSDPEngine", "_build_lr_scheduler", build)


# Requests


@fault(report="a penalty left in a sampler", code="RLS101", variant="frequency_penalty of requests")
def penalty_asked_of_the_engine(at: int) -> None:
    """Sessions of a rollout ask the engine to draw tokens less often that it drew before. This one does not know how."""
    _asked_by_sessions(at, {"frequency_penalty": 0.5})


@fault(report="sampling of an evaluation left in training", code="RLS101", variant="rollout.temperature = 0.0")
def greedy_requests(at: int) -> None:
    """Sessions of a rollout ask for the most probable tokens, as those of an evaluation do by default."""
    _asked_by_sessions(at, {"temperature": 0, "top_p": 1.0, "top_k": -1})


def _asked_by_sessions(at: int, sampling: Mapping[str, float]) -> None:
    begun = itertools.count()

    async def run(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        if next(begun) // SAMPLES == at:
            args = ({**args[0], **sampling}, *args[1:])
        return await wrapped(*args, **kwargs)

    wrap_in_controller("verl.experimental.agent_loop.agent_loop", "AgentLoopWorker", "_run_agent_loop", run)


# Samples that a correction rejects


def _behind_the_correction(at: int, change: Callable[[Any, Any], Any]) -> None:
    """Change the masks of a rollout: `change` gets those behind the rejection and those before it."""
    made = [-1]

    def correct(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        made[0] += 1
        before = args[0].batch["response_mask"].clone()
        data, metrics = wrapped(*args, **kwargs)
        if made[0] == at:
            data.batch["response_mask"] = change(data.batch["response_mask"], before)
        return data, metrics

    if WORKER not in os.environ:
        name = "compute_rollout_correction_and_add_to_batch"
        wrapt.when_imported(CONTROLLER)(lambda found: wrapt.wrap_function_wrapper(found, name, correct))


@fault(report="a mask that is computed and not used", code="RLS518", variant="nothing is taken out")
def rejection_left_out(at: int) -> None:
    """What the correction rejects is trained all the same."""
    _behind_the_correction(at, lambda mask, before: before)


@fault(report="a mask of other samples", code="RLS518", variant="other tokens are taken out")
def rejection_of_other_samples(at: int) -> None:
    """What is rejected of each sample is taken out of the next one."""
    _behind_the_correction(at, lambda mask, before: before * (1 - (before - mask).roll(1, 0)).clamp(min=0))
