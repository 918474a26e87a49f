"""Faults of V1's separate_async and of one_step_off_policy: queue, age, syncs, old log-probs and the weights of samples.

verl imports this module in every process; `RLSTEP_TEST_SEPARATE_FAULTS=name@rollout,...` says which faults to make and when.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import wrapt

from tests.systems.verl.faults import CONTROLLER, WORKER, WORKERS, wrap_in_controller, wrap_in_trainer

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "RLSTEP_TEST_SEPARATE_FAULTS"
MODULE = __name__
PARTS = 2
"""Parts of a rollout in the runs that these faults are made in."""

BUFFER = "verl.trainer.ppo.v1.replay_buffer"
SEPARATION = "verl.experimental.separation.engine_workers"


@dataclass(frozen=True)
class SeparateFault:
    """One mistake, and where it must be found."""

    report: str
    """The report it reproduces, as in its own tracker."""
    code: str
    """The rule that names it."""
    apply: Callable[[int], None]
    """Makes it at a rollout; called once in each process."""
    variant: str
    """A part of what the finding says was observed."""
    shows_after: int
    """Rollouts from the fault to its first wrong event."""
    lasts: int
    """Rollouts after that in which it still shows: prompts wait in the queue."""


FAULTS: dict[str, SeparateFault] = {}
"""Of separate_async."""
ONE_STEP_OFF: dict[str, SeparateFault] = {}
"""Of one_step_off_policy."""


def fault(
    *,
    report: str,
    code: str,
    variant: str,
    shows_after: int = 0,
    lasts: int = 0,
    of: dict[str, SeparateFault] = FAULTS,
) -> Callable[..., Any]:
    """Register a function as a fault under its own name."""

    def register(apply: Callable[[int], None]) -> Callable[[int], None]:
        of[apply.__name__] = SeparateFault(report, code, apply, variant, shows_after, lasts)
        return apply

    return register


def on_taken(at: int, method: str, act: Callable[[Any, Callable[..., Any], Any, Any], Any]) -> None:
    """Act in place of a method of the replay buffer, at each part of a rollout: `act(buffer, method, args, kwargs)`."""
    parts = itertools.count()

    def call(wrapped: Any, buffer: Any, args: Any, kwargs: Any) -> Any:
        if next(parts) // PARTS != at:
            return wrapped(*args, **kwargs)
        return act(buffer, wrapped, args, kwargs)

    wrap_in_controller(BUFFER, "ReplayBuffer", method, call)


@fault(report="AReaL#1388", code="RLS402", variant="behind")
def bound_on_age_not_applied(at: int) -> None:
    """The replay buffer takes prompts of any age at one rollout."""
    parts = itertools.count()

    def sample(wrapped: Any, buffer: Any, args: Any, kwargs: Any) -> Any:
        if next(parts) // PARTS != at:
            return wrapped(*args, **kwargs)
        bound, buffer.max_off_policy_threshold = buffer.max_off_policy_threshold, 1000
        try:
            return wrapped(*args, **kwargs)
        finally:
            buffer.max_off_policy_threshold = bound

    wrap_in_controller(BUFFER, "ReplayBufferAsync", "sample", sample)


@fault(report="verl 0.9.1, prompts not cleared", code="RLS520", variant="taken a second time")
def prompts_taken_again(at: int) -> None:
    """Prompts of the rollout before stay in the queue with their samples, and are taken for this one."""
    taken, selections = itertools.count(), itertools.count()
    kept: list[str] = []

    def materialize(wrapped: Any, buffer: Any, args: Any, kwargs: Any) -> Any:
        import transfer_queue as tq

        batch, part = wrapped(*args, **kwargs), next(taken)
        if part == at * PARTS - 1:
            kept.extend(args[1])
            latest = max(buffer.prompt_global_steps[args[0]].values())
            tags = [{"is_prompt": True, "status": "finished", "global_steps": latest} for _ in kept]
            tq.kv_batch_put(keys=list(kept), partition_id=args[0], tags=tags)
        elif part == at * PARTS:
            kept.clear()
        return batch

    def select(wrapped: Any, buffer: Any, args: Any, kwargs: Any) -> Any:
        selected, stored, steps = wrapped(*args, **kwargs)
        first = kept if next(selections) == at * PARTS else []
        return [*first, *(uid for uid in selected if uid not in first)][: len(selected)], stored, steps

    def clear(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        keys = [key for key in kwargs["keys"] if "_" not in key or key.split("_")[0] not in kept]
        return wrapped(**{**kwargs, "keys": keys}) if keys else None

    wrap_in_controller(BUFFER, "ReplayBuffer", "_materialize_batch", materialize)
    wrap_in_controller(BUFFER, "ReplayBuffer", "_select_prompt_uids", select)
    if WORKER not in os.environ:
        wrapt.when_imported("transfer_queue")(lambda found: wrapt.wrap_function_wrapper(found, "kv_clear", clear))


@fault(report="AReaL#1388", code="RLS520", variant="lost")
def prompts_lost_in_the_queue(at: int) -> None:
    """Two prompts vanish from the queue while others are taken."""
    first = itertools.count()

    def act(buffer: Any, select: Any, args: Any, kwargs: Any) -> Any:
        import transfer_queue as tq

        selected, stored, steps = select(*args, **kwargs)
        partition, sampleable, _ = args
        if next(first) == 0:
            left = sorted(sampleable - set(selected))[:2]
            keys = [key for key in stored if key.split("_")[0] in left]
            tq.kv_clear(partition_id=partition, keys=[*left, *keys])
        return selected, stored, steps

    on_taken(at, "_select_prompt_uids", act)


@fault(report="SkyRL#1870", code="RLS312", variant="all of them 1")
def weights_all_one(at: int) -> None:
    """The importance weights of a rollout are all 1: the correction gets the trainer's own log-probs for the engine's."""
    parts = itertools.count()

    def compute(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        data, metrics = wrapped(*args, **kwargs)
        if next(parts) // PARTS == at:
            data.batch["rollout_is_weights"] = data.batch["response_mask"].to(data.batch["old_log_probs"].dtype)
        return data, metrics

    if WORKER not in os.environ:
        name = "compute_rollout_correction_and_add_to_batch"
        wrapt.when_imported(CONTROLLER)(lambda found: wrapt.wrap_function_wrapper(found, name, compute))


@fault(report="rllm#291", code="RLS405", variant="no sync", shows_after=1, lasts=3)
def sync_left_out(at: int) -> None:
    """The sync of weights after a rollout does nothing, on the controller."""

    def update_weights(wrapped: Any, manager: Any, args: Any, kwargs: Any) -> Any:
        label = args[0] if args else kwargs.get("global_steps")
        return {} if label == at + 1 and manager.backend != "naive" else wrapped(*args, **kwargs)

    wrap_in_controller("verl.checkpoint_engine.base", "CheckpointEngineManager", "update_weights", update_weights)


@fault(report="verl#7495", code="RLS402", variant="of older weights", shows_after=1, lasts=3)
def engine_keeps_old_weights(at: int) -> None:
    """The sync is made and the engine drops it: it goes on under its old weights and their label."""

    async def update_weights(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> None:
        if kwargs.get("global_steps") != at + 1:
            await wrapped(*args, **kwargs)
            return
        async for _ in args[0]:
            pass

    wrap_in_trainer("rlstep_hooks.systems.verl.rehearse.cpu.rollout", "HfCpuAdapter", "update_weights", update_weights)


@fault(report="verl 0.9.1, old log-probs of later weights", code="RLS302", variant="exactly 1")
def saved_weights_not_put_into_place(at: int) -> None:
    """Old log-probs of the second part of a rollout are those of the current weights: the saved ones are not put into place."""
    parts = itertools.count()
    now = [-1]

    def compute_log_prob(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        now[0] = next(parts)
        return wrapped(*args, **kwargs)

    def restore(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        # Called before the log-probs of the second part, and after them.
        inside = (now[0] + 1) // PARTS == at and (now[0] + 1) % PARTS == 1
        return None if inside else wrapped(*args, **kwargs)

    wrap_in_trainer(WORKERS, "ActorRolloutRefWorker", "compute_log_prob", compute_log_prob)
    wrap_in_trainer(SEPARATION, "DetachActorWorker", "restore_model_from_cpu", restore)


@fault(report="rllm#291", code="RLS405", variant="no sync", lasts=1, of=ONE_STEP_OFF)
def sync_before_updates_left_out(at: int) -> None:
    """The sync before the updates of a rollout does nothing, on the controller."""
    sync_left_out(at)


@fault(report="verl#7495", code="RLS402", variant="behind", shows_after=1, of=ONE_STEP_OFF)
def engine_two_rollouts_behind(at: int) -> None:
    """The sync before the updates of a rollout is made, and the engine drops it: the rollout after it comes from older weights."""
    engine_keeps_old_weights(at)


@fault(report="SkyRL#1870", code="RLS312", variant="all of them 1", of=ONE_STEP_OFF)
def weights_of_a_rollout_all_one(at: int) -> None:
    """The importance weights of a rollout are all 1."""
    rollouts = itertools.count()

    def compute(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        data, metrics = wrapped(*args, **kwargs)
        if next(rollouts) == at:
            data.batch["rollout_is_weights"] = data.batch["response_mask"].to(data.batch["old_log_probs"].dtype)
        return data, metrics

    if WORKER not in os.environ:
        name, helper = "compute_rollout_correction_and_add_to_batch", "verl.trainer.ppo.rollout_corr_helper"
        wrapt.when_imported(helper)(lambda found: wrapt.wrap_function_wrapper(found, name, compute))


def asking(faults: dict[str, int]) -> dict[str, str]:
    """The environment that makes faults: name -> rollout."""
    return {VARIABLE: ",".join(f"{name}@{rollout}" for name, rollout in faults.items())}


def make_faults() -> None:
    """Make what the environment names, in this process."""
    for item in filter(None, os.environ.get(VARIABLE, "").split(",")):
        name, rollout = item.split("@")
        (FAULTS | ONE_STEP_OFF)[name].apply(int(rollout))


make_faults()
